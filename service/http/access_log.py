"""Writes a log line and a span for each HTTP request, if access lines or traces are configured.

Neither contains what a caller sent: a path is logged as its route's template, unknown paths and query strings are not.
"""

import logging
from time import perf_counter
from typing import Any

from service.http.routes import Request
from service.observability.logs import ACCESS
from service.observability.tracing import TRACEPARENT, TRACESTATE, Tracing

UNAUTHENTICATED = ("401", "403")  # their lines name the peer
access = logging.getLogger(ACCESS)


class AccessLog:
    """Follows requests from their head to their end.

    Args:
        tracing: None: no spans.
        lines: whether each request gets a log line.
    """

    def __init__(self, tracing: Tracing | None, lines: bool) -> None:
        self._tracing = tracing
        self._lines = lines

    def begin(self, request: Request) -> None:
        """Begin the span of a request."""
        if self._tracing is None:
            return
        sent = {name: request.varying.get(name.encode()) for name in (TRACEPARENT, TRACESTATE)}
        carrier = {name: [value.decode("latin-1")] for name, value in sent.items() if value is not None}
        if "," in carrier.get(TRACEPARENT, [""])[0]:  # sent twice: which of them is meant cannot be known
            carrier = {}
        attributes = {"http.request.method": request.verb, "url.scheme": "http"}
        request.span = self._tracing.begin(request.verb, carrier, attributes)
        request.context.passes, request.context.trace_id = request.span.passes, request.span.trace_id

    def end(self, request: Request, status: str, gone: bool) -> None:
        """End the span and write the line."""
        route = request.head.template
        name = f"{request.verb} {route}" if route else request.verb
        if request.span is not None:
            attributes: dict[str, str | int] = {"http.response.status_code": int(status)}
            if route:
                attributes["http.route"] = route
            failed = int(status) >= 500
            if failed:
                attributes["error.type"] = status
            request.span.end(name, attributes, failed=failed, written=not gone)
        if self._lines:
            seconds = round(perf_counter() - request.arrived, 6)
            fields: dict[str, Any] = {"protocol": "http", "method": name, "status": int(status), "seconds": seconds}
            if status in UNAUTHENTICATED and request.client:
                host, port = request.client
                fields["peer"] = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            access.info("answered", extra=fields | request.context.log_fields())
