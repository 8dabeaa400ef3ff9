"""A route of positions as an ASGI application: let in at the door, counted, and dropped when its client leaves or its
time is over. Knows no encoding.

A request is inside from when it is whole until its answer is sent: long tables are computed as they are sent.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack
from functools import partial
from time import perf_counter

from starlette.requests import Request
from starlette.responses import Response

from service.context import Parts
from service.error_status import STATUSES
from service.errors import InlayError, Unavailable
from service.http.asgi import (
    LEFT,
    ClientGone,
    Message,
    Receive,
    Scope,
    Send,
)
from service.http.timeouts import HEADERS, allowed_seconds
from service.scheduling import deadlines

Answer = Callable[[Request], Awaitable[Response]]


class Endpoint:
    """One path; `answer` makes its response or raises an InlayError."""

    def __init__(self, path: str, answer: Answer, parts: Parts) -> None:
        self._path = path
        self._answer = answer
        self._metrics = parts.metrics
        self._metrics.expect("http", [path])
        self._life = parts.life
        self._door = parts.encoder.door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        started, status, begun = perf_counter(), "500", False
        try:
            scope[LEFT] = False
            deadlines.allow(allowed_seconds(_timed(scope["headers"])))
            with ExitStack() as inside:
                response = await self._answered(scope, receive, partial(inside.enter_context, self._door.request()))
                status, begun = str(response.status_code), True
                await response(scope, receive, send)
        except InlayError as error:
            status = str(STATUSES[error.code].http)
            self._metrics.refused(error.code)
            raise
        except (ClientGone, asyncio.CancelledError) as error:
            status = "499"
            if isinstance(error, ClientGone) or scope.get(LEFT):
                return
            if begun or not self._life.stopping:
                raise
            status = "503"
            self._metrics.refused(Unavailable.code)
            raise Unavailable("the service stopped before this was done; send it again") from None
        except Exception:
            self._metrics.refused(InlayError.code)
            raise
        finally:
            self._metrics.request("http", self._path, status, perf_counter() - started)

    async def _answered(self, scope: Scope, receive: Receive, enter: Callable[[], object]) -> Response:
        """The response, begun once `enter` let the request in."""
        if scope["method"] == "POST":
            receive = _and_then(enter, receive)
        else:
            enter()
        async with deadlines.kept():
            return await self._answer(Request(scope, receive))


def _and_then(enter: Callable[[], object], receive: Receive) -> Receive:
    """`receive`, and `enter` with the end of the body: who still sends it holds nobody's place."""

    async def received() -> Message:
        message = await receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            enter()
        return message

    return received


def _timed(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Those that say how long the caller waits; what came twice is a list (RFC 9110, 5.3), and no time."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in HEADERS:
            found[name] = found[name] + b"," + value if name in found else value
    return found
