"""The HTTP/1.1 server on real sockets: responses, order, bodies, clients that leave, limits, a graceful stop."""

import asyncio
import json
import logging
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from contextvars import ContextVar
from typing import Any

import pytest

from service.errors import BadInput
from service.http.pipeline import Pipeline
from service.http.response import Response, bytes_response, json_response
from service.http.response_writer import WHOLE_BYTES, ResponseWriter
from service.http.routes import Request
from tests.service.http.toy_server import (
    MIB,
    SECONDS,
    Client,
    Toy,
    connected,
    exchange,
    parsed_head,
    request,
    route,
    running,
    statuses,
    until,
)

LAST = b"connection: close"
HUGE = 64 * MIB
CALLER: ContextVar[str] = ContextVar("caller", default="nobody")


async def parts_of(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


class Handlers:
    """Toy handlers and what they saw."""

    def __init__(self) -> None:
        self.waiting, self.release, self.cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.bodies: list[bytes] = []
        self.headers: list[dict[bytes, bytes]] = []
        self.callers: list[str] = []
        self.sent = 0

    async def echo(self, request: Request) -> Response:
        self.bodies.append(request.body)
        self.headers.append(request.head.headers)
        self.callers.append(CALLER.get())
        CALLER.set(request.head.path)
        return bytes_response(request.body or b"hello", "text/plain")

    async def wait(self, request: Request) -> Response:
        self.waiting.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return bytes_response(b"waited", "text/plain")

    async def fail(self, request: Request) -> Response:
        raise ZeroDivisionError("an inside")

    async def refuse(self, request: Request) -> Response:
        raise BadInput("is bad", 3)

    async def named(self, request: Request) -> Response:
        return json_response(request.parameters)

    async def endless(self, request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            try:
                while True:
                    self.sent += 65536
                    yield bytes(65536)
            finally:
                self.cancelled.set()

        return Response((), (), 200, parts())

    async def broken_stream(self, request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            yield b"some"
            raise ZeroDivisionError("an inside")

        return Response((), (), 200, parts())


def answers(response: Callable[[], Response]) -> Callable[[Request], Any]:
    async def handler(request: Request) -> Response:
        return response()

    return handler


FIVE = (b"content-length", b"5")
RESPONSES: dict[str, Callable[[], Response]] = {
    "/parts": lambda: Response((b"he", memoryview(b"llo"))),
    "/chunks": lambda: Response((), (), 200, parts_of(b"he", b"", b"llo")),
    "/sized": lambda: Response((), (FIVE,), 200, parts_of(b"he", b"llo")),
    "/declared": lambda: Response((b"hello",), (FIVE,)),
    "/empty": lambda: Response((), (), 204),
    "/unchanged": lambda: Response((b"",), ((b"etag", b'"a"'), (b"content-length", b"900")), 304),
    "/moved": lambda: Response((), ((b"location", b"/"),), 301),
    "/nothing": lambda: Response(()),
    "/huge": lambda: Response((bytes(HUGE),)),
    "/whole": lambda: Response((bytes(WHOLE_BYTES),)),
    "/lines": lambda: Response((b"hello",), (), 200, None, b"x-time: 5\r\n"),
}
BROKEN: dict[str, Callable[[], Response]] = {
    "/longer": lambda: Response((b"hello world",), (FIVE,)),
    "/shorter": lambda: Response((b"hell",), (FIVE,)),
    "/missing": lambda: Response((), (FIVE,)),
    "/sized-longer": lambda: Response((), (FIVE,), 200, parts_of(b"hello", b" world")),
    "/sized-shorter": lambda: Response((), (FIVE,), 200, parts_of(b"hell")),
    "/split": lambda: Response((b"hello",), ((b"x", b"a\r\nset-cookie: b"),)),
    "/feed": lambda: Response((b"hello",), ((b"x", b"a\nset-cookie: b"),)),
    "/split-name": lambda: Response((b"hello",), ((b"x\r\nset-cookie", b"a"),)),
    "/split-stream": lambda: Response((), ((b"x", b"a\r\nset-cookie: b"),), 200, parts_of(b"hello")),
}


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


def routes_of(handlers: Handlers) -> list[Any]:
    rows = [route(path, answers(response)) for path, response in (RESPONSES | BROKEN).items()]
    rows += [route("/", handlers.echo), route("/", handlers.echo, "POST"), route("/wait", handlers.wait)]
    rows += [route("/wait", handlers.wait, "POST"), route("/fail", handlers.fail), route("/refuse", handlers.refuse)]
    rows += [route("/items/{name}", handlers.named), route("/endless", handlers.endless)]
    return [*rows, route("/broken-stream", handlers.broken_stream)]


@pytest.fixture
def settings() -> dict[str, Any]:
    return {}


@pytest.fixture
async def toy(handlers: Handlers, settings: dict[str, Any]) -> AsyncIterator[Toy]:
    async with running(routes_of(handlers), **settings) as toy:
        yield toy


# ---- responses


@pytest.mark.parametrize(
    ("line", "status", "body"),
    [
        (b"GET /", 200, b"hello"),
        (b"HEAD /", 200, b""),
        (b"HEAD /chunks", 200, b""),
        (b"HEAD /huge", 200, b""),
        (b"GET /parts", 200, b"hello"),
        (b"GET /declared", 200, b"hello"),
        (b"GET /lines", 200, b"hello"),
        (b"GET /sized", 200, b"hello"),
        (b"GET /chunks", 200, b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"),
        (b"GET /empty", 204, b""),
        (b"GET /unchanged", 304, b""),
        (b"GET /moved", 301, b""),
        (b"GET /nothing", 200, b""),
    ],
)
async def test_every_kind_of_response_arrives(toy: Toy, line: bytes, status: int, body: bytes) -> None:
    head, _, rest = (await exchange(toy.port, request(line, LAST))).partition(b"\r\n\r\n")
    received_status, headers = parsed_head(head)
    assert (received_status, headers["connection"], rest) == (status, "close", body)
    assert headers["x-request-id"]
    assert headers["date"]


async def test_head_declares_the_length_of_get(toy: Toy) -> None:
    async with connected(toy.port) as client:
        for path, length in ((b"/", "5"), (b"/huge", str(HUGE)), (b"/sized", "5")):
            await client.send(request(b"HEAD " + path))
            assert (await client.answer(bodiless=True))[1]["content-length"] == length


async def test_http_1_0_gets_a_stream_until_the_connection_closes(toy: Toy) -> None:
    for path, more in ((b"/chunks", b""), (b"/chunks", b"connection: keep-alive\r\n"), (b"/sized", b"")):
        answer = await exchange(toy.port, b"GET %b HTTP/1.0\r\n%b\r\n" % (path, more))
        head, _, body = answer.partition(b"\r\n\r\n")
        assert body == b"hello"
        assert "transfer-encoding" not in parsed_head(head)[1]


async def test_a_connection_stays_open_for_further_requests(toy: Toy) -> None:
    async with connected(toy.port) as client:
        for path in (b"/", b"/chunks", b"/empty", b"/nowhere", b"/refuse", b"/fail", b"/"):
            await client.send(request(b"GET " + path))
            assert "connection" not in (await client.answer())[1]


@pytest.mark.parametrize("path", BROKEN)
async def test_broken_response_is_never_sent_whole(toy: Toy, path: str, caplog: pytest.LogCaptureFixture) -> None:
    try:
        answer = await exchange(toy.port, request(b"GET " + path.encode(), b"x-request-id: r-1"))
    except ConnectionError:
        answer = b""
    assert b"set-cookie" not in answer
    assert b"world" not in answer
    assert not answer.endswith(b"hello") or path == "/sized-longer"
    assert "a response broke off (x-request-id: r-1)" in caplog.text


async def test_stream_that_fails_ends_the_connection(toy: Toy, caplog: pytest.LogCaptureFixture) -> None:
    try:
        answer = await exchange(toy.port, request(b"GET /broken-stream"))
    except ConnectionError:
        answer = b""
    assert not answer.endswith(b"0\r\n\r\n")
    assert "ZeroDivisionError" in caplog.text


# ---- errors


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (request(b"GET /refuse"), 422, "bad_input"),
        (request(b"GET /fail"), 500, "error"),
        (request(b"GET /nowhere"), 404, "not_found"),
        (request(b"DELETE /"), 405, "method_not_allowed"),
        (request(b"POST /", b"content-length: 2000000"), 413, "body_too_large"),
        (request(b"POST /", b"content-encoding: br", b"content-length: 9"), 415, "unsupported_media"),
        (request(b"GET /", b"inlay-timeout-ms: soon"), 422, "bad_request"),
        (b"nonsense\r\n\r\n", 400, "malformed"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "malformed"),
        (b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400, "malformed"),
        (b"GET /\r\n\r\n", 400, "malformed"),
        (b"CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\nabc", 400, "malformed"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "malformed"),
    ],
)
async def test_errors_are_problems_without_insides(
    toy: Toy, sent: bytes, status: int, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(toy.port) as client:
        await client.send(sent)
        received_status, headers, body = await client.answer()
    problem = json.loads(body)
    assert (received_status, problem["status"], problem["code"]) == (status, status, code)
    assert headers["content-type"] == "application/problem+json"
    assert headers["x-request-id"]
    assert b"inside" not in body
    assert ("ZeroDivisionError: an inside" in caplog.text) is (status == 500)


async def test_malformed_requests_get_the_id_that_they_sent(toy: Toy) -> None:
    sent = b"GET / HTTP/1.1\r\nx-request-id: mine\r\nhost: x\r\nbad header\r\n\r\n"
    assert b"\r\nx-request-id: mine\r\n" in await exchange(toy.port, sent)


async def test_malformed_request_does_not_get_the_id_of_the_one_before(toy: Toy) -> None:
    answer = await exchange(toy.port, request(b"GET /", b"x-request-id: first"), b"nonsense\r\n\r\n")
    assert statuses(answer) == [200, 400]
    assert answer.count(b"x-request-id: first") == 1


# ---- several requests on a connection


async def test_pipelined_requests_are_answered_in_order(toy: Toy) -> None:
    paths = (b"GET /", b"GET /chunks", b"HEAD /", b"GET /nowhere", b"GET /fail", b"GET /empty")
    answer = await exchange(toy.port, b"".join(map(request, paths)) + request(b"GET /moved", LAST))
    assert statuses(answer) == [200, 200, 200, 404, 500, 204, 301]


async def test_pipelined_requests_have_contexts_of_their_own(toy: Toy, handlers: Handlers) -> None:
    """A context variable may hold the name of a key or a trace."""
    await exchange(toy.port, request(b"GET /") * 4 + request(b"GET /", LAST))
    assert handlers.callers == ["nobody"] * 5


async def test_only_the_last_pipelined_response_says_close(toy: Toy, handlers: Handlers) -> None:
    async with connected(toy.port) as client:
        await client.send(request(b"GET /wait") + request(b"GET /") + request(b"GET /", LAST))
        await handlers.waiting.wait()
        handlers.release.set()
        said = [(await client.answer())[1].get("connection") for _ in range(3)]
        assert said == [None, None, "close"]
        assert await client.rest() == b""


async def test_last_request_may_arrive_during_another_response(toy: Toy, handlers: Handlers) -> None:
    async with connected(toy.port) as client:
        await client.send(request(b"GET /wait") + request(b"POST /", LAST, b"content-length: 5") + b"ab")
        await handlers.waiting.wait()
        handlers.release.set()
        assert (await client.answer())[2] == b"waited"
        await client.send(b"cde")
        assert (await client.answer())[2] == b"abcde"
        assert await client.rest() == b""


@pytest.mark.parametrize("number", [17, 640, 4000])
@pytest.mark.parametrize("path", [b"/", b"/nowhere", b"/refuse"])
async def test_answers_any_number_of_pipelined_requests(toy: Toy, handlers: Handlers, path: bytes, number: int) -> None:
    async with connected(toy.port, MIB) as client:
        client.writer.write(request(b"GET /wait") + request(b"GET " + path) * number + request(b"GET /", LAST))
        await handlers.waiting.wait()
        handlers.release.set()
        answered = statuses(await client.rest())
    assert len(answered) == number + 2
    assert set(answered[1:-1]) == {{b"/": 200, b"/nowhere": 404, b"/refuse": 422}[path]}


@pytest.mark.parametrize("path", [b"/", b"/nowhere"])
async def test_holds_one_of_many_pipelined_requests(
    toy: Toy, handlers: Handlers, path: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request takes a KiB: the others wait as bytes."""
    accepted, accept = 0, Pipeline.accept

    def counted_accept(pipeline: Pipeline, request: Request) -> Response | None:
        nonlocal accepted
        accepted += 1
        return accept(pipeline, request)

    monkeypatch.setattr(Pipeline, "accept", counted_accept)
    one, number = b"GET %b HTTP/1.1\r\nhost:\r\n\r\n" % path, 20_000
    async with connected(toy.port, MIB) as client, connected(toy.port) as other:
        client.writer.write(request(b"GET /wait") + one * number + request(b"GET /", LAST))
        await handlers.waiting.wait()
        for _ in range(20):  # turns in which more is received, if it is
            await other.send(request(b"GET /empty"))
            assert (await other.answer())[0] == 204
        assert accepted == 21
        handlers.release.set()
        answered = statuses(await client.rest())
    assert len(answered) == number + 2
    assert set(answered[1:-1]) == {{b"/": 200, b"/nowhere": 404}[path]}


@pytest.mark.parametrize("together", [True, False])
async def test_answers_few_requests_of_a_client_that_does_not_read(
    toy: Toy, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, write, number = 0, ResponseWriter.write, 8 * 16

    def counted_write(*arguments: Any) -> None:
        nonlocal written
        written += 1
        write(*arguments)

    monkeypatch.setattr(ResponseWriter, "write", counted_write)
    async with connected(toy.port, MIB) as client:
        for _ in range(number):
            client.writer.write(request(b"GET /whole"))
            if not together:
                await client.writer.drain()
                await asyncio.sleep(0)
        client.writer.write(request(b"GET /", LAST))
        await until(lambda: written > 0)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert written * WHOLE_BYTES <= 32 * MIB  # what the kernel takes; all would be 128 MiB and more
        assert len(statuses(await client.rest())) == number + 1


async def test_held_back_requests_end_when_their_client_leaves(toy: Toy, handlers: Handlers) -> None:
    async with connected(toy.port) as client:
        client.writer.write(request(b"GET /wait") + request(b"GET /") * 2000)
        await handlers.waiting.wait()
        client.writer.transport.abort()
    handlers.release.set()
    await until(lambda: not toy.connections)
    assert statuses(await exchange(toy.port, request(b"GET /", LAST))) == [200]


@pytest.mark.parametrize("settings", [{"client_seconds": 0.1}], ids=["hasty"])
async def test_pipelined_requests_wait_for_a_slow_one_before_them(toy: Toy, handlers: Handlers) -> None:
    """Reading is paused meanwhile, in the middle of a request: its client is not to blame."""
    sent = request(b"GET /wait") + request(b"GET /") * 2 * 16 + request(b"POST /", body=bytes(2 * MIB))[:-1]
    async with connected(toy.port) as client:
        client.writer.write(sent)
        await handlers.waiting.wait()
        await asyncio.sleep(0.4)  # several times what an idle client has
        handlers.release.set()
        assert [(await client.answer())[0] for _ in range(3)] == [200] * 3


@pytest.mark.parametrize(
    "first",
    [
        request(b"GET /", LAST),
        b"GET / HTTP/1.0\r\n\r\n",
        request(b"POST /", body=b"a" * 2 * MIB)[:-MIB],
        b"nonsense\r\n\r\n",
    ],
    ids=["close", "HTTP/1.0", "early error", "malformed"],
)
@pytest.mark.parametrize("together", [True, False], ids=["together", "apart"])
async def test_nothing_is_answered_after_the_last_request(
    toy: Toy, handlers: Handlers, first: bytes, together: bool
) -> None:
    after = request(b"GET /", b"x-late: 1")
    parts = [first + after] if together else [first, after]
    try:
        answer = await exchange(toy.port, *parts)
    except ConnectionError:  # the server may have closed before the second part
        assert not together
        answer = b"HTTP/1.1 000"
    assert len(statuses(answer)) == 1
    assert not [each for each in handlers.headers if b"x-late" in each]


# ---- bodies


async def test_client_that_expects_100_continue_gets_it_at_once(toy: Toy) -> None:
    async with connected(toy.port) as client:
        await client.send(request(b"POST /", b"content-length: 1", b"expect: 100-Continue", LAST))
        assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"x")
        assert (await client.rest()).endswith(b"x")


async def test_continue_waits_for_the_response_before_it(toy: Toy, handlers: Handlers) -> None:
    async with connected(toy.port) as client:
        await client.send(request(b"GET /wait"), request(b"POST /", b"content-length: 1", b"expect: 100-continue"))
        await handlers.waiting.wait()
        await asyncio.sleep(0.05)
        handlers.release.set()
        assert (await client.answer())[2] == b"waited"
        assert (await client.answer())[0] == 100
        await client.send(b"x")
        assert (await client.answer())[2] == b"x"


@pytest.mark.parametrize("size", [0, 1, 65_536, MIB])
@pytest.mark.parametrize("chunked", [False, True])
async def test_bodies_up_to_the_limit_arrive_whole(toy: Toy, size: int, chunked: bool) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    sent = request(b"POST /", LAST, body=body)
    if chunked:
        sent = request(b"POST /", LAST, b"transfer-encoding: chunked")
        sent += b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[: size // 3], body[size // 3 :]) if part)
        sent += b"0\r\n\r\n"
    head, _, received = (await exchange(toy.port, sent)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert received == (body or b"hello")


@pytest.mark.parametrize("chunked", [False, True])
async def test_body_over_the_limit_is_refused_and_the_refusal_arrives(
    toy: Toy, handlers: Handlers, chunked: bool
) -> None:
    body = bytes(3 * MIB)
    sent = [request(b"POST /", b"content-length: %d" % len(body)), body]
    if chunked:
        sent = [request(b"POST /", b"transfer-encoding: chunked"), b"%x\r\n" % len(body), body, b"\r\n0\r\n\r\n"]
    answer = await exchange(toy.port, *sent)
    assert statuses(answer) == [413]
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "body_too_large"
    assert handlers.bodies == []
    assert toy.intake.held == 0


async def test_bodies_count_until_their_requests_are_answered(toy: Toy, handlers: Handlers) -> None:
    async with connected(toy.port) as client, connected(toy.port) as leaving:
        await client.send(request(b"POST /wait", body=bytes(90_000)))
        await until(lambda: toy.intake.held == 90_000)
        await handlers.waiting.wait()
        await leaving.send(request(b"POST /wait", b"content-length: 90000"), bytes(45_000), bytes(45_000))
        await until(lambda: toy.intake.held == 180_000)
        leaving.close()
        await until(lambda: toy.intake.held == 90_000)
        handlers.release.set()
        assert (await client.answer())[0] == 200
    assert toy.intake.held == 0


@pytest.mark.parametrize("settings", [{"receiving_bytes": 8 * MIB}])
async def test_bodies_of_one_caller_leave_room_for_anothers(toy: Toy) -> None:
    head, body = request(b"POST /", b"content-length: %d" % MIB), bytes(100_000)
    async with AsyncExitStack() as stack:
        bulk = [await stack.enter_async_context(connected(toy.port)) for _ in range(8)]
        for client in bulk[:7]:
            await client.send(head + bytes(MIB - 1))
        await until(lambda: toy.intake.held == 7 * (MIB - 1))
        await bulk[7].send(head + body)
        assert (await bulk[7].answer())[0] == 429
        reader, writer = await asyncio.open_connection("127.0.0.1", toy.port, local_addr=("127.0.0.2", 0))
        stack.callback(writer.close)
        light = Client(reader, writer)
        await light.send(request(b"POST /", body=body))
        assert (await light.answer())[0] == 200


@pytest.mark.parametrize("settings", [{"receiving_bytes": 100_000}])
async def test_bodies_being_received_share_one_bound(toy: Toy) -> None:
    half = bytes(60_000)
    async with connected(toy.port) as slow, connected(toy.port) as other:
        await slow.send(request(b"POST /", b"content-length: 120000") + half)
        await until(lambda: toy.intake.held == 60_000)
        await other.send(request(b"POST /", b"content-length: 120000") + half)
        status, headers, body = await other.answer()
        assert (status, json.loads(body)["code"]) == (429, "overloaded")
        assert int(headers["retry-after"]) >= 1
        assert (await exchange(toy.port, request(b"POST /", LAST, body=b"small"))).endswith(b"small")
        slow.close()
        await until(lambda: toy.intake.held == 0)
    async with connected(toy.port) as later:
        await later.send(request(b"POST /", b"content-length: 90000"), bytes(45_000), bytes(45_000))
        assert (await later.answer())[0] == 200
    assert toy.intake.held == 0


@pytest.mark.parametrize("segment", [1, 7])
async def test_a_request_may_come_in_tiny_segments(toy: Toy, handlers: Handlers, segment: int) -> None:
    sent = request(b"POST /", LAST, b"transfer-encoding: chunked") + b"5\r\nhello\r\n6\r\n world\r\n0\r\nx: y\r\n\r\n"
    async with connected(toy.port) as client:
        client.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await client.send(*[sent[start : start + segment] for start in range(0, len(sent), segment)])
        assert (await client.rest()).endswith(b"hello world")


async def test_trailers_are_not_headers(toy: Toy, handlers: Handlers) -> None:
    sent = request(b"POST /", LAST, b"transfer-encoding: chunked", b"a: b")
    await exchange(toy.port, sent + b"1\r\nx\r\n0\r\nauthorization: Bearer y\r\na: c\r\ncontent-encoding: gzip\r\n\r\n")
    assert handlers.bodies == [b"x"]
    assert handlers.headers == [{b"host": b"x", b"connection": b"close", b"transfer-encoding": b"chunked", b"a": b"b"}]


async def test_header_values_have_no_space_around_them(toy: Toy, handlers: Handlers) -> None:
    await exchange(
        toy.port, b"POST / HTTP/1.1\r\nhost: x \r\nconnection: close\t\r\ncontent-length: 2 \r\na:  b c\r\n\r\nhi"
    )
    assert handlers.headers[0] == {b"host": b"x", b"connection": b"close", b"a": b"b c"}
    assert handlers.bodies == [b"hi"]  # by the content-length, which is not among the headers that a client repeats


# ---- requests to change the protocol


UPGRADES = [
    (b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AAMAAABkAAQCAAAAAAIAAAAA"),
    (b"upgrade: websocket", b"connection: keep-alive, upgrade"),
]


@pytest.mark.parametrize("headers", UPGRADES, ids=["h2c", "websocket"])
@pytest.mark.parametrize("cut", ["together", "after the head", "in the head", "in the body"])
@pytest.mark.parametrize("chunked", [False, True])
async def test_upgrade_is_ignored_and_the_body_kept(
    toy: Toy, handlers: Handlers, headers: tuple[bytes, ...], cut: str, chunked: bool
) -> None:
    """The body looks like a request, as an attacker behind a proxy would send it."""
    body = request(b"GET /nowhere")
    sent = request(b"POST /", *headers, body=body)
    if chunked:
        sent = request(b"POST /", *headers, b"transfer-encoding: chunked") + b"%x\r\n%b\r\n0\r\n\r\n" % (
            len(body),
            body,
        )
    at = {"together": 0, "after the head": sent.index(b"\r\n\r\n") + 4, "in the head": 30, "in the body": len(sent) - 9}
    async with connected(toy.port) as client:
        for _ in range(2):  # the second time the head is known, if ever
            await client.send(*[part for part in (sent[: at[cut]], sent[at[cut] :]) if part])
            status, _, received_body = await client.answer()
            assert (status, received_body) == (200, body)
        await client.send(request(b"GET /", LAST))
        assert statuses(await client.rest()) == [200]
    assert handlers.bodies == [body, body, b""]


async def test_pipelined_request_after_an_upgrade_is_answered(toy: Toy) -> None:
    answer = await exchange(toy.port, request(b"POST /", *UPGRADES[0], body=b"one") + request(b"GET /parts", LAST))
    assert statuses(answer) == [200, 200]
    assert answer.endswith(b"hello")


# ---- clients that leave


@pytest.mark.parametrize("body", [b"x", bytes(300_000)], ids=["short", "long"])
async def test_work_is_cancelled_when_its_client_leaves(
    toy: Toy, handlers: Handlers, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(toy.port) as client:
        client.writer.write(request(b"POST /wait", body=body))
        await asyncio.wait_for(handlers.waiting.wait(), SECONDS)
        assert toy.admission.active == 1
    await asyncio.wait_for(handlers.cancelled.wait(), SECONDS)
    await until(lambda: toy.counted() == {("/wait", "499"): 1})
    assert (toy.admission.active, toy.connections) == (0, 0)
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


async def test_reset_in_the_middle_of_a_body_frees_its_memory(toy: Toy) -> None:
    async with connected(toy.port) as client:
        await client.send(request(b"POST /", b"content-length: 500000") + bytes(100_000))
        await until(lambda: toy.intake.held == 100_000)
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.writer.transport.abort()
    await until(lambda: toy.connections == 0)
    assert toy.intake.held == 0
    assert toy.counted() == {("/", "499"): 1}


async def test_counts_the_request_of_a_lost_client_and_none_behind(toy: Toy, handlers: Handlers) -> None:
    async with connected(toy.port) as client:
        await client.send(request(b"GET /wait") + request(b"GET /items/a") * 3)
        await handlers.waiting.wait()
    await until(lambda: toy.counted() == {("/wait", "499"): 1})
    assert toy.connections == 0


async def test_half_closed_client_counts_as_disconnected(toy: Toy, handlers: Handlers) -> None:
    """The two cannot be told apart; what was answered before still arrives."""
    async with connected(toy.port, MIB) as client:
        await client.send(request(b"GET /whole") + request(b"GET /wait") + request(b"GET /"))
        await client.until(b"\r\n\r\n")
        await handlers.waiting.wait()
        client.writer.write_eof()
        assert len(await client.rest()) == WHOLE_BYTES
    assert handlers.cancelled.is_set()


async def test_half_closed_client_with_half_a_request_is_closed(toy: Toy) -> None:
    async with connected(toy.port) as client:
        await client.send(request(b"POST /", b"content-length: 9") + b"abc")
        client.writer.write_eof()
        assert await client.rest() == b""


# ---- slow clients


@pytest.mark.parametrize("settings", [{"idle_seconds": 0.05, "client_seconds": 0.1}])
async def test_a_busy_connection_is_not_idle(toy: Toy, handlers: Handlers) -> None:
    async with connected(toy.port) as client:
        await client.send(request(b"GET /wait"))
        await handlers.waiting.wait()
        await asyncio.sleep(0.4)
        handlers.release.set()
        assert (await client.answer())[2] == b"waited"
        assert await client.rest() == b""


@pytest.mark.parametrize("settings", [{"client_seconds": 0.3}])
async def test_headers_that_arrive_too_slowly_are_cut_off(toy: Toy) -> None:
    async with connected(toy.port) as client:
        await client.send(b"GET / HTTP/1.1\r\nhost: x\r\n")

        async def drip() -> None:
            while True:
                await client.send(b"a: b\r\n")
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        assert (await client.answer())[0] == 408
        dripping.cancel()


@pytest.mark.parametrize("settings", [{"client_seconds": 0.3}])
async def test_steady_sender_may_take_long(toy: Toy) -> None:
    async with connected(toy.port) as client:
        await client.send(request(b"POST /", b"content-length: 60000"))
        for _ in range(60):
            await client.send(b"a" * 1000)
            await asyncio.sleep(0.015)
        assert (await client.answer())[2] == b"a" * 60_000


@pytest.mark.parametrize("settings", [{"client_seconds": 0.2}])
async def test_client_that_takes_nothing_is_cut_off(toy: Toy) -> None:
    for path in (b"/huge", b"/endless"):
        with socket.create_connection(("127.0.0.1", toy.port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(request(b"GET " + path))
            await until(lambda: toy.connections == 1)
            await until(lambda: toy.connections == 0)


@pytest.mark.parametrize("settings", [{"client_seconds": 0.3}])
@pytest.mark.parametrize("keep", [True, False], ids=["keep-alive", "close"])
async def test_steady_reader_gets_all_of_a_long_response(toy: Toy, keep: bool) -> None:
    """It takes several times as long as a client may hold its response up."""
    async with connected(toy.port, 65536) as client:
        await client.send(request(b"GET /huge", *([] if keep else [LAST])))
        _, headers = parsed_head(await client.until(b"\r\n\r\n"))
        size = int(headers["content-length"])
        while size:
            part = await asyncio.wait_for(client.reader.read(2 * MIB), SECONDS)
            assert part
            if (size := size - len(part)) // (4 * MIB) != (size + len(part)) // (4 * MIB):
                await asyncio.sleep(0.1)  # 16 times


# ---- limits of heads


@pytest.mark.parametrize(
    "sent",
    [
        [b"GET / HTTP/1.1\r\nx: ", *[b"a" * 65536] * 40],
        [b"GET / HTTP/1.1\r\n", *[b"x-a: b\r\n" * 8000] * 40],
        [b"GET /" + b"a" * 60_000, *[b"a" * 65536] * 40],
        [request(b"POST /", b"transfer-encoding: chunked"), b"0\r\n", *[b"x-a: b\r\n" * 8000] * 40],
        [request(b"POST /", b"transfer-encoding: chunked"), b"1;" + b"a" * 60_000, *[b"a" * 65536] * 40],
        [request(b"POST /", b"transfer-encoding: chunked"), *[b"1\r\na\r\n" * 10_000] * 40],
    ],
    ids=["a header", "headers", "a path", "trailers", "an extension", "chunks of a byte"],
)
async def test_endless_heads_are_refused_before_they_fill_memory(
    toy: Toy, handlers: Handlers, sent: list[bytes]
) -> None:
    async with connected(toy.port, MIB) as client:
        await client.send(*sent)
        status, headers, body = await client.answer()
        assert (status, json.loads(body)["code"], headers["connection"]) == (431, "head_too_large", "close")
        assert headers["x-request-id"]
        assert await client.rest() == b""
    assert handlers.bodies == []
    assert toy.intake.held == 0


# ---- streams


async def test_a_stream_is_made_no_faster_than_it_is_taken(toy: Toy, handlers: Handlers) -> None:
    async with connected(toy.port) as client:
        await client.send(request(b"GET /endless"))
        await client.until(b"\r\n\r\n")
        before = -1
        while before != handlers.sent:  # until all buffers between are full
            before = handlers.sent
            await asyncio.sleep(0.1)
        assert handlers.sent < 32 * MIB
        await asyncio.wait_for(client.reader.readexactly(16 * MIB), SECONDS)
        await until(lambda: handlers.sent > before)
    await asyncio.wait_for(handlers.cancelled.wait(), SECONDS)
    await until(lambda: toy.counted() == {("/endless", "499"): 1})


# ---- counts


async def test_each_request_is_counted_once(toy: Toy) -> None:
    lines = [b"GET /", b"HEAD /", b"GET /items/a", b"GET /items/b", b"GET /fail", b"GET /chunks", b"GET /nowhere"]
    await exchange(toy.port, b"".join(map(request, lines)) + request(b"GET /refuse", LAST))
    assert toy.counted() == {
        ("/", "200"): 2,
        ("/items/{name}", "200"): 2,
        ("/fail", "500"): 1,
        ("/chunks", "200"): 1,
        ("/refuse", "422"): 1,
    }


async def test_deadline_ends_a_wait(toy: Toy, handlers: Handlers) -> None:
    answer = await exchange(toy.port, request(b"GET /wait", LAST, b"inlay-timeout-ms: 50"))
    assert statuses(answer) == [504]
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "deadline_exceeded"
    assert handlers.cancelled.is_set()


# ---- stopping


async def test_responses_during_a_stop_close_their_connection(toy: Toy, handlers: Handlers) -> None:
    async with connected(toy.port) as client:
        await client.send(request(b"GET /wait") + request(b"GET /"))
        await handlers.waiting.wait()
        toy.lifecycle.stopping = True
        handlers.release.set()
        assert (await client.answer())[1].get("connection") == "close"
        assert await client.rest() == b""


async def test_stop_finishes_requests_in_flight(handlers: Handlers) -> None:
    async with (
        running(routes_of(handlers), timeout_graceful_shutdown=20) as toy,
        connected(toy.port) as client,
        connected(toy.port) as idle,
        connected(toy.port) as sender,
    ):
        await client.send(request(b"GET /wait"))
        await sender.send(request(b"POST /", b"content-length: 4") + b"ab")
        await handlers.waiting.wait()
        toy.lifecycle.stopping = toy.server.should_exit = True
        assert await idle.rest() == b""
        await sender.send(b"cd")
        status, headers, body = await sender.answer()
        assert (status, headers["connection"], body) == (200, "close", b"abcd")
        handlers.release.set()
        status, headers, body = await client.answer()
        assert (status, headers["connection"], body) == (200, "close", b"waited")


async def test_requests_that_outlast_a_stop_get_503(handlers: Handlers) -> None:
    async with running(routes_of(handlers), timeout_graceful_shutdown=1) as toy, connected(toy.port) as client:
        await client.send(request(b"GET /wait"))
        await handlers.waiting.wait()
        toy.lifecycle.stopping = toy.server.should_exit = True
        status, headers, body = await client.answer()
        assert (status, headers["connection"], json.loads(body)["code"]) == (503, "close", "unavailable")
