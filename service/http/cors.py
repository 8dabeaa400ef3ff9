"""CORS: pages of the configured origins may call from a browser, with keys and without cookies."""

from collections.abc import Sequence

from service.http.response import Headers, Response
from service.http.routes import Request

VERBS = b"GET, HEAD, POST"
EXPOSED = (
    b"x-request-id, retry-after, retry-after-ms, etag, content-range, accept-ranges, content-encoding, inlay-shape, "
    b"inlay-dtype, inlay-lengths, inlay-arithmetic, inlay-facts, inference-header-content-length, metadata, "
    b"x-compute-type, x-compute-time, x-compute-characters, x-compute-tokens, x-total-time, x-tokenization-time, "
    b"x-queue-time, x-inference-time, inlay-truncated-inputs, inlay-truncated-count"
)
"""Response headers that a page may read; named, because `*` is not understood everywhere."""
MAX_AGE = b"600"
_EXPOSED = (b"access-control-expose-headers", EXPOSED)
_VARY = (b"vary", b"Origin")


class Cors:
    """Decides which origins' pages may read responses.

    Args:
        origins: e.g. https://app.example; `*` stands for all.
    """

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = {origin.encode() for origin in origins}

    def preflight(self, request: Request) -> Response | None:
        """Return the response to a browser's preflight request; None for any other request."""
        headers = request.headers
        if request.verb != "OPTIONS" or b"origin" not in headers or b"access-control-request-method" not in headers:
            return None
        allowed = self.headers(request)
        if not any(name == b"access-control-allow-origin" for name, _ in allowed):
            return Response((b"this origin may not call; INLAY_CORS_ORIGINS names those that may",), (), 400)
        requested_headers = headers.get(b"access-control-request-headers", b"*")
        more = (
            (b"access-control-allow-methods", VERBS),
            (b"access-control-max-age", MAX_AGE),
            (b"access-control-allow-headers", requested_headers),
        )
        return Response((), (*allowed, *more), 200)

    def headers(self, request: Request) -> Headers:
        """Return the CORS headers of a response; all have Vary, so that caches keep origins apart."""
        origin = request.headers.get(b"origin")
        if b"*" in self._origins:
            return () if origin is None else ((b"access-control-allow-origin", b"*"), _EXPOSED)
        if origin not in self._origins:
            return (_VARY,)
        return ((b"access-control-allow-origin", origin), _VARY, _EXPOSED)
