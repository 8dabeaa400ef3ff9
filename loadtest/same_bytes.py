"""The floor for tables: a raw ASGI app that answers any GET with the bytes of one file, held in memory as one piece."""

import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

Message = MutableMapping[str, Any]
BODY = Path(os.environ["SAME_BYTES"]).read_bytes()
HEADERS = [(b"content-type", b"application/octet-stream"), (b"content-length", b"%d" % len(BODY))]


async def app(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """The ASGI application; run it with --lifespan off."""
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY})
