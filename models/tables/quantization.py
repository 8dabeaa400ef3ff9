"""Tables in 8 bits: codes with a scale and a bias for every row.

    value = code * scale + bias,  scale = (max - min) / 255,  bias = min,  so |value - weight| <= scale / 2

A weights file holds the codes, uint8 [V, d], under the table's own name, and the ranges, float32 [V, 1, 2], under
`ranges_name`: `ranges[..., 0]` is the scale and `ranges[..., 1]` the bias. A row of one value is exact: its scale is 0.

Source: torch.ops.quantized.embedding_bag_byte_prepack (the same codes, scales and biases).
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from models.errors import BadCheckpoint

INT8 = "int8"
LEVELS = 255
VALUES_AT_ONCE = 1 << 17  # taken at a time: 1 MB in float64

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]


class RowSource(Protocol):
    """A tensor as it is read: slicing it by rows gives arrays. A view of a file, or rows made on demand."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, rows first."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the arrays that slicing gives."""

    def __getitem__(self, index: Any, /) -> Any:
        """Return rows as an array."""


@dataclass(frozen=True, slots=True)
class StoredTable:
    """How a table lies on disk, for the card.

    Attributes:
        dtype: float32, float16, bfloat16 or int8.
        bytes: codes and ranges together.
        block: columns that share a scale and a bias: all of a row; None: not quantized.
        largest_error, rms_error: errors of the stored values against the checkpoint's, over the whole table.
    """

    dtype: str
    bytes: int
    block: int | None
    largest_error: float
    rms_error: float


def ranges_name(table: str) -> str:
    """Return the name under which a weights file holds the ranges of a table."""
    return f"{table}.{INT8}"


def is_quantized(names: Container[str], table: str) -> bool:
    """Return whether a table of a file with these tensor names is quantized."""
    return ranges_name(table) in names


def view(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return the arrays of a weights file, codes and ranges joined to one QuantizedTable a table."""
    quantized = {name: ranges_name(name) for name in arrays if is_quantized(arrays, name)}
    return {
        name: QuantizedTable(array, arrays[quantized[name]]) if name in quantized else array
        for name, array in arrays.items()
        if name not in quantized.values()
    }


def ranges(rows: NDArray[Any]) -> Floats:
    """Return scale and bias of every row of finite floats [n, d], float32 [n, 1, 2].

    Raises:
        BadCheckpoint: a row spans more than float32 holds.
    """
    ranges = np.empty((len(rows), 1, 2), np.float32)
    for part, wide in _in_parts(rows):
        low, high = wide.min(axis=1), wide.max(axis=1)
        span = high - low
        if span.max(initial=0.0) > np.finfo(np.float32).max:
            raise BadCheckpoint(f"a row of a table spans {span.max():.3g}, more than {INT8} codes can: keep its dtype")
        ranges[part, 0, 0] = span.astype(np.float32) / np.float32(LEVELS)
        ranges[part, 0, 1] = low
    return ranges


def codes(rows: NDArray[Any], scales: Floats) -> Codes:
    """Return the nearest codes to finite floats [n, d]; `scales` is what `ranges` returned for them."""
    codes = np.empty(rows.shape, np.uint8)
    for part, wide in _in_parts(rows):
        scale, bias = (scales[part, :, each].astype(np.float64) for each in (0, 1))
        steps = np.divide(wide - bias, scale, out=np.zeros_like(wide), where=scale > 0)
        codes[part] = np.rint(steps).clip(0, LEVELS)
    return codes


def values(codes: Codes, scales: Floats) -> Floats:
    """Return the values of codes [..., d] with the ranges [..., 1, 2], float32, in the arithmetic of the graphs."""
    values = codes.astype(np.float32)
    values *= scales[..., 0]
    values += scales[..., 1]
    return values


def _in_parts(rows: NDArray[Any]) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Yield slices of rows, and those rows as float64."""
    step = max(1, VALUES_AT_ONCE // rows.shape[1])
    for start in range(0, len(rows), step):
        yield slice(start, start + step), rows[start : start + step].astype(np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedTable:
    """A quantized table that is used like a float32 array: rows are dequantized when they are indexed."""

    codes: Codes
    ranges: Floats

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the table."""
        return self.codes.shape

    @property
    def ndim(self) -> int:
        """2: rows and columns."""
        return 2

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the rows that indexing gives."""
        return np.dtype(np.float32)

    @property
    def nbytes(self) -> int:
        """Size on disk and, once read, in memory."""
        return self.codes.nbytes + self.ranges.nbytes

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, index: Any) -> Floats:
        """Return rows by number, slice or array, float32 [..., d]."""
        return values(self.codes[index], self.ranges[index])

    def astype(self, dtype: Any) -> NDArray[Any]:
        """Return the whole table at once, for small tables."""
        return self[:].astype(dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:] if dtype is None else self.astype(dtype)
