"""HTTP/1.1 on httptools: the protocol class that uvicorn serves with `http=HttpProtocol`.

It parses requests, holds their bodies within bounds, hands each to the application's pipeline and writes the response:
head and body in one system call. Compared with uvicorn's own protocol and an ASGI application it saves about 40 µs of
processor time a request (16 ids, `make bench`).
"""

import asyncio
import fcntl
import logging
import struct
import termios
from collections import deque
from contextlib import aclosing
from contextvars import Context
from functools import lru_cache
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol

import httptools

from service.errors import HeadTooLarge, InlayError, Malformed, Overloaded, TooSlow
from service.http.intake import Intake
from service.http.pipeline import GONE, Pipeline, too_large
from service.http.response import Headers, Response
from service.http.routes import Head, Request
from service.request_context import request_id

CLIENT_BYTES_PER_SECOND = 4096  # a client that sends or takes less holds its connection up
HEAD_BYTES = 64 * 1024  # of the request line, headers, chunk framing and trailers of one request
REMEMBERED_HEADS, REMEMBERED_HEAD_BYTES = 256, 1024  # of all connections; at most about 1 MiB with what is parsed
FORGOTTEN = frozenset(
    (
        b"authorization",
        b"proxy-authorization",
        b"cookie",
        b"expect",
        b"x-request-id",
        b"traceparent",
        b"transfer-encoding",
    )
)
"""Headers that are secret, differ in every request, or need the parser."""
MAX_PIPELINED = 16  # requests of one connection that wait for the one before
CACHED_HEADS, CACHED_HEAD_BYTES = 1024, 1024  # of responses; at most about 3 MiB with their keys; saves 4 µs each
# what is read after a refusal, so that its sender gets to read the response: of a body, and of a head
DISCARDED_BYTES, DISCARDED_HEAD_BYTES = 64 * 2**20, 8 * 2**20
BODILESS = (204, 304)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CLOSE_LINE = b"connection: close\r\n"
CHUNKED_LINE = b"transfer-encoding: chunked\r\n"
log = logging.getLogger(__name__)


class ConnectionSettings(NamedTuple):
    """What connections read of the settings.

    Args:
        client_seconds: how long a client may hold up its request or its response.
        idle_seconds: how long a connection may wait for its next request.
    """

    client_seconds: float
    idle_seconds: float


