"""The only table from an error's code to what each protocol calls it. Knows numbers and names; imports no protocol."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Status:
    """One row.

    http     HTTP status
    grpc     name of the gRPC status code
    tei      `error_type` of text-embeddings-inference 1.9, which knows six; the nearest where it has none
    title    the same for every problem of this code (RFC 9457)
    """

    http: int
    grpc: str
    tei: str
    title: str


STATUSES = {
    "error": Status(500, "INTERNAL", "Backend", "The service has a fault"),
    "bad_request": Status(422, "INVALID_ARGUMENT", "Validation", "The request cannot be served"),
    "bad_parameters": Status(422, "INVALID_ARGUMENT", "Validation", "There is no such positional encoding"),
    "empty": Status(400, "INVALID_ARGUMENT", "Empty", "The request holds no inputs"),
    "malformed": Status(400, "INVALID_ARGUMENT", "Validation", "The body is not JSON"),
    "too_large": Status(422, "INVALID_ARGUMENT", "Validation", "The request is too large"),
    "body_too_large": Status(413, "RESOURCE_EXHAUSTED", "Validation", "The body is too large"),
    "bad_input": Status(422, "INVALID_ARGUMENT", "Validation", "An input cannot be read"),
    "not_found": Status(404, "NOT_FOUND", "Validation", "There is no such thing"),
    "method_not_allowed": Status(405, "UNIMPLEMENTED", "Validation", "The path does not answer this verb"),
    "not_acceptable": Status(
        406, "INVALID_ARGUMENT", "Validation", "No format the client accepts can carry the answer"
    ),
    "range_not_satisfiable": Status(416, "OUT_OF_RANGE", "Validation", "The byte range is not part of the answer"),
    "unsupported_media": Status(415, "INVALID_ARGUMENT", "Validation", "The body is of a type this path does not read"),
    "overloaded": Status(429, "RESOURCE_EXHAUSTED", "Overloaded", "The queue is full"),
    "unavailable": Status(503, "UNAVAILABLE", "Unhealthy", "The service is not ready"),
    "engine_failure": Status(424, "INTERNAL", "Backend", "The engine failed on this request"),
}
RETRY_AFTER_SECONDS = {"overloaded": 1, "unavailable": 1}
"""What a refused caller is told to wait."""
