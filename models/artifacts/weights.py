"""An exported model's tensors: written from the checkpoint's rows in chunks, read back as mapped arrays.

Tables keep their dtype or take the requested one: rows are widened after the lookup. All other floats are widened to
float32, exactly, because ONNX Runtime would otherwise keep a second, widened copy of them in every process.
"""

import math
import mmap
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import Card
from models.checkpoints import safetensors
from models.checkpoints.checkpoint import check_finite
from models.checkpoints.hub import Progress, counter, no_progress
from models.checkpoints.safetensors import DTYPES, Tensor, TensorSource
from models.errors import BadCheckpoint, ModelError
from models.tables import int8_matrices, quantization
from models.tables.quantization import INT8, RowSource, StoredTable
from models.tables.row_blocks import floats

FILE_NAME = "weights.safetensors"
KEEP = "keep"
NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
ELEMENTS = {name: element for element, name in NAMES.items()}
TABLE_DTYPES = (KEEP, *ELEMENTS, INT8)
Count = Callable[[int], None]  # told the bytes that were read


@dataclass(frozen=True, slots=True)
class WrittenWeights:
    """The tensors that `write` wrote.

    Attributes:
        placed: where each tensor lies, by name; a quantized table has its codes under the table's name, see
            models/tables/quantization.py.
        tables: how each table is stored.
    """

    placed: dict[str, Tensor]
    tables: dict[str, StoredTable]

    @property
    def bytes(self) -> int:
        """The size of all tensors."""
        return sum(tensor.bytes for tensor in self.placed.values())

    def parameters(self) -> int:
        """Return the number of values of all tensors; what a quantized one needs besides its codes does not count."""
        ranges = {quantization.ranges_name(name) for name in self.placed}
        counted = (name for name in self.placed if name not in ranges and not int8_matrices.is_addition(name))
        return sum(math.prod(self.placed[name].shape) for name in counted)


def write(
    folder: Path,
    arrays: Mapping[str, RowSource],
    tables: Collection[str],
    *,
    dtype: str = KEEP,
    progress: Progress = no_progress,
) -> WrittenWeights:
    """Write tensors to `folder`, a chunk of rows at a time.

    Args:
        folder: folder of the export.
        arrays: tensors by name, sliced by rows: views of mapped files, or rows made on demand.
        tables: names among them whose rows are looked up: these take `dtype`. Other floats become float32, integers
            stay.
        dtype: one of TABLE_DTYPES.
        progress: receives the bytes written.

    Raises:
        BadCheckpoint: a value is not finite or beyond the dtype, or a row spans more than int8 holds.
        ModelError: unknown dtype.
    """
    if dtype not in TABLE_DTYPES:
        raise ModelError(f"--dtype {dtype!r} is not one of {', '.join(TABLE_DTYPES)}")
    jobs = [_TensorJob(name, array, _target(array, dtype, name in tables)) for name, array in arrays.items()]
    count = counter(progress, "writing weights", sum(job.passes * job.bytes for job in jobs))
    sources = sorted((source for job in jobs for source in job.sources(count)), key=_aligned_first)
    placed = safetensors.write(folder / FILE_NAME, sources)
    return WrittenWeights(placed, {job.name: job.stored(placed) for job in jobs if job.name in tables})


def _aligned_first(source: TensorSource) -> tuple[int, int]:
    """Sort wide elements first, so that every tensor begins at a whole one; then big tensors first."""
    return -DTYPES[source.dtype].itemsize, -source.bytes


def _target(array: RowSource, dtype: str, is_table: bool) -> str:
    """Return the type that a tensor is written as: a safetensors dtype, or int8."""
    dtype_name = safetensors.NAMES[np.dtype(array.dtype)]
    if dtype_name == "F64":
        dtype_name = "F32"
    if dtype_name not in NAMES:
        return dtype_name
    if not is_table:
        return "F32"
    return dtype_name if dtype == KEEP else ELEMENTS.get(dtype, dtype)


