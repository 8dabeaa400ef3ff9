"""Writes responses: head and body in one system call, or a stream no faster than the client reads it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from http.client import responses as PHRASES
from typing import Any

from service.http.response import Body, Headers, Response
from service.http.routes import Request
from service.scheduling.memory_budget import MemoryBudget

CACHED_HEADS, CACHED_HEAD_BYTES = 1024, 1024  # of responses; at most about 3 MiB with their keys; saves 4 µs each
WHOLE_BYTES = 1 << 20  # of a body that is given to the transport at once
PIECE_BYTES = 1 << 18
BODILESS = (204, 304)
CLOSE_LINE = b"connection: close\r\n"
CHUNKED_LINE = b"transfer-encoding: chunked\r\n"


class ResponseWriter:
    """Writes the responses of one connection.

    Args:
        transport: the connection's transport.
        server_state: uvicorn's; its `default_headers` hold the date, which uvicorn renews every second.
        budget: counts what the client lets wait in the transport.

    Attributes:
        written: bytes of responses given to the transport so far.
    """

    def __init__(self, transport: Any, server_state: Any, budget: MemoryBudget) -> None:
        self._budget = budget
        self._waiting = 0  # bytes in the transport, while its buffer is full
        self._transport = transport
        self._server_state = server_state
        self._default_headers: list[tuple[bytes, bytes]] | None = None
        self._default_lines = b""
        self._writable: asyncio.Event | None = None  # while the transport's buffer is full
        self.written = 0

    @property
    def is_paused(self) -> bool:
        """Whether the transport's buffer is full."""
        return self._writable is not None

    def pause(self) -> None:
        """Pause the stream until the client has read what was sent."""
        self._writable = asyncio.Event()
        self._waiting = self._transport.get_write_buffer_size()
        self._budget.add(self._waiting)

    def resume(self) -> None:
        """Resume the stream."""
        if self._writable is not None:
            self._writable.set()
            self._writable = None
            self._budget.give_back(self._waiting)

    def write(self, request: Request, response: Response, keep_alive: bool) -> None:
        """Write a whole response in one system call.

        Raises:
            ValueError: a header is not one line, or declares another length than the body has.
        """
        body, headers, status, _, lines = response
        is_head, size = request.head.verb == "HEAD", sum(map(len, body))
        # a handler of HEAD leaves the body out and may declare its length
        head = _head(status, headers, None if is_head and not size else size, keep_alive)
        lines = b"%b%bx-request-id: %b\r\n%b\r\n" % (head, lines, request.context.request_id, self._date())
        self.written += len(lines) + size
        if is_head or status in BODILESS:
            self._transport.write(lines)
        else:
            self._transport.writelines((lines, *body))

    def _date(self) -> bytes:
        """Return the headers of uvicorn as lines."""
        headers = self._server_state.default_headers  # another list every second
        if headers is not self._default_headers:
            self._default_headers, self._default_lines = headers, b"".join([b"%b: %b\r\n" % each for each in headers])
        return self._default_lines

    async def stream(self, request: Request, response: Response, keep_alive: bool) -> None:
        """Write a response part by part, no faster than the client reads it.

        Raises:
            ValueError: a header is not one line, or declares another length than the stream has.
        """
        assert response.stream is not None
        left = declared_length(response)
        chunked = left is None and request.head.version == "1.1"
        head = _head(response.status, response.headers, None, keep_alive) + (CHUNKED_LINE if chunked else b"")
        lines = head, response.lines, request.context.request_id, self._date()
        self._send(b"%b%bx-request-id: %b\r\n%b\r\n" % lines)
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
        self.written += len(data)
        self._transport.write(data)


def in_pieces(response: Response) -> Response:
    """Return a response with a large body as a stream, so that a transport holds at most one piece."""
    body, headers = response.body, response.headers
    size = sum(map(len, body))
    if size <= WHOLE_BYTES:
        return response
    if not any(name == b"content-length" for name, _ in headers):
        headers = (*headers, (b"content-length", b"%d" % size))
    return response._replace(body=(), headers=headers, stream=_pieces(body))


async def _pieces(body: Body) -> AsyncIterator[memoryview]:
    for part in body:
        view = memoryview(part).cast("B")
        for start in range(0, len(view), PIECE_BYTES):
            yield view[start : start + PIECE_BYTES]


def ends_with_connection(request: Request, response: Response) -> bool:
    """Return whether only the closed connection tells the client where a stream ends (HTTP/1.0)."""
    return request.head.version != "1.1" and declared_length(response) is None


def declared_length(response: Response) -> int | None:
    """Return the content-length among the headers of a response."""
    return next((int(value) for name, value in response.headers if name == b"content-length"), None)


_heads: dict[tuple[int, Headers, int | None, bool], bytes] = {}


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
    """Return the head.

    Raises:
        ValueError: a header is not one line, or declares another length than the body has.
    """
    lines = [b"HTTP/1.1 %d %b\r\n" % (status, PHRASES.get(status, "").encode())]
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
