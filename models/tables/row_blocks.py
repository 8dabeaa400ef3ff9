"""A table's rows as floats, a block at a time that stays in a core's own cache. Never holds a table, reads no file.

A table is anything with `shape`, `dtype` and rows that are arrays when they are asked for, quantised ones too.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.artifacts.quantization import RowSource

BLOCK_VALUES = 2**18  # 1 MiB in float32
UNCAST = 16  # times as many where the rows are lent as they are
Check = Callable[[], None]
"""Called between blocks; raises to stop the work."""


def go_on() -> None:
    """The Check that never stops."""


def blocks(
    table: RowSource, dtype: Any = np.float32, check: Check = go_on, values: int = BLOCK_VALUES
) -> Iterator[tuple[int, NDArray[Any]]]:
    """First row and rows of each block, cast exactly to a wider dtype or lent where it is the table's own."""
    lent = isinstance(table, np.ndarray) and table.dtype == dtype
    step = max(1, (values * UNCAST if lent else values) // max(1, table.shape[1]))
    for start in range(0, table.shape[0], step):
        check()
        yield start, floats(table[start : start + step], dtype)


def floats(rows: NDArray[Any], dtype: Any = np.float32) -> NDArray[Any]:
    """Finite rows in float32 or float64, exactly; not copied where that is their dtype."""
    if rows.dtype == np.float16:
        rows = _from_half(rows)
    return rows.astype(dtype, copy=False)


def _from_half(rows: NDArray[np.float16]) -> NDArray[np.float32]:
    """float16 -> float32 by moving bits, three times as fast as numpy 2.4's cast; exact for every finite value."""
    bits = rows.view(np.int16).astype(np.int32)
    bits <<= 13
    bits &= np.int32(-0x70002000)  # 0x8fffe000: the sign, five bits of exponent, ten of fraction
    values = bits.view(np.float32)
    values *= np.float32(2.0**112)  # the exponents' biases differ by 127 - 15
    return values
