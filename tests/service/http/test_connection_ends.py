"""How connections end: what a client still gets after an error, a stop, idleness or a slow exchange, by a set clock."""

import asyncio
import heapq
import json
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from service.http.response import Response, bytes_response
from service.http.routes import Request
from service.security.api_keys import Keys
from tests.service.http.framing_cases import ABC, CHUNKED, H2C, get, post
from tests.service.http.in_memory import TURNS, MemoryTransport, Ours
from tests.service.http.toy_server import (
    MIB,
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

CLIENT_SECONDS, IDLE_SECONDS = 60.0, 75.0
KIB = 1024


class Clock:
    """An event loop's clock and timers, moved by a test; tasks run in the real loop."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._timers: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._cancelled: set[int] = set()
        self._numbers = count()

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[..., None], *arguments: Any) -> Any:
        number = next(self._numbers)
        heapq.heappush(self._timers, (self.now + delay, number, callback, arguments))
        return SimpleNamespace(cancel=lambda: self._cancelled.add(number))

    def create_task(self, coroutine: Coroutine[Any, Any, None], **options: Any) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(coroutine, **options)

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self._timers and self._timers[0][0] <= end:
            self.now, number, callback, arguments = heapq.heappop(self._timers)
            if number not in self._cancelled:
                callback(*arguments)
        self.now = end


class Connection:
    """A connection in memory whose clock and whose client's reading the test moves."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.protocol = Ours(client_seconds=CLIENT_SECONDS, idle_seconds=IDLE_SECONDS).protocol(self.clock)
        self.transport = MemoryTransport(self.protocol)

    async def send(self, data: bytes) -> None:
        self.protocol.data_received(data)
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def answer(self, data: bytes) -> bytes:
        """What is answered to data."""
        before = len(self.transport.received)
        await self.send(data)
        return self.transport.received[before:]


# ---- idle and slow clients


@pytest.mark.parametrize("sent", [b"", b"\r\n", get(), get() + b"\r\n\r\n", post(ABC, body=b"abc")])
async def test_nothing_is_sent_to_an_idle_connection(sent: bytes) -> None:
    connection = Connection()
    answers = await connection.answer(sent)
    connection.clock.advance(IDLE_SECONDS - 1)
    assert not connection.transport.closed
    connection.clock.advance(2)
    assert connection.transport.closed
    assert connection.transport.received == answers


@pytest.mark.parametrize("sent", [b"G", get()[:-2], post(ABC), post(ABC, body=b"ab"), post(CHUNKED, body=b"3\r\n")])
async def test_half_a_request_gets_408_and_its_id(sent: bytes) -> None:
    sent = sent.replace(b"host: x\r\n", b"x-request-id: mine\r\nhost: x\r\n")
    connection = Connection()
    await connection.send(get())
    before = len(connection.transport.received)
    await connection.send(sent)
    connection.clock.advance(2 * CLIENT_SECONDS)
    head, _, body = connection.transport.received[before:].partition(b"\r\n\r\n")
    status, headers = parsed_head(head)
    assert (status, json.loads(body)["code"], headers["connection"]) == (408, "too_slow", "close")
    assert (headers["x-request-id"] == "mine") is (b"mine" in sent)


def read_steadily(connection: Connection, rate: int, lump: int, size: int) -> int:
    """The bytes left when a client that takes `rate` bytes a second, a lump at a time, has all or is cut off."""
    connection.transport.unsent = size
    while connection.transport.unsent and not connection.transport.closed:
        connection.clock.advance(lump / rate)
        connection.transport.unsent = max(connection.transport.unsent - lump, 0)
    return connection.transport.unsent


@pytest.mark.parametrize("lump", [KIB, 64 * KIB, MIB])
@pytest.mark.parametrize("rate", [5 * KIB, 31 * KIB, 100 * KIB])
async def test_steady_reader_above_the_floor_is_never_cut_off(rate: int, lump: int) -> None:
    """Kernels pass on what a slow reader takes in lumps of up to a third of their send buffer."""
    connection = Connection()
    await connection.send(get())
    assert read_steadily(connection, rate, min(lump, 50 * rate), 20 * MIB) == 0
    assert not connection.transport.closed


async def test_reader_below_the_floor_is_cut_off() -> None:
    connection = Connection()
    await connection.send(get())
    assert read_steadily(connection, 3 * KIB, KIB, 20 * MIB) > 19 * MIB


async def test_idleness_begins_when_the_response_has_left() -> None:
    connection = Connection()
    await connection.send(get())
    assert read_steadily(connection, 31 * KIB, 31 * KIB, 10 * MIB) == 0  # five minutes
    connection.clock.advance(IDLE_SECONDS / 2)
    assert not connection.transport.closed
    assert b"200 OK" in await connection.answer(get())
    connection.clock.advance(IDLE_SECONDS + 1)
    assert connection.transport.closed


# ---- clients that read nothing


async def test_stop_closes_a_connection_whose_last_response_is_unread() -> None:
    """Closing sends what is left; nothing else would end the connection before the server's patience does."""
    connection = Connection()
    await connection.send(get())
    connection.protocol.pause_writing()
    connection.protocol.shutdown()
    assert connection.transport.closed


async def test_body_is_asked_for_behind_the_responses_before() -> None:
    connection = Connection()
    connection.protocol.pause_writing()
    assert await connection.answer(get() + post(ABC, b"expect: 100-continue")) == b""
    connection.protocol.resume_writing()
    first, continued, nothing = (await connection.answer(b"")).partition(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert (first[9:12], bool(continued), nothing) == (b"200", True, b"")
    assert (await connection.answer(b"abc"))[9:12] == b"200"


# ---- after an error


async def test_refused_body_is_read_as_long_as_it_comes() -> None:
    """A close before would reset the connection, and with it lose the response that waits for its client."""
    connection = Connection()
    assert b" 413 " in await connection.answer(post(b"content-length: 20000000"))
    assert connection.transport.ended
    for _ in range(15):
        connection.clock.advance(1)
        await connection.send(bytes(MIB))
        assert not connection.transport.closed
    connection.clock.advance(5)
    assert connection.transport.closed


async def test_refused_body_is_not_read_for_ever() -> None:
    connection = Connection()
    await connection.send(post(b"content-length: 200000000"))
    for _ in range(int(CLIENT_SECONDS) + 3):
        connection.clock.advance(1)
        await connection.send(b"a")
    assert connection.transport.closed


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"HEAD / HTTP/1.1\r\nhost: x\r\nbad\r\n\r\n", 400),
        (b"HEAD / HTTP/1.1\r\n\r\n", 400),
        (b"HEAD /nowhere HTTP/1.1\r\nhost: x\r\n\r\n", 404),
        (b"HEAD / HTTP/1.1\r\nhost: x\r\ncontent-length: 9000000\r\n\r\n", 413),
        (b"HEAD / HTTP/1.1\r\nhost: x\r\na: %b\r\n\r\n" % (b"b" * 100_000), 431),
        (b"HEAD / HTTP/2.0\r\nhost: x\r\n\r\n", 400),
    ],
)
async def test_an_error_to_head_has_no_body(sent: bytes, status: int) -> None:
    head, end, body = (await Connection().answer(sent)).partition(b"\r\n\r\n")
    received, headers = parsed_head(head)
    assert (received, end, body) == (status, b"\r\n\r\n", b"")
    assert headers["x-request-id"]
    assert int(headers["content-length"]) > 0


