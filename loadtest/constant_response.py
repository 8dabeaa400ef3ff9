"""A raw ASGI app that computes nothing: the HTTP server that Inlay is measured against.

POST /N        answers with N rows of 384 float32 zeros without reading the request's body
POST /read/N   reads the body first
GET  /file     answers with the file named by CONSTANT_FILE, held in memory as one piece
"""

import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

WIDTH = 384
ROWS = (1, 16, 128, 512)
Message = MutableMapping[str, Any]


def _response(body: bytes) -> tuple[Message, Message]:
    headers = [(b"content-type", b"application/octet-stream"), (b"content-length", b"%d" % len(body))]
    return (
        {"type": "http.response.start", "status": 200, "headers": headers},
        {"type": "http.response.body", "body": body},
    )


RESPONSES = {f"/{rows}": _response(bytes(rows * WIDTH * 4)) for rows in ROWS}
if file := os.environ.get("CONSTANT_FILE"):
    RESPONSES["/file"] = _response(Path(file).read_bytes())


async def app(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """Answer every request of a known path with the same bytes; run it with `--lifespan off`."""
    path = scope["path"]
    if path.startswith("/read"):
        path = path.removeprefix("/read")
        while (await receive()).get("more_body"):
            pass
    start, body = RESPONSES[path]
    await send(start)
    await send(body)
