"""What web pages may do: CORS gives pages of the configured origins the responses, with keys and without cookies.

A browser sends simple requests of any page, and only keeps the response from it. So pages of other origins may not
change the server's state, and pages that reach the server by a name of their own (DNS rebinding) are kept out where
the operator says which hosts it has.
"""

import re
from collections.abc import Sequence

from service.errors import Forbidden
from service.http.response import Headers, Response
from service.http.routes import Head, Request

VERBS = b"GET, HEAD, POST"
EXPOSED = (
    b"x-request-id, retry-after, retry-after-ms, etag, content-encoding, inlay-shape, "
    b"inlay-dtype, inlay-lengths, inlay-arithmetic, inlay-facts, inference-header-content-length, metadata, "
    b"x-compute-type, x-compute-time, x-compute-characters, x-compute-tokens, x-total-time, x-tokenization-time, "
    b"x-queue-time, x-inference-time, inlay-truncated-inputs, inlay-truncated-count, inlay-weights"
)
"""Response headers that a page may read; named, because `*` is not understood everywhere."""
MAX_AGE = b"600"
SHOWN_CHARACTERS = 80  # of a header that an error repeats
_PORT = re.compile(rb":\d*$")
_EXPOSED = (b"access-control-expose-headers", EXPOSED)
_VARY = (b"vary", b"Origin")


class Cors:
    """Decides which pages may read responses and change the server's state.

    Args:
        origins: e.g. https://app.example; `*` stands for all.
        hosts: names and addresses of this server, without ports; empty: any.
    """

    def __init__(self, origins: Sequence[str] = (), hosts: Sequence[str] = ()) -> None:
        self._origins = {origin.encode() for origin in origins}
        self._hosts = {host.lower().strip("[]").encode() for host in hosts}

    def check(self, head: Head) -> None:
        """Raise Forbidden for a host that is not the server's, or a foreign page that would change its state."""
        host, route, origin = head.headers.get(b"host", b"").lower(), head.route, head.headers.get(b"origin")
        if (
            self._hosts
            and _PORT.sub(b"", host).strip(b"[]") not in self._hosts
            and not (route is not None and route.probe)
        ):
            remedy = "name it in INLAY_ALLOWED_HOSTS if it is this server's"
            raise Forbidden(f"the host is {_shown(host)}", remedy=remedy)
        if route is None or not route.changes_state or origin is None or self._origins & {origin, b"*"}:
            return
        if not origin.lower().endswith(b"://" + host):  # a page of this server has its host as origin
            remedy = "name its origin in INLAY_CORS_ORIGINS if it may"
            raise Forbidden(f"a page of {_shown(origin)} may not call {route.path}", remedy=remedy)

    def preflight(self, request: Request) -> Response | None:
        """Return the response to a browser's preflight request; None for any other request."""
        headers = request.head.headers
        if not self._origins or request.head.verb != "OPTIONS":
            return None
        if b"origin" not in headers or b"access-control-request-method" not in headers:
            return None
        allowed = self.headers(request.head)
        if not any(name == b"access-control-allow-origin" for name, _ in allowed):
            return Response((b"this origin may not call; INLAY_CORS_ORIGINS names those that may",), (), 400)
        requested_headers = headers.get(b"access-control-request-headers", b"*")
        more = (
            (b"access-control-allow-methods", VERBS),
            (b"access-control-max-age", MAX_AGE),
            (b"access-control-allow-headers", requested_headers),
        )
        return Response((), (*allowed, *more), 200)

    def headers(self, head: Head) -> Headers:
        """Return the CORS headers of responses to a head; all have Vary, so that caches keep origins apart."""
        if not self._origins:
            return ()
        origin = head.headers.get(b"origin")
        if b"*" in self._origins:
            return () if origin is None else ((b"access-control-allow-origin", b"*"), _EXPOSED)
        if origin not in self._origins:
            return (_VARY,)
        return ((b"access-control-allow-origin", origin), _VARY, _EXPOSED)


def _shown(header: bytes) -> str:
    return header[:SHOWN_CHARACTERS].decode("latin-1") or "missing"
