"""A span and a log line for each gRPC call. Put there only where traces or access lines are asked for.

Around each handler, as request ids are, inside them: a handler's context knows its status.
"""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from time import perf_counter
from typing import Any
from urllib.parse import unquote

import grpc

from service.grpc.request_ids import KINDS
from service.observability.logs import ACCESS
from service.observability.tracing import (
    TRACEPARENT,
    TRACESTATE,
    Traced,
    Tracing,
)

OWN_FAULTS = ("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")
"""Statuses that make a server's span an error (OpenTelemetry's conventions for RPC)."""
STRANGER = "UNAUTHENTICATED"
CODES: dict[Any, str] = {code.value[0]: code.name for code in grpc.StatusCode}
access = logging.getLogger(ACCESS)


def sighted(handler: Any, method: str, tracing: Tracing | None, lines: bool) -> Any:
    """The same handler, whose calls can be followed.

    method    with its service: inlay.v1.Embedder/Embed
    tracing   None: no spans
    lines     a log line for each
    """
    kind = next(kind for kind in KINDS if getattr(handler, kind))
    answer = getattr(handler, kind)

    async def call(request: Any, context: Any) -> Any:
        with _Followed(method, tracing, lines, context):
            return await answer(request, context)

    async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
        with _Followed(method, tracing, lines, context):
            async with aclosing(answer(request, context)) as answers:
                async for each in answers:
                    yield each

    return handler._replace(**{kind: stream if inspect.isasyncgenfunction(answer) else call})


class _Followed:
    """One call from its first step to its last."""

    def __init__(self, method: str, tracing: Tracing | None, lines: bool, context: Any) -> None:
        self._method, self._tracing, self._lines, self._context = method, tracing, lines, context

    def __enter__(self) -> None:
        self._started = perf_counter()
        self._traced: Traced | None = None
        if self._tracing:
            metadata = self._context.invocation_metadata() or ()
            carrier = {name: [value] for name, value in metadata if name in (TRACEPARENT, TRACESTATE)}
            attributes = {"rpc.system.name": "grpc", "rpc.method": self._method}
            self._traced = self._tracing.begin(self._method, carrier, attributes)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        status = self._status(error)
        if self._traced:
            attributes: dict[str, str | int] = {"rpc.response.status_code": status}
            if status in OWN_FAULTS:
                attributes["error.type"] = status
            self._traced.end(self._method, attributes, failed=status in OWN_FAULTS, written=False)
        if self._lines:
            seconds = round(perf_counter() - self._started, 6)
            fields = {"protocol": "grpc", "method": self._method, "status": status, "seconds": seconds}
            if status == STRANGER:
                fields["peer"] = unquote(self._context.peer().partition(":")[2])  # ipv6:%5B::1%5D:50123
            access.info("answered", extra=fields)

    def _status(self, error: BaseException | None) -> str:
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            return "CANCELLED"
        code = self._context.code()  # a number, or what a handler set
        status = CODES.get(code) or str(getattr(code, "name", "OK"))
        return "UNKNOWN" if error is not None and status == "OK" else status
