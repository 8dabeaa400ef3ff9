"""A table's rows as floats, in blocks that fit a core's own cache.

A table is anything with `shape`, `dtype` and indexing that returns arrays, including quantised tables.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.tables.quantization import RowSource

BLOCK_VALUES = 2**18  # 1 MiB in float32
SHARED_BLOCK_FACTOR = 16  # blocks are larger where rows are shared, not cast
Check = Callable[[], None]
"""Called between blocks; raises to cancel the work."""


def never_cancel() -> None:
    """A Check that never raises, so that every computation goes on."""


def blocks(
    table: RowSource, dtype: Any = np.float32, check: Check = never_cancel, values: int = BLOCK_VALUES
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield the first row's index and the rows of each block, cast exactly to `dtype` or shared if they have it.

    Args:
        table: [V, d], finite.
        dtype: float32 or float64, at least as wide as the table's.
        check: called before each block; it raises to cancel.
        values: number of values in a block that is cast.
    """
    shared = isinstance(table, np.ndarray) and table.dtype == dtype
    step = max(1, (values * SHARED_BLOCK_FACTOR if shared else values) // max(1, table.shape[1]))
    for start in range(0, table.shape[0], step):
        check()
        yield start, floats(table[start : start + step], dtype)


def floats(rows: NDArray[Any], dtype: Any = np.float32) -> NDArray[Any]:
    """Return finite rows in float32 or float64, exactly; not copied where that is their dtype."""
    if rows.dtype == np.float16:
        rows = _from_half(rows)
    return rows.astype(dtype, copy=False)


def _from_half(rows: NDArray[np.float16]) -> NDArray[np.float32]:
    """Return float16 as float32 by moving bits, three times as fast as numpy 2.4's cast; exact where finite."""
    bits = rows.view(np.int16).astype(np.int32)
    bits <<= 13
    bits &= np.int32(-0x70002000)  # 0x8fffe000: the sign, five bits of exponent, ten of fraction
    values = bits.view(np.float32)
    values *= np.float32(2.0**112)  # the exponents' biases differ by 127 - 15
    return values