@dataclass(slots=True)
class _TensorJob:
    """One tensor being written, and how far its stored values are from the checkpoint's."""

    name: str
    array: RowSource
    target: str
    largest: float = 0.0
    squares: float = field(default=0.0)

    @property
    def bytes(self) -> int:
        return math.prod(self.array.shape) * np.dtype(self.array.dtype).itemsize

    @property
    def passes(self) -> int:
        return 2 if self.target == INT8 else 1

    def sources(self, count: Count) -> Iterator[TensorSource]:
        """Yield what to write: the tensor, or its ranges and codes."""
        shape = self.array.shape
        if self.target != INT8:
            yield TensorSource(self.name, self.target, shape, self._converted(count))
            return
        if len(shape) != 2:
            raise BadCheckpoint(f"{self.name!r} has shape {list(shape)}; {INT8} codes are made of rows and columns")
        ranges = (quantization.ranges(rows) for rows in self._parts(count))
        yield TensorSource(quantization.ranges_name(self.name), "F32", (shape[0], 1, 2), ranges)
        yield TensorSource(self.name, "U8", shape, self._codes(count))

    def stored(self, placed: Mapping[str, Tensor]) -> StoredTable:
        """Return the card's entry, once everything is written."""
        root = math.sqrt(self.squares / max(1, math.prod(self.array.shape)))
        if self.target != INT8:
            dtype = NAMES.get(self.target, self.target.lower())
            return StoredTable(dtype, placed[self.name].bytes, None, self.largest, root)
        size = placed[self.name].bytes + placed[quantization.ranges_name(self.name)].bytes
        return StoredTable(INT8, size, self.array.shape[1], self.largest, root)

    def _chunks(self, count: Count) -> Iterator[tuple[int, NDArray[Any]]]:
        for start, rows in safetensors.row_chunks(self.array):  # type: ignore[arg-type]
            if rows.dtype.kind not in "iub":
                check_finite(self.name, safetensors.NAMES[rows.dtype], start, rows)
            yield start, rows
            count(rows.nbytes)
            _release(rows)

    def _parts(self, count: Count) -> Iterator[NDArray[np.float32]]:
        """Yield all rows as float32, as many at a time as fit a core's cache."""
        for _, rows in self._chunks(count):
            for part in _split(rows):
                yield floats(rows[part])

    def _converted(self, count: Count) -> Iterator[NDArray[Any]]:
        dtype = DTYPES[self.target]
        for start, rows in self._chunks(count):
            if rows.dtype == dtype:
                yield rows
                continue
            for part in _split(rows):
                yield self._cast(start + part.start, rows[part], dtype)

    def _cast(self, start: int, rows: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        with np.errstate(over="ignore"):
            cast = rows.astype(dtype)
        if not np.can_cast(rows.dtype, dtype):
            self._check_range(start, rows, cast)
            self._measure(rows, cast)
        return cast

    def _check_range(self, start: int, rows: NDArray[Any], narrow: NDArray[Any]) -> None:
        if not (bad := np.isinf(narrow)).any():
            return
        at = np.argwhere(bad)[0]
        raise BadCheckpoint(
            f"{self.name!r} holds {float(rows[tuple(at)]):.6g} in row {start + int(at[0])}, beyond what "
            f"{NAMES[self.target]} holds: use --dtype float32 or bfloat16"
        )

    def _codes(self, count: Count) -> Iterator[NDArray[np.uint8]]:
        for rows in self._parts(count):
            ranges = quantization.ranges(rows)
            codes = quantization.codes(rows, ranges)
            self._measure(rows, quantization.values(codes, ranges))
            yield codes

    def _measure(self, rows: NDArray[Any], stored: NDArray[Any]) -> None:
        difference = rows.astype(np.float64)
        difference -= stored.astype(np.float64)
        self.largest = max(self.largest, float(difference.max(initial=0.0)), -float(difference.min(initial=0.0)))
        self.squares += float(np.square(difference, out=difference).sum())  # BLAS would start threads for it


def _split(rows: NDArray[Any]) -> Iterator[slice]:
    step = max(1, quantization.VALUES_AT_ONCE // max(1, math.prod(rows.shape[1:])))
    return (slice(start, start + step) for start in range(0, len(rows), step))


def _release(rows: NDArray[Any]) -> None:
    """Release mapped pages of finished rows: they stay in the page cache, but not in this process."""
    owner: Any = rows
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    if not isinstance(owner, mmap.mmap):
        return
    first = np.frombuffer(owner, np.uint8, 1).ctypes.data
    start = (rows.ctypes.data - first) // mmap.PAGESIZE * mmap.PAGESIZE
    owner.madvise(mmap.MADV_DONTNEED, start, rows.ctypes.data - first + rows.nbytes - start)


def tensors(folder: Path, card: Card) -> dict[str, Any]:
    """Return every tensor of an exported model by name, as a read-only view of its mapped file.

    A quantized table is a quantization.QuantizedTable, which dequantizes the rows that are indexed, and a matrix of an
    int8 encoder an int8_matrices.Int8Matrix, which dequantizes when it is cast. A model adopted as
    ONNX has no tensors here.

    Raises:
        BadCheckpoint: a file is damaged.
    """
    if card.weights is None:
        return {}
    arrays = quantization.view(safetensors.tensors_of(folder / card.weights))
    return int8_matrices.view(arrays, card.encoder)
