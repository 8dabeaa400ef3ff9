"""HTTP and gRPC statuses of errors by code; a protocol's errors.py lists where its statuses differ."""

import math
from typing import NamedTuple

from service.errors import InlayError


class Status(NamedTuple):
    """The statuses of one code.

    Args:
        http: HTTP status.
        grpc: name of the gRPC status code.
        title: the same for every problem of this code (RFC 9457).
    """

    http: int
    grpc: str
    title: str


STATUSES = {
    "error": Status(500, "INTERNAL", "The service has a fault"),
    "bad_request": Status(422, "INVALID_ARGUMENT", "The request cannot be served"),
    "bad_parameters": Status(422, "INVALID_ARGUMENT", "There is no such positional encoding"),
    "unknown_field": Status(422, "INVALID_ARGUMENT", "A field is not known"),
    "missing_field": Status(422, "INVALID_ARGUMENT", "A field is missing"),
    "model_required": Status(422, "INVALID_ARGUMENT", "No model is named, and there is no default"),
    "conflicting_fields": Status(422, "INVALID_ARGUMENT", "Fields do not go together"),
    "wrong_type": Status(422, "INVALID_ARGUMENT", "A value is of another type"),
    "wrong_shape": Status(422, "INVALID_ARGUMENT", "A tensor or list is of another size"),
    "out_of_range": Status(422, "INVALID_ARGUMENT", "A number is outside its range"),
    "unknown_value": Status(422, "INVALID_ARGUMENT", "A value is not one of those allowed"),
    "empty": Status(400, "INVALID_ARGUMENT", "The request holds no inputs"),
    "malformed": Status(400, "INVALID_ARGUMENT", "The request is not well formed"),
    "invalid_json": Status(400, "INVALID_ARGUMENT", "The body is not JSON"),
    "too_large": Status(422, "INVALID_ARGUMENT", "The request is too large"),
    "too_many_inputs": Status(422, "INVALID_ARGUMENT", "The request holds too many inputs"),
    "too_many_tokens": Status(422, "INVALID_ARGUMENT", "The request holds too many tokens"),
    "too_many_characters": Status(422, "INVALID_ARGUMENT", "The request holds too many characters"),
    "body_too_large": Status(413, "RESOURCE_EXHAUSTED", "The body is too large"),
    "head_too_large": Status(431, "RESOURCE_EXHAUSTED", "The line and headers are too large"),
    "too_slow": Status(408, "DEADLINE_EXCEEDED", "The request came too slowly"),
    "bad_input": Status(422, "INVALID_ARGUMENT", "An input cannot be read"),
    "empty_input": Status(422, "INVALID_ARGUMENT", "An input holds no token"),
    "too_long": Status(422, "INVALID_ARGUMENT", "An input is too long"),
    "wrong_model_kind": Status(424, "FAILED_PRECONDITION", "The model is of another kind"),
    "unsupported": Status(501, "UNIMPLEMENTED", "This server does not do that"),
    "unauthorized": Status(401, "UNAUTHENTICATED", "This needs a key"),
    "forbidden": Status(403, "PERMISSION_DENIED", "The page or host is not allowed"),
    "not_found": Status(404, "NOT_FOUND", "Not found"),
    "unknown_model": Status(404, "NOT_FOUND", "There is no such model"),
    "method_not_allowed": Status(405, "UNIMPLEMENTED", "The path does not answer this verb"),
    "not_acceptable": Status(406, "INVALID_ARGUMENT", "No format the client accepts can carry the answer"),
    "unsupported_media": Status(415, "INVALID_ARGUMENT", "The body is of a type this path does not read"),
    "overloaded": Status(429, "RESOURCE_EXHAUSTED", "The queue is full"),
    "key_limited": Status(429, "RESOURCE_EXHAUSTED", "The key asks for more than it may have"),
    "deadline_exceeded": Status(504, "DEADLINE_EXCEEDED", "The time allowed is over"),
    "unavailable": Status(503, "UNAVAILABLE", "The service is not ready"),
    "engine_failure": Status(424, "INTERNAL", "The engine failed on this request"),
}
INVALID_REQUESTS = frozenset(
    {code for code, status in STATUSES.items() if status.http in (406, 408, 416, 422, 431)} | {"wrong_model_kind"}
)
"""Codes that OpenAI and Cohere answer with 400, whatever their HTTP status is elsewhere."""
RETRY_AFTER_SECONDS = {"overloaded": 1.0, "key_limited": 1.0, "unavailable": 1.0}
"""When to try again where nothing was measured, by code; the same request fails again with any other code."""
LEAST_RETRY_SECONDS = 0.05


def retry_seconds(error: InlayError) -> float | None:
    """Return the seconds after which a retry may succeed, measured or from the table; None if it would fail."""
    if error.code not in RETRY_AFTER_SECONDS:
        return None
    measured: float | None = getattr(error, "retry_after", None)
    return RETRY_AFTER_SECONDS[error.code] if measured is None else max(LEAST_RETRY_SECONDS, measured)


def retry_headers(error: InlayError) -> list[tuple[bytes, bytes]]:
    """Return Retry-After in whole seconds (RFC 9110), and in milliseconds as OpenAI's clients read it."""
    seconds = retry_seconds(error)
    if seconds is None:
        return []
    return [(b"retry-after", b"%d" % math.ceil(seconds)), (b"retry-after-ms", b"%d" % math.ceil(seconds * 1000))]
