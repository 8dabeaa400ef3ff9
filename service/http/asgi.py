"""Plain ASGI: a bounded body, whatever its coding, and a client that leaves. Knows no route."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from service.errors import BodyTooLarge, UnsupportedMedia
from service.http.bodies import codings, decoded
from service.http.intake import Intake

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LEFT = "inlay.left"  # in a scope: False asks service.http.server to cancel the task if the client leaves; then True
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


async def read_body(receive: Receive, declared: bytes | None, intake: Intake, encoding: bytes | None = None) -> bytes:
    """The whole body without its content coding; refused as soon as it is known to be larger than `intake` takes.

    declared   the content-length header, if any
    encoding   the content-encoding header, if any
    raises     BodyTooLarge, UnsupportedCoding, Malformed, ClientGone; Overloaded where too many others send theirs
    """
    applied = codings(encoding) if encoding is not None else ()
    if declared is not None and declared.isdigit() and int(declared) > intake.most:
        raise _too_large(int(declared), intake.most)
    message = await receive()
    body: bytes = message.get("body", b"")
    if message.get("more_body", False) or len(body) > intake.most:
        body = await _joined(receive, message, intake)
    elif not body:
        _still_there(message)
    return await decoded(body, applied, intake.most) if applied else body


async def _joined(receive: Receive, message: Message, intake: Intake) -> bytes:
    """The body that `message` begins."""
    parts, size = list[bytes](), 0
    try:
        while True:
            _still_there(message)
            parts.append(message.get("body", b""))
            if size + len(parts[-1]) > intake.most:
                raise _too_large(size + len(parts[-1]), intake.most)
            intake.take(len(parts[-1]))
            size += len(parts[-1])
            if not message.get("more_body", False):
                return b"".join(parts)
            message = await receive()
    finally:
        intake.give_back(size)


def _still_there(message: Message) -> None:
    if message["type"] == "http.disconnect":
        raise ClientGone


def _too_large(size: int, max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the body has {size} bytes or more; this server takes {max_bytes}: send fewer inputs at a time"
    )