class HttpApplication(Protocol):
    """What HttpProtocol needs of the application that uvicorn loads, which uvicorn itself calls for its lifespan.

    Attributes:
        pipeline: serves requests.
        connections: limits of one connection.
        intake: bounds the bodies of all connections together.
        heads: the request heads that came before, by their bytes.
    """

    pipeline: Pipeline
    connections: ConnectionSettings
    intake: Intake
    heads: dict[bytes, Head]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer an ASGI call."""


class HttpProtocol(asyncio.Protocol):
    """One connection, made by uvicorn for an HttpApplication (`config.loaded_app`)."""

    def __init__(
        self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        app: HttpApplication = config.loaded_app
        self._pipeline = app.pipeline
        self._settings = app.connections
        self._intake = app.intake
        self._heads = app.heads
        self._server_state = server_state
        self._loop = _loop or asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: Any = None
        self._client: tuple[str, int] | None = None
        # the request being received
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._first_data: bytes | None = None  # what came with the beginning of its head
        self._incoming: Request | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._held_bytes = 0  # of them, counted by the intake
        self._received_bytes = 0  # of the request as a whole
        self._in_message = False
        self._is_last = False  # no request follows it on this connection
        self._expects_continue = False
        self._upgrading = False
        self._discarding = False  # the connection closes once what still comes has been read
        self._discard_bytes = DISCARDED_BYTES
        # the requests being answered
        self._current: Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiting: deque[tuple[Request, Response | None]] = deque()
        self._keep_alive = True
        self._closing = False
        # the client's pace
        self._idle_since: float | None = self._loop.time()
        self._written = 0
        self._writable: asyncio.Event | None = None
        self._progress: tuple[object, int, float] = (None, 0, 0.0)
        self._timer: asyncio.TimerHandle | None = None

    # ---- asyncio.Protocol

    def connection_made(self, transport: Any) -> None:
        """Take a connection."""
        self._transport = transport
        self._server_state.connections.add(self)
        peer = transport.get_extra_info("peername")
        self._client = (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) else None
        self._schedule_check()

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop what is done for a client that is gone."""
        self._server_state.connections.discard(self)
        self._release_body()
        if self._timer is not None:
            self._timer.cancel()
        if self._writable is not None:
            self._writable.set()
        self._closing = True
        self._drop_waiting()
        if self._incoming is not None:
            self._pipeline.finish(self._incoming, GONE)
            self._incoming = None
        if self._current is not None:
            self._current.disconnected = True
            if self._task is not None:
                self._task.cancel()

    def eof_received(self) -> bool:
        """Close: a client that has left cannot be told from one that only stopped sending; neither can uvicorn."""
        return False

    def data_received(self, data: bytes) -> None:
        """Parse what came; a whole request whose head is known is taken without the parser, which saves 7 µs."""
        if self._idle_since is not None:
            end = data.find(b"\r\n\r\n") + 4
            head = self._heads.get(data[:end])
            if head is not None and len(data) - end == head.body_bytes:
                self._idle_since = None
                request = Request(head, self._client)
                request.body = data[end:]
                self._take(request)
                return
            self._first_data, self._received_bytes = data, 0
        elif self._discarding or not (self._keep_alive or self._in_message):
            self._received_bytes += len(data)
            if self._received_bytes > self._discard_bytes:
                self._transport.close()
            return
        self._received_bytes += len(data)
        self._feed(data)
        if self._received_bytes > HEAD_BYTES + 2 * self._body_bytes and self._in_message and not self._closing:
            self._refuse(
                HeadTooLarge(
                    "a request's line, headers or trailers pass 64 KiB", remedy="send what is long in the body"
                )
            )

    def pause_writing(self) -> None:
        """Hold streams until the client has taken what was sent."""
        self._writable = asyncio.Event()

    def resume_writing(self) -> None:
        """Let streams go on."""
        if self._writable is not None:
            self._writable.set()
            self._writable = None

    def shutdown(self) -> None:
        """Finish the request under way and close; uvicorn calls it when the server stops."""
        if self._current is None and not self._in_message:
            self._transport.close()
            return
        self._keep_alive = False
        self._count_task()

    # ---- httptools callbacks

    def on_message_begin(self) -> None:
        """Begin a request, unless the one before was this connection's last."""
        self._in_message = self._keep_alive
        self._idle_since = None
        self._target, self._headers = b"", {}
        self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Take a part of the request target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header; repeated ones become a list (RFC 9110, 5.3)."""
        name = name.lower()
        headers, value = self._headers, value.rstrip(b" \t")
        headers[name] = headers[name] + b"," + value if name in headers else value

    def on_headers_complete(self) -> None:
        """Route the request, or answer it before its body is read."""
        if not self._in_message:
            return
        parser, headers = self._parser, self._headers
        if parser.should_upgrade():  # httptools skips the body of such a request: it is parsed again without the header
            self._upgrading = b"upgrade" in headers
            return
        head = Head(parser.get_method().decode("ascii"), self._target, headers, parser.get_http_version())
        request = self._incoming = Request(head, self._client)
        if head.version != "1.0" and b"," in headers.get(b"host", b","):
            self._refuse(Malformed("the request has no host header, or several", remedy="send one (RFC 9112, 3.2)"))
            return
        self._headers = {}  # trailers are not headers (RFC 9110, 6.5.1)
        self._pipeline.prepare(head)
        self._remember(head)
        self._is_last = not parser.should_keep_alive()
        early = self._pipeline.accept(request)
        if early is not None:
            self._answer_early(request, early)
        elif head.version == "1.1" and headers.get(b"expect", b"").lower() == b"100-continue":
            self._expects_continue = True
            self._continue()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body, within the bounds."""
        request = self._incoming
        if request is None:
            return
        self._body_bytes += len(body)
        if self._body_bytes > self._intake.most:
            self._refuse(too_large(self._body_bytes, self._intake.most))
            return
        self._body.append(body)
        if self._body_bytes != request.head.body_bytes or len(self._body) > 1:
            try:
                self._intake.take(len(body))
            except Overloaded as error:
                self._refuse(error)
            else:
                self._held_bytes += len(body)

    def on_message_complete(self) -> None:
        """Serve the request, in its turn."""
        request, self._incoming = self._incoming, None
        if request is None:
            return
        self._in_message = self._expects_continue = False
        self._received_bytes = 0
        if self._is_last:
            self._keep_alive = False
        body = self._body
        if body:
            request.body = body[0] if len(body) == 1 else b"".join(body)
            self._release_body()
        if self._current is None:
            self._begin(request)
        else:
            self._waiting.append((request, None))
            if len(self._waiting) >= MAX_PIPELINED:
                self._transport.pause_reading()

    # ---- requests

    def _remember(self, head: Head) -> None:
        """Keep a head that came in one piece, for the next request with the same bytes."""
        data, self._first_data = self._first_data, None
        if data is None or not head.direct or not FORGOTTEN.isdisjoint(head.headers) or head.version != "1.1":
            return
        end = data.find(b"\r\n\r\n") + 4  # of the head, unless empty lines precede it
        if 4 <= end <= REMEMBERED_HEAD_BYTES and data[0] not in b"\r\n" and b"connection" not in head.headers:
            if len(self._heads) >= REMEMBERED_HEADS:
                self._heads.clear()
            self._heads[data[:end]] = head

    def _take(self, request: Request) -> None:
        """Serve a whole request on an idle connection."""
        early = self._pipeline.accept(request)
        if early is None:
            self._begin(request)
        else:
            self._respond_now(request, early)

    def _begin(self, request: Request) -> None:
        """Begin to answer a whole request."""
        if request.head.batched and self._keep_alive:
            self._current = request
            self._pipeline.gather(request, self)
        else:
            self.serve(request)

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._feed_without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError:
            log.exception("the parser's callback met a fault")
            self._transport.abort()
        except httptools.HttpParserError:
            if self._keep_alive or self._in_message:
                self._refuse(Malformed("the request is not HTTP/1.1", remedy="send a request line and headers"))

    def _feed_without_upgrade(self, rest: bytes) -> None:
        """Parse a request with an Upgrade header as one without: this server speaks HTTP/1.1 alone."""
        if not self._in_message:
            return
        method = self._parser.get_method()
        if not self._upgrading:  # CONNECT
            self._refuse(Malformed(f"{method.decode('ascii')} is not a method of this server"))
            return
        self._upgrading = False
        headers = {name: value for name, value in self._headers.items() if name not in (b"upgrade", b"http2-settings")}
        options = [each.strip() for each in headers.pop(b"connection", b"").split(b",")]
        kept = b",".join([each for each in options if each.lower() not in (b"upgrade", b"http2-settings", b"")])
        if kept:
            headers[b"connection"] = kept
        version = self._parser.get_http_version().encode()
        head = b"%b %b HTTP/%b\r\n" % (method, self._target, version)
        head += b"".join([b"%b: %b\r\n" % header for header in headers.items()]) + b"\r\n"
        self._parser = httptools.HttpRequestParser(self)
        self._feed(head)
        if rest and not self._closing:
            self._feed(rest)

    def serve(self, request: Request) -> None:
        """Serve a request in a task of its own."""
        if request.disconnected:
            self._pipeline.finish(request, GONE)
            return
        self._current = request
        # a context of its own: a pipelined request must not inherit the one before
        self._task = self._loop.create_task(self._answer(request), context=request.scope or Context())
        if not self._keep_alive and self._pipeline.stopping:
            self._count_task()

    def _count_task(self) -> None:
        """Let uvicorn wait for the request under way, and cancel it when its patience ends."""
        if self._task is not None:
            self._server_state.tasks.add(self._task)
            self._task.add_done_callback(self._server_state.tasks.discard)

    async def _answer(self, request: Request) -> None:
        status = GONE
        try:
            response = await self._pipeline.respond(request)
            if response.stream is None:
                self._write(request, response)
            else:
                await self._stream(request, response)
            status = response.status
        except asyncio.CancelledError:
            if not request.disconnected:
                self._transport.abort()
                raise
        except Exception:
            log.exception("a response broke off (x-request-id: %s)", request.id.decode())
            self._transport.abort()
        finally:
            self._pipeline.finish(request, status)
            self._done()

    def respond(self, request: Request, response: Response) -> None:
        """Write the response to a request that was served without a task."""
        if request.disconnected:
            self._pipeline.finish(request, GONE)
        else:
            self._respond_now(request, response)

    def _respond_now(self, request: Request, response: Response) -> None:
        self._write_and_finish(request, response)
        self._done()

    def _write_and_finish(self, request: Request, response: Response) -> None:
        self._current, status = request, response.status
        try:
            self._write(request, response)
        except ValueError:
            log.exception("a response broke off (x-request-id: %s)", request.id.decode())
            self._transport.abort()
            status = GONE
        self._pipeline.finish(request, status)

    def _answer_early(self, request: Request, response: Response) -> None:
        """Answer a request whose body is not read; the connection closes unless there is no body."""
        self._incoming = None
        if request.head.body_bytes != 0:
            self._discarding = True
        if self._discarding or self._is_last:
            self._keep_alive = False
        self._in_message = False
        self._received_bytes = 0
        if self._current is not None:
            self._waiting.append((request, response))
        else:
            self._respond_now(request, response)

    def _refuse(self, error: InlayError) -> None:
        """Answer what cannot be received, and close."""
        request = self._incoming or Request(Head("GET", self._target or b"/", self._headers), self._client)
        request.id = request.id or request_id(self._headers.get(b"x-request-id"))
        self._release_body()
        self._discarding = True
        if isinstance(error, HeadTooLarge | Malformed):
            self._discard_bytes = DISCARDED_HEAD_BYTES
        self._answer_early(request, self._pipeline.error_response(request, error))

    def _done(self) -> None:
        """Go on to the next request, or wait for one."""
        self._current = self._task = None
        self._server_state.total_requests += 1
        if self._closing:
            return
        while self._waiting:
            request, response = self._waiting.popleft()
            if len(self._waiting) < MAX_PIPELINED:
                self._transport.resume_reading()
            if response is None:
                self._begin(request)
                return
            self._write_and_finish(request, response)
            self._current = None
        if not self._keep_alive:
            self._close()
        elif self._expects_continue:
            self._continue()
        elif not self._in_message:
            self._idle_since = self._loop.time()

    def _close(self) -> None:
        self._closing = True
        if self._discarding:  # closing at once would reset the connection and lose the response
            if self._transport.can_write_eof():
                self._transport.write_eof()
            self._loop.call_later(min(self._settings.client_seconds, 2.0), self._transport.close)
        else:
            self._transport.close()

    def _continue(self) -> None:
        """Ask for the body of a request that expects it, once nothing else is being written."""
        if self._current is None:
            self._expects_continue = False
            self._transport.write(CONTINUE)

    def _drop_waiting(self) -> None:
        """End requests whose responses can no longer be sent."""
        while self._waiting:
            self._pipeline.finish(self._waiting.popleft()[0], GONE)

    def _release_body(self) -> None:
        self._body = []
        if self._held_bytes:
            self._intake.give_back(self._held_bytes)
            self._held_bytes = 0

    # ---- writing

    def _write(self, request: Request, response: Response) -> None:
        """Write a whole response in one system call."""
        body, headers, status, _, lines = response
        size: int | None = len(body[0]) if len(body) == 1 else sum(map(len, body))
        if not size and request.head.verb == "HEAD":
            size = None  # the handler left the body out and may have declared its length
        if self._pipeline.stopping:
            self._keep_alive = False
        head = _head(status, headers, size, self._keep_alive or len(self._waiting) > 0)
        lines = b"%b%bx-request-id: %b\r\n%b\r\n" % (head, lines, request.id, self._date())
        self._written += len(lines) + (size or 0)
        if request.head.verb == "HEAD" or status in BODILESS:
            self._transport.write(lines)
        else:
            self._transport.writelines((lines, *body))

    async def _stream(self, request: Request, response: Response) -> None:
        """Write a response part by part, no faster than the client takes it."""
        assert response.stream is not None
        left = next((int(value) for name, value in response.headers if name == b"content-length"), None)
        chunked = left is None and request.head.version == "1.1"
        if left is None and not chunked:  # the end of the connection is the end of the body
            self._keep_alive = False
            self._drop_waiting()
        elif self._pipeline.stopping:
            self._keep_alive = False
        stays = self._keep_alive or len(self._waiting) > 0
        head = _head(response.status, response.headers, None, stays) + (CHUNKED_LINE if chunked else b"")
        self._send(b"%b%bx-request-id: %b\r\n%b\r\n" % (head, response.lines, request.id, self._date()))
        if request.head.verb == "HEAD":
            return
        async with aclosing(response.stream) as parts:  # type: ignore[type-var]
            async for part in parts:
                if left is not None and (left := left - len(part)) < 0:
                    raise ValueError("the response has more bytes than it declares")
                if chunked and len(part):
                    self._send(b"%x\r\n" % len(part))
                    self._send(part)
                    self._send(b"\r\n")
                elif len(part):
                    self._send(part)
                if self._writable is not None:
                    await self._writable.wait()
        if chunked:
            self._send(b"0\r\n\r\n")
        elif left:
            raise ValueError(f"the response has {left} bytes fewer than it declares")

    def _send(self, data: bytes | memoryview) -> None:
        self._written += len(data)
        self._transport.write(data)

    def _date(self) -> bytes:
        return _lines(tuple(self._server_state.default_headers))

    # ---- the client's pace

    def _schedule_check(self) -> None:
        seconds = min(self._settings.idle_seconds, self._settings.client_seconds / 2)
        if self._idle_since is not None:
            left = self._idle_since + self._settings.idle_seconds - self._loop.time()
            seconds = min(seconds, max(left, 0.01))
        self._timer = self._loop.call_later(seconds, self._check_pace)

    def _check_pace(self) -> None:
        """Close a connection that has been idle, or that its client has held up, for too long."""
        now, unsent = self._loop.time(), self._transport.get_write_buffer_size()
        if self._idle_since is not None and not unsent:
            if now - self._idle_since >= self._settings.idle_seconds:
                self._transport.close()
                return
        elif self._is_held_up(unsent, now):
            if unsent:
                self._transport.abort()
                return
            self._refuse(TooSlow("the request was not sent in time", remedy="send it faster, or in smaller parts"))
            return
        self._schedule_check()

    def _is_held_up(self, unsent: int, now: float) -> bool:
        """Return whether the client has let too few bytes pass for `client_seconds`."""
        if unsent:
            what: object = "response"
            passed = self._written - unsent - _unacknowledged(self._transport)
        elif self._in_message and self._current is None:
            what, passed = "request", self._received_bytes
        else:
            self._progress = (None, 0, now)
            return False
        before, bytes_before, since = self._progress
        moved = passed - bytes_before
        if before != what or (moved > 0 and moved >= CLIENT_BYTES_PER_SECOND * (now - since)):
            self._progress = (what, passed, now)
            return False
        return now - since >= self._settings.client_seconds


