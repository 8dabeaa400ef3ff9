"""Answers through our protocol: uvicorn's own bytes in one write, nothing held back, work dropped with its client."""

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from service.http.asgi import LEFT
from service.http.server import Cycle, OneWrite

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
LENGTH = (b"content-length", b"5")
CLOSE = (b"connection", b"close")
HUGE = 64 * 1024 * 1024
ANSWERS: dict[str, tuple[int, list[tuple[bytes, bytes]], list[bytes]]] = {
    "/": (200, [LENGTH], [b"hello"]),
    "/huge": (200, [(b"content-length", b"%d" % HUGE)], [bytes(HUGE)]),
    "/two": (200, [LENGTH], [b"he", b"llo"]),
    "/chunks": (200, [], [b"he", b"llo"]),
    "/empty": (204, [], [b""]),
    "/unchanged": (304, [], [b""]),
    "/moved": (301, [(b"content-length", b"0")], [b""]),
    "/closing": (200, [LENGTH, CLOSE], [b"hello"]),
    "/longer": (200, [LENGTH], [b"hello world"]),
    "/shorter": (200, [LENGTH], [b"hell"]),
    "/lists": (200, [list(LENGTH)], [b"hello"]),  # type: ignore[list-item]
    "/split": (200, [LENGTH, (b"x", b"a\r\nset-cookie: b")], [b"hello"]),
    "/feed": (200, [LENGTH, (b"x", b"a\nb")], [b"hello"]),
    "/split-id": (200, [LENGTH, (b"x-request-id", b"a\r\nset-cookie: b")], [b"hello"]),
    "/split-name": (200, [LENGTH, (b"x\r\ny", b"a")], [b"hello"]),
}
BROKEN = ("/longer", "/shorter", "/split", "/feed", "/split-id", "/split-name")
PATIENCE_SECONDS = 20
CALLER = ContextVar("caller", default="nobody")


class App:
    """Answers as in ANSWERS; the rest of its paths wait, fail or read."""

    def __init__(self) -> None:
        self.waiting, self.release, self.done = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.end: Any = None
        self.callers: list[str] = []

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        path = scope["path"]
        self.callers.append(CALLER.get())
        CALLER.set(path)
        if path == "/raise":
            raise ValueError(path)
        if path == "/read":
            await receive()
        if path == "/wait":
            self.waiting.set()
            await self.release.wait()
        if path in ("/drop", "/keep"):
            await self.wait_for_ever(scope, receive)
            return
        status, headers, chunks = ANSWERS.get(path, ANSWERS["/"])
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if path == "/raise-late":
            raise ValueError(path)
        *parts, last = chunks
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": last})

    async def wait_for_ever(self, scope: Message, receive: Receive) -> None:
        while (await receive())["more_body"]:
            pass
        if scope["path"] == "/drop":
            scope[LEFT] = False
        self.waiting.set()
        try:
            self.end = await (receive() if scope["path"] == "/keep" else asyncio.Event().wait())
        except asyncio.CancelledError:
            self.end = scope[LEFT]
        self.done.set()


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
def config() -> dict[str, Any]:
    return {}


@pytest.fixture
async def server(app: App, config: dict[str, Any]) -> AsyncIterator[uvicorn.Server]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings = {"http": OneWrite, "lifespan": "off", "log_config": None, "access_log": False, **config}
        server = uvicorn.Server(uvicorn.Config(app, interface="asgi3", **settings))
        running = asyncio.create_task(server.serve([listener]))
        server.port = listener.getsockname()[1]  # type: ignore[attr-defined]
        yield server
        server.should_exit = True
        await running


@pytest.fixture
def port(server: uvicorn.Server) -> int:
    return server.port  # type: ignore[attr-defined, no-any-return]


