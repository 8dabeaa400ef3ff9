"""The Range header of one byte range (RFC 9110, section 14); several ranges at a time are not served."""

import re

from service.errors import RangeNotSatisfiable

_SINGLE = re.compile(r"bytes\s*=\s*(\d{0,20})-(\d{0,20})", re.IGNORECASE)


def requested(header: str, size: int) -> tuple[int, int] | None:
    """Return the first byte and the last byte + 1 of a Range header; None for all bytes.

    A header of another unit, of several ranges or that makes no sense is ignored, as the RFC allows.

    Args:
        size: size of the whole body, in bytes.

    Raises:
        RangeNotSatisfiable: the range begins behind the last byte.
    """
    match = _SINGLE.fullmatch(header.strip())
    if match is None or not any(match.groups()):
        return None
    first, last = (int(text) if text else None for text in match.groups())
    if first is None:
        first, last = max(0, size - (last or 0)), size - 1
    if last is not None and last < first < size:
        return None
    if first >= size:
        raise RangeNotSatisfiable(f"the range begins at byte {first}; the table has {size} bytes", size)
    return first, size if last is None else min(last + 1, size)


def is_current(if_range: bytes | None, etag: str) -> bool:
    """Return whether a Range applies to the bytes that the client holds: there is no If-Range, or it has this tag."""
    return if_range is None or if_range.strip().decode("latin-1") == etag
