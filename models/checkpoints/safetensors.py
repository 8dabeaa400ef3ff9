"""The safetensors format: headers read and checked, tensors mapped from disk, files written in chunks.

No file is read into memory as a whole: tensors are views of the mapped file, and writing takes chunks.

    8 bytes   length of the header, little-endian, at most HEADER_LIMIT
    header    JSON: {"name": {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {str: str}}
    data      the tensors' bytes, row-major, little-endian; they cover it without gap or overlap

Source: the format's README, https://github.com/huggingface/safetensors (0.8).
"""

import json
import math
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from models.errors import BadCheckpoint

LENGTH_BYTES = 8
HEADER_LIMIT = 100_000_000  # the official readers' own limit
MAX_DIMENSIONS = 32  # of numpy; the product of a million large ones takes minutes
ALIGNMENT = 64  # a cache line: ONNX Runtime copies aligned rows faster
CHUNK_BYTES = 1 << 24

DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F64": np.dtype(np.float64),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Tensor:
    """The place of one tensor.

    Attributes:
        name: name in the file.
        dtype: a key of DTYPES; what reading gives.
        shape: outermost dimension first.
        path: the file.
        offset: offset in bytes from the beginning of the file.
        bytes: size in the file.
        stored: a key of gguf_blocks.QUANTIZED where the file holds blocks of that format; "": the dtype itself.
        paired: heads within which row i + half a head lies behind row i, in a GGUF of the Llama kind; 0: none do.
        shift: amount by which the file's values exceed the tensor's (norms of Gemma in GGUF).
        strides: values from one index to the next, of each dimension, where torch.save wrote a view; None: row-major.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    bytes: int
    stored: str = ""
    paired: int = 0
    shift: float = 0.0
    strides: tuple[int, ...] | None = None

    def row_major(self) -> "Tensor":
        """Return the tensor itself, whose bytes can be divided; BadCheckpoint for a view with strides."""
        if self.strides is not None:
            raise BadCheckpoint(
                f"{self.path}: {self.name!r} is a view with the strides {list(self.strides)}, and is divided into "
                "parts when it is read: write it with tensor.contiguous()"
            )
        return self


@dataclass(frozen=True, slots=True)
class TensorSource:
    """A tensor to write: `chunks` are its rows as arrays, in order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunks: Iterable[NDArray[Any]]

    @property
    def bytes(self) -> int:
        """Size on disk."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


class Entry(NamedTuple):
    """A header's entry for one tensor; its bytes lie from `begin` to `end` (not included) after the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file, by name.

    Raises:
        BadCheckpoint: the file is not safetensors, or its header describes what the file does not hold.
    """
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            length = header_length(file.read(LENGTH_BYTES), size)
            entries, _ = parse_header(file.read(length), size - LENGTH_BYTES - length)
    except ValueError as error:
        raise BadCheckpoint(f"{path} is not a whole safetensors file: {error}; download it again") from error
    data = LENGTH_BYTES + length
    return {
        name: Tensor(name, entry.dtype, entry.shape, path, data + entry.begin, entry.end - entry.begin)
        for name, entry in entries.items()
    }


def header_length(start: bytes, size: int) -> int:
    """Return the bytes of the header after a file's first LENGTH_BYTES; ValueError if the file is shorter.

    Args:
        start: the file's first LENGTH_BYTES.
        size: size of the file, in bytes.
    """
    length = int.from_bytes(start, "little")
    if size < LENGTH_BYTES or length > min(size - LENGTH_BYTES, HEADER_LIMIT):
        raise ValueError(f"it has {size} bytes and its header claims {length} (at most {HEADER_LIMIT})")
    return length


def parse_header(text: bytes, data_bytes: int) -> tuple[dict[str, Entry], dict[str, Any]]:
    """Return the entry of each tensor in a header, and the header's metadata.

    Args:
        text: JSON.
        data_bytes: size of the data behind the header.

    Raises:
        ValueError: it is no such header, or the tensors do not cover the data without overlap, gap or rest.
    """
    header = _parse_object(text)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise ValueError(f"__metadata__ is a JSON {type(metadata).__name__}, not an object")
    entries = {name: _entry(name, entry) for name, entry in header.items()}
    _check_cover(entries, data_bytes)
    return entries, metadata


def _parse_object(text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ValueError("a key appears twice")
        return result

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise ValueError(f"its header is a JSON {type(header).__name__}, not an object")
    return header


def _entry(name: str, entry: Any) -> Entry:
    """Return one entry of the header, after checking it."""
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"the header entry of {name!r} is not dtype, shape, data_offsets") from error
    is_text, is_list = isinstance(dtype, str), isinstance(shape, list) and len(shape) <= MAX_DIMENSIONS
    if not is_text or not is_list or not all(_is_count(number) for number in (*shape, begin, end)):
        what = "shape or data_offsets" if is_text else "dtype"
        raise ValueError(f"the {what} of {name!r} is not what the format allows: {str(entry)[:200]}")
    known = DTYPES.get(dtype)
    if end < begin or (known and end - begin != math.prod(shape) * known.itemsize):
        raise ValueError(f"{name!r} is {dtype} {shape} but its data_offsets are [{begin}, {end}]")
    return Entry(dtype, tuple(shape), begin, end)


def _is_count(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 1 << 63


def _check_cover(entries: Mapping[str, Entry], data_bytes: int) -> None:
    """Check the format's rule of no overlap, no gap and no rest, which also detects a truncated file."""
    at = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != at:
            what = "overlaps its neighbour" if entry.begin < at else "leaves a gap before it"
            raise ValueError(f"{name!r} {what} (offset {entry.begin}, expected {at})")
        at = entry.end
    if at != data_bytes:
        raise ValueError(f"it has {data_bytes} bytes of data where its header promises {at}, truncated or damaged")


