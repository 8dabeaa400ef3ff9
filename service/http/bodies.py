"""Content-Encoding of a request → its body as it was before. Bounded: a bomb is refused where it passes the bound."""

from service.errors import BodyTooLarge, Malformed, UnsupportedCoding
from service.http.content_coding import (
    ALIASES,
    CODINGS,
    Broken,
    TooLong,
    decode,
)
from service.http.worker_threads import in_thread

INLINE_BYTES = 16384  # decoded on the event loop, about 0.1 ms
ACCEPTED = (
    b"accept-encoding",
    ", ".join(CODINGS).encode(),
)  # of an answer to a coding that is not known (RFC 9110, 12.5.3)
MOST_CODINGS = 5  # one around the other


def codings(encoding: bytes) -> tuple[str, ...]:
    """The codings a Content-Encoding header names, in the order they were applied.

    raises   UnsupportedCoding
    """
    names = [name.strip() for name in encoding.decode("latin-1").lower().split(",")]
    found = [ALIASES.get(name, name) for name in names if name not in ("", "identity")]
    known = ", ".join(CODINGS)
    for name in found:
        if name not in CODINGS:
            raise UnsupportedCoding(f"content-encoding is {name[:40]!r}; this server reads {known}, or none")
    if len(found) > MOST_CODINGS:
        raise UnsupportedCoding(f"content-encoding names {len(found)} codings; this server undoes {MOST_CODINGS}")
    return tuple(found)


async def decoded(body: bytes, applied: tuple[str, ...], max_bytes: int) -> bytes:
    """The body without its codings.

    raises   Malformed, BodyTooLarge beyond `max_bytes`
    """
    if not body:
        return body
    if len(body) <= INLINE_BYTES:
        try:
            return _undone(body, applied, min(max_bytes, INLINE_BYTES))
        except BodyTooLarge:
            if max_bytes <= INLINE_BYTES:
                raise
    return await in_thread(_undone, body, applied, max_bytes)


def _undone(body: bytes, applied: tuple[str, ...], most: int) -> bytes:
    for name in reversed(applied):
        try:
            body = decode(name, body, most)
        except Broken as error:
            raise Malformed(f"the body is not {name}, as its content-encoding says: {error}") from None
        except TooLong:
            raise BodyTooLarge(
                f"the body has more than {most} bytes without its {name} coding, and this server takes no more: "
                "send fewer inputs at a time"
            ) from None
    return body
