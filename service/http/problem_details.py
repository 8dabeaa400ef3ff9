"""Errors as HTTP answers: RFC 9457 problem documents that text-embeddings-inference's clients read too."""

from typing import Annotated, Any

import orjson
from pydantic import BaseModel, Field

from service.error_status import STATUSES, retry_headers
from service.errors import InlayError

MEDIA_TYPE = "application/problem+json"
_CONTENT_TYPE = (b"content-type", MEDIA_TYPE.encode())
Headers = list[tuple[bytes, bytes]]


class Problem(BaseModel):
    """What went wrong, what is allowed and what to do."""

    type: Annotated[str, Field(description="urn:inlay:problem: and the code", examples=["urn:inlay:problem:bad_input"])]
    title: Annotated[str, Field(description="The same for every problem of this code.")]
    status: Annotated[int, Field(description="The HTTP status again.")]
    detail: Annotated[str, Field(description="What came, what is allowed, what to do.")]
    code: Annotated[str, Field(description="Stable; the same over gRPC.", examples=list(STATUSES))]
    index: Annotated[int | None, Field(description="Which input, where one is to blame.")] = None
    error: Annotated[str, Field(description="`detail`, as text-embeddings-inference calls it.")]
    error_type: Annotated[str, Field(description="The kind, as text-embeddings-inference calls it.")]


def document(error: InlayError) -> dict[str, Any]:
    """The members of a `Problem`."""
    status = STATUSES[error.code]
    found = {
        "type": f"urn:inlay:problem:{error.code}",
        "title": status.title,
        "status": status.http,
        "detail": error.message,
        "code": error.code,
        "error": error.message,
        "error_type": status.tei,
    }
    if error.index is not None:
        found["index"] = error.index
    return found


def answer(error: InlayError) -> tuple[int, Headers, bytes]:
    """Status, headers and body of the HTTP answer."""
    body = orjson.dumps(document(error))
    headers = [_CONTENT_TYPE, (b"content-length", b"%d" % len(body)), *retry_headers(error)]
    return STATUSES[error.code].http, headers, body
