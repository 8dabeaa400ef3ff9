"""One HTTP response as handlers return it."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import orjson

Headers = tuple[tuple[bytes, bytes], ...]
Body = Sequence[bytes | memoryview]
JSON_HEADERS: Headers = ((b"content-type", b"application/json"),)


class Response(NamedTuple):
    """A response; the server adds the status line, content-length, x-request-id, date and connection.

    Args:
        body: the parts of the body, written in one system call.
        headers: names in lower case.
        status: the HTTP status.
        stream: the parts of a body that is made while it is sent, instead of `body`; chunked unless `headers` hold
            a content-length.
        lines: further header lines as bytes, each ended by CRLF, for values that differ in every response.
    """

    body: Body = ()
    headers: Headers = ()
    status: int = 200
    stream: AsyncIterator[bytes | memoryview] | None = None
    lines: bytes = b""


def json_response(document: Any, status: int = 200, headers: Headers = ()) -> Response:
    """Return a document, which may hold numpy arrays, as a JSON response."""
    body = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response((body,), (*JSON_HEADERS, *headers), status)


def bytes_response(body: bytes | memoryview, media_type: str) -> Response:
    """Return bytes of a media type as a response."""
    return Response((body,), ((b"content-type", media_type.encode()),))
