"""Errors as RFC 9457 problem documents, which text-embeddings-inference's clients read too."""

from typing import Annotated, Any

import orjson
from pydantic import BaseModel, Field

from service.error_status import STATUSES, retry_headers
from service.errors import INLAY, InlayError, Spelling
from service.http.response import Response

MEDIA_TYPE = "application/problem+json"
ERROR_TYPES = {
    "empty": "Empty",
    "error": "Backend",
    "wrong_model_kind": "Backend",
    "unsupported": "Backend",
    "engine_failure": "Backend",
    "overloaded": "Overloaded",
    "key_limited": "Overloaded",
    "deadline_exceeded": "Overloaded",
    "unavailable": "Unhealthy",
}
"""`error_type` of text-embeddings-inference 1.9 by code, the nearest of its six; other codes are Validation."""
_CONTENT_TYPE = (b"content-type", MEDIA_TYPE.encode())


class Problem(BaseModel):
    """What went wrong, what is allowed and what to do."""

    type: Annotated[str, Field(description="urn:inlay:problem: and the code", examples=["urn:inlay:problem:too_long"])]
    title: Annotated[str, Field(description="The same for every problem of this code.")]
    status: Annotated[int, Field(description="The HTTP status again.")]
    detail: Annotated[str, Field(description="What came, what is allowed, what to do.")]
    code: Annotated[str, Field(description="Stable; the same over gRPC.", json_schema_extra={"enum": [*STATUSES]})]
    index: Annotated[int | None, Field(description="Which input, where one is to blame.")] = None
    error: Annotated[str, Field(description="`detail`, as text-embeddings-inference calls it.")]
    error_type: Annotated[str, Field(description="The kind, as text-embeddings-inference calls it.")]


def error_type(error: InlayError) -> str:
    """Return text-embeddings-inference's `error_type` of an error."""
    return ERROR_TYPES.get(error.code, "Validation")


def problem_document(error: InlayError, spelling: Spelling = INLAY) -> dict[str, Any]:
    """Return the members of a `Problem`; `spelling` spells the names of fields."""
    status, message = STATUSES[error.code], error.render(spelling)
    document = {
        "type": f"urn:inlay:problem:{error.code}",
        "title": status.title,
        "status": status.http,
        "detail": message,
        "code": error.code,
        "error": message,
        "error_type": error_type(error),
    }
    if error.index is not None:
        document["index"] = error.index
    return document


def render_problem(error: InlayError, spelling: Spelling = INLAY) -> Response:
    """Return an error as a problem document; `spelling` spells the names of fields."""
    body = orjson.dumps(problem_document(error, spelling))
    return Response((body,), (_CONTENT_TYPE, *retry_headers(error)), STATUSES[error.code].http)
