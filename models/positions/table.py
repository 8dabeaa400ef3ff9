"""What every scheme comes down to: named arrays, computed a block of rows at a time, and how they were computed.

A table is a pure function of its parameters. Nothing here holds a whole one; nothing here knows a scheme.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from models.errors import BadEncoding

Arithmetic = Literal["exact", "parity"]
Kind = Literal["float", "int64", "bool"]
Positions = range | NDArray[np.int64]
Rows = Callable[[int, int], NDArray[Any]]

DTYPES: dict[str, Any] = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}
MAX_POSITION = 2**53  # above it float64 no longer tells positions apart
MAX_WIDTH = 2**20
BLOCK_VALUES = 2**18  # made at a time: what they are made of stays in a core's own cache


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """One array of a table.

    shape   of the whole array; its rows are what is left when all axes but the last are flattened
    rows    (start, stop) -> those rows, [stop - start, shape[-1]]: float64 before its one rounding (exact), float32
            (parity), int64 or bool
    kind    float takes the dtype a caller asks for; int64 and bool are what they are
    """

    shape: tuple[int, ...]
    rows: Rows
    kind: Kind = "float"

    @property
    def count(self) -> int:
        """How many rows there are."""
        return prod(self.shape[:-1])

    @property
    def width(self) -> int:
        """Values in a row."""
        return self.shape[-1]

    def whole(self) -> NDArray[Any]:
        """The array in its full shape, as `rows` gives it. For arrays known to be small."""
        return self.rows(0, self.count).reshape(self.shape)

    def made(self, dtype: str) -> NDArray[Any]:
        """The array in its full shape, floats rounded once to `dtype`, made a block at a time."""
        whole = np.empty((self.count, self.width), DTYPES[dtype] if self.kind == "float" else self.kind)
        step = max(1, BLOCK_VALUES // self.width)
        for start in range(0, self.count, step):
            values = self.rows(start, min(start + step, self.count))
            whole[start : start + step] = rounded(values, dtype) if dtype == "bfloat16" else values
        return whole.reshape(self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The arrays of one scheme with one set of parameters.

    facts   JSON-ready: how the values were made (formula, frequencies, attention_factor, ...)
    notes   sentences a caller should read: parameters some library ignores, forms that differ between libraries
    """

    scheme: str
    arithmetic: Arithmetic
    outputs: Mapping[str, Output]
    facts: Mapping[str, Any]
    notes: tuple[str, ...] = field(default=())


def taken(positions: Positions, start: int, stop: int) -> NDArray[np.int64]:
    """Positions [start:stop] as int64 [stop - start]; a range is never written out whole."""
    part = positions[start:stop]
    return np.arange(part.start, part.stop, part.step, dtype=np.int64) if isinstance(part, range) else part


def checked_positions(positions: Positions) -> Positions:
    """The same positions; raises BadEncoding unless all lie in 0 .. 2^53 - 1 and there is at least one."""
    if len(positions) == 0:
        raise BadEncoding("no positions: send at least one")
    least, most = (positions[0], positions[-1]) if isinstance(positions, range) else (positions.min(), positions.max())
    if least < 0 or most >= MAX_POSITION:
        wrong = least if least < 0 else most
        raise BadEncoding(f"position {int(wrong)} is not in 0 to {MAX_POSITION - 1}")
    return positions


def checked_count(name: str, value: Any, least: int = 1, most: int = MAX_WIDTH) -> int:
    """The same whole number; raises BadEncoding unless it is one from least to most."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not least <= value <= most:
        raise BadEncoding(f"{name} is {value!r}; it must be a whole number from {least} to {most}")
    return int(value)


def rounded(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Values in one of DTYPES, rounded to nearest once.

    ml_dtypes goes from float64 to bfloat16 through float32, which rounds twice and can miss the nearest; so float64
    first becomes float32 rounded to odd, from which the second rounding is the only one (Boldo and Melquiond 2008).
    """
    if dtype == "bfloat16" and values.dtype == np.float64:
        values = _rounded_to_odd(values)
    return values.astype(DTYPES[dtype], copy=False)


def _rounded_to_odd(values: NDArray[np.float64]) -> NDArray[np.float32]:
    nearest = values.astype(np.float32)
    bits = nearest.view(np.uint32)
    bits -= (np.abs(nearest.astype(np.float64)) > np.abs(values)).astype(np.uint32)  # towards zero
    bits |= (nearest.astype(np.float64) != values).astype(np.uint32)
    return nearest
