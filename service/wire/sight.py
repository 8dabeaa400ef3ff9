"""A span and a log line for each HTTP request, around the whole application. Counts nothing: endpoints do.

Only put there where traces or access lines are asked for. Neither holds a path that no route took, nor a query.
"""

import logging
from time import perf_counter
from typing import Any

from service.sight.logs import ACCESS
from service.sight.tracing import TRACEPARENT, TRACESTATE, Traced, Tracing
from service.wire.asgi import App, Message, Receive, Scope, Send

UNKNOWN = (404, 405)  # answers to a path or verb of the caller's own making
GONE = 499  # as endpoints count a client that left
access = logging.getLogger(ACCESS)


class Sighted:
    """An ASGI application whose requests can be followed.

    tracing   None: no spans
    lines     a log line for each
    """

    def __init__(self, app: App, tracing: Tracing | None, lines: bool) -> None:
        self._app = app
        self._tracing = tracing
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = perf_counter(), GONE
        traced = self._begun(scope) if self._tracing else None

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            method = _name(scope, status)
            if traced:
                _end(traced, scope["method"], method, status)
            if self._lines:
                seconds = round(perf_counter() - started, 6)
                fields = {"protocol": "http", "method": method, "status": status, "seconds": seconds}
                access.info("answered", extra=fields)

    def _begun(self, scope: Scope) -> Traced:
        assert self._tracing is not None
        carrier: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            if name in (b"traceparent", b"tracestate"):
                carrier.setdefault(name.decode(), []).append(value.decode("latin-1"))
        attributes = {"http.request.method": scope["method"], "url.scheme": scope.get("scheme", "http")}
        if len(carrier.get(TRACEPARENT, ())) > 1:  # which of them is meant cannot be known
            carrier.pop(TRACEPARENT), carrier.pop(TRACESTATE, None)
        return self._tracing.begin(scope["method"], carrier, attributes)


def _end(traced: Traced, verb: str, method: str, status: int) -> None:
    attributes: dict[str, str | int] = {"http.response.status_code": status}
    route = method.partition(" ")[2]
    if route:
        attributes["http.route"] = route
    if status >= 500:
        attributes["error.type"] = str(status)
    traced.end(method, attributes, failed=status >= 500, written=status != GONE)


def _name(scope: Any, status: int) -> str:
    """Verb and route; the verb alone for what no route took."""
    if (route := getattr(scope.get("route"), "path", None)) is not None:
        return f"{scope['method']} {route}"
    if status in UNKNOWN and not scope.get("path_params"):
        return str(scope["method"])
    named = {str(value): name for name, value in scope.get("path_params", {}).items()}
    segments = [f"{{{named[each]}}}" if each in named else each for each in scope["path"].split("/")]
    return f"{scope['method']} {'/'.join(segments)}"
