"""The GGUF format: metadata and tensor infos, checked against the file's size before use.

    4 bytes   "GGUF"          4 bytes   version, 2 or 3 (1 counted in 32 bits; big-endian files are not read)
    8 bytes   tensors         8 bytes   metadata entries, each: key, type, value
    then      tensor infos: name, number of dimensions, dimensions innermost first, type, offset
    then      the tensors' bytes, each on a multiple of general.alignment, one after the other in the infos' order

All numbers are little-endian; a text is its length in 8 bytes and UTF-8. A model too big for one file is split into
NAME-00001-of-00003.gguf and so on; opening the first opens all.

Source: ggml's docs/gguf.md and llama.cpp's gguf.cpp, which rejects nested arrays and tensors out of order as well.
"""

import math
import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from models.checkpoints.gguf_blocks import QUANTIZED, Format, formats
from models.checkpoints.safetensors import Tensor
from models.errors import BadCheckpoint

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32  # unless general.alignment says other
MOST_DIMENSIONS = 4
LONGEST_NAME = 1 << 16
LONGEST_ARRAY = 1 << 24  # elements; the largest vocabularies have fewer than a million tokens
_STRING, _ARRAY = 8, 9
_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIifBQqd", strict=True))  # 7 is a bool in one byte
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


@dataclass(frozen=True, slots=True)
class Gguf:
    """The header of a file; `metadata` holds numbers, texts, truth values and lists of them."""

    metadata: dict[str, Any]
    tensors: dict[str, Tensor]


@dataclass(slots=True)
class _Cursor:
    """Reads one value after the other, never past the end."""

    data: mmap.mmap
    path: Path
    at: int = 0

    def error(self, what: str) -> BadCheckpoint:
        return BadCheckpoint(f"{self.path}: {what}; the file is damaged, download it again")

    def take(self, count: int, what: str) -> bytes:
        left = len(self.data) - self.at
        if count > left:
            raise self.error(f"{what} takes {count} bytes, but {left} are left")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, code: str, what: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code), what))[0]

    def text(self, what: str) -> bytes:
        return self.take(self.number("Q", f"the length of {what}"), what)

    def name(self, what: str) -> str:
        content = self.text(what)
        try:
            name = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not UTF-8") from error
        if len(content) > LONGEST_NAME or not name.isprintable():
            raise self.error(f"{what} is no name: {len(content)} bytes, {name[:60]!r}")
        return name

    def count(self, what: str, least_bytes: int) -> int:
        """Read a number of items of at least `least_bytes` each; BadCheckpoint if the file could not hold them."""
        count: int = self.number("Q", f"the number of {what}")
        if count * least_bytes > len(self.data) - self.at:
            raise self.error(f"it claims {count} {what}, more than its {len(self.data)} bytes could hold")
        return count


def read_gguf(path: Path) -> Gguf:
    """Return the header of a file and, if it is the first of several parts, of the others.

    Raises:
        BadCheckpoint: the file is not GGUF, or its header describes what the file does not hold.
    """
    first = _read_one(path)
    count = first.metadata.get("split.count", 1)
    if not isinstance(count, int) or count <= 1:
        return first
    tensors = dict(first.tensors)
    for part in _other_parts(path, count):
        for name, tensor in _read_one(part).tensors.items():
            if name in tensors:
                raise BadCheckpoint(f"{part} holds {name!r}, and so does {tensors[name].path.name}")
            tensors[name] = tensor
    return Gguf(first.metadata, tensors)


def _other_parts(path: Path, count: int) -> list[Path]:
    match = _SPLIT.search(path.name)
    if not match or int(match[1]) != 1 or int(match[2]) != count:
        raise BadCheckpoint(
            f"{path} says it is one of {count} parts; give the first of them, named NAME-00001-of-{count:05}.gguf, "
            "with the others beside it"
        )
    stem = path.name[: match.start()]
    parts = [path.with_name(f"{stem}-{number:05}-of-{count:05}.gguf") for number in range(2, count + 1)]
    for part in parts:
        if not part.is_file():
            raise BadCheckpoint(f"{path} says it is one of {count} parts, but {part.name} is not beside it")
    return parts


