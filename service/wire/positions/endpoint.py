"""A route of positions as an ASGI application: counted, and dropped when its client leaves. Knows no encoding."""

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter

from starlette.requests import Request
from starlette.responses import Response

from service.errors import InlayError, Unavailable
from service.wire.asgi import LEFT, ClientGone, Receive, Scope, Send
from service.wire.parts import Parts
from service.wire.status import STATUSES

Answer = Callable[[Request], Awaitable[Response]]


class Endpoint:
    """One path; `answer` makes its response or raises an InlayError."""

    def __init__(self, path: str, answer: Answer, parts: Parts) -> None:
        self._path = path
        self._answer = answer
        self._metrics = parts.metrics
        self._metrics.expect("http", [path])
        self._life = parts.life

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        started, status, begun = perf_counter(), "500", False
        try:
            scope[LEFT] = False
            response = await self._answer(Request(scope, receive))
            status, begun = str(response.status_code), True
            await response(scope, receive, send)
        except InlayError as error:
            status = str(STATUSES[error.code].http)
            raise
        except (ClientGone, asyncio.CancelledError) as error:
            status = "499"
            if isinstance(error, ClientGone) or scope.get(LEFT):
                return
            if begun or not self._life.stopping:
                raise
            status = "503"
            raise Unavailable("the service stopped before this was done; send it again") from None
        finally:
            self._metrics.request("http", self._path, status, perf_counter() - started)
