"""Errors of the Open Inference Protocol over HTTP."""

import orjson
import pytest

from service.errors import BadRequest, InlayError, Overloaded, Unavailable
from service.protocols.oip.errors import render_error


@pytest.mark.parametrize(
    ("error", "status", "seconds", "milliseconds"),
    [
        (Overloaded("the queue is full", 17.25), 503, b"18", b"17250"),
        (Overloaded("the queue is full"), 503, b"1", b"1000"),
        (Unavailable("the service is stopping"), 503, b"1", b"1000"),
        (BadRequest("no such thing"), 400, None, None),
    ],
)
def test_errors_say_when_to_retry(
    error: InlayError, status: int, seconds: bytes | None, milliseconds: bytes | None
) -> None:
    answer = render_error(error)
    headers = dict(answer.headers)
    assert (answer.status, orjson.loads(b"".join(answer.body))) == (status, {"error": error.message})
    assert (headers.get(b"retry-after"), headers.get(b"retry-after-ms")) == (seconds, milliseconds)
