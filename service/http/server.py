"""uvicorn's HTTP/1.1 protocol with a short road for whole answers, and requests cancelled when their client leaves.

uvicorn 0.54 searches every header twice and writes head and body apart, which uvloop 0.23 hands to the kernel at once:
two system calls, and a client woken twice. An answer sent as a head and one body leaves here in one write; every other
(streams, HEAD, 1xx, 204, 304, logged ones) is uvicorn's own. Knows no route and nothing of what is sent.
"""

import asyncio
from contextvars import Context
from functools import lru_cache
from http import HTTPStatus
from typing import Any, NamedTuple

from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from service.errors import HeadTooLarge, InlayError, TooSlow
from service.http import problem_details as problems
from service.http.asgi import CLOSE, LEFT
from service.http.slow_clients import Patience, unframed

Fields = tuple[tuple[bytes, bytes], ...]
BODILESS = (204, 304)
VARYING = (b"x-", b"retry-after-ms")
CLIENT_SECONDS = 30.0  # where the configuration has no `client_seconds`


class OneWrite(HttpToolsProtocol):
    """The protocol uvicorn serves with `http=OneWrite`.

    One timer a connection looks in now and then: uvicorn sets and cancels one for every request, and none for a client
    that is slow to send one or to take its answer, which keeps the connection and all that was received for ever.
    """

    _running: "Cycle | None" = None
    _idle_since: float | None = None  # None: a request is under way
    _raw = _body = 0  # bytes of the request that is being received: about all, and of its body
    _resumed = 0  # how often the client took what was held back

    def connection_made(self, transport: Any) -> None:
        """Expect a first request within the time between two, or that of a slow client where it is longer."""
        super().connection_made(transport)
        self._client_seconds: float = getattr(self.config, "client_seconds", CLIENT_SECONDS)
        self._patience = Patience(self._client_seconds)
        self._idle_since = self.loop.time() + max(0.0, self._client_seconds - self.timeout_keep_alive)
        self._look_in(self.timeout_keep_alive)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.__class__ = Cycle  # uvicorn names its own class where it makes one
        assert isinstance(cycle, Cycle)
        self._running = cycle
        # a context of its own: a pipelined request begins inside the one before it, whose deadline and key are not its
        cycle.task = task = self.loop.create_task(cycle.run_asgi(app), context=Context())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel a request that waits and has asked for it."""
        super().connection_lost(exc)
        super()._unset_keepalive_if_required()
        if self._running is not None:
            self._running.leave()

    def data_received(self, data: bytes) -> None:
        """Take what came, unless it is a head without an end: uvicorn and httptools 0.9 keep all of it."""
        self._raw += len(data)
        super().data_received(data)
        if unframed(self._raw, self._body) and not self.transport.is_closing():
            self._turn_away(
                HeadTooLarge("a request's line, headers or trailers pass 64 KiB: send what is long in the body")
            )

    def on_message_begin(self) -> None:
        """Count anew."""
        self._raw = self._body = 0
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        """Count what is worth more than a frame."""
        self._body += len(body)
        super().on_body(body)

    def resume_writing(self) -> None:
        """Note that the client takes its answer."""
        self._resumed += 1
        super().resume_writing()

    def on_response_complete(self) -> None:
        """Start the next request, or the wait for one."""
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        self._idle_since = self.loop.time()

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = None

    def _look_in(self, seconds: float) -> None:
        seconds = min(seconds, self.timeout_keep_alive, self._client_seconds / 2)
        self.timeout_keep_alive_task = self.loop.call_later(max(seconds, 0.01), self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that has been idle, or held up by its client, for long enough."""
        now = self.loop.time()
        unsent = self.transport.get_write_buffer_size()
        if self._patience.over(*self._held_up(unsent), now):
            if unsent:
                self.transport.abort()
                return
            self._turn_away(TooSlow("the request was not sent in time: send it faster, or in smaller parts"))
        left: float = self.timeout_keep_alive
        if self._idle_since is not None and not unsent:
            left = self._idle_since + self.timeout_keep_alive - now
            if left <= 0:
                super().timeout_keep_alive_handler()
        self._look_in(max(left, 0))

    def _held_up(self, unsent: int) -> tuple[Any, int]:
        """What cannot go on without the client, and how many of its bytes have passed."""
        if unsent:  # seen to shrink; a stream's is filled again, each time it has shrunk enough
            return self._running, (self._resumed << 40) - unsent
        if self.transport.is_closing() or self.flow.read_paused or self._idle_since is not None:
            return None, 0
        if self.cycle is None or self.cycle.scope is not self.scope:  # a head, or what should become one
            return self.scope or self, 0
        if self.cycle.response_complete:  # a body that nobody reads any more, or no request at all
            return self.cycle, 0
        return (self.cycle, self._body) if self.cycle.more_body else (None, 0)

    def _turn_away(self, error: InlayError) -> None:
        """Close, with a word where no answer is under way."""
        running = self._running
        if running is None or running.response_complete or not running.response_started:
            status, headers, body = problems.answer(error)
            head = b"".join([b"%b: %b\r\n" % field for field in (*headers, CLOSE)])
            phrase = HTTPStatus(status).phrase.encode()
            self.transport.write(b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (status, phrase, head, body))
        self.transport.close()


