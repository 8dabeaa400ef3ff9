"""HTTP/1.1 on httptools: the protocol class that uvicorn serves with `http=HttpProtocol`.

It parses requests, holds their bodies within bounds, hands each to the application's pipeline and keeps their responses
in order. Behind it an `/embed` of 16 token ids without its ONNX run takes 26 µs of processor time, as much as an empty
uvicorn app (32 connections).
"""

import asyncio
import logging
from contextvars import Context
from typing import Any

from service.errors import HeadTooLarge, InlayError, Malformed, TooSlow
from service.http.application import HttpApplication
from service.http.client_pace import ClientPace, unacknowledged_bytes
from service.http.closing import LINGER_SECONDS, close_in_stages, reset
from service.http.intake import IncomingBody
from service.http.request_parser import RequestParser, ambiguity, varying_of
from service.http.response import Response
from service.http.response_writer import ResponseWriter, ends_with_connection, in_pieces
from service.http.routes import GONE, Head, Request

HEAD_BYTES = 64 * 1024  # of the request line, headers, chunk framing and trailers of one request
HEAD_END = b"\r\n\r\n"  # of chunks and trailers too
LINES_BYTES = 16 * 1024  # parsed at a time of heads and chunks, so that one segment of 256 KiB cannot pass HEAD_BYTES
CUT_BYTES = 32  # more that count for a piece of chunks cut at HEAD_END: 16 MiB of nothing else would take 6 s to parse
# read and dropped after a refusal, so that its sender gets to read the response: of a body, and of a head
DISCARDED_BYTES, DISCARDED_HEAD_BYTES = 64 * 2**20, 8 * 2**20
BATCHED_BYTES = 8192  # of the body of one request for a batch handler: about 1 300 token ids, 1 ms
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
log = logging.getLogger(__name__)