def request(line: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join((line + b" HTTP/1.1", b"host: x", *headers, b"", b""))


async def exchange(port: int, sent: bytes) -> bytes:
    """All that comes until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    answer = await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
    writer.close()
    return answer


@pytest.mark.parametrize("config", [{}, {"access_log": True}], ids=["quiet", "logged"])
@pytest.mark.parametrize(
    ("line", "status", "body"),
    [
        (b"GET /", b"200", b"hello"),
        (b"HEAD /", b"200", b""),
        (b"GET /two", b"200", b"hello"),
        (b"GET /lists", b"200", b"hello"),
        (b"GET /chunks", b"200", b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"),
        (b"GET /empty", b"204", b""),
        (b"GET /unchanged", b"304", b""),
        (b"GET /moved", b"301", b""),
        (b"GET /closing", b"200", b"hello"),
    ],
)
async def test_every_kind_of_answer_arrives(port: int, line: bytes, status: bytes, body: bytes) -> None:
    head, _, rest = (await exchange(port, request(line, b"connection: close"))).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 " + status)
    assert head.count(b"\r\nconnection: close") == 1
    assert rest == body


async def test_an_app_may_close_a_connection_that_its_client_would_keep(port: int) -> None:
    assert (await exchange(port, request(b"GET /closing"))).endswith(b"hello")


@pytest.mark.parametrize("line", [b"GET /", b"HEAD /"])
async def test_answers_leave_while_the_connection_stays(port: int, line: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(3):
        writer.write(request(line))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_SECONDS)
        assert head.startswith(b"HTTP/1.1 200")
        assert b"connection: close" not in head
        if line == b"GET /":
            assert await asyncio.wait_for(reader.readexactly(5), PATIENCE_SECONDS) == b"hello"
    writer.close()


async def test_requests_sent_ahead_are_answered_in_order(port: int) -> None:
    paths = (b"GET /", b"GET /chunks", b"HEAD /", b"GET /empty")
    answer = await exchange(port, b"".join(map(request, paths)) + request(b"GET /moved", b"connection: close"))
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"200", b"200", b"204", b"301"]


async def test_a_request_sent_ahead_knows_nothing_of_the_one_before(app: App, port: int) -> None:
    """As a context variable is a deadline, a key's name or a trace."""
    await exchange(port, request(b"GET /") * 2 + request(b"GET /chunks") + request(b"GET /closing"))
    assert app.callers == ["nobody"] * 4


async def test_a_client_that_waits_for_100_continue_gets_it_at_once(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(b"POST /read", b"content-length: 1", b"expect: 100-continue", b"connection: close"))
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_SECONDS)
    assert head.startswith(b"HTTP/1.1 100")
    writer.write(b"x")
    assert (await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)).endswith(b"hello")
    writer.close()


async def test_an_answer_before_the_body_was_asked_for_is_no_continue(port: int) -> None:
    sent = request(b"POST /", b"content-length: 1", b"expect: 100-continue", b"connection: close")
    assert (await exchange(port, sent)).startswith(b"HTTP/1.1 200")


async def test_what_is_no_http_is_told_so(port: int) -> None:
    assert (await exchange(port, b"nonsense\r\n\r\n")).startswith(b"HTTP/1.1 400")


async def test_an_app_that_fails_before_its_answer_is_a_500(port: int, caplog: pytest.LogCaptureFixture) -> None:
    assert (await exchange(port, request(b"GET /raise"))).startswith(b"HTTP/1.1 500")
    assert "Exception in ASGI application" in caplog.text


