"""The only table from an error's code to what each protocol calls it. Knows numbers and names; imports no protocol."""

import math
from dataclasses import dataclass

from service.errors import InlayError


@dataclass(frozen=True, slots=True)
class Status:
    """One row.

    http     HTTP status
    grpc     name of the gRPC status code
    tei      `error_type` of text-embeddings-inference 1.9, which knows six; the nearest where it has none
    openai   HTTP status and `type` of OpenAI's error object
    oip      HTTP status of the Open Inference Protocol, as Triton gives it
    title    the same for every problem of this code (RFC 9457)
    """

    http: int
    grpc: str
    tei: str
    title: str
    openai: tuple[int, str] = (400, "invalid_request_error")
    oip: int = 400


_SERVER, _BUSY = "server_error", "rate_limit_exceeded"
STATUSES = {
    "error": Status(500, "INTERNAL", "Backend", "The service has a fault", (500, _SERVER), 500),
    "bad_request": Status(422, "INVALID_ARGUMENT", "Validation", "The request cannot be served"),
    "bad_parameters": Status(422, "INVALID_ARGUMENT", "Validation", "There is no such positional encoding"),
    "empty": Status(400, "INVALID_ARGUMENT", "Empty", "The request holds no inputs"),
    "malformed": Status(400, "INVALID_ARGUMENT", "Validation", "The body is not JSON"),
    "too_large": Status(422, "INVALID_ARGUMENT", "Validation", "The request is too large"),
    "body_too_large": Status(
        413, "RESOURCE_EXHAUSTED", "Validation", "The body is too large", (413, "invalid_request_error")
    ),
    "head_too_large": Status(431, "RESOURCE_EXHAUSTED", "Validation", "The line and headers are too large"),
    "too_slow": Status(408, "DEADLINE_EXCEEDED", "Validation", "The request came too slowly"),
    "bad_input": Status(422, "INVALID_ARGUMENT", "Validation", "An input cannot be read"),
    "wrong_model_kind": Status(424, "FAILED_PRECONDITION", "Backend", "The model is of another kind"),
    "unsupported": Status(
        501, "UNIMPLEMENTED", "Backend", "This server does not do that", (501, "invalid_request_error"), 501
    ),
    "unauthorized": Status(
        401, "UNAUTHENTICATED", "Validation", "This needs a key", (401, "invalid_request_error"), 403
    ),
    "not_found": Status(404, "NOT_FOUND", "Validation", "There is no such thing", (404, "invalid_request_error"), 404),
    "method_not_allowed": Status(
        405, "UNIMPLEMENTED", "Validation", "The path does not answer this verb", (405, "invalid_request_error"), 405
    ),
    "not_acceptable": Status(
        406, "INVALID_ARGUMENT", "Validation", "No format the client accepts can carry the answer"
    ),
    "range_not_satisfiable": Status(416, "OUT_OF_RANGE", "Validation", "The byte range is not part of the answer"),
    "unsupported_media": Status(
        415,
        "INVALID_ARGUMENT",
        "Validation",
        "The body is of a type this path does not read",
        (415, "invalid_request_error"),
        415,
    ),
    "overloaded": Status(429, "RESOURCE_EXHAUSTED", "Overloaded", "The queue is full", (429, _BUSY), 503),
    "key_limited": Status(
        429, "RESOURCE_EXHAUSTED", "Overloaded", "The key asks for more than it may have", (429, _BUSY), 503
    ),
    "deadline_exceeded": Status(
        504, "DEADLINE_EXCEEDED", "Overloaded", "The time allowed is over", (504, _SERVER), 503
    ),
    "unavailable": Status(503, "UNAVAILABLE", "Unhealthy", "The service is not ready", (503, _SERVER), 503),
    "engine_failure": Status(424, "INTERNAL", "Backend", "The engine failed on this request", (424, _SERVER), 500),
}
TEI_GRPC = {
    "Unhealthy": "UNAVAILABLE",
    "Backend": "FAILED_PRECONDITION",
    "Overloaded": "RESOURCE_EXHAUSTED",
    "Validation": "INVALID_ARGUMENT",
    "Empty": "INVALID_ARGUMENT",
}
"""gRPC status by TEI's `error_type`."""
OIP_GRPC = {
    400: "INVALID_ARGUMENT",
    403: "UNAUTHENTICATED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    415: "INVALID_ARGUMENT",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
}
"""gRPC status of the Open Inference Protocol by its HTTP status, as Triton pairs them."""
RETRY_AFTER_SECONDS = {"overloaded": 1.0, "key_limited": 1.0, "unavailable": 1.0}
"""What a refused caller is told to wait where nothing was measured."""
LEAST_RETRY_SECONDS = 0.05


def retry_seconds(error: InlayError) -> float | None:
    """When a refused caller may try again: as measured, else the table's; None: the same would happen again."""
    if error.code not in RETRY_AFTER_SECONDS:
        return None
    measured: float | None = getattr(error, "retry_after", None)
    return RETRY_AFTER_SECONDS[error.code] if measured is None else max(LEAST_RETRY_SECONDS, measured)


def retry_headers(error: InlayError) -> list[tuple[bytes, bytes]]:
    """Retry-After in whole seconds (RFC 9110), and in milliseconds as OpenAI's clients read it."""
    seconds = retry_seconds(error)
    if seconds is None:
        return []
    return [(b"retry-after", b"%d" % math.ceil(seconds)), (b"retry-after-ms", b"%d" % math.ceil(seconds * 1000))]