class HttpProtocol(asyncio.Protocol):
    """One connection, made by uvicorn for an HttpApplication (`config.loaded_app`).

    It serves one request at a time. What a client sends behind one waits as bytes until that is answered.
    """

    _client: tuple[str, int] | None = None
    # the request being received
    _first_data: bytes | None = None  # the segment with the beginning of its head
    _incoming: Request | None = None
    _received_bytes = 0  # of the request as a whole
    _received_requests = 0  # whose head came so far
    _parsed_bytes = 0  # of _unparsed
    _last_bytes = b""  # of what is parsed: the end of a head may be cut
    _is_last = False  # no request follows it on this connection
    _discard_bytes = DISCARDED_BYTES
    # the request being answered
    _current: Request | None = None
    _task: asyncio.Task[None] | None = None
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
        self._parser = RequestParser()
        self._transport: Any = None
        self._writer: ResponseWriter
        self._body = IncomingBody(app.intake)
        self._idle_since: float | None = self._loop.time()
        # read for every request, which takes Python 3.11 ten times as long of a class
        self._unparsed = b""  # what came
        self._parsing = self._closing = False
        self._keep_alive = True
        self._discarding = False  # further data is dropped, and the connection closes

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
        """Cancel the work for a client that has left, and release its request."""
        self._server_state.connections.discard(self)
        self._body.drop()
        if self._timer is not None:
            self._timer.cancel()
        self._closing = True
        self._writer.resume()
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
        if self._idle_since is not None and not self._unparsed:
            request = self._heads.take(data, self._client)
            if request is not None:
                self._idle_since = None
                early = self._pipeline.accept(request)
                if early is None:
                    self._begin(request)
                else:
                    self.respond(request, early)
                return
            self._first_data, self._received_bytes = data, 0
        elif self._discarding or not (self._keep_alive or self._parser.in_message):
            self._discarding = True
            self._received_bytes += len(data)
            if self._received_bytes > self._discard_bytes:
                self._transport.close()
            return
        self._unparsed, self._parsed_bytes = self._unparsed[self._parsed_bytes :] + data, 0
        self._parse()

    def pause_writing(self) -> None:
        """Pause the stream, the next request and reading until the client has read more."""
        self._writer.pause()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Resume the stream, or begin the next request."""
        self._writer.resume()
        if self._current is None and not self._closing:
            self._go_on()
        if len(self._unparsed) - self._parsed_bytes <= HEAD_BYTES:
            self._transport.resume_reading()

    def shutdown(self) -> None:
        """Finish the request under way and close; uvicorn calls it when the server stops."""
        if self._current is None and not self._is_receiving:
            self._transport.close()  # sends what the client has not read yet
            return
        self._keep_alive = False
        self._count_task()

    # ---- receiving

    @property
    def _is_receiving(self) -> bool:
        """Whether a request has begun to come whose rest is wanted."""
        return self._parser.in_message and not self._discarding

    def _parse(self) -> None:
        """Parse what has come, up to the end of a request; the rest waits until that is answered."""
        self._parsing, data = True, self._unparsed
        while self._parsed_bytes < len(data):
            if self._transport.is_closing() or not (self._keep_alive or self._is_receiving):
                self._discarding, self._unparsed = True, b""
                break
            if self._current is not None or self._writer.is_paused:
                break
            start, end = self._parsed_bytes, self._piece_end(data, self._parsed_bytes)
            self._parsed_bytes = end
            try:
                self._receive(data[start:end])
            except Exception:
                log.exception("a request met a fault before it was served")
                self._transport.abort()
        else:
            self._unparsed, self._parsed_bytes = b"", 0
            if self._idle_since is None and self._current is None and self._keep_alive:
                self._go_on()
        self._parsing = False
        if len(self._unparsed) - self._parsed_bytes > HEAD_BYTES:
            self._transport.pause_reading()

    def _piece_end(self, data: bytes, start: int) -> int:
        """Return where a piece of data ends that holds no part of a next request."""
        request = self._incoming
        if request is not None and request.body_bytes:
            return start + request.body_bytes - self._body.size
        before, self._last_bytes = self._last_bytes, b""
        cut = (before + data[start : start + 3]).find(HEAD_END)
        if cut >= 0:  # its first bytes came earlier
            return start + cut + len(HEAD_END) - len(before)
        at = data.find(HEAD_END, start, start + LINES_BYTES)
        if at >= 0:
            return at + len(HEAD_END)
        end = min(len(data), start + LINES_BYTES)
        self._last_bytes = (before + data[max(start, end - 3) : end])[-3:]
        return end

    def _receive(self, piece: bytes) -> None:
        """Parse a piece and act on what it completes, within the bounds of a head and of a body."""
        parser = self._parser
        self._received_bytes += len(piece)
        try:
            parser.feed(piece)
            if parser.in_message or parser.ended:
                self._idle_since = None
            if parser.head is not None:
                self._receive_head(*parser.head)
            for part in parser.parts:
                if (request := self._incoming) is not None:
                    self._body.add(part, request.body_bytes, request.context.caller)
            if parser.parts and not parser.ended and piece.endswith(HEAD_END):
                self._received_bytes += CUT_BYTES
            if parser.ended and self._incoming is not None:
                self._receive_end(self._incoming)
            elif self._received_bytes > HEAD_BYTES + 2 * self._body.size and parser.in_message:
                text = "a request's line, headers or trailers pass 64 KiB"
                raise HeadTooLarge(text, remedy="send what is long in the body")
        except InlayError as error:
            if not self._discarding:
                self._refuse(error)

    def _receive_head(self, head: Head, varying: dict[bytes, bytes], keep_alive: bool) -> None:
        """Route the request, or answer it before its body is read."""
        self._received_requests += 1
        error = ambiguity(head)
        if error is None:
            self._pipeline.prepare(head)
        request = self._incoming = Request(head, self._client, varying)
        if error is not None:
            raise error
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
            self._transport.write(CONTINUE)

    def _receive_end(self, request: Request) -> None:
        """Serve the request, which is complete."""
        self._incoming = None
        self._received_bytes = 0
        if self._is_last or (request.body_bytes is None and not self._parser.keeps_alive):
            self._keep_alive = False
        request.body = self._body.complete(request.context)
        self._begin(request)

    def _answer_early(self, request: Request, response: Response) -> None:
        """Answer a request whose body is not read; the connection closes unless there is no body."""
        self._incoming = None
        if request.body_bytes != 0:
            self._discarding = True
        if self._discarding or self._is_last:
            self._keep_alive = False
        self._received_bytes = 0
        self.respond(request, response)

    def _refuse(self, error: InlayError) -> None:
        """Answer the request being received with an error, and close the connection."""
        parser = self._parser
        request = self._incoming
        if request is None:
            varying = varying_of(parser.headers)
            request = Request(Head(parser.verb, parser.target or b"/", parser.headers), self._client, varying)
        self._body.drop()
        self._discarding = True
        if isinstance(error, HeadTooLarge | Malformed):
            self._discard_bytes = DISCARDED_HEAD_BYTES
        self._answer_early(request, self._pipeline.error_response(request, error))

    # ---- answering

    def _begin(self, request: Request) -> None:
        """Begin to answer a whole request."""
        if request.head.batched and len(request.body) <= BATCHED_BYTES:
            self._current = request
            self._pipeline.gather(request, self, self._parsing)
        else:
            self.serve(request)

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
            if response.stream is None:
                self._writer.write(request, response, self._keep_alive)
            else:
                self._keep_alive = self._keep_alive and not ends_with_connection(request, response)
                await self._writer.stream(request, response, self._keep_alive)
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
            return
        status = response.status
        if self._pipeline.stopping:
            self._keep_alive = False
        try:
            self._writer.write(request, response, self._keep_alive)
        except ValueError:
            log.exception("a response broke off (x-request-id: %s)", request.context.request_id.decode())
            self._transport.abort()
            status = GONE
        self._pipeline.finish(request, status)
        self._done()

    def _done(self) -> None:
        """End the current request."""
        self._current = self._task = None
        self._server_state.total_requests += 1
        if self._closing:
            return
        if not self._keep_alive:
            self._close()
        elif not self._parsing:  # else the loop that parses goes on
            self._go_on()

    def _go_on(self) -> None:
        """Parse what came meanwhile, if the client has read what was sent; with nothing to do, be idle."""
        if self._unparsed:
            if not self._writer.is_paused:
                self._transport.resume_reading()
                self._parse()
        elif not self._is_receiving:
            self._idle_since = self._loop.time()

    def _close(self) -> None:
        """Close; in stages if data was dropped, so that the client gets the response."""
        self._closing = True
        if self._discarding or self._unparsed:
            self._discarding = True
            seconds = LINGER_SECONDS if self._pipeline.stopping else self._settings.client_seconds
            close_in_stages(self._transport, self._loop, seconds, lambda: self._received_bytes)
        else:
            self._transport.close()

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
        elif self._is_receiving and self._current is None:
            if self._pace.is_held_up(self._received_requests, self._received_bytes, now):
                self._refuse(TooSlow("the request was not sent in time", remedy="send it faster, or in smaller parts"))
                return
        else:
            self._pace.reset()
        self._schedule_check()