def _unacknowledged(transport: Any) -> int:
    """Return the bytes that the kernel holds for the client, so that a slow but steady reader is seen to read."""
    connection = transport.get_extra_info("socket")
    try:
        raw = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
    except (OSError, AttributeError, ValueError):
        return 0
    return int(struct.unpack("i", raw)[0])


def _head(status: int, headers: Headers, size: int | None, keep_alive: bool) -> bytes:
    """Return the status line and headers, without the empty line."""
    key = (status, headers, size, keep_alive)
    head = _heads.get(key)
    if head is None:
        head = _made_head(status, headers, size, keep_alive)
        if len(head) <= CACHED_HEAD_BYTES:
            if len(_heads) >= CACHED_HEADS:
                _heads.clear()
            _heads[key] = head
    return head


def _made_head(status: int, headers: Headers, size: int | None, keep_alive: bool) -> bytes:
    """Return the head; raise ValueError for a header that would split it or belie the body's length."""
    lines = [b"HTTP/1.1 %d %b\r\n" % (status, _phrase(status))]
    for name, value in headers:
        if not name or b"\n" in name + value or b"\r" in name + value or b"\0" in value or b":" in name or b" " in name:
            raise ValueError(f"the response header {name!r} is not one line")
        if name == b"content-length" and size is not None:
            if int(value) != size and status not in BODILESS:
                raise ValueError(f"the response declares {int(value)} bytes and has {size}")
            size = None
        if not (name == b"connection" and not keep_alive):
            lines.append(b"%b: %b\r\n" % (name, value))
    if size is not None and status not in BODILESS and status >= 200:
        lines.append(b"content-length: %d\r\n" % size)
    if not keep_alive:
        lines.append(CLOSE_LINE)
    return b"".join(lines)


_heads: dict[tuple[int, Headers, int | None, bool], bytes] = {}


def _phrase(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b""


@lru_cache(maxsize=8)
def _lines(headers: Headers) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])
