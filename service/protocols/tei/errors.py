"""The gRPC statuses of text-embeddings-inference. Its HTTP errors are those of /embed (inlay/embed_answers.py)."""

from service.errors import InlayError, Unauthorized
from service.http.problem_details import error_type

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


def grpc_status(error: InlayError) -> str:
    """Return the name of an error's gRPC status."""
    return OTHER_GRPC_STATUSES.get(error.code) or GRPC_STATUSES[error_type(error)]


def grpc_message(error: InlayError) -> str:
    """Return the message of an error."""
    return f"No valid auth token: {error.message}" if isinstance(error, Unauthorized) else error.message