async def test_an_app_that_fails_behind_its_head_ends_the_connection(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert await exchange(port, request(b"GET /raise-late")) == b""
    assert "Exception in ASGI application" in caplog.text


@pytest.mark.parametrize("path", BROKEN)
async def test_no_header_splits_an_answer_and_no_body_belies_its_length(
    port: int, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await exchange(port, request(b"GET " + path.encode()))
    assert b"set-cookie" not in answer
    assert not answer.endswith(b"hello")
    assert "RuntimeError" in caplog.text


@pytest.mark.parametrize("body", [b"x", bytes(300_000)], ids=["short", "long"])
async def test_work_that_asks_for_it_is_cancelled_with_its_client(
    app: App, port: int, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(b"POST /drop", b"content-length: %d" % len(body)) + body)
    await asyncio.wait_for(app.waiting.wait(), PATIENCE_SECONDS)
    writer.close()
    await asyncio.wait_for(app.done.wait(), PATIENCE_SECONDS)
    assert app.end is True
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


async def test_other_work_is_left_to_notice_by_itself(app: App, port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(b"POST /keep", b"content-length: 1") + b"x")
    await asyncio.wait_for(app.waiting.wait(), PATIENCE_SECONDS)
    writer.close()
    await asyncio.wait_for(app.done.wait(), PATIENCE_SECONDS)
    assert app.end == {"type": "http.disconnect"}


@pytest.mark.parametrize("config", [{"timeout_keep_alive": 0.05}])
async def test_an_idle_connection_is_closed_and_a_busy_one_is_not(app: App, server: uvicorn.Server, port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(b"GET /"))
    assert await asyncio.wait_for(reader.readuntil(b"hello"), PATIENCE_SECONDS)
    writer.write(request(b"GET /wait"))
    await asyncio.wait_for(app.waiting.wait(), PATIENCE_SECONDS)
    over = asyncio.get_running_loop().time() + 0.15
    async with asyncio.timeout(PATIENCE_SECONDS):
        while asyncio.get_running_loop().time() < over:  # until the time of the first answer is over, thrice
            await asyncio.sleep(0)
    app.release.set()
    assert (await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)).endswith(b"hello")
    writer.close()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that waits for its clients for a moment only."""
    monkeypatch.setattr("service.http.server.CLIENT_SECONDS", 0.1)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nhost: x\r\nx-a: ",
        b"\r\n",
        request(b"GET /").removesuffix(b"\r\n"),
        request(b"POST /read", b"content-length: 9", b"x-b: c") + b"abc",
        request(b"POST /read", b"transfer-encoding: chunked") + b"3\r\nabc\r\n",
    ],
    ids=["half a header", "an empty line", "a head without its end", "half a body", "chunks without an end"],
)
async def test_a_request_that_does_not_arrive_is_not_waited_for(port: int, sent: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    answer = await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
    assert answer.startswith((b"HTTP/1.1 408", b"HTTP/1.1 200"))  # /read answers what came of the body
    writer.close()


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("config", [{"timeout_keep_alive": 0.05}])
async def test_a_connection_that_asks_nothing_is_closed(port: int) -> None:
    assert await exchange(port, b"") == b""


@pytest.mark.usefixtures("hasty")
async def test_a_client_that_takes_nothing_of_its_answer_is_cut_off(server: uvicorn.Server, port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(request(b"GET /huge"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not server.server_state.connections or any(
                each.cycle is None or not each.cycle.response_complete for each in server.server_state.connections
            ):
                await asyncio.sleep(0)
            while server.server_state.connections:
                await asyncio.sleep(0)


@pytest.mark.usefixtures("hasty")
async def test_a_client_that_takes_its_answer_steadily_gets_all_of_it(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=65536)
    writer.write(request(b"GET /huge", b"connection: close"))
    size, over = 0, asyncio.get_running_loop().time() + 1.0
    while part := await asyncio.wait_for(reader.read(HUGE // 64), PATIENCE_SECONDS):
        size += len(part)
        while asyncio.get_running_loop().time() < min(over, over - 1.0 + size / HUGE):  # spread over ten patiences
            await asyncio.sleep(0)
    assert size > HUGE
    writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        [b"GET / HTTP/1.1\r\nx: ", *[bytes(65536).replace(b"\0", b"a")] * 40],
        [b"GET / HTTP/1.1\r\n", *[b"x-a: b\r\n" * 8000] * 40],
        [b"GET /" + b"a" * 60_000, *[b"a" * 65536] * 40],
        [b"POST /read HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", *[b"x-a: b\r\n" * 8000] * 40],
    ],
    ids=["a header", "headers", "a path", "trailers"],
)
async def test_a_head_without_an_end_is_refused_before_it_fills_memory(port: int, sent: list[bytes]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionError):
        for part in sent:
            writer.write(part)
            await writer.drain()
    with contextlib.suppress(ConnectionError):
        answer = await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
        head, _, body = answer.partition(b"\r\n\r\n")
        if head.startswith(b"HTTP/1.1 431 "):
            assert json.loads(body)["code"] == "head_too_large"
            assert b"connection: close" in head
        else:
            assert head.startswith(b"HTTP/1.1 400")
    writer.close()


class Transport:
    """Keeps what is written, a write each."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.writes.append(bytes(data))

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        self.closed = True


class Flow:
    write_paused = False


def cycle_of(kind: type[RequestResponseCycle], transport: Transport, keep_alive: bool) -> RequestResponseCycle:
    silent: Any = logging.getLogger("silent")
    flow: Any = Flow()
    return kind(
        scope={"type": "http", "method": "GET"},  # type: ignore[typeddict-item]
        transport=transport,  # type: ignore[arg-type]
        flow=flow,
        logger=silent,
        access_logger=silent,
        access_log=False,
        default_headers=[(b"date", b"today"), (b"server", b"inlay")],
        message_event=asyncio.Event(),
        expect_100_continue=True,
        keep_alive=keep_alive,
        on_response=lambda: None,
    )


STATE = ("response_started", "response_complete", "keep_alive", "waiting_for_100_continue", "disconnected")


@pytest.mark.parametrize("keep_alive", [True, False])
@pytest.mark.parametrize(
    "extra", [(), (CLOSE,), ((b"inlay-shape", b"1,2"), (b"retry-after", b"1")), ((b"x-request-id", b"1"),)]
)
@pytest.mark.parametrize("status", [200, 404, 503])
async def test_an_answer_is_uvicorns_own_in_one_write(status: int, extra: Any, keep_alive: bool) -> None:
    seen = []
    for kind in (RequestResponseCycle, Cycle):
        transport = Transport()
        cycle = cycle_of(kind, transport, keep_alive)
        await cycle.send({"type": "http.response.start", "status": status, "headers": [LENGTH, *extra]})
        await cycle.send({"type": "http.response.body", "body": memoryview(b"hello")})  # type: ignore[typeddict-item]
        line, *lines = b"".join(transport.writes).split(b"\r\n")
        state = [getattr(cycle, name) for name in STATE]
        seen.append((line, sorted(lines), transport.closed, cycle.message_event.is_set(), state))
    assert seen[0] == seen[1]
    assert len(transport.writes) == 1
