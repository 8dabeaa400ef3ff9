"""Errors as text-embeddings-inference renders them, over HTTP and gRPC."""

from service.error_status import STATUSES
from service.errors import InlayError, Unauthorized
from service.http.problem_details import error_type, render_problem
from service.http.response import Response

GRPC_STATUSES = {
    "Unhealthy": "UNAVAILABLE",
    "Backend": "FAILED_PRECONDITION",
    "Overloaded": "RESOURCE_EXHAUSTED",
    "Validation": "INVALID_ARGUMENT",
    "Empty": "INVALID_ARGUMENT",
}
"""gRPC status by `error_type`."""
OTHER_GRPC_STATUSES = {"error": "INTERNAL", "unauthorized": "UNAUTHENTICATED", "deadline_exceeded": "DEADLINE_EXCEEDED"}
"""gRPC status of errors that text-embeddings-inference does not have, by code."""


def render_error(error: InlayError) -> Response:
    """Return an error as a problem document, which holds `error` and `error_type`; a 401 has no body."""
    if isinstance(error, Unauthorized):
        return Response(status=STATUSES[error.code].http)
    return render_problem(error)


def grpc_status(error: InlayError) -> str:
    """Return the name of an error's gRPC status."""
    return OTHER_GRPC_STATUSES.get(error.code) or GRPC_STATUSES[error_type(error)]


def grpc_message(error: InlayError) -> str:
    """Return an error's sentence."""
    return "No valid auth token" if isinstance(error, Unauthorized) else error.message
