"""x-request-id over gRPC: read from a call's metadata, told in its trailing metadata, errors' too. Knows no service.

Around each handler, not an interceptor: that is one more task switch a call and sees no context to answer through.
"""

import inspect
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from service.http.request_ids import HEADER, request_id
from service.observability.request_context import REQUEST_ID

KEY = HEADER.decode()
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


def numbered(handler: Any) -> Any:
    """The same handler, whose calls are told their ids."""
    kind = next(kind for kind in KINDS if getattr(handler, kind))
    answer = getattr(handler, kind)

    async def call(request: Any, context: Any) -> Any:
        _number(context)
        return await answer(request, context)

    async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
        _number(context)
        async with aclosing(answer(request, context)) as answers:
            async for each in answers:
                yield each

    return handler._replace(**{kind: stream if inspect.isasyncgenfunction(answer) else call})


def _number(context: Any) -> None:
    own = next((value for key, value in context.invocation_metadata() if key == KEY), None)
    number = request_id(own.encode("ascii", "replace") if isinstance(own, str) else None)
    REQUEST_ID.set(number)
    context.set_trailing_metadata(((KEY, number.decode()),))
