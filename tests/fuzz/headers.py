"""Readers of what stands around a body: negotiation, ranges, content codings, multipart forms, paths, deadlines."""

import gzip
import zlib

from service.errors import InlayError
from service.wire.formats import OFFERS, negotiate
from service.wire.multipart import parts_of
from service.wire.positions import ranges
from service.wire.transport import bodies, codings, negotiation, paths, request_ids
from tests.fuzz.judging import Target

MOST_DECODED = 1 << 16
BOUNDARY = b"multipart/form-data; boundary=x"
FORM = (
    b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n\x89PNG\r\n'
    b'--x\r\nContent-Disposition: form-data; name="outputs"\r\n\r\na,b\r\n--x--\r\n'
)
ACCEPTS = (
    b"application/json",
    b"application/x-npy;q=0.5, application/*;q=0.1, */*;q=0",
    b"application/octet-stream ; q = 1",
    b"gzip, deflate, br, zstd",
    b"zstd;q=1, identity;q=0, *;q=0.5",
    b"x-gzip, deflate",
    b"bytes=0-9",
    b"bytes=-5",
)


async def _app(scope: object, receive: object, send: object) -> None:
    raise NotImplementedError


PATHS = paths.Paths()
for each in ("/", "/embed", "/models/{name}", "/models/{name}/versions/{version}/infer", "/models/stats"):
    PATHS.add(each, ("GET",), _app)


def _header(data: bytes) -> None:
    """Every reader of one header."""
    for read in (negotiate, lambda value: negotiate(value, OFFERS[::-1]), bodies.codings, *_choices()):
        try:
            read(data)
        except InlayError:
            continue
    for size in (0, 1, 1000, 1 << 40):
        try:
            found = ranges.wanted(data.decode("latin-1"), size)
        except InlayError:
            continue
        assert found is None or 0 <= found[0] < found[1] <= size
    assert request_ids.request_id(data).isascii()


def _choices() -> list[object]:
    return [
        lambda value, policy=policy, kind=kind: negotiation.choose(value, policy, kind)
        for policy in ("asked", "always", "never")
        for kind in ("document", "vectors", "tensors")
    ]


def _path(data: bytes) -> None:
    path = "/" + data.decode("latin-1")
    found = PATHS.find("GET", path)
    assert not found or not found.parameters or all(found.parameters.values())
    PATHS.methods(path)


def _coding(data: bytes) -> None:
    """1 byte picks the coding. What is decoded never passes the bound."""
    names = list(codings.CODINGS)
    found = codings.decode(names[(data[:1] or b"\0")[0] % len(names)], data[1:], MOST_DECODED)
    assert len(found) <= MOST_DECODED


def _coding_seeds() -> list[bytes]:
    found, plain = [], b"hello world " * 20
    for index, name in enumerate(codings.CODINGS):
        for floats in (True, False):
            found.append(bytes([index]) + codings.Encoder(name, floats=floats).last([plain]))
    bomb = bytes(1 << 20)
    return [*found, b"\1" + gzip.compress(bomb), b"\2" + zlib.compress(bomb), b"\1" + gzip.compress(plain) * 2]


def _form(data: bytes) -> None:
    """The content type up to the first line feed, then the body."""
    kind, _, body = data.partition(b"\n")
    parts_of(kind.decode("latin-1"), body)


TARGETS = {
    "headers": Target(
        _header, lambda: list(ACCEPTS), words=(b";q=", b"*/*", b"*", b",", b"bytes=", b"identity", b"nan")
    ),
    "paths": Target(_path, lambda: [b"embed", b"models/a/versions/1/infer", b"models//x", b"%00/../x"]),
    "content codings": Target(_coding, _coding_seeds, (codings.Broken, codings.TooLong)),
    "multipart form": Target(
        _form,
        lambda: [BOUNDARY + b"\n" + FORM, BOUNDARY + b"\npreamble\r\n" + FORM],
        words=(
            b"\r\n--x",
            b"--x--",
            b"Content-Disposition: form-data; ",
            b'name="',
            b"filename*=",
            b'\\"',
            b"\r\n\r\n",
        ),
    ),
}
