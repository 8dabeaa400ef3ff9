"""Table: the result of every scheme, named arrays that are computed a block of rows at a time.

A table is a pure function of its parameters. It also records how its values were computed.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal, Self

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from models.errors import BadEncoding
from models.positions.arithmetic import Arithmetic

Kind = Literal["float", "int64", "bool"]
Positions = range | NDArray[np.int64]
Rows = Callable[[int, int], NDArray[Any]]

DTYPES: dict[str, Any] = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}
MAX_POSITION = 2**53  # above it float64 cannot represent every position
MAX_WIDTH = 2**20


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """One array of a table.

    Attributes:
        shape: shape of the whole array. Its rows are those of the array with all axes but the last flattened.
        rows: (start, stop) -> those rows, [stop - start, shape[-1]]: float64 not yet rounded (exact), float32 (parity),
            int64 or bool.
        kind: float: the caller chooses the dtype. int64 and bool: the dtype is fixed.
    """

    shape: tuple[int, ...]
    rows: Rows
    kind: Kind = "float"

    @classmethod
    def of(cls, array: NDArray[Any], kind: Kind = "float") -> Self:
        """Return an array that is computed already."""
        rows = np.ascontiguousarray(array).reshape(-1, array.shape[-1])
        return cls(array.shape, lambda start, stop: rows[start:stop], kind)

    @property
    def count(self) -> int:
        """The number of rows."""
        return prod(self.shape[:-1])

    @property
    def width(self) -> int:
        """The number of values in a row."""
        return self.shape[-1]

    def whole(self) -> NDArray[Any]:
        """Return the array in its full shape, in the dtype that `rows` gives, computed at once; for small arrays."""
        return self.rows(0, self.count).reshape(self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The arrays of one scheme for one set of parameters.

    Attributes:
        scheme: name of the scheme (rope, alibi, t5, ...).
        arithmetic: exact or parity.
        outputs: the arrays by name.
        facts: JSON-ready: how the values were computed (formula, frequencies, attention_factor, ...).
        notes: sentences for the caller: parameters that some library ignores, forms that differ between libraries.
    """

    scheme: str
    arithmetic: Arithmetic
    outputs: Mapping[str, Output]
    facts: Mapping[str, Any]
    notes: tuple[str, ...] = field(default=())


def slice_positions(positions: Positions, start: int, stop: int) -> NDArray[np.int64]:
    """Return positions[start:stop] as int64 [stop - start], without expanding the rest of a range."""
    part = positions[start:stop]
    return np.arange(part.start, part.stop, part.step, dtype=np.int64) if isinstance(part, range) else part


def checked_positions(positions: Positions) -> Positions:
    """Return the same positions.

    Raises:
        BadEncoding: there is none, or one is not in 0 .. 2^53 - 1.
    """
    if len(positions) == 0:
        raise BadEncoding("no positions: send at least one")
    minimum, maximum = (
        (positions[0], positions[-1]) if isinstance(positions, range) else (positions.min(), positions.max())
    )
    if minimum < 0 or maximum >= MAX_POSITION:
        outside = minimum if minimum < 0 else maximum
        raise BadEncoding(f"position {int(outside)} is not in 0 to {MAX_POSITION - 1}")
    return positions


def checked_name(what: str, name: str, known: Collection[str]) -> str:
    """Return the name.

    Raises:
        BadEncoding: it is not one of those known; the message begins with `what`.
    """
    if name not in known:
        raise BadEncoding(f"{what} {name!r} is not one of {', '.join(known)}")
    return name


def checked_count(name: str, value: Any, minimum: int = 1, maximum: int = MAX_WIDTH) -> int:
    """Return the value.

    Raises:
        BadEncoding: it is not a whole number from minimum to maximum.
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not minimum <= value <= maximum:
        raise BadEncoding(f"{name} is {value!r}; it must be a whole number from {minimum} to {maximum}")
    return int(value)


def rounded(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return the values in one of DTYPES, rounded once, to nearest.

    ml_dtypes converts float64 to bfloat16 through float32, which rounds twice and can miss the nearest value. So
    float64 is first rounded to odd in float32; the second rounding is then correct (Boldo and Melquiond 2008).
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
