"""Plain ASGI for the hot routes: read a bounded JSON body, notice a client that leaves, send bytes. Knows no route."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, TypeVar

from service.errors import BodyTooLarge, UnsupportedMedia
from service.wire.problems import Headers

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Answer = TypeVar("Answer")

PATIENCE_SECONDS = 0.005  # most answers are out by then
CLOSE = (b"connection", b"close")


class ClientGone(Exception):
    """The client closed its connection before the answer was ready."""


def check_json(content_type: bytes | None) -> None:
    """Raise UnsupportedMedia unless the body is declared to be JSON."""
    if content_type == b"application/json":
        return
    kind = (content_type or b"").decode("latin-1").split(";")[0].strip().lower()
    if kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return
    came = f"content-type is {kind[:80]}" if kind else "there is no content-type"
    raise UnsupportedMedia(f"{came}; send the body as JSON with content-type: application/json")


async def read_body(receive: Receive, declared: bytes | None, max_bytes: int) -> bytes:
    """The whole body; refused as soon as it is known to be larger than `max_bytes`.

    declared   the content-length header, if any
    """
    if declared is not None and declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(int(declared), max_bytes)
    message = await receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False) and len(body) <= max_bytes:
        _still_there(message)
        return body
    parts, size = [body], len(body)
    while message.get("more_body", False) and size <= max_bytes:
        message = await receive()
        _still_there(message)
        parts.append(message.get("body", b""))
        size += len(parts[-1])
    if size > max_bytes:
        raise _too_large(size, max_bytes)
    return b"".join(parts)


def _still_there(message: Message) -> None:
    if message["type"] == "http.disconnect":
        raise ClientGone


def _too_large(size: int, max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the body has {size} bytes or more; this server takes {max_bytes}: send fewer inputs at a time"
    )


class Patrol:
    """Notices clients that leave while they wait, with one timer for all of them.

    A request is watched once it has waited for one to two intervals; most are answered sooner, almost for free.
    """

    def __init__(self, interval_seconds: float = PATIENCE_SECONDS) -> None:
        self._interval_seconds = interval_seconds
        self._new: set[_Waiting] = set()
        self._seen: set[_Waiting] = set()
        self._patrolling = False

    async def unless_gone(self, work: Coroutine[Any, Any, Answer], receive: Receive) -> Answer:
        """The outcome of `work`, which is cancelled if the client leaves meanwhile; the body must have been read.

        raises   ClientGone
        """
        waiting = _Waiting(asyncio.current_task(), receive)
        self._new.add(waiting)
        if not self._patrolling:
            self._patrolling = True
            asyncio.get_running_loop().call_later(self._interval_seconds, self._walk)
        try:
            return await work
        except asyncio.CancelledError:
            if waiting.gone:
                raise ClientGone from None
            raise
        finally:
            self._new.discard(waiting)
            self._seen.discard(waiting)
            waiting.stop()

    def _walk(self) -> None:
        for waiting in self._seen:
            waiting.watch()
        self._seen, self._new = self._new, set()
        self._patrolling = bool(self._seen)
        if self._patrolling:
            asyncio.get_running_loop().call_later(self._interval_seconds, self._walk)


class _Waiting:
    """One request's task, and the watch over its client."""

    __slots__ = ("_receive", "_request", "_watch", "gone")

    def __init__(self, request: "asyncio.Task[Any] | None", receive: Receive) -> None:
        self._request = request
        self._receive = receive
        self._watch: asyncio.Task[None] | None = None
        self.gone = False

    def watch(self) -> None:
        """Cancel the request when its client disconnects."""
        self._watch = asyncio.get_running_loop().create_task(self._until_gone())

    def stop(self) -> None:
        """Watch no longer."""
        if self._watch is not None:
            self._watch.cancel()

    async def _until_gone(self) -> None:
        message = await self._receive()  # the body is read, so only a disconnect can follow
        if message["type"] == "http.disconnect" and self._request is not None:
            self.gone = True
            self._request.cancel()


async def send_bytes(send: Send, status: int, headers: Headers, body: bytes | memoryview) -> None:
    """A whole answer; `headers` must hold its content-length."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
