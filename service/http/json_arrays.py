"""JSON that holds arrays: written at once where they are small, else beside the event loop, which goes on meanwhile.

orjson keeps the GIL for as long as it writes: a second for a hundred thousand rows, in which no probe is answered. What
is large is written slice by slice in a thread. Knows no document.
"""

from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

import numpy as np
import orjson

from service.embedding.requests import EmbedResult
from service.http.worker_threads import in_thread

Given = TypeVarTuple("Given")
Found = TypeVar("Found")
INLINE_VALUES = 65536  # about 3 ms


def dumps(document: Any, values: int) -> bytes:
    """The document, its numpy arrays as lists.

    values   numbers in them together
    """
    if values <= INLINE_VALUES:
        return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    return orjson.dumps(document, default=_list)


async def written(values: int, encode: Callable[[*Given], Found], *given: *Given) -> Found:
    """What `encode` gives; `values` numbers go through it."""
    return encode(*given) if values <= INLINE_VALUES else await in_thread(encode, *given)


def count(result: EmbedResult) -> int:
    """Numbers in the rows of a result."""
    values = 0
    for output in result.outputs:
        values += output.rows.size
    return values


def _list(rows: Any) -> orjson.Fragment:
    """A list of C-contiguous rows; between two slices other threads have their turn."""
    if not isinstance(rows, np.ndarray):
        raise TypeError(f"{type(rows).__name__} is not written as JSON")
    step = max(1, INLINE_VALUES * len(rows) // max(1, rows.size))
    slices = [rows[start : start + step] for start in range(0, len(rows), step)]
    lists = [orjson.dumps(each, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1] for each in slices]
    return orjson.Fragment(b"[" + b",".join(lists) + b"]")
