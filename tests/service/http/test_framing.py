"""HTTP/1.1 framing: the same answers, bodies and ends of connections as uvicorn's h11 gives for the same bytes.

Where the two differ, the row says which of them does what and why that is safe.
"""

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import h11
import pytest
import uvicorn

from service.http.response import Response, bytes_response
from service.http.routes import Request
from tests.service.http.toy_server import MIB, SECONDS, Toy, connected, route, running, until
from tests.sweeps import sampled

PATHS = ("/", "/fast")


class Seen(NamedTuple):
    """What a client gets for bytes: statuses and bodies of the answers, and whether the server closed."""

    answers: list[tuple[int, bytes]]
    closed: bool


async def echo(request: Request) -> Response:
    return bytes_response(b"%b %b" % (request.verb.encode(), request.body), "text/plain")


def echo_batch(requests: Any) -> list[Response]:
    return [bytes_response(b"%b %b" % (each.verb.encode(), each.body), "text/plain") for each in requests]


async def reference(scope: Any, receive: Any, send: Any) -> None:
    """The same as an ASGI application."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    exists = scope["path"] in PATHS and scope["method"] in ("GET", "HEAD", "POST")
    content = b"%b %b" % (scope["method"].encode(), body) if exists else b"x"
    headers = [(b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": 200 if exists else 404, "headers": headers})
    await send({"type": "http.response.body", "body": content})


@asynccontextmanager
async def h11_server() -> AsyncIterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            reference, http="h11", ws="none", lifespan="off", log_config=None, access_log=False, interface="asgi3"
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        await until(lambda: server.started)
        yield listener.getsockname()[1]
        server.should_exit = True
        await serving


@pytest.fixture
async def toy() -> AsyncIterator[Toy]:
    rows = [route(path, echo, verb, vectors=path == "/fast") for path in PATHS for verb in ("GET", "POST")]
    rows.append(route("/batch", echo, "POST", vectors=True, batch_handler=echo_batch))
    async with running(rows) as toy:
        yield toy


@pytest.fixture
async def theirs() -> AsyncIterator[int]:
    async with h11_server() as port:
        yield port


MARK = b"GET /marker HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


async def seen(port: int, *parts: bytes, marker: bool = True) -> Seen:
    """Send parts, then a last request for a path that is not there, whose answer shows that it was read as one."""
    verbs = [b"HEAD" if part.startswith(b"HEAD") else b"GET" for part in parts]
    async with connected(port, MIB) as client:
        try:
            for part in [*parts, MARK] if marker else parts:
                client.writer.write(part)
                await client.writer.drain()
                await asyncio.sleep(0.002)
            received = await asyncio.wait_for(client.reader.read(-1), 3)
            closed = True
        except ConnectionError:
            received, closed = b"", True
        except TimeoutError:
            received, closed = b"", False
    return Seen(parsed(received, verbs), closed)


def parsed(received: bytes, verbs: list[bytes]) -> list[tuple[int, bytes]]:
    """The final answers in what came, as h11's client reads them."""
    requests = []
    while received.startswith(b"HTTP/"):
        verb = verbs[len(requests)] if len(requests) < len(verbs) else b"GET"
        client = h11.Connection(h11.CLIENT)
        client.send(h11.Request(method=verb, target="/", headers=[("host", "x")]))
        client.send(h11.EndOfMessage())
        client.receive_data(received)
        client.receive_data(b"")
        status, body = 0, b""
        while True:
            event = client.next_event()
            if isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                assert isinstance(event, h11.InformationalResponse), event
        requests.append((status, body if status == 200 else b""))
        received = client.trailing_data[0]
    assert received == b"", received[:80]
    return requests


def post(*headers: bytes, body: bytes = b"", path: bytes = b"/", version: bytes = b"1.1") -> bytes:
    return b"\r\n".join((b"POST %b HTTP/%b" % (path, version), b"host: x", *headers, b"", b"")) + body


