"""CORS: pages of the origins that are set may call from a browser, with keys. No cookies; off unless set."""

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware

from service.http.asgi import App

METHODS = ("GET", "HEAD", "POST")
EXPOSED = (
    "x-request-id",
    "retry-after",
    "retry-after-ms",
    "etag",
    "content-range",
    "accept-ranges",
    "content-encoding",
    "inlay-shape",
    "inlay-dtype",
    "inlay-lengths",
    "inlay-arithmetic",
    "inlay-facts",
    "inference-header-content-length",
    "metadata",
    "x-compute-type",
    "x-compute-time",
    "x-compute-characters",
    "x-compute-tokens",
    "x-total-time",
    "x-tokenization-time",
    "x-queue-time",
    "x-inference-time",
)
"""Headers of answers that a page may read; named, because `*` is not understood everywhere."""


def allow(app: App, origins: Sequence[str]) -> App:
    """The application, open to pages of these origins (`*`: all), with any request header: keys, and what SDKs add."""
    found: App = CORSMiddleware(
        app, allow_origins=origins, allow_methods=METHODS, allow_headers=("*",), expose_headers=EXPOSED
    )
    return found
