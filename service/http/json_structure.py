"""Bounds the structure of JSON before it is parsed: a body of 16 MiB may become a gigabyte of lists.

Parsers keep the GIL from the first byte to the last: 16 MiB of `[],` took 0.3 s, and two seconds with the garbage
collections between, in which no probe was answered (orjson 3.11, Python 3.11). A count of bytes takes 2 ms a MiB.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.errors import TooLarge

MAX_LISTS, MAX_MEMBERS, MAX_STRINGS, MAX_VALUES = 1 << 18, 1 << 16, 1 << 18, 1 << 21
"""Lists and objects, members of objects, strings, and values of any kind, of one document: 50 ms of parsing or less."""
UNCHECKED_BYTES = 4 * MAX_MEMBERS  # too short for as many; `"":0` is the shortest member
PIECE_BYTES = 1 << 18  # counted at a time: what fits a processor's cache is counted twice as fast
QUOTE, COMMA, COLON, BRACKET, BRACE, CASE = b'",:[{ '  # a bracket and CASE are a brace


class Counts(NamedTuple):
    """Numbers of the bytes that begin or separate values."""

    lists: int
    members: int
    strings: int
    values: int

    @property
    def within(self) -> bool:
        """Whether a document may have so many."""
        return all([count <= most for count, most in zip(self, MOST, strict=True)])


MOST = Counts(MAX_LISTS, MAX_MEMBERS, MAX_STRINGS, MAX_VALUES)


def check_structure(document: bytes) -> None:
    """Raise TooLarge for a document of more lists, members or values than this server reads."""
    if len(document) <= UNCHECKED_BYTES or _counts(document, in_strings=True).within:
        return
    if b"\\" in document:
        document = document.replace(rb"\\", b"").replace(rb"\"", b"")  # what is left are quotes that begin or end
    counts = _counts(document, in_strings=False)
    if not counts.within:
        raise TooLarge(
            f"the JSON holds {_words(counts)}",
            allowed=f"this server reads {_words(MOST)} of one body",
            remedy="send fewer inputs at a time, or binary tensors",
        )


def _words(counts: Counts) -> str:
    lists, members, strings, values = counts
    return f"{lists} lists and objects, {members} members, {strings} strings and {values} values"


def _counts(document: bytes, *, in_strings: bool) -> Counts:
    """Return the counts of a document.

    Args:
        in_strings: also count what stands in strings, which is faster; without, no quote may be escaped.
    """
    lists = members = quotes = values = 0
    inside = False
    for start in range(0, len(document), PIECE_BYTES):
        piece = np.frombuffer(document, np.uint8, min(PIECE_BYTES, len(document) - start), start)
        quotes += int(np.count_nonzero(piece == QUOTE))
        if not in_strings:
            piece, inside = _outside(piece, inside)
        lists += int(np.count_nonzero(piece | CASE == BRACE))
        members += int(np.count_nonzero(piece == COLON))
        values += int(np.count_nonzero(piece == COMMA))
    return Counts(lists, members, quotes // 2, values)


def _outside(piece: NDArray[np.uint8], inside: bool) -> tuple[NDArray[np.uint8], bool]:
    """Return a piece with zeros in place of strings, and whether it ends inside one.

    Args:
        inside: whether the piece begins inside a string.
    """
    strings = np.logical_xor.accumulate(piece == QUOTE)
    if inside:
        np.logical_not(strings, out=strings)
    return piece * ~strings, bool(strings[-1])