CHUNKED = b"transfer-encoding: chunked"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
LENGTH = b"content-length: %d" % len(SMUGGLED)
SAME = {
    "get": [b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"],
    "head": [b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\n"],
    "post": [post(b"content-length: 3", body=b"abc")],
    "empty body": [post(b"content-length: 0")],
    "no length": [post()],
    "pipelined": [post(b"content-length: 3", body=b"abc") * 3],
    "body like a request": [post(LENGTH, body=SMUGGLED)],
    "body apart, like a request": [post(LENGTH), SMUGGLED],
    "chunked": [post(CHUNKED, body=b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")],
    "chunked, apart": [post(CHUNKED), b"3\r\nab", b"c\r", b"\n2\r\nde\r\n0", b"\r\n\r", b"\n"],
    "chunk like a request": [post(CHUNKED, body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED))],
    "chunk extension": [post(CHUNKED, body=b'3;a=b\r\nabc\r\n0;c="d e"\r\n\r\n')],
    "leading zeros": [post(CHUNKED, body=b"0003\r\nabc\r\n00\r\n\r\n")],
    "trailers": [post(CHUNKED, body=b"3\r\nabc\r\n0\r\na: b\r\nc: d\r\n\r\n")],
    "chunked in capitals": [post(b"Transfer-Encoding: Chunked", body=b"0\r\n\r\n")],
    "two lengths": [post(b"content-length: 3", b"content-length: 4", body=b"abcd")],
    "list of lengths": [post(b"content-length: 3, 4", body=b"abcd")],
    "negative length": [post(b"content-length: -3", body=b"abc")],
    "signed length": [post(b"content-length: +3", body=b"abc")],
    "hexadecimal length": [post(b"content-length: 0x3", body=b"abc")],
    "length with a space": [post(b"content-length: 3 ", body=b"abc")],
    "length with zeros": [post(b"content-length: 003", body=b"abc")],
    "empty length": [post(b"content-length:", body=b"abc")],
    "length of 30 digits": [post(b"content-length: " + b"9" * 30, body=b"abc")],
    "unknown coding": [post(b"transfer-encoding: gzip", body=b"abc")],
    "identity coding": [post(b"transfer-encoding: identity", body=b"abc")],
    "chunked twice": [post(b"transfer-encoding: chunked, chunked", body=b"0\r\n\r\n")],
    "chunked not last": [post(b"transfer-encoding: chunked, gzip", body=b"0\r\n\r\n")],
    "vertical tab": [post(b"transfer-encoding: \x0bchunked", body=b"0\r\n\r\n" + SMUGGLED)],
    "space before colon": [post(b"content-length : 3", body=b"abc")],
    "no colon": [post(b"content-length 3", body=b"abc")],
    "empty name": [post(b": 3")],
    "NUL in a value": [post(b"a: b\0c")],
    "CR in a value": [post(b"a: b\rc")],
    "bad chunk size": [post(CHUNKED, body=b"x\r\nabc\r\n0\r\n\r\n")],
    "negative chunk size": [post(CHUNKED, body=b"-3\r\nabc\r\n0\r\n\r\n")],
    "chunk too long": [post(CHUNKED, body=b"3\r\nabcd\r\n0\r\n\r\n")],
    "chunk size of 30 digits": [post(CHUNKED, body=b"f" * 30 + b"\r\nabc\r\n0\r\n\r\n")],
    "HTTP/1.0": [b"GET / HTTP/1.0\r\n\r\n"],
    "HTTP/1.0 with host": [b"GET / HTTP/1.0\r\nhost: x\r\n\r\n" + SMUGGLED],
    "HTTP/1.0 with a body": [post(b"content-length: 3", body=b"abc", version=b"1.0")],
    "close": [b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" + SMUGGLED],
    "Close": [b"GET / HTTP/1.1\r\nhost: x\r\nconnection: a, Close\r\n\r\n" + SMUGGLED],
    "no host": [b"GET / HTTP/1.1\r\n\r\n"],
    "two hosts": [b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n"],
    "HTTP/0.9": [b"GET /\r\n\r\n"],
    "no version": [b"GET / HTTP\r\nhost: x\r\n\r\n"],
    "no target": [b"GET HTTP/1.1\r\nhost: x\r\n\r\n"],
    "nonsense": [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"],
    "not found, pipelined": [b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n" * 3],
}
"""Bytes that both servers answer alike."""
DIFFERENT = {
    "length and chunked": (
        [post(b"content-length: 3", CHUNKED, body=b"0\r\n\r\n" + SMUGGLED)],
        "refused here: the two disagree (RFC 9112, 6.3)",
    ),
    "chunked and length": (
        [post(CHUNKED, b"content-length: 3", body=b"0\r\n\r\n" + SMUGGLED)],
        "refused here: the two disagree (RFC 9112, 6.3)",
    ),
    "HTTP/3.0": ([b"GET / HTTP/3.0\r\nhost: x\r\n\r\n"], "refused here: no such version of this framing"),
    "length as a trailer": (
        [post(CHUNKED, body=b"3\r\nabc\r\n0\r\ncontent-length: 9\r\n\r\n")],
        "refused here: it may not be one",
    ),
    "bare LF": ([b"GET / HTTP/1.1\nhost: x\n\n"], "refused here: two servers may see different ends of lines"),
    "folded header": (
        [post(b"a: b\r\n c", b"content-length: 3", body=b"abc")],
        "refused here: RFC 9112, 5.2 allows it",
    ),
    "empty lines": ([b"\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\n\r\n"], "skipped here: RFC 9112, 2.2 asks for it"),
    "same length twice": ([post(b"content-length: 3", b"content-length: 3", body=b"abc")], "refused here"),
    "two chunked": ([post(CHUNKED, CHUNKED, body=b"0\r\n\r\n")], "may be refused or read as one"),
    "gzip, chunked": (
        [post(b"transfer-encoding: gzip, chunked", body=b"3\r\nabc\r\n0\r\n\r\n")],
        "read as chunked here",
    ),
    "HTTP/1.0 chunked": ([post(CHUNKED, body=b"0\r\n\r\n" + SMUGGLED, version=b"1.0")], "closed after one answer"),
    "two spaces": ([b"GET  / HTTP/1.1\r\nhost: x\r\n\r\n"], "read as one here"),
    "obsolete text": ([post(b"a: \xff\xfe", b"content-length: 3", body=b"abc")], "kept as bytes"),
    "LF after a chunk size": ([post(CHUNKED, body=b"3\nabc\r\n0\r\n\r\n")], "refused here"),
    "absolute target": ([b"GET http://a/fast HTTP/1.1\r\nhost: x\r\n\r\n"], "its path is taken here (RFC 9112, 3.2.2)"),
}
"""Bytes that one of the servers may refuse, each with the reason."""


@pytest.mark.parametrize("name", sampled(SAME, 4))
async def test_answers_like_h11(toy: Toy, theirs: int, name: str) -> None:
    ours, expected = await seen(toy.port, *SAME[name]), await seen(theirs, *SAME[name])
    assert ours == expected
    assert ours.closed


@pytest.mark.parametrize("name", sampled(DIFFERENT, 3))
async def test_differs_from_h11_only_by_refusing_or_by_the_rfc(toy: Toy, theirs: int, name: str) -> None:
    parts, _ = DIFFERENT[name]
    ours, expected = await seen(toy.port, *parts), await seen(theirs, *parts)
    assert ours.closed
    assert expected.closed
    one, other = sorted((ours.answers, expected.answers), key=lambda answers: answers[0][0] == 400)
    assert len(one) == len(other) or other == [(400, b"")]
    assert (404, b"") not in ours.answers[:-1]  # nothing but the marker is taken for a request


EARLY = [
    post(b"content-length: 9000000", b"expect: 100-continue"),
    post(b"content-length: 9000000"),
    post(LENGTH, path=b"/nowhere"),
    post(CHUNKED, path=b"/nowhere"),
    post(LENGTH, b"expect: 100-continue", path=b"/nowhere"),
    post(LENGTH, b"content-encoding: br"),
    post(LENGTH, b"inlay-timeout-ms: soon"),
]


@pytest.mark.parametrize("sent", EARLY)
@pytest.mark.parametrize("together", [True, False])
async def test_nothing_after_an_early_error_is_a_request(toy: Toy, sent: bytes, together: bool) -> None:
    """Whether the body follows is not known, so that what follows cannot be told from a body."""
    parts = [sent + SMUGGLED * 3] if together else [sent, SMUGGLED, SMUGGLED * 2]
    answer = await seen(toy.port, *parts)
    assert len(answer.answers) == 1
    assert answer.answers[0][0] >= 400
    assert answer.closed


HEADS = [
    post(b"content-length: 36", path=b"/batch"),
    post(b"content-length: 36", path=b"/fast"),
    post(b"content-length: 3", b"content-type: application/json", path=b"/batch"),
    post(b"content-length: 36"),
    b"GET /fast HTTP/1.1\r\nhost: x\r\n\r\n",
]


def traffic(chance: random.Random, number: int) -> tuple[bytes, list[bytes]]:
    """Pipelined requests whose bodies look like requests, and the body of each."""
    sent, bodies = b"", []
    for _ in range(number):
        head = chance.choice(HEADS)
        size = 36 if b": 36" in head else 3 if b": 3\r" in head else 0
        body = chance.choice([SMUGGLED[:36].ljust(36), HEADS[4][:36].ljust(36), b"\r\n\r\n" * 9])[:size]
        sent += chance.choice([b"", b"", b"\r\n", b"\r\n\r\n"]) + head + body
        bodies.append(body)
    return sent, bodies


@pytest.mark.parametrize("seed", sampled(range(40), 5))
async def test_requests_cut_anywhere_keep_their_bodies(toy: Toy, seed: int) -> None:
    """Heads that are known, batched or pipelined, and bodies that look like them: no cut moves a border."""
    chance = random.Random(seed)
    async with connected(toy.port, MIB) as client:
        for _ in range(12):
            sent, bodies = traffic(chance, chance.randint(1, 4))
            cuts = sorted(chance.sample(range(len(sent)), min(len(sent), chance.randint(0, 3))))
            parts = [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
            for part in parts:
                client.writer.write(part)
                await client.writer.drain()
                for _ in range(chance.randint(0, 3)):
                    await asyncio.sleep(0)
            for body in bodies:
                status, _, received = await client.answer()
                assert status == 200
                assert received.partition(b" ")[2] == body


async def test_lines_before_a_request_are_not_taken_for_a_head(toy: Toy) -> None:
    """Else whoever sends an empty line next would send a request that it did not write."""
    body = b"x" * 36
    async with connected(toy.port) as client:
        await client.send(b"\r\n\r\n" + HEADS[0] + body)
        assert (await client.answer())[2] == b"POST " + body
    async with connected(toy.port) as client:
        await client.send(b"\r\n\r\n" + HEADS[4][:31], HEADS[4][31:])
        assert (await client.answer())[2] == b"GET "
    assert b"\r\n\r\n" not in toy.heads


async def test_body_of_a_pipelined_request_is_not_a_request(toy: Toy) -> None:
    """The first is answered at once, so that the connection was idle when the second's body came."""
    body = b"y" * 36
    known = HEADS[0] + body
    async with connected(toy.port) as client:
        await client.send(known)
        await client.answer()
        await client.send(known + post(b"content-length: %d" % len(known)))
        assert (await client.answer())[2] == b"POST " + body
        await client.send(known)
        assert (await asyncio.wait_for(client.answer(), SECONDS))[2] == b"POST " + known
