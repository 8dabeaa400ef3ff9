"""A span and a log line for each HTTP request, around the whole application. Counts nothing: endpoints do.

Only put there where traces or access lines are asked for. Neither holds a word of a caller's: of a path its template,
of one that is not there nothing, of a query nothing. Requests that are refused before they reach a route are no
exception.
"""

import logging
from collections.abc import Callable
from time import perf_counter

from service.http.asgi import (
    App,
    Message,
    Receive,
    Scope,
    Send,
)
from service.observability.logs import ACCESS
from service.observability.tracing import (
    TRACEPARENT,
    TRACESTATE,
    Traced,
    Tracing,
)

STRANGERS = (401, 403)  # what the gate answers those who show no key
GONE = 499  # as endpoints count a client that left
access = logging.getLogger(ACCESS)


class Sighted:
    """An ASGI application whose requests can be followed.

    template  of a request's path; None: there is no such path
    tracing   None: no spans
    lines     a log line for each
    """

    def __init__(self, app: App, template: Callable[[str], str | None], tracing: Tracing | None, lines: bool) -> None:
        self._app = app
        self._template = template
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
            route = self._template(scope["path"])
            name = f"{scope['method']} {route}" if route else scope["method"]
            if traced:
                _end(traced, name, route, status)
            if self._lines:
                seconds = round(perf_counter() - started, 6)
                fields = {"protocol": "http", "method": name, "status": status, "seconds": seconds}
                if status in STRANGERS and scope.get("client"):
                    fields["peer"] = _address(*scope["client"])
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


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _end(traced: Traced, name: str, route: str | None, status: int) -> None:
    attributes: dict[str, str | int] = {"http.response.status_code": status}
    if route:
        attributes["http.route"] = route
    if status >= 500:
        attributes["error.type"] = str(status)
    traced.end(name, attributes, failed=status >= 500, written=status != GONE)
