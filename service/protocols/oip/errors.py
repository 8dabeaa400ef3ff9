"""Errors as the Open Inference Protocol renders them, with the statuses that Triton gives them."""

from pydantic import BaseModel

from service import error_status
from service.errors import SHORTEN_OR_TRUNCATE, InlayError, Spelling
from service.http.response import Response, json_response

SPELLING = Spelling(remedies={SHORTEN_OR_TRUNCATE: 'shorten it or send the parameter "truncate": true'})
STATUSES = {"unauthorized": 403, "overloaded": 503, "key_limited": 503, "deadline_exceeded": 503, "engine_failure": 500}
"""HTTP status by code, where Triton's is another than Inlay's."""
SHARED_STATUSES = (403, 404, 405, 415, 500, 501, 503)  # of Triton and Inlay; where Inlay has others, Triton's is 400
GRPC_STATUSES = {400: "INVALID_ARGUMENT", 503: "UNAVAILABLE"}
"""gRPC status by HTTP status, where Triton's may be another than Inlay's."""


class OipError(BaseModel):
    """What went wrong and what to do."""

    error: str


def http_status(error: InlayError) -> int:
    """Return the HTTP status of an error."""
    status = STATUSES.get(error.code, error_status.STATUSES[error.code].http)
    return status if status in SHARED_STATUSES else 400


def grpc_status(error: InlayError) -> str:
    """Return the name of the gRPC status of an error."""
    return GRPC_STATUSES.get(http_status(error), error_status.STATUSES[error.code].grpc)


def message_of(error: InlayError) -> str:
    """Return the message of an error."""
    return error.render(SPELLING)


def render_error(error: InlayError) -> Response:
    """Return an error as {"error": message}."""
    headers = tuple(error_status.retry_headers(error))
    return json_response({"error": message_of(error)}, http_status(error), headers)
