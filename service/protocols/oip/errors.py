"""Errors as the Open Inference Protocol renders them, with the statuses that Triton gives them."""

from pydantic import BaseModel

from service.error_status import retry_headers
from service.errors import SHORTEN_OR_TRUNCATE, InlayError, Spelling
from service.http.response import Response, json_response

SPELLING = Spelling(remedies={SHORTEN_OR_TRUNCATE: 'shorten it or send the parameter "truncate": true'})
BAD_REQUEST = 400
STATUSES = {
    "error": 500,
    "unsupported": 501,
    "unauthorized": 403,
    "not_found": 404,
    "unknown_model": 404,
    "method_not_allowed": 405,
    "unsupported_media": 415,
    "overloaded": 503,
    "key_limited": 503,
    "deadline_exceeded": 503,
    "unavailable": 503,
    "engine_failure": 500,
}
"""HTTP status by code; other codes are BAD_REQUEST."""
GRPC_STATUSES = {
    400: "INVALID_ARGUMENT",
    403: "UNAUTHENTICATED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    415: "INVALID_ARGUMENT",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
}
"""gRPC status by HTTP status."""


class OipError(BaseModel):
    """What went wrong and what to do."""

    error: str


def http_status(error: InlayError) -> int:
    """Return the HTTP status of an error."""
    return STATUSES.get(error.code, BAD_REQUEST)


def grpc_status(error: InlayError) -> str:
    """Return the name of the gRPC status of an error."""
    return GRPC_STATUSES[http_status(error)]


def message_of(error: InlayError) -> str:
    """Return the message of an error."""
    return error.render(SPELLING)


def render_error(error: InlayError) -> Response:
    """Return an error as {"error": message}."""
    return json_response({"error": message_of(error)}, http_status(error), tuple(retry_headers(error)))
