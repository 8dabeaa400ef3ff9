"""Writes a log line and a span for each gRPC call, if access lines or traces are configured."""

import logging
from collections.abc import Sequence
from time import perf_counter
from typing import Any
from urllib.parse import unquote

from service.observability.logs import ACCESS
from service.observability.tracing import TRACEPARENT, TRACESTATE, Traced, Tracing
from service.request_context import RequestContext

OWN_FAULTS = ("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")
"""Statuses that make a server's span an error (OpenTelemetry's conventions for RPC)."""
UNAUTHENTICATED = "UNAUTHENTICATED"  # its lines name the peer
access = logging.getLogger(ACCESS)


class AccessLog:
    """Follows calls from their first message to their end.

    Args:
        tracing: None: no spans.
        lines: whether each call gets a log line.
    """

    def __init__(self, tracing: Tracing | None, lines: bool) -> None:
        self._tracing = tracing
        self._lines = lines

    def begin(self, path: str, metadata: Sequence[tuple[str, str | bytes]], identity: RequestContext) -> Traced | None:
        """Begin the span of a call, and record its trace in the call's identity."""
        if self._tracing is None:
            return None
        carrier = {name: [str(value)] for name, value in metadata if name in (TRACEPARENT, TRACESTATE)}
        span = self._tracing.begin(path, carrier, {"rpc.system.name": "grpc", "rpc.method": path})
        identity.trace_id = span.trace_id
        return span

    def end(
        self, path: str, span: Traced | None, status: str, arrived: float, peer: str, identity: RequestContext
    ) -> None:
        """End the span and write the line."""
        if span is not None:
            attributes: dict[str, str | int] = {"rpc.response.status_code": status}
            if status in OWN_FAULTS:
                attributes["error.type"] = status
            span.end(path, attributes, failed=status in OWN_FAULTS, written=False)
        if self._lines:
            seconds = round(perf_counter() - arrived, 6)
            fields: dict[str, Any] = {"protocol": "grpc", "method": path, "status": status, "seconds": seconds}
            if status == UNAUTHENTICATED:
                fields["peer"] = unquote(peer.partition(":")[2])  # ipv6:%5B::1%5D:50123
            access.info("answered", extra=fields | identity.log_fields())
