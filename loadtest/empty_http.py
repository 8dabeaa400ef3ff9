"""The floor for HTTP: a raw ASGI app that answers POST /N with N rows of 384 float32 zeros. Reads no body."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

WIDTH = 384
ROWS = (1, 16, 128, 512)
Message = MutableMapping[str, Any]


def _answer(rows: int) -> tuple[Message, Message]:
    body = bytes(rows * WIDTH * 4)
    headers = [(b"content-type", b"application/octet-stream"), (b"content-length", b"%d" % len(body))]
    return (
        {"type": "http.response.start", "status": 200, "headers": headers},
        {"type": "http.response.body", "body": body},
    )


ANSWERS = {f"/{rows}": _answer(rows) for rows in ROWS}


async def app(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """The ASGI application; run it with --lifespan off."""
    start, body = ANSWERS[scope["path"]]
    await send(start)
    await send(body)
