"""Reads the request headers that say how long the client waits.

inlay-timeout-ms is our own; with x-envoy-expected-rq-timeout-ms, Envoy tells a server the timeout of its route.
"""

from collections.abc import Mapping

from service.errors import BadRequest

OWN, ENVOYS = b"inlay-timeout-ms", b"x-envoy-expected-rq-timeout-ms"
NAMES = (OWN, ENVOYS)


def allowed_seconds(headers: Mapping[bytes, bytes]) -> float:
    """Return the shortest timeout of headers that hold one of NAMES, in seconds.

    Raises:
        BadRequest: a header is not a whole number from 1.
    """
    return min([_milliseconds(name, headers[name]) for name in NAMES if name in headers]) / 1000


def _milliseconds(name: bytes, value: bytes) -> int:
    if not value.isdigit() or len(value) > 15 or int(value) == 0:
        received = f"the header {name.decode()} is {value[:40].decode('latin-1')!r}"
        raise BadRequest(received, allowed="allowed: milliseconds, a whole number from 1")
    return int(value)
