"""The Range header of one byte range (RFC 9110, section 14). Knows no table; ranges of several parts are not served."""

import re

from service.errors import RangeNotSatisfiable

_ONE = re.compile(r"bytes\s*=\s*(\d{0,20})-(\d{0,20})", re.IGNORECASE)


def wanted(header: str | None, size: int) -> tuple[int, int] | None:
    """First byte and last + 1 of what a Range header asks of `size` bytes; None: all of it.

    A header of another unit, of several ranges or that makes no sense counts as none, as the RFC allows.

    raises   RangeNotSatisfiable: the range begins behind the last byte
    """
    match = _ONE.fullmatch((header or "").strip())
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


def current(if_range: str | None, etag: str) -> bool:
    """Whether a Range is still of the bytes the client holds: no If-Range, or this very tag."""
    return if_range is None or if_range.strip() == etag