def read(tensors: Iterable[Tensor]) -> dict[str, NDArray[Any]]:
    """Return read-only views of the mapped files, by name; nothing is copied, and a file is mapped once.

    Args:
        tensors: those that are stored as blocks give their bytes.

    Raises:
        BadCheckpoint: a dtype is not in DTYPES.
    """
    maps: dict[Path, mmap.mmap] = {}
    return {tensor.name: _view(tensor, maps) for tensor in tensors}


def _view(tensor: Tensor, maps: dict[Path, mmap.mmap]) -> NDArray[Any]:
    if tensor.dtype not in DTYPES:
        raise BadCheckpoint(f"{tensor.path}: {tensor.name!r} has dtype {tensor.dtype}; known: {', '.join(DTYPES)}")
    dtype, shape = (np.dtype(np.uint8), (-1,)) if tensor.stored else (DTYPES[tensor.dtype], tensor.shape)
    if tensor.path not in maps:
        with tensor.path.open("rb") as file:
            maps[tensor.path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if tensor.bytes == 0:
        return np.empty(0, dtype).reshape(shape)
    if tensor.strides is not None:
        steps = [stride * dtype.itemsize for stride in tensor.strides]
        return np.ndarray(shape, dtype, maps[tensor.path], tensor.offset, steps)
    return np.frombuffer(maps[tensor.path], dtype, tensor.bytes // dtype.itemsize, tensor.offset).reshape(shape)


def tensors_of(path: Path) -> Mapping[str, NDArray[Any]]:
    """Return all tensors of one file as read-only views of it, by name."""
    return read(read_header(path).values())


def row_chunks(array: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield (first row, rows) of an array in pieces of about CHUNK_BYTES."""
    rows = max(1, CHUNK_BYTES // max(1, array[:1].nbytes))
    for start in range(0, len(array), rows):
        yield start, array[start : start + rows]


def write(path: Path, sources: Sequence[TensorSource], metadata: Mapping[str, str] | None = None) -> dict[str, Tensor]:
    """Write one file, flushed to disk, its data beginning on a 64-byte boundary.

    Args:
        path: the file.
        sources: tensors in the order they are written.
        metadata: texts for `__metadata__`.

    Returns:
        Where each tensor lies, by name.

    Raises:
        ValueError: the chunks of a source have another size than its dtype and shape promise.
    """
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for source in sources:
        entries[source.name] = {
            "dtype": source.dtype,
            "shape": source.shape,
            "data_offsets": (at, at := at + source.bytes),
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(LENGTH_BYTES + len(text)) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)
        for source in sources:
            written = sum(
                file.write(np.ascontiguousarray(chunk).view(np.uint8).reshape(-1).data) for chunk in source.chunks
            )
            if written != source.bytes:
                raise ValueError(f"{source.name} is {source.bytes} bytes but its chunks gave {written}")
        file.flush()
        os.fsync(file.fileno())
    path.chmod(0o644)
    return read_header(path)
