"""Decoding of request bodies by their Content-Encoding, within a bound that decompression bombs meet early."""

from service.errors import BodyTooLarge, Malformed, UnsupportedCoding
from service.http.content_coding import ALIASES, CODINGS, Broken, TooLong, decode
from service.http.worker_threads import in_thread

INLINE_BYTES = 16384  # decoded on the event loop, about 0.1 ms
MAX_CODINGS = 5  # one around the other
ACCEPTED = (b"accept-encoding", ", ".join(CODINGS).encode())  # header of an UnsupportedCoding error, RFC 9110, 12.5.3


def codings(encoding: bytes) -> tuple[str, ...]:
    """Return the codings that a Content-Encoding header names, in the order they were applied.

    Raises:
        UnsupportedCoding: this server does not decode one of them, or there are too many.
    """
    names = [name.strip() for name in encoding.decode("latin-1").lower().split(",")]
    applied = [ALIASES.get(name, name) for name in names if name not in ("", "identity")]
    for name in applied:
        if name not in CODINGS:
            allowed = f"this server reads {', '.join(CODINGS)}, or none"
            raise UnsupportedCoding(f"content-encoding is {name[:40]!r}", allowed=allowed)
    if len(applied) > MAX_CODINGS:
        allowed = f"this server undoes {MAX_CODINGS}"
        raise UnsupportedCoding(f"content-encoding names {len(applied)} codings", allowed=allowed)
    return tuple(applied)


async def decoded(body: bytes, applied: tuple[str, ...], max_bytes: int) -> bytes:
    """Return a body without its codings; a large one is decoded in a thread.

    Raises:
        Malformed: the bytes are not what a coding says.
        BodyTooLarge: the decoded body has more than `max_bytes`.
    """
    if not body:
        return body
    if len(body) <= INLINE_BYTES:
        try:
            return _decode(body, applied, min(max_bytes, INLINE_BYTES))
        except BodyTooLarge:
            if max_bytes <= INLINE_BYTES:
                raise
    return await in_thread(_decode, body, applied, max_bytes)


def _decode(body: bytes, applied: tuple[str, ...], max_bytes: int) -> bytes:
    for name in reversed(applied):
        try:
            body = decode(name, body, max_bytes)
        except Broken as error:
            raise Malformed(f"the body is not {name}, as its content-encoding says: {error}") from None
        except TooLong:
            received = f"the body has more than {max_bytes} bytes without its {name} coding"
            allowed = "this server takes no more"
            raise BodyTooLarge(received, allowed=allowed, remedy="send fewer inputs at a time") from None
    return body
