"""JSON that holds arrays: small ones are encoded at once, large ones in pieces while they are sent.

orjson keeps the GIL for as long as it encodes: a second for a hundred thousand rows, in which no probe is answered. And
JSON is three times as long as its float32 numbers: in pieces, an answer never exists whole.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import orjson
import pybase64

from service.http.worker_threads import in_thread

INLINE_VALUES = 65536  # about 3 ms
PIECE_BYTES = 1 << 18  # of JSON, at least
BASE64_BYTES = 3 << 16  # encoded at a time: a multiple of three


class Encoded(NamedTuple):
    """JSON that is made piece by piece while it is written.

    Args:
        pieces: yields the JSON of one value.
    """

    pieces: Callable[[], Iterator[bytes]]


def json_pieces(document: Any) -> Iterator[bytes]:
    """Yield the JSON of a document, whose arrays are C-contiguous, in pieces of a few milliseconds each."""
    gathered: list[bytes] = []
    size = 0
    for token in _tokens(document):
        gathered.append(token)
        size += len(token)
        if size >= PIECE_BYTES:
            yield b"".join(gathered)
            gathered, size = [], 0
    yield b"".join(gathered)


async def json_stream(document: Any) -> AsyncIterator[bytes]:
    """Yield the JSON of a document in pieces, each made in a thread."""
    pieces = json_pieces(document)
    while (piece := await in_thread(next, pieces, None)) is not None:
        yield piece


def base64_text(data: memoryview) -> Encoded:
    """Return bytes as a base64 string."""

    def pieces() -> Iterator[bytes]:
        yield b'"'
        for start in range(0, len(data), BASE64_BYTES):
            yield pybase64.b64encode(data[start : start + BASE64_BYTES])
        yield b'"'

    return Encoded(pieces)


def dumps(document: Any) -> bytes:
    """Return the JSON of a document with small arrays."""
    return orjson.dumps(document, default=plain, option=orjson.OPT_SERIALIZE_NUMPY)


def plain(node: Any) -> Any:
    """Return what orjson writes in the place of an Encoded or an array of bfloat16."""
    if isinstance(node, np.ndarray):
        return node.astype(np.float32)
    if isinstance(node, Encoded):
        return orjson.Fragment(b"".join(node.pieces()))
    raise TypeError(f"{type(node).__name__} is not written as JSON")


def _tokens(node: Any) -> Iterator[bytes]:
    """Yield the JSON of a document, arrays slice by slice."""
    if isinstance(node, np.ndarray):
        yield from _array(node)
    elif isinstance(node, Encoded):
        yield from node.pieces()
    else:
        try:
            yield orjson.dumps(node)
        except TypeError:  # it holds arrays
            yield from _members(node)


def _members(node: Any) -> Iterator[bytes]:
    if isinstance(node, dict):
        pairs, opening, closing = [(orjson.dumps(name) + b":", member) for name, member in node.items()], b"{", b"}"
    elif isinstance(node, list | tuple):
        pairs, opening, closing = [(b"", member) for member in node], b"[", b"]"
    else:
        raise TypeError(f"{type(node).__name__} is not written as JSON")
    for name, member in pairs:
        yield opening + name
        yield from _tokens(member)
        opening = b","
    yield closing


def _array(rows: Any) -> Iterator[bytes]:
    step = max(1, INLINE_VALUES * len(rows) // max(1, rows.size))
    opening = b"["
    for start in range(0, len(rows), step):
        yield opening + dumps(rows[start : start + step])[1:-1]
        opening = b","
    yield b"]" if len(rows) else b"[]"
