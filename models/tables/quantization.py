"""Tables in 8 or 4 bits: codes with a scale and a bias for every block of a row.

    value = code * scale + bias,  scale = (max - min) / levels,  bias = min,  so |value - weight| <= scale / 2

int8   one block a row, 255 levels, one code a byte: codes uint8 [V, d], ranges float32 [V, 1, 2]
int4   blocks of at most 64 columns, all of one length, 15 levels: codes uint8 [V, d/2], ranges float32 [V, blocks, 2];
       byte j holds the code of column j in its low half and that of column j + d/2 in its high half

`ranges[..., 0]` is the scale and `ranges[..., 1]` the bias. A weights file holds the codes under the table's own name
and the ranges under `ranges_name`. A block of one value is exact: its scale is 0.

Source: torch.ops.quantized.embedding_bag_byte_prepack (int8: the same codes, scales and biases).
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from models.errors import BadCheckpoint

Kind = Literal["int8", "int4"]
LEVELS: dict[Kind, int] = {"int8": 255, "int4": 15}
LONGEST_BLOCK, SHORTEST_BLOCK = 64, 8  # columns of an int4 block; shorter ones would cost more than int8
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
        dtype: float32, float16, bfloat16, int8 or int4.
        bytes: codes and ranges together.
        block: columns that share a scale and a bias; None: not quantized.
        largest_error, rms_error: errors of the stored values against the checkpoint's, over the whole table.
    """

    dtype: str
    bytes: int
    block: int | None
    largest_error: float
    rms_error: float


def ranges_name(table: str, kind: Kind) -> str:
    """Return the name under which a weights file holds the ranges of a table."""
    return f"{table}.{kind}"


def kind_of(names: Container[str], table: str) -> Kind | None:
    """Return how a table of a file with these tensor names is quantized; None if it is not."""
    return next((kind for kind in LEVELS if ranges_name(table, kind) in names), None)


def shape_of(shapes: Mapping[str, tuple[int, ...]], name: str) -> tuple[int, ...]:
    """Return the shape of a tensor of a weights file; of a quantized table, the shape it stands for."""
    if kind_of(shapes, name) != "int4":
        return shapes[name]
    rows, half = shapes[name]
    return rows, 2 * half


def view(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return the arrays of a weights file, codes and ranges joined to one QuantizedTable a table."""
    kinds = {name: kind for name in arrays if (kind := kind_of(arrays, name))}
    paired = {ranges_name(name, kind) for name, kind in kinds.items()}
    return {
        name: QuantizedTable(array, arrays[ranges_name(name, kinds[name])], kinds[name]) if name in kinds else array
        for name, array in arrays.items()
        if name not in paired
    }


def block_of(kind: Kind, width: int) -> int:
    """Return the columns of a block of rows `width` wide.

    Raises:
        BadCheckpoint: int4 has none: an odd width, or one that no number from 8 to 64 divides.
    """
    if kind == "int8":
        return width
    block = next((size for size in range(min(width, LONGEST_BLOCK), 0, -1) if width % size == 0), 0)
    if width % 2 or block < min(width, SHORTEST_BLOCK):
        raise BadCheckpoint(
            f"a table {width} columns wide has no int4 form: that needs an even width which a number from "
            f"{SHORTEST_BLOCK} to {LONGEST_BLOCK} divides; use --dtype int8"
        )
    return block


def codes_shape(kind: Kind, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the shape of the codes of a table [V, d]."""
    rows, width = shape
    return rows, width if kind == "int8" else width // 2


def ranges_shape(kind: Kind, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the shape of the ranges of a table [V, d]."""
    rows, width = shape
    return rows, width // block_of(kind, width), 2


def ranges(rows: NDArray[Any], kind: Kind) -> Floats:
    """Return scale and bias of every block, float32 [n, blocks, 2].

    Args:
        rows: finite floats [n, d].
        kind: int8 or int4.

    Raises:
        BadCheckpoint: a block spans more than float32 holds.
    """
    ranges = np.empty(ranges_shape(kind, rows.shape), np.float32)
    for part, blocks in _in_blocks(rows, kind):
        low, high = blocks.min(axis=-1), blocks.max(axis=-1)
        span = high - low
        if span.max(initial=0.0) > np.finfo(np.float32).max:
            raise BadCheckpoint(f"a row of a table spans {span.max():.3g}, more than {kind} codes can: keep its dtype")
        ranges[part, :, 0] = span.astype(np.float32) / np.float32(LEVELS[kind])
        ranges[part, :, 1] = low
    return ranges


def codes(rows: NDArray[Any], scales: Floats, kind: Kind) -> Codes:
    """Return the nearest codes to finite floats [n, d], packed; `scales` is what `ranges` returned for them."""
    codes = np.empty(codes_shape(kind, rows.shape), np.uint8)
    for part, blocks in _in_blocks(rows, kind):
        scale, bias = (scales[part, :, None, each].astype(np.float64) for each in (0, 1))
        steps = np.divide(blocks - bias, scale, out=np.zeros_like(blocks), where=scale > 0)
        whole = np.rint(steps).clip(0, LEVELS[kind]).astype(np.uint8).reshape(len(blocks), -1)
        codes[part] = whole if kind == "int8" else _packed(whole)
    return codes


def values(codes: Codes, scales: Floats) -> Floats:
    """Return the values of codes, float32 [..., d], in the arithmetic of the graphs.

    Args:
        codes: uint8 [..., d], one code a byte.
        scales: float32 [..., blocks, 2].
    """
    blocks = codes.reshape(*scales.shape[:-1], -1).astype(np.float32)
    blocks *= scales[..., :1]
    blocks += scales[..., 1:]
    return blocks.reshape(codes.shape)


def unpacked(packed: Codes) -> Codes:
    """Return the codes of int4 rows, one a byte: uint8 [..., d] of [..., d/2]."""
    return np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1)


def _packed(whole: Codes) -> Codes:
    half = whole.shape[-1] // 2
    return whole[:, :half] | (whole[:, half:] << np.uint8(4))


def _in_blocks(rows: NDArray[Any], kind: Kind) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Yield slices of rows, and those rows as float64 [n, blocks, columns]."""
    block = block_of(kind, rows.shape[1])
    step = max(1, VALUES_AT_ONCE // rows.shape[1])
    for start in range(0, len(rows), step):
        part = rows[start : start + step].astype(np.float64)
        yield slice(start, start + len(part)), part.reshape(len(part), -1, block)


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedTable:
    """A quantized table that is used like a float32 array: rows are dequantized when they are indexed."""

    codes: Codes
    ranges: Floats
    kind: Kind

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the dequantized table."""
        rows, width = self.codes.shape
        return rows, width if self.kind == "int8" else 2 * width

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
        codes = self.codes[index]
        return values(codes if self.kind == "int8" else unpacked(codes), self.ranges[index])

    def astype(self, dtype: Any) -> NDArray[Any]:
        """Return the whole table at once, for small tables."""
        return self[:].astype(dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:] if dtype is None else self.astype(dtype)