def _read_one(path: Path) -> Gguf:
    if not path.is_file():
        raise BadCheckpoint(f"{path} is missing or no file; give a .gguf file")
    if (size := path.stat().st_size) < len(MAGIC):
        raise BadCheckpoint(f"{path} has {size} bytes; it is no GGUF file, download it again")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        cursor = _Cursor(data, path)
        _check_kind(cursor)
        tensor_count = cursor.count("tensors", 24)
        metadata = _metadata(cursor, cursor.count("metadata entries", 13))
        alignment = _alignment(cursor, metadata)
        infos = _infos(cursor, tensor_count)
        begin = -(-cursor.at // alignment) * alignment
        return Gguf(metadata, _placed(cursor, infos, begin, alignment))


def _check_kind(cursor: _Cursor) -> None:
    if (magic := cursor.take(4, "the first word")) != MAGIC:
        raise BadCheckpoint(f"{cursor.path} is not a GGUF file: it begins with {magic!r}, not {MAGIC!r}")
    version = cursor.number("I", "the version")
    if version not in VERSIONS:
        why = "big-endian" if version in (2 << 24, 3 << 24) else f"GGUF version {version}"
        raise BadCheckpoint(
            f"{cursor.path} is {why}; versions {' and '.join(map(str, VERSIONS))} in little-endian are read: convert "
            "the model again with a current llama.cpp"
        )


def _metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for number in range(count):
        key = cursor.name(f"metadata key {number}")
        if key in metadata:
            raise cursor.error(f"metadata key {key!r} appears twice")
        metadata[key] = _value(cursor, cursor.number("I", f"the type of {key!r}"), key)
    return metadata


def _value(cursor: _Cursor, kind: int, key: str) -> Any:
    if kind == _STRING:
        return cursor.text(f"{key!r}").decode("utf-8", errors="replace")
    if kind in _SCALARS:
        value = cursor.number(_SCALARS[kind], f"{key!r}")
        return bool(value) if kind == 7 else value
    if kind == _ARRAY:
        return _array(cursor, key)
    raise cursor.error(f"{key!r} has value type {kind}; there are 0 to 12")


def _array(cursor: _Cursor, key: str) -> list[Any]:
    kind = cursor.number("I", f"the type of {key!r}")
    if kind != _STRING and kind not in _SCALARS:
        what = "arrays in an array" if kind == _ARRAY else f"values of type {kind}"
        raise cursor.error(f"{key!r} is an array of {what}; an array holds numbers, truth values or texts")
    size = 8 if kind == _STRING else struct.calcsize("<" + _SCALARS[kind])
    count = cursor.count(f"elements of {key!r}", size)
    if count > LONGEST_ARRAY:
        raise cursor.error(f"{key!r} is an array of {count} elements; at most {LONGEST_ARRAY} are read")
    if kind == _STRING:
        return [cursor.text(f"{key!r}").decode("utf-8", errors="replace") for _ in range(count)]
    values = struct.unpack(f"<{count}{_SCALARS[kind]}", cursor.take(count * size, f"{key!r}"))
    return [bool(value) for value in values] if kind == 7 else list(values)


def _alignment(cursor: _Cursor, metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if (
        not isinstance(alignment, int)
        or isinstance(alignment, bool)
        or alignment < 1
        or alignment & (alignment - 1)
        or alignment > 1 << 30
    ):
        raise cursor.error(f"general.alignment is {str(alignment)[:60]}; it must be a power of two")
    return alignment


def _infos(cursor: _Cursor, count: int) -> list[Tensor]:
    """Return the tensors of the header; their offsets count from the beginning of the data."""
    infos: dict[str, Tensor] = {}
    known = formats()
    for number in range(count):
        name = cursor.name(f"the name of tensor {number}")
        if name in infos:
            raise cursor.error(f"tensor {name!r} appears twice")
        infos[name] = _info(cursor, name, known)
    return list(infos.values())


def _info(cursor: _Cursor, name: str, known: Mapping[int, Format]) -> Tensor:
    """Return one tensor as safetensors would describe it; a quantized one reads as F32."""
    dimensions = cursor.number("I", f"the rank of {name!r}")
    if not 1 <= dimensions <= MOST_DIMENSIONS:
        raise cursor.error(f"{name!r} has {dimensions} dimensions; there are 1 to {MOST_DIMENSIONS}")
    inner_first = struct.unpack(f"<{dimensions}Q", cursor.take(8 * dimensions, f"the shape of {name!r}"))
    kind, offset = cursor.number("I", f"the type of {name!r}"), cursor.number("Q", f"the offset of {name!r}")
    if kind not in known:
        names = ", ".join(row.name for row in known.values())
        raise BadCheckpoint(f"{cursor.path}: {name!r} has tensor type {kind}, which is none of {names}")
    row, shape = known[kind], inner_first[::-1]
    if math.prod(shape) >= 1 << 60:
        raise cursor.error(f"{name!r} has shape {list(shape)}, which no file holds")
    if shape[-1] % row.values:
        raise cursor.error(f"{name!r} has rows of {shape[-1]} values, but {row.name} packs {row.values} at a time")
    dtype, stored = ("F32", row.name) if row.name in QUANTIZED else (row.name, "")
    return Tensor(name, dtype, shape, cursor.path, offset, math.prod(shape) // row.values * row.bytes, stored)


def _placed(cursor: _Cursor, infos: list[Tensor], begin: int, alignment: int) -> dict[str, Tensor]:
    """Return the place of every tensor; each begins where the previous ends, padding apart, and inside the file."""
    tensors: dict[str, Tensor] = {}
    at = 0
    for info in infos:
        if info.offset != at:
            what = "overlaps the tensor before it" if info.offset < at else "leaves a gap before it"
            raise cursor.error(f"{info.name!r} {what} (offset {info.offset}, expected {at})")
        if (end := begin + at + info.bytes) > len(cursor.data):
            raise cursor.error(f"{info.name!r} ends at byte {end}, but the file has {len(cursor.data)}")
        tensors[info.name] = replace(info, offset=begin + at)
        at += -(-info.bytes // alignment) * alignment
    return tensors
