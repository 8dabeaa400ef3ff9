"""x-request-id: the caller's own, else a fresh one; on every answer, in the log lines of faults. Knows no protocol."""

import os
import re
from collections.abc import Iterable
from itertools import count

from service.http.asgi import (
    App,
    Message,
    Receive,
    Scope,
    Send,
)
from service.observability.request_context import REQUEST_ID

HEADER = b"x-request-id"
ID = "inlay.request_id"  # in a scope: the request's id, in bytes
_OWN = re.compile(rb"[!-~]{1,128}")
# A random start and a counter: unique like a random id, at an eighth of its cost. Workers are spawned, so each draws.
_START = os.urandom(8).hex().encode()
_counter = count()


def request_id(own: bytes | None) -> bytes:
    """What the request is called: `own` if it is 1 to 128 visible ASCII characters; set as REQUEST_ID."""
    found = own if own and _OWN.fullmatch(own) else b"%b%08x" % (_START, next(_counter))
    REQUEST_ID.set(found)
    return found


def of(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The caller's own, from a request's headers."""
    for name, value in headers:
        if name == HEADER:
            return value
    return None


class Numbered:
    """An ASGI application whose answers carry the request's id."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        found = scope.get(ID)
        if found is None:
            found = scope[ID] = request_id(of(scope["headers"]))

        async def numbered(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message.get("headers", ())
                if not any(name == HEADER for name, _ in headers):
                    message = {**message, "headers": [*headers, (HEADER, found)]}
            await send(message)

        await self._app(scope, receive, numbered)
