"""The gate: HTTP requests that must show a key, before any of their body is read. Knows no protocol."""

from collections.abc import Callable, Iterable
from time import perf_counter

from starlette.responses import Response

from service.errors import InlayError
from service.http.asgi import (
    App,
    Receive,
    Scope,
    Send,
)
from service.http.request_ids import Numbered
from service.security.api_keys import Keys

OPEN = frozenset(
    (
        "/",
        "/health",
        "/health/live",
        "/health/ready",
        "/ping",
        "/v2/health/live",
        "/v2/health/ready",
        "/metrics",
        "/docs",
        "/docs/oauth2-redirect",
        "/openapi.json",
    )
)
"""What GET and HEAD reach without a key, as text-embeddings-inference has it: probes, numbers, documentation."""
OPEN_VERBS = ("GET", "HEAD")
BEARER = b"bearer "
Refusal = Callable[[str, InlayError], Response]  # of a path


class Gate:
    """An ASGI application for those who show a key.

    refusal   what everybody else is answered
    count     told the code, the status and the seconds of each refusal
    assets    beginning of the paths of what OPEN's pages are made of
    """

    def __init__(
        self, keys: Keys, refusal: Refusal, count: Callable[[str, str, float], None], assets: str, app: App
    ) -> None:
        self._keys, self._refusal, self._count, self._assets, self._app = keys, refusal, count, assets, app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        if scope["method"] in OPEN_VERBS and (scope["path"] in OPEN or scope["path"].startswith(self._assets)):
            await self._app(scope, receive, send)
            return
        began = perf_counter()
        try:
            key = self._keys.acquire(shown(scope["headers"]))
        except InlayError as error:
            refusal = self._refusal(scope["path"], error)
            self._count(error.code, str(refusal.status_code), perf_counter() - began)
            await Numbered(refusal)(scope, receive, send)
            return
        if not key.limited:
            await self._app(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            key.release(perf_counter() - began)


def shown(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The key that a request shows (RFC 6750)."""
    for name, value in headers:
        if name == b"authorization":
            return value[len(BEARER) :].strip() if value[: len(BEARER)].lower() == BEARER else None
    return None
