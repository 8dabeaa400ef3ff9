"""Writes a log line and a span for each HTTP request and gRPC call, if access lines or traces are configured.

Neither contains what a caller sent: a path is logged as its route's template, unknown paths and query strings are not.
"""

import logging
from collections.abc import Iterable
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from service.observability.logs import ACCESS
from service.observability.tracing import TRACEPARENT, TRACESTATE, Attributes, Tracing
from service.request_context import RequestContext

if TYPE_CHECKING:
    from service.observability.tracing import Span

access = logging.getLogger(ACCESS)


class Ended(NamedTuple):
    """A request or call that has ended.

    Args:
        protocol: "http" or "grpc".
        name: verb and route, or service and method.
        status: the HTTP status, or the name of the gRPC status.
        arrived: when its head had arrived, on `time.perf_counter`.
        attributes: of its span, by OpenTelemetry's names.
        failed: whether the server is to blame.
        written: whether the time since its last pass went into writing the response.
        peer: the caller's address and port if it showed no valid key, else empty.
    """

    protocol: str
    name: str
    status: int | str
    arrived: float
    attributes: Attributes
    failed: bool
    written: bool
    peer: str


class AccessLog:
    """Follows requests and calls from their head to their end.

    Args:
        tracing: None: no spans.
        lines: whether each gets a log line.
    """

    def __init__(self, tracing: Tracing | None, lines: bool) -> None:
        self._tracing = tracing
        self._lines = lines

    def begin(
        self, name: str, sent: Iterable[tuple[str, str]], attributes: Attributes, context: RequestContext
    ) -> "Span | None":
        """Begin the span of a request, and record its trace in the request's context.

        Args:
            sent: the headers that the caller sent; those of the trace context are read.
        """
        if self._tracing is None:
            return None
        carrier = {key: [value] for key, value in sent if key in (TRACEPARENT, TRACESTATE)}
        if "," in carrier.get(TRACEPARENT, [""])[0]:  # sent twice: which of them is meant cannot be known
            carrier = {}
        span = self._tracing.begin(name, carrier, attributes)
        context.passes, context.trace_id = [] if span.is_recording() else None, self._tracing.trace_id(span)
        return span

    def end(self, ended: Ended, span: "Span | None", context: RequestContext) -> None:
        """End the span and write the line."""
        if span is not None and self._tracing is not None:
            error = {"error.type": str(ended.status)} if ended.failed else {}
            attributes = {**ended.attributes, **error}
            self._tracing.end(span, ended.name, attributes, ended.failed, context.passes or (), ended.written)
        if self._lines:
            seconds = round(perf_counter() - ended.arrived, 6)
            fields: dict[str, Any] = {"protocol": ended.protocol, "method": ended.name, "status": ended.status}
            fields |= {"seconds": seconds} | ({"peer": ended.peer} if ended.peer else {})
            access.info("answered", extra=fields | context.log_fields())
