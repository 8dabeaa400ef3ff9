"""Plain ASGI for the hot routes: read a bounded JSON body, notice a client that leaves, send bytes. Knows no route."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar

from service.errors import BodyTooLarge, UnsupportedMedia

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
        self._new: set[Watched] = set()
        self._seen: set[Watched] = set()
        self._patrolling = False
        self._loop: asyncio.AbstractEventLoop | None = None  # asking asyncio each time costs a system call (3.11)

    def watch(self, receive: Receive) -> "Watched":
        """A context in which the running task is cancelled if its client leaves; the body must have been read.

        raises   ClientGone, at its end
        """
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        watched = Watched(self, asyncio.current_task(self._loop), receive)
        self._new.add(watched)
        if not self._patrolling:
            self._patrolling = True
            self._loop.call_later(self._interval_seconds, self._walk)
        return watched

    def forget(self, watched: "Watched") -> None:
        """Watch no longer."""
        self._new.discard(watched)
        self._seen.discard(watched)

    def _walk(self) -> None:
        for waiting in self._seen:
            waiting.watch()
        self._seen, self._new = self._new, set()
        self._patrolling = bool(self._seen)
        if self._patrolling:
            asyncio.get_running_loop().call_later(self._interval_seconds, self._walk)


class Watched:
    """One request's task, and the watch over its client."""

    __slots__ = ("_gone", "_patrol", "_receive", "_request", "_watch")

    def __init__(self, patrol: Patrol, request: "asyncio.Task[Any] | None", receive: Receive) -> None:
        self._patrol = patrol
        self._request = request
        self._receive = receive
        self._watch: asyncio.Task[None] | None = None
        self._gone = False

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._patrol.forget(self)
        if self._watch is not None:
            self._watch.cancel()
        if self._gone and kind is asyncio.CancelledError:
            raise ClientGone from None

    def watch(self) -> None:
        """Cancel the request when its client disconnects."""
        self._watch = asyncio.get_running_loop().create_task(self._until_gone())

    async def _until_gone(self) -> None:
        message = await self._receive()  # the body is read, so only a disconnect can follow
        if message["type"] == "http.disconnect" and self._request is not None:
            self._gone = True
            self._request.cancel()
