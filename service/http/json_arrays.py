"""JSON that holds arrays: encoded at once where they are small, else slice by slice in a thread.

orjson keeps the GIL for as long as it encodes: a second for a hundred thousand rows, in which no probe is answered.
"""

from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

import numpy as np
import orjson

from service.embedding.requests import EmbedResult
from service.http.worker_threads import in_thread

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")
INLINE_VALUES = 65536  # about 3 ms


def dumps(document: Any, values: int) -> bytes:
    """Return a document as JSON, its numpy arrays as lists.

    Args:
        values: the numbers in its arrays.
    """
    if values <= INLINE_VALUES:
        return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    return orjson.dumps(document, default=_list)


async def inline_or_in_thread(values: int, encode: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
    """Return what `encode` gives, called in a thread if it handles many values."""
    return encode(*arguments) if values <= INLINE_VALUES else await in_thread(encode, *arguments)


def count(result: EmbedResult) -> int:
    """Return the number of values in the rows of a result."""
    values = 0
    for output in result.outputs:
        values += output.rows.size
    return values


def _list(rows: Any) -> orjson.Fragment:
    """Return C-contiguous rows as a JSON list; between two slices other threads have their turn."""
    if not isinstance(rows, np.ndarray):
        raise TypeError(f"{type(rows).__name__} is not written as JSON")
    step = max(1, INLINE_VALUES * len(rows) // max(1, rows.size))
    slices = [rows[start : start + step] for start in range(0, len(rows), step)]
    lists = [orjson.dumps(each, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1] for each in slices]
    return orjson.Fragment(b"[" + b",".join(lists) + b"]")
