"""A route of positions as an ASGI application: counted, and dropped when its client leaves. Knows no encoding."""

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter

from starlette.requests import Request
from starlette.responses import Response

from service.errors import InlayError
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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        started, status = perf_counter(), "500"
        try:
            scope[LEFT] = False
            response = await self._answer(Request(scope, receive))
            status = str(response.status_code)
            await response(scope, receive, send)
        except InlayError as error:
            status = str(STATUSES[error.code].http)
            raise
        except (ClientGone, asyncio.CancelledError) as error:
            status = "499"
            if not (isinstance(error, ClientGone) or scope.get(LEFT)):
                raise
        finally:
            self._metrics.request("http", self._path, status, perf_counter() - started)
