"""Hostile framing: the same answers, bodies and ends of connections as uvicorn gives for the same bytes.

Where they differ, a table of framing_cases.py says how and why that is safe.
"""

import pytest

from tests.service.http.framing_cases import CASES, CHUNKED, MARKER, READ, REFUSED, SAME, chunks, get, post
from tests.service.http.in_memory import Ours, through_h11, through_httptools
from tests.sweeps import sampled

MISREAD = {
    **dict.fromkeys(
        ("h2c", "h2c, body like a request", "h2c, chunks like a request", "h2c, pipelined", "h2c without a body"),
        "reads nothing behind the head",
    ),
    **dict.fromkeys(("websocket", "h2c, no such path", "websocket, no such path"), "reads nothing behind the head"),
    **dict.fromkeys(("upgrade and close", "HTTP/1.0, keep-alive, upgrade", "h2c, gzip"), "loses the body"),
    **dict.fromkeys(
        ("identity, chunked", "identity and chunked", "gzip, chunked", "comma, chunked"), "decodes no gzip"
    ),
    **dict.fromkeys(("HTTP/1.0, two hosts", "two hosts", "no host"), "reads no host"),
    "HTTP/0.9": "waits for headers",
}
"""Cases that uvicorn's httptools implementation does not answer as h11 and this server do."""


@pytest.mark.parametrize("name", sampled(SAME, 3))
async def test_answers_like_h11(name: str) -> None:
    sent = SAME[name] + MARKER
    ours = await Ours()(sent)
    assert ours == await through_h11(sent)
    assert ours.closed


@pytest.mark.parametrize("name", sampled(REFUSED, 3))
async def test_refuses_what_servers_read_differently(name: str) -> None:
    sent, _ = REFUSED[name]
    assert await Ours()(sent + MARKER) == ([(400, b"")], True, [])


@pytest.mark.parametrize("name", READ)
async def test_reads_each_request_once(name: str) -> None:
    sent, served, _ = READ[name]
    ours = await Ours()(sent + MARKER)
    bodies = [body for _, body in ours.answers]
    assert bodies in (served, [*served, b"GET /marker "])
    assert [b" ".join(request) for request in ours.requests] == bodies
    assert ours.closed


@pytest.mark.parametrize("path", [b"/", b"/fast", b"/batch"])
@pytest.mark.parametrize("name", sampled(CASES, 8))
async def test_no_cut_changes_what_is_read(name: str, path: bytes) -> None:
    """By any route, and whether the head came before or not."""
    sent = CASES[name].replace(b" / HTTP/", b" %b HTTP/" % path) + MARKER
    ours = Ours()
    whole = await ours(sent)
    assert await ours(sent) == whole
    assert await ours(*[sent[at : at + 1] for at in range(len(sent))]) == whole
    for cut in range(1, len(sent), max(len(sent) // 400, 1)):
        assert await ours(sent[:cut], sent[cut:]) == whole, (sent[:cut], sent[cut:])


@pytest.mark.parametrize("name", sampled([name for name in SAME if name not in MISREAD], 5))
async def test_answers_like_httptools(name: str) -> None:
    sent = SAME[name] + MARKER
    assert (await Ours()(sent)).answers == (await through_httptools(sent)).answers


LONG = {
    "target": get(line=b"GET /%b HTTP/1.1" % (b"a" * 100_000)),
    "header": get(b"a: %b" % (b"b" * 100_000)),
    "headers": get(*[b"a: b"] * 20_000),
    "trailers": chunks(b"0\r\n%b\r\n" % (b"a: b\r\n" * 20_000)),
    "extension": chunks(b"3;%b\r\nabc\r\n0\r\n\r\n" % (b"a" * 100_000)),
    "extensions": chunks(b"1;%b\r\na\r\n" % (b"b" * 100) * 1000 + b"0\r\n\r\n"),
    "tiny chunks": chunks(b"1\r\na\r\n" * 20_000 + b"0\r\n\r\n"),
    "empty lines in a chunk": chunks(b"40000\r\n%b\r\n0\r\n\r\n" % (b"\r\n\r\n" * 2**16)),
    "second head": post(b"content-length: 90000", body=bytes(90_000)) + get(b"a: %b" % (b"b" * 100_000)),
}


@pytest.mark.parametrize("size", [2**20, 2**18, 65_536, 1000], ids=["whole", "256 KiB", "64 KiB", "1000"])
@pytest.mark.parametrize("name", LONG)
async def test_long_heads_are_refused_however_they_come(name: str, size: int) -> None:
    sent = LONG[name]
    ours = await Ours()(*[sent[start : start + size] for start in range(0, len(sent), size)])
    assert [status for status, _ in ours.answers] == ([200, 431] if name == "second head" else [431])
    assert ours.closed


@pytest.mark.parametrize("size", [2**18, 16_384, 1000])
@pytest.mark.parametrize("framing", [b"content-length: 300000", CHUNKED])
async def test_long_bodies_are_not_long_heads(framing: bytes, size: int) -> None:
    body = bytes(range(1, 251)) * 1200
    sent = post(framing, body=body if framing != CHUNKED else b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)) + MARKER
    ours = await Ours()(*[sent[start : start + size] for start in range(0, len(sent), size)])
    assert ours.requests == [(b"POST", b"/", body), (b"GET", b"/marker", b"")]
