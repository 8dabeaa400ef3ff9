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
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from models.errors import BadCheckpoint

HEADER_LIMIT = 100_000_000  # the official readers' own limit
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
    """Where one tensor lies.

    Attributes:
        name: in the file.
        dtype: a key of DTYPES; what reading gives.
        shape: outermost dimension first.
        path: the file.
        offset: in bytes from the beginning of the file.
        bytes: size in the file.
        stored: a key of gguf_blocks.QUANTIZED where the file holds blocks of that format; "": the dtype itself.
        paired: heads within which row i + half a head lies behind row i, in a GGUF of the Llama kind; 0: none do.
        shift: what the file's values are above the tensor's (norms of Gemma in GGUF).
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


def read_header(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file, by name.

    Raises:
        BadCheckpoint: the file is not safetensors, or its header describes what the file does not hold.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, HEADER_LIMIT):
            raise BadCheckpoint(
                f"{path} is not a safetensors file: it has {size} bytes and its header claims {length} "
                f"(at most {HEADER_LIMIT}); download it again"
            )
        header = _parse(file.read(length), path)
    tensors = {name: _tensor(name, entry, path, 8 + length) for name, entry in header.items() if name != "__metadata__"}
    _check_cover(list(tensors.values()), path, 8 + length, size)
    return tensors


def _parse(text: bytes, path: Path) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ValueError("a key appears twice")
        return result

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(f"{path} has a header that is not JSON ({error}); download it again") from error
    if not isinstance(header, dict):
        raise BadCheckpoint(f"{path} has a header that is a JSON {type(header).__name__}, not an object")
    return header


def _tensor(name: str, entry: Any, path: Path, data_begin: int) -> Tensor:
    """Return one entry of the header, after checking it."""
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise BadCheckpoint(f"{path}: the header entry of {name!r} is not dtype, shape, data_offsets") from error
    whole = [dtype_is_text := isinstance(dtype, str), isinstance(shape, list)]
    if not all(whole) or not all(_is_count(number) for number in (*shape, begin, end)):
        what = "dtype" if not dtype_is_text else "shape or data_offsets"
        raise BadCheckpoint(f"{path}: the {what} of {name!r} is not what the format allows: {str(entry)[:200]}")
    known = DTYPES.get(dtype)
    if end < begin or (known and end - begin != math.prod(shape) * known.itemsize):
        raise BadCheckpoint(f"{path}: {name!r} is {dtype} {shape} but its data_offsets are [{begin}, {end}]")
    return Tensor(name, dtype, tuple(shape), path, data_begin + begin, end - begin)


def _is_count(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 1 << 63


def _check_cover(tensors: Sequence[Tensor], path: Path, begin: int, size: int) -> None:
    """Check the format's rule of no overlap, no gap and no rest, which also detects a truncated file."""
    at = begin
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.bytes)):
        if tensor.offset != at:
            what = "overlaps its neighbour" if tensor.offset < at else "leaves a gap before it"
            raise BadCheckpoint(
                f"{path}: {tensor.name!r} {what} (offset {tensor.offset - begin}, expected {at - begin})"
            )
        at += tensor.bytes
    if at != size:
        raise BadCheckpoint(
            f"{path} has {size} bytes where its header promises {at}; it is truncated or damaged, download it again"
        )


def read(tensors: Iterable[Tensor]) -> dict[str, NDArray[Any]]:
    """Return read-only views of the mapped files, by name; nothing is copied, and a file is mapped once.

    Raises:
        BadCheckpoint: a dtype is not in DTYPES.
    """
    maps: dict[Path, mmap.mmap] = {}
    return {tensor.name: _view(tensor, maps) for tensor in tensors}


def _view(tensor: Tensor, maps: dict[Path, mmap.mmap]) -> NDArray[Any]:
    if tensor.dtype not in DTYPES:
        raise BadCheckpoint(f"{tensor.path}: {tensor.name!r} has dtype {tensor.dtype}; known: {', '.join(DTYPES)}")
    dtype = DTYPES[tensor.dtype]
    if tensor.path not in maps:
        with tensor.path.open("rb") as file:
            maps[tensor.path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    count = tensor.bytes // dtype.itemsize
    if count == 0:
        return np.empty(tensor.shape, dtype)
    return np.frombuffer(maps[tensor.path], dtype, count, tensor.offset).reshape(tensor.shape)


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
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
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
