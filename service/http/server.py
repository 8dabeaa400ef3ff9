"""HTTP/1.1 on httptools: the protocol class that uvicorn serves with `http=HttpProtocol`.

It parses requests, holds their bodies within bounds, hands each to the application's pipeline and keeps their responses
in order. Behind it an `/embed` of 16 token ids without its ONNX run takes 26 µs of processor time, as much as an empty
uvicorn app (32 connections).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from contextvars import Context
from typing import Any

from service.errors import BodyTooLarge, HeadTooLarge, InlayError, Malformed, Overloaded, TooSlow
from service.http.application import HttpApplication
from service.http.client_pace import ClientPace, unacknowledged_bytes
from service.http.closing import LINGER_SECONDS, close_in_stages, reset
from service.http.intake import IncomingBody
from service.http.request_parser import RequestParser, ambiguity, varying_of
from service.http.response import Response
from service.http.response_writer import ResponseWriter, ends_with_connection, in_pieces
from service.http.routes import GONE, Head, Request
from service.request_context import request_id

HEAD_BYTES = 64 * 1024  # of the request line, headers, chunk framing and trailers of one request
# requests of one connection that wait for the one before; a segment of 256 KiB may hold 10 000, which would take 9 MiB,
# or 50 MiB with the errors that answer them, so the rest of the segment waits as bytes
MAX_PIPELINED = 16
LINES_BYTES = 16 * 1024  # parsed at a time of heads and chunks, so that one segment of 256 KiB cannot pass HEAD_BYTES
PIECE_BYTES = 4096  # parsed at a time where more requests may follow; with 160 errors and the rest 1 MiB a connection
# read and dropped after a refusal, so that its sender gets to read the response: of a body, and of a head
DISCARDED_BYTES, DISCARDED_HEAD_BYTES = 64 * 2**20, 8 * 2**20
BATCHED_BYTES = 8192  # of the body of one request for a batch handler: about 1 300 token ids, 1 ms
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
log = logging.getLogger(__name__)


class HttpProtocol(asyncio.Protocol):
    """One connection, made by uvicorn for an HttpApplication (`config.loaded_app`)."""

    _client: tuple[str, int] | None = None
    # the request being received
    _first_data: bytes | None = None  # the segment with the beginning of its head
    _incoming: Request | None = None
    _received_bytes = 0  # of the request as a whole
    _received_requests = 0  # begun so far, by the parser's count
    _unparsed = b""  # held back while MAX_PIPELINED requests wait; reading is paused meanwhile
    _in_message = False
    _is_last = False  # no request follows it on this connection
    _expects_continue = False
    _discarding = False  # further data is dropped, and the connection closes
    _discard_bytes = DISCARDED_BYTES
    # the requests being answered
    _current: Request | None = None
    _task: asyncio.Task[None] | None = None
    _keep_alive = True
    _closing = False
    # the client's pace
    _timer: asyncio.TimerHandle | None = None

    def __init__(
        self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        app: HttpApplication = config.loaded_app
        self._pipeline = app.pipeline
        self._settings = app.connections
        self._pace = ClientPace(app.connections)
        self._heads = app.heads
        self._server_state = server_state
        self._loop = _loop or asyncio.get_running_loop()
        self._parser = RequestParser(self)
        self._transport: Any = None
        self._writer: ResponseWriter
        self._body = IncomingBody(app.intake)
        self._waiting: deque[tuple[Request, Response | None]] = deque()
        self._idle_since: float | None = self._loop.time()

    # ---- asyncio.Protocol

    def connection_made(self, transport: Any) -> None:
        """Begin to serve a connection."""
        self._transport = transport
        self._writer = ResponseWriter(transport, self._server_state, self._pipeline.budget)
        self._server_state.connections.add(self)
        peer = transport.get_extra_info("peername")
        self._client = (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) else None
        self._schedule_check()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the work for a client that has left, and release its requests."""
        self._server_state.connections.discard(self)
        self._body.drop()
        if self._timer is not None:
            self._timer.cancel()
        self._writer.resume()
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
        """Close: a client that has left cannot be told from one that only stopped sending; uvicorn does the same."""
        return False

    def data_received(self, data: bytes) -> None:
        """Parse data; a whole request with a remembered head is taken without the parser."""
        if self._idle_since is not None:
            request = self._heads.take(data, self._client)
            if request is not None:
                self._idle_since = None
                early = self._pipeline.accept(request)
                if early is None:
                    self._begin(request)
                else:
                    self._respond_now(request, early)
                return
            self._first_data, self._received_bytes = data, 0
        elif self._discarding or not (self._keep_alive or self._in_message):
            self._discarding = True
            self._received_bytes += len(data)
            if self._received_bytes > self._discard_bytes:
                self._transport.close()
            return
        self._parse(data)

    def pause_writing(self) -> None:
        """Pause the stream, the waiting requests and reading until the client has read more."""
        self._writer.pause()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Resume the stream, the waiting requests and reading."""
        self._writer.resume()
        if self._current is None and self._waiting and not self._closing:
            self._go_on()
        if len(self._waiting) < MAX_PIPELINED and not self._writer.is_paused:
            self._transport.resume_reading()

    def shutdown(self) -> None:
        """Finish the request under way and close; uvicorn calls it when the server stops."""
        if self._current is None and not self._waiting and not self._in_message:
            self._transport.close()  # sends what the client has not read yet
            return
        self._keep_alive = False
        self._count_task()

    # ---- RequestReceiver

    def on_message_begin(self) -> bool:
        """Begin a request; return False if the previous one was the connection's last."""
        self._in_message = self._keep_alive
        self._received_requests += 1
        self._idle_since = None
        return self._in_message

    def on_head(self, head: Head, varying: Mapping[bytes, bytes], keep_alive: bool) -> None:
        """Route the request, or answer it before its body is read."""
        request = self._incoming = Request(head, self._client, varying)
        if (error := ambiguity(head)) is not None:
            self._refuse(error)
            return
        self._pipeline.prepare(head)
        first_data, self._first_data = self._first_data, None
        # a client of HTTP/1.0 would look for `connection: keep-alive` in the response; uvicorn does not send it either
        self._is_last = not keep_alive or head.version == "1.0"
        early = self._pipeline.accept(request)
        if early is not None:
            self._answer_early(request, early)
            return
        if first_data is not None and not self._is_last:
            self._heads.keep(head, varying, first_data)  # of an accepted request: strangers cannot fill the memory
        if head.version == "1.1" and head.headers.get(b"expect", b"").lower() == b"100-continue":
            self._expects_continue = True
            self._continue()

    def on_body(self, body: bytes) -> None:
        """Add a part of the body, within the bounds."""
        request = self._incoming
        if request is None:
            return
        try:
            self._body.add(body, request.body_bytes)
        except (BodyTooLarge, Overloaded) as error:
            self._refuse(error)

    def on_message_complete(self) -> None:
        """Serve the request, in its turn."""
        request, self._incoming = self._incoming, None
        if request is None:
            return
        self._in_message = self._expects_continue = False
        self._received_bytes = 0
        if self._is_last or (request.body_bytes is None and not self._parser.keeps_alive):
            self._keep_alive = False
        request.body = self._body.complete(request.context)
        if self._is_busy:
            self._wait(request, None)
        else:
            self._begin(request)

    # ---- requests

    @property
    def _is_busy(self) -> bool:
        """Whether a new request must wait for an earlier one, or until the client has read what was sent."""
        return self._current is not None or self._writer.is_paused or len(self._waiting) > 0

    def _begin(self, request: Request) -> None:
        """Begin to answer a whole request."""
        if request.head.batched and len(request.body) <= BATCHED_BYTES:
            self._current = request
            self._pipeline.gather(request, self)
        else:
            self.serve(request)

    def _wait(self, request: Request, response: Response | None) -> None:
        """Queue a request, or its early response, after earlier ones; stop reading while many wait."""
        self._waiting.append((request, response))
        if len(self._waiting) >= MAX_PIPELINED:
            self._transport.pause_reading()

    # ---- parsing

    def _parse(self, data: bytes) -> None:
        """Parse data of requests, within the bounds of one head; keep what follows MAX_PIPELINED requests as bytes."""
        start, many = 0, len(data) > PIECE_BYTES and data.count(b"\r\n\r\n") > MAX_PIPELINED
        while start < len(data):
            if self._transport.is_closing() or not (self._keep_alive or self._in_message):
                self._discarding = True
                return
            if many and len(self._waiting) >= MAX_PIPELINED:
                self._unparsed = data[start:] + self._unparsed
                return
            left = (self._incoming.body_bytes or 0) - self._body.size if self._incoming is not None else 0
            end = start + (PIECE_BYTES if many else max(left, LINES_BYTES))
            self._feed(data[start:end])
            start = end

    def _feed(self, data: bytes) -> None:
        """Parse a piece; refuse a request with too many bytes outside its body."""
        self._received_bytes += len(data)
        try:
            self._parser.feed(data)
        except Malformed as error:
            if self._keep_alive or self._in_message:
                self._refuse(error)
        except Exception:
            log.exception("the parser's callback met a fault")
            self._transport.abort()
        if self._received_bytes > HEAD_BYTES + 2 * self._body.size and self._in_message and not self._closing:
            text = "a request's line, headers or trailers pass 64 KiB"
            self._refuse(HeadTooLarge(text, remedy="send what is long in the body"))

    def _read_on(self) -> None:
        """Parse the remaining data; resume reading unless MAX_PIPELINED requests wait or the client must read."""
        if self._unparsed:
            data, self._unparsed = self._unparsed, b""
            self._parse(data)
        if len(self._waiting) < MAX_PIPELINED and not self._writer.is_paused:
            self._transport.resume_reading()

    # ---- responses

    def serve(self, request: Request) -> None:
        """Serve a request in a task of its own."""
        if request.disconnected:
            self._pipeline.finish(request, GONE)
            return
        self._current = request
        # a context of its own: a pipelined request must not inherit the one before
        self._task = self._loop.create_task(self._answer(request), context=Context())
        if not self._keep_alive and self._pipeline.stopping:
            self._count_task()

    def _count_task(self) -> None:
        """Register the task with uvicorn, which waits for it at shutdown and cancels it after its time limit."""
        if self._task is not None:
            self._server_state.tasks.add(self._task)
            self._task.add_done_callback(self._server_state.tasks.discard)

    async def _answer(self, request: Request) -> None:
        status = GONE
        try:
            response = await self._pipeline.respond(request)
            if self._pipeline.stopping:
                self._keep_alive = False
            response = in_pieces(response)
            self._pipeline.leaving(request)
            if response.stream is None:
                self._writer.write(request, response, self._keep_alive or len(self._waiting) > 0)
            else:
                if ends_with_connection(request, response):
                    self._keep_alive = False
                    self._drop_waiting()
                await self._writer.stream(request, response, self._keep_alive or len(self._waiting) > 0)
            status = response.status
        except asyncio.CancelledError:
            if not request.disconnected:
                self._transport.abort()
                raise
        except Exception:
            log.exception("a response broke off (x-request-id: %s)", request.context.request_id.decode())
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
        if self._pipeline.stopping:
            self._keep_alive = False
        try:
            self._writer.write(request, response, self._keep_alive or len(self._waiting) > 0)
        except ValueError:
            log.exception("a response broke off (x-request-id: %s)", request.context.request_id.decode())
            self._transport.abort()
            status = GONE
        self._pipeline.finish(request, status)

    def _answer_early(self, request: Request, response: Response) -> None:
        """Answer a request whose body is not read; the connection closes unless there is no body."""
        self._incoming = None
        if request.body_bytes != 0:
            self._discarding = True
        if self._discarding or self._is_last:
            self._keep_alive = False
        self._in_message = False
        self._received_bytes = 0
        if self._is_busy:
            self._wait(request, response)
        else:
            self._respond_now(request, response)

    def _refuse(self, error: InlayError) -> None:
        """Answer the request being received with an error, and close the connection."""
        parser = self._parser
        request = self._incoming
        if request is None:
            varying = varying_of(parser.headers)
            request = Request(Head(parser.verb, parser.target or b"/", parser.headers), self._client, varying)
        if request.context.request_id == b"-":
            request.context.request_id = request_id(request.varying.get(b"x-request-id"))
        self._body.drop()
        self._discarding = True
        if isinstance(error, HeadTooLarge | Malformed):
            self._discard_bytes = DISCARDED_HEAD_BYTES
        self._answer_early(request, self._pipeline.error_response(request, error))

    def _done(self) -> None:
        """End the current request."""
        self._current = self._task = None
        self._server_state.total_requests += 1
        if not self._closing:
            self._go_on()

    def _go_on(self) -> None:
        """Begin the next request, or wait for one or until the client has read what was sent."""
        while self._waiting:
            if self._writer.is_paused:
                return
            request, response = self._waiting.popleft()
            self._current = request  # requests that are parsed now wait for it
            if len(self._waiting) < MAX_PIPELINED:
                self._read_on()
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
        """Close; in stages if data was dropped, so that the client gets the response."""
        self._closing = True
        if self._discarding:
            seconds = LINGER_SECONDS if self._pipeline.stopping else self._settings.client_seconds
            close_in_stages(self._transport, self._loop, seconds, lambda: self._received_bytes)
        else:
            self._transport.close()

    def _continue(self) -> None:
        """Ask for the body of a request that expects it, once nothing else is being written."""
        if self._current is None and not self._waiting:
            self._expects_continue = False
            self._transport.write(CONTINUE)

    def _drop_waiting(self) -> None:
        """End requests whose responses can no longer be sent."""
        self._unparsed = b""
        while self._waiting:
            self._pipeline.finish(self._waiting.popleft()[0], GONE)

    # ---- the client's pace

    def _schedule_check(self) -> None:
        seconds = self._pace.seconds_to_check(self._idle_since, self._loop.time())
        self._timer = self._loop.call_later(seconds, self._check_pace)

    def _check_pace(self) -> None:
        """Close a connection that has been idle, or that its client has held up, for too long."""
        now, unsent = self._loop.time(), self._transport.get_write_buffer_size()
        in_kernel = unacknowledged_bytes(self._transport)
        if unsent or (in_kernel and self._idle_since is not None):
            self._idle_since = self._idle_since and now  # idleness begins when the client has the response
            taken = self._writer.written - unsent - in_kernel
            if self._pace.is_held_up("response", taken, now):
                reset(self._transport)
                return
        elif self._idle_since is not None:
            if self._pace.has_idled_too_long(self._idle_since, now):
                self._transport.close()
                return
        elif self._in_message and self._current is None:
            if self._pace.is_held_up(self._received_requests, self._received_bytes, now):
                self._refuse(TooSlow("the request was not sent in time", remedy="send it faster, or in smaller parts"))
                return
        else:
            self._pace.reset()
        self._schedule_check()
