"""Multipart bodies: what httpx and the standard library write is read, bytes stay bytes, broken ones are refused."""

import email.mime.application
import email.mime.multipart

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import Malformed
from service.http.multipart import FormPart, parts_of


def written(**files: tuple[str | None, bytes]) -> tuple[str, bytes]:
    """As httpx writes a form."""
    request = httpx.Request("POST", "http://x", files=files)
    return request.headers["content-type"], request.read()


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=4))
def test_keeps_every_byte(values: list[bytes]) -> None:
    files = {f"file{index}": (f"{index}.png", value) for index, value in enumerate(values)}
    assert [part.data for part in parts_of(*written(**files))] == values


def test_tells_files_from_fields() -> None:
    parts = parts_of(*written(image=('a b;"c".png', b"\r\n--x\r\n"), dtype=(None, b"float16")))
    assert parts == [FormPart("image", True, b"\r\n--x\r\n"), FormPart("dtype", False, b"float16")]


def test_ignores_preamble_spaces_and_epilogue() -> None:
    body = b'before\r\n--b \r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--b--\r\nafter'
    assert parts_of("multipart/form-data; boundary=b", body) == [FormPart("a", False, b"1")]


def test_reads_a_quoted_boundary() -> None:
    body = b"--a b\r\ncontent-disposition: form-data; name=x\r\n\r\n\r\n--a b--"
    assert parts_of('multipart/form-data; boundary="a b"', body) == [FormPart("x", False, b"")]


def test_reads_what_the_standard_library_writes() -> None:
    form = email.mime.multipart.MIMEMultipart("form-data", boundary="bound")
    part = email.mime.application.MIMEApplication(b"data", _encoder=lambda message: None)
    part.add_header("Content-Disposition", "form-data", name="image", filename="ä.png")
    form.attach(part)
    body = form.as_bytes(policy=form.policy.clone(linesep="\r\n")).partition(b"\r\n\r\n")[2]
    [parsed] = parts_of(form["content-type"], body)
    assert (parsed.name, parsed.file, parsed.data) == ("image", True, b"data")


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        ("multipart/form-data", b"", "no boundary"),
        (f"multipart/form-data; boundary={'x' * 71}", b"", "no boundary"),
        ("multipart/form-data; boundary=b", b"", "not closed"),
        ("multipart/form-data; boundary=b", b"--c\r\n\r\n--c--", "not closed"),
        ("multipart/form-data; boundary=b", b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n1', "not closed"),
        ("multipart/form-data; boundary=b", b"--b\r\nno headers\r\n--b--", "not well formed: .* in header"),
        ("multipart/form-data; boundary=b", b"--b\r\nX: y\r\n\r\n1\r\n--b--", "no name"),
        (
            "multipart/form-data; boundary=b",
            b"--b\r\nX: " + b"y" * 9000 + b"\r\n\r\n1\r\n--b--",
            "header size exceeded",
        ),
        ("multipart/form-data; boundary=b", b"--b\r\n" + b"X: y\r\n" * 9 + b"\r\n1\r\n--b--", "header count exceeded"),
        ("multipart/form-data; boundary=b", b"--b\r\n\r\n\r\n" * 5000 + b"--b--", "more than 4096 parts"),
    ],
)
def test_rejects_malformed_bodies(kind: str, body: bytes, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        parts_of(kind, body)