@pytest.mark.parametrize(
    "sent", [b"nonsense\r\n\r\n", b"\0", b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", b"GET \0"]
)
async def test_malformed_after_head_has_a_body(sent: bytes) -> None:
    connection = Connection()
    await connection.send(get(line=b"HEAD / HTTP/1.1"))
    assert json.loads((await connection.answer(sent)).partition(b"\r\n\r\n")[2])["code"] == "malformed"


# ---- on real sockets


class Gate:
    """A handler that waits until it is let go."""

    def __init__(self) -> None:
        self.waiting, self.release = asyncio.Event(), asyncio.Event()
        self.served = 0

    async def wait(self, request: Request) -> Response:
        self.waiting.set()
        await self.release.wait()
        return bytes_response(b"waited", "text/plain")

    async def count(self, request: Request) -> Response:
        self.served += 1
        return bytes_response(b"counted", "text/plain")


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def toy(gate: Gate, tmp_path: Path) -> AsyncIterator[Toy]:
    keys = tmp_path / "keys"
    keys.write_text("one:long-enough-for-a-key-1 concurrent=1\n")
    rows = [route("/wait", gate.wait, needs_key=False), route("/count", gate.count, needs_key=False)]
    rows += [route("/guarded", gate.count, "POST"), route("/guarded/wait", gate.wait)]
    async with running(rows, keys=Keys([], keys), timeout_graceful_shutdown=20) as toy:
        yield toy


EXPECTS = b"expect: 100-continue"
KEY = b"authorization: Bearer long-enough-for-a-key-1"


@pytest.mark.parametrize(
    ("headers", "path", "status"),
    [
        ([ABC], b"/guarded", 401),
        ([b"authorization: Bearer another-key-1234567", CHUNKED], b"/guarded", 401),
        ([KEY, b"content-length: 9000000"], b"/guarded", 413),
        ([KEY, b"content-encoding: br", ABC], b"/guarded", 415),
        ([KEY, b"inlay-timeout-ms: soon", ABC], b"/guarded", 422),
        ([KEY, ABC, *H2C], b"/nowhere", 404),
        ([KEY, ABC], b"/wait", 405),
    ],
)
@pytest.mark.parametrize("together", [True, False])
async def test_connection_closes_after_a_refused_expectation(
    toy: Toy, gate: Gate, headers: list[bytes], path: bytes, status: int, together: bool
) -> None:
    """Whether the body follows is not known, so that what follows cannot be told from a body."""
    sent, after = post(EXPECTS, *headers, path=path), get(line=b"GET /count HTTP/1.1")
    answer = await exchange(toy.port, *([sent + after] if together else [sent, after]))
    assert statuses(answer) == [status]
    assert parsed_head(answer.partition(b"\r\n\r\n")[0])[1]["connection"] == "close"
    assert gate.served == 0


async def test_connection_closes_after_an_expectation_over_a_limit(toy: Toy, gate: Gate) -> None:
    async with connected(toy.port) as first:
        await first.send(get(KEY, line=b"GET /guarded/wait HTTP/1.1"))
        await gate.waiting.wait()
        answer = await exchange(toy.port, post(EXPECTS, KEY, ABC, path=b"/guarded"), request(b"GET /count"))
        assert statuses(answer) == [429]
        gate.release.set()
        assert (await first.answer())[0] == 200
    assert gate.served == 0


async def test_stop_serves_nothing_behind_a_response_that_says_close(toy: Toy, gate: Gate) -> None:
    """RFC 9112, 9.6: no request behind it is processed; its client may send it again."""
    number = 50_000  # more than the server holds
    async with connected(toy.port, MIB) as client:
        client.writer.write(request(b"GET /wait") + request(b"GET /count") * number)
        await gate.waiting.wait()
        toy.lifecycle.stopping = toy.server.should_exit = True
        await until(lambda: not toy.server.servers or not toy.server.servers[0].is_serving())
        gate.release.set()
        status, headers, body = await client.answer()
        assert (status, headers["connection"], body) == (200, "close", b"waited")
        assert await client.rest() == b""
    assert gate.served == 0


async def test_response_in_the_kernel_is_not_idleness(gate: Gate) -> None:
    """Its client has not taken all of it, and may send the next request when it has."""

    async def large(request: Request) -> Response:
        return bytes_response(bytes(300 * KIB), "text/plain")

    async with running([route("/large", large), route("/count", gate.count)], idle_seconds=0.2) as toy:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", toy.port))
            client.sendall(get(line=b"GET /large HTTP/1.1"))
            await asyncio.sleep(0.6)  # three times what an idle connection has
            assert toy.connections == 1
            client.setblocking(False)
            reader, writer = await asyncio.open_connection(sock=client.dup(), limit=MIB)
            assert len((await Client(reader, writer).answer())[2]) == 300 * KIB
            await until(lambda: toy.connections == 0)
            assert await reader.read() == b""
            writer.close()


async def test_reader_that_is_cut_off_leaves_nothing_in_the_kernel(gate: Gate) -> None:
    """A close would keep the rest, up to 4 MiB a connection, for as long as its client takes some of it."""

    async def large(request: Request) -> Response:
        return bytes_response(bytes(16 * MIB), "text/plain")

    async with running([route("/large", large)], client_seconds=0.2) as toy:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", toy.port))
            client.sendall(get(line=b"GET /large HTTP/1.1"))
            await until(lambda: toy.connections == 1)
            await until(lambda: toy.connections == 0)
            client.setblocking(False)
            assert await bytes_before_a_reset(client) < 64 * KIB


async def bytes_before_a_reset(client: socket.socket) -> int:
    """What comes until the server's reset."""
    received = 0
    with suppress(ConnectionResetError):
        while part := await asyncio.get_running_loop().sock_recv(client, MIB):
            received += len(part)
        raise AssertionError("the connection was closed, not reset")
    return received