class Cycle(RequestResponseCycle):
    """One request and its answer. The head waits for the first part of the body."""

    task: "asyncio.Task[None]"
    _start: Any = None  # the message that brought the head
    _answering = False

    def leave(self) -> None:
        """The client is gone: cancel the work for it if it asks for that, unless its answer is under way."""
        scope: Any = self.scope
        if LEFT in scope and not self._answering:
            scope[LEFT] = self.disconnected = True
            self.task.cancel()

    async def receive(self) -> Any:
        """The next ASGI message; a body that has arrived whole comes without waiting."""
        if self.more_body or not self.body or self.waiting_for_100_continue or self.disconnected:
            message = await super().receive()
        else:
            self.message_event.clear()
            message = {"type": "http.request", "body": bytes(self.body), "more_body": False}
            self.body = bytearray()
        if not self.more_body and not self.disconnected:
            self.flow.resume_reading()  # a connection that is not read cannot be seen to close
        return message

    async def send(self, message: Any) -> None:
        """Send one ASGI message; a head is held until the next."""
        start, self._start = self._start, None
        if start is not None:
            if self._at_once(start, message):
                return
            self.response_started = False
            await super().send(start)
        elif not self.response_started and message["type"] == "http.response.start":
            self._start = message
            self._answering = self.response_started = True
            return
        await super().send(message)

    def _at_once(self, start: Any, message: Any) -> bool:
        """Send head and body in one write, as uvicorn would in two; False: not an answer for that, nothing was done."""
        if message.get("more_body") or message["type"] != "http.response.body" or self.scope["method"] == "HEAD":
            return False
        if self.flow.write_paused or self.disconnected or self.access_log:
            return False
        headers, body = start.get("headers", ()), message.get("body", b"")
        if type(headers) is not tuple:
            headers = tuple(map(tuple, headers))
        own, headers = _varying(headers)
        head = _head(start["status"], headers, self.keep_alive)
        if head is None or head.length != len(body):
            return False
        self.waiting_for_100_continue = False
        self.keep_alive = head.keep_alive
        self.transport.writelines((head.lines, own, _own_lines(tuple(self.default_headers)), body))
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
        return True


class Head(NamedTuple):
    """A status and headers in bytes, without the server's own headers and the empty line."""

    lines: bytes
    length: int
    keep_alive: bool


def _varying(headers: Fields) -> tuple[bytes, Fields]:
    """The lines of the trailing headers that differ in every answer, and the headers before them."""
    if not headers:
        return b"", headers
    names, values = zip(*headers)  # noqa: B905 - all are pairs
    at, template = _trailing(names)
    own = values[at:]
    if template is None or HEADER_VALUE_RE.search(b"".join(own)):
        return b"", headers
    return template % own, headers[:at]


@lru_cache(maxsize=256)
def _trailing(names: tuple[bytes, ...]) -> tuple[int, bytes | None]:
    """Where the headers that vary begin, and their lines with values to be filled in; None: uvicorn must see to one."""
    at = len(names)
    while at and names[at - 1].startswith(VARYING):
        at -= 1
    joined = b"".join(names[at:])
    if HEADER_RE.search(joined) or not joined.islower() or b"%" in joined:
        return at, None
    return at, b"".join([name + b": %b\r\n" for name in names[at:]])


@lru_cache(maxsize=1024)
def _head(status: int, headers: Fields, keep_alive: bool) -> Head | None:
    """None where uvicorn must see to it: a header it refuses or acts on, no length, an answer without a body."""
    lengths = [value for name, value in headers if name == b"content-length"]
    if status < 200 or status in BODILESS or len(lengths) != 1 or not lengths[0].isdigit():
        return None
    for name, value in headers:
        if HEADER_RE.search(name) or HEADER_VALUE_RE.search(value) or not name.islower():
            return None
        if name == b"transfer-encoding" or (name == b"connection" and value != b"close"):
            return None
    closes = (b"connection", b"close") in headers
    if not keep_alive and not closes:
        headers = (*headers, (b"connection", b"close"))
    return Head(STATUS_LINE[status] + _lines(headers), int(lengths[0]), keep_alive and not closes)


@lru_cache(maxsize=8)
def _own_lines(headers: Fields) -> bytes:
    """The headers the server adds to every answer (the date), and the end of the head."""
    return _lines(headers) + b"\r\n"


def _lines(headers: Fields) -> bytes:
    return b"".join([name + b": " + value + b"\r\n" for name, value in headers])
