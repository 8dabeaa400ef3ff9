"""HTTP and gRPC statuses of errors by code, of error_status.json; a protocol's errors.py lists where its own differ."""

import json
import math
from pathlib import Path
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
    code: Status(*row)
    for code, row in json.loads(Path(__file__).with_name("error_status.json").read_text(encoding="utf-8")).items()
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
