"""How long an HTTP caller says it waits. Knows no protocol.

inlay-timeout-ms is ours; x-envoy-expected-rq-timeout-ms is what Envoy, and a mesh made of it, tells a server of the
time-out it has set on the request.
"""

from collections.abc import Mapping

from service.errors import BadRequest

HEADERS = (b"inlay-timeout-ms", b"x-envoy-expected-rq-timeout-ms")


def allowed_seconds(fields: Mapping[bytes, bytes]) -> float | None:
    """The shorter of what the headers allow; None: they say nothing.

    raises   BadRequest naming the header that is no whole number from 1
    """
    found = [_milliseconds(name, fields[name]) for name in HEADERS if name in fields]
    return min(found) / 1000 if found else None


def _milliseconds(name: bytes, value: bytes) -> int:
    if not value.isdigit() or len(value) > 15 or int(value) == 0:
        raise BadRequest(
            f"the header {name.decode()} is {value[:40].decode('latin-1')!r}; allowed: milliseconds, a whole number "
            "from 1"
        )
    return int(value)
