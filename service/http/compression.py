"""Answers under the content coding their client asked for: whole ones, and streams as they come. Computes nothing else.

Whole answers of hot paths go through `vectors`; everything else through `Coded`, an ASGI application around another.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from service.errors import NotAcceptable
from service.http.asgi import (
    App,
    Message,
    Receive,
    Scope,
    Send,
)
from service.http.content_coding import Encoder
from service.http.negotiation import (
    PLAIN,
    Choice,
    Kind,
    Policy,
    choose,
)
from service.http.worker_threads import aside

Headers = Sequence[tuple[bytes, bytes]]
Parts = Sequence[bytes | memoryview]
Refuse = Callable[[Scope, NotAcceptable], App]

LEAST_BYTES = 1024  # below, a coding's own bytes and time outweigh what it saves
INLINE_BYTES = 16384  # coded on the event loop, about 0.2 ms; more goes aside
BODILESS = (204, 205, 206, 304)  # 206 has a body, but its range is of the plain bytes
SHRUNK = (b"image/png", b"image/jpeg", b"image/webp", b"font/woff2", b"application/zip", b"application/gzip")
TENSORS = (b"application/octet-stream", b"application/x-npy", b"application/vnd.safetensors")
VARY = (b"vary", b"Accept-Encoding")


async def vectors(headers: Headers, body: Parts, accept: bytes, policy: Policy) -> tuple[Headers, Parts]:
    """A whole answer of a hot path under the coding its client asked for, if any."""
    kind: Kind = "tensors" if _media_type(headers) in TENSORS else "vectors"
    return await _whole(headers, body, choose(accept, policy, kind), floats=True)


async def _whole(headers: Headers, body: Parts, choice: Choice, *, floats: bool) -> tuple[Headers, Parts]:
    size = sum(map(len, body))
    coding = _worth(choice, size, 200, headers)
    if coding is None:
        return headers, body
    encoder = Encoder(coding, floats=floats, size=size)
    coded = encoder.last(body) if size <= INLINE_BYTES else await aside(encoder.last, body)
    return _described(headers, coding, len(coded)), [coded]


class Coded:
    """An ASGI application whose answers are coded as their clients ask.

    refuse   what answers a client that accepts nothing there is
    """

    def __init__(self, app: App, policy: Policy, refuse: Refuse) -> None:
        self._app = app
        self._policy = policy
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        accept = _joined(scope["headers"], b"accept-encoding")
        app = self._app
        try:
            choose(accept, self._policy)
        except NotAcceptable as error:
            app, accept = self._refuse(scope, error), None
        await app(scope, receive, _Outgoing(scope, accept, self._policy, send).send)


class _Outgoing:
    """One answer on its way out: its head is held until the first of its body."""

    def __init__(self, scope: Scope, accept: bytes | None, policy: Policy, send: Send) -> None:
        self._scope = scope
        self._accept = accept
        self._policy = policy
        self._send = send
        self._start: Message = {}
        self._choice = PLAIN
        self._floats = False
        self._encoder: Encoder | None = None

    async def send(self, message: Message) -> None:
        """Take one ASGI message."""
        if message["type"] == "http.response.start":
            await self._head(message)
        elif message["type"] != "http.response.body" or not (self._encoder or self._start):
            if self._start:  # of another kind (a file the server sends itself): nothing to code
                start, self._start = self._start, {}
                await self._send(start)
            await self._send(message)
        elif self._encoder:
            await self._next(self._encoder, message)
        else:
            await self._first(message)

    async def _head(self, message: Message) -> None:
        headers = self._varied(message)
        message = {**message, "headers": headers}
        self._floats = _media_type(headers) in TENSORS
        choice = choose(self._accept, self._policy, "tensors" if self._floats else "document")
        declared = _joined(headers, b"content-length")
        size = int(declared) if declared and declared.isdigit() else None
        coding = _worth(choice, LEAST_BYTES if size is None else size, message["status"], headers)
        if coding is None:
            await self._send(message)
        elif self._scope["method"] == "HEAD":
            await self._send({**message, "headers": _described(headers, coding, None)})
        else:
            self._start, self._choice = message, Choice(coding, True)

    async def _first(self, message: Message) -> None:
        start, self._start = self._start, {}
        coding, body = self._choice.coding, message.get("body", b"")
        assert coding is not None
        if not message.get("more_body", False):
            headers, parts = await _whole(start["headers"], [body], self._choice, floats=self._floats)
            await self._send({**start, "headers": headers})
            await self._send({"type": "http.response.body", "body": b"".join(parts)})
            return
        self._encoder = Encoder(coding, floats=self._floats)
        await self._send({**start, "headers": _described(start["headers"], coding, None)})
        await self._next(self._encoder, message)

    async def _next(self, encoder: Encoder, message: Message) -> None:
        body, more = message.get("body", b""), message.get("more_body", False)
        work: Callable[[Any], bytes] = encoder.part if more else encoder.last
        given = body if more else [body]
        coded = work(given) if len(body) <= INLINE_BYTES else await aside(work, given)
        if coded or not more:
            await self._send({"type": "http.response.body", "body": coded, "more_body": more})

    def _varied(self, message: Message) -> list[tuple[bytes, bytes]]:
        """The headers, with what else the answer depends on; a 304 names the tag that its client holds."""
        headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
        if not any(name == b"vary" and b"accept-encoding" in value.lower() for name, value in headers):
            headers.append(VARY)
        if message["status"] != 304:
            return headers
        held = _joined(self._scope["headers"], b"if-none-match") or b""
        return [
            (name, b"W/" + value if name == b"etag" and b"W/" + value in held else value) for name, value in headers
        ]


def _worth(choice: Choice, size: int, status: int, headers: Headers) -> str | None:
    """The coding, unless the answer has no whole body, has one already, or is too small or too dense to gain."""
    if choice.coding is None or status < 200 or status in BODILESS or not size:
        return None
    if any(name == b"content-encoding" for name, _ in headers):
        return None
    if not choice.required and _media_type(headers) in SHRUNK:
        return None
    return choice.coding if choice.required or size >= LEAST_BYTES else None


def _described(headers: Headers, coding: str, size: int | None) -> tuple[tuple[bytes, bytes], ...]:
    """The headers of the coded answer: no ranges, and a weak tag (RFC 9110, 8.8.1), for its bytes are others."""
    kept = [(name, value) for name, value in headers if name not in (b"content-length", b"accept-ranges")]
    found = [(name, _weak(value) if name == b"etag" else value) for name, value in kept]
    if not any(name == b"vary" and b"accept-encoding" in value.lower() for name, value in found):
        found.append(VARY)
    if size is not None:
        found.append((b"content-length", b"%d" % size))
    return (*found, (b"content-encoding", coding.encode()))


def _media_type(headers: Headers) -> bytes:
    return (_joined(headers, b"content-type") or b"").split(b";")[0].strip().lower()


def _weak(tag: bytes) -> bytes:
    return tag if tag.startswith(b"W/") else b"W/" + tag


def _joined(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    values = [value for each, value in headers if each == name]
    return b",".join(values) if values else None
