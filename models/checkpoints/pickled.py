"""Reads a dict of tensors that `torch.save` wrote, by an unpickler that admits nothing else.

The file is a zip of stored entries in one folder: data.pkl, a pickle of protocol 2 that describes the tensors; data/N,
their values; byteorder and version. The unpickler knows the globals and opcodes of such a dict alone; no global is
imported. The values that it makes cannot be called or changed by a pickle. Sizes and counts are bounded, and
every tensor must lie inside its storage.

Source: torch 2.13, serialization._save and _utils._rebuild_tensor_v2; pickletools, for the opcodes.
"""

import io
import math
import pickle
import pickletools
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.checkpoints.safetensors import DTYPES
from models.errors import BadCheckpoint

MOST_BYTES = 1 << 30  # of a file: this reads heads, not whole models
MOST_PICKLE_BYTES = 1 << 13  # that of two tensors has 500; it bounds how deep tuples lie in one another
MOST_READ_BYTES = 1 << 20  # at once: of the zip's central directory, which has 46 and more an entry
MOST_SIZE = 1 << 31  # of a dimension

_STORAGES = {
    "torch.FloatStorage": "F32",
    "torch.HalfStorage": "F16",
    "torch.BFloat16Storage": "BF16",
    "torch.DoubleStorage": "F64",
    "torch.LongStorage": "I64",
}
_REBUILD = "torch._utils._rebuild_tensor_v2"
_ORDERED_DICT = "collections.OrderedDict"
_GLOBALS = (_REBUILD, _ORDERED_DICT, *_STORAGES)
_PUTS, _GETS = ("BINPUT", "LONG_BINPUT"), ("BINGET", "LONG_BINGET")
_TUPLES = ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3")
_OPCODES = (
    *("PROTO", "STOP", "MARK", "EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_TUPLE", *_TUPLES, *_PUTS, *_GETS),
    *("NONE", "NEWTRUE", "NEWFALSE", "BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("GLOBAL", "REDUCE", "BUILD", "BINPERSID"),
)
_ZIP = b"PK\3\4"
_LEGACY = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"  # the magic number that torch before 1.6 pickled
_REMEDY = (
    "load it with torch where you trust it, and write its tensors with torch.save(module.state_dict(), path) of torch "
    "1.6 or later, or as safetensors"
)
# what pickle, pickletools and zipfile raise for broken files
_MALFORMED = (
    *(pickle.UnpicklingError, zipfile.BadZipFile, EOFError, OSError, RuntimeError),
    *(ArithmeticError, AttributeError, LookupError, TypeError, ValueError),
)


class _Refused(Exception):
    """Raised for a file that is not read; the message follows the file's name."""


def read_pickled(path: Path) -> dict[str, NDArray[Any]]:
    """Return the tensors of a file of `torch.save` by name, read-only.

    Args:
        path: path of a file with a dict of tensors, such as a state_dict.

    Returns:
        Arrays of float32, float16, bfloat16, float64 or int64.

    Raises:
        BadCheckpoint: the file is damaged, hostile, of another format, or holds anything but a dict of tensors.
    """
    if not path.is_file():
        raise BadCheckpoint(f"{path} is missing or no file")
    try:
        with _BoundedFile(path) as file:
            if (start := file.read(len(_LEGACY))) == _LEGACY:
                raise _Refused(f"is in the format of torch before 1.6; the zip format since then is read: {_REMEDY}")
            if (size := path.stat().st_size) > MOST_BYTES or not start.startswith(_ZIP):
                raise _Refused(
                    f"has {size:,} bytes and begins with {start[:4]!r}; a zip of at most {MOST_BYTES:,} is read"
                )
            with zipfile.ZipFile(file) as archive:
                return _tensors(_Archive(archive))
    except _Refused as refused:
        raise BadCheckpoint(f"{path} {refused}") from refused
    except _MALFORMED as error:
        reason = " ".join(str(error).split())[:200]
        raise BadCheckpoint(
            f"{path} is not a whole file of torch.save ({type(error).__name__}: {reason}); download it again"
        ) from error


class _BoundedFile(io.FileIO):
    """A file that gives the zipfile module at most MOST_READ_BYTES at once."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Return `size` bytes; all that may be read for -1."""
        if size is None or size < 0:
            size = MOST_READ_BYTES
        if size > MOST_READ_BYTES:
            raise _Refused(f"has a directory of {size:,} bytes, and at most {MOST_READ_BYTES:,} are read")
        return super().read(size) or b""


class _Archive:
    """The stored entries of the zip by their names in its one folder; at most MOST_BYTES are read in all."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        listed = archive.infolist()
        self._archive, self._left = archive, MOST_BYTES
        self.entries = {info.filename.partition("/")[2]: info for info in listed}
        folders = {info.filename.partition("/")[0] for info in listed}
        if len(folders) != 1 or len(self.entries) != len(listed) or "data.pkl" not in self.entries:
            raise _Refused(f"is a zip, but not one folder that holds data.pkl, each name once: {_REMEDY}")

    def read(self, name: str, most: int = MOST_BYTES) -> bytes:
        """Return the bytes of an entry whose checksum is right; _Refused if it has more than `most`."""
        info = self.entries[name]
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise _Refused(f"holds the compressed entry {info.filename[:80]!a}; torch.save stores entries as they are")
        if info.file_size > min(most, self._left):
            raise _Refused(f"has a {name[:80]} of {info.file_size:,} bytes, and at most {most:,} are read")
        self._left -= info.file_size
        with self._archive.open(info) as file:
            return b"".join(iter(lambda: file.read(MOST_READ_BYTES), b""))


def _tensors(archive: _Archive) -> dict[str, NDArray[Any]]:
    """Return the tensors that the archive's pickle describes."""
    if "byteorder" in archive.entries and (order := archive.read("byteorder", 16)) != b"little":
        raise _Refused(f"says of its bytes that their order is {order!r}; b'little' is read: {_REMEDY}")
    pickled = archive.read("data.pkl", MOST_PICKLE_BYTES)
    _check_opcodes(pickled)
    value = _Unpickler(pickled, archive).load()
    if not isinstance(value, dict):
        raise _Refused(f"holds a value of type {_kind(value)}; a dict of tensors is read: {_REMEDY}")
    for name, tensor in value.items():
        if type(name) is not str or type(tensor) is not _Tensor:
            kinds = f"a value of type {_kind(tensor)} by a key of type {_kind(name)}"
            raise _Refused(f"holds {kinds}; tensors by their names alone are read: {_REMEDY}")
    return {name: tensor.values for name, tensor in value.items()}


def _check_opcodes(pickled: bytes) -> None:
    """Raise _Refused for opcodes that no dict of tensors needs, and for those that let a short pickle take long.

    The unpickler makes room for the memo's highest number. Tuples that hold one another several times, by the memo,
    take exponential time as the key of a dict.
    """
    memo: dict[int, str] = {}  # the opcode that made each remembered value
    made = ""
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name not in _OPCODES:
            raise _Refused(f"has a pickle with the opcode {opcode.name}, which no dict of tensors needs: {_REMEDY}")
        number: Any = argument
        if opcode.name in _PUTS:
            if number > len(pickled):
                raise _Refused(f"has a pickle that remembers a value as number {number}; download it again")
            memo[number] = made
        elif opcode.name in _GETS:
            made = memo.get(number, "")
            if made in _TUPLES:
                raise _Refused(f"has a pickle that holds one tuple several times: {_REMEDY}")
        else:
            made = opcode.name


class _Storage(NamedTuple):
    """The values of tensors; a named tuple has no state that a pickle could set."""

    dtype: np.dtype[Any]
    values: bytes


class _Tensor(NamedTuple):
    """A tensor's values, read-only."""

    values: NDArray[Any]


class _Dict(dict[Any, Any]):
    """An OrderedDict; its attributes, such as the _metadata of a state_dict, are dropped."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        """Drop the attributes."""


class _Global(NamedTuple):
    """A name that the pickle refers to, one of _GLOBALS."""

    name: str

    def __call__(self, *arguments: Any) -> Any:
        """Return the dict or tensor that the pickle makes by this name."""
        if self.name == _REBUILD:
            return _tensor(*arguments)
        if self.name == _ORDERED_DICT and not arguments:
            return _Dict()
        raise _Refused(f"calls {self.name} with {len(arguments)} values: {_REMEDY}")


class _Unpickler(pickle.Unpickler):
    """Makes only dicts and tensors, whatever the pickle names."""

    def __init__(self, pickled: bytes, archive: _Archive) -> None:
        super().__init__(io.BytesIO(pickled))
        self._archive = archive
        self._storages: dict[str, bytes] = {}

    def find_class(self, module: str, name: str, /) -> Any:
        """Return the stand-in of an admitted global."""
        if (full := f"{module}.{name}") not in _GLOBALS:
            raise _Refused(
                f"names the global {ascii(full[:80])[1:-1]}, which can be code or a type that is not read; dicts of "
                f"tensors name {', '.join(_GLOBALS)}: {_REMEDY}"
            )
        return _Global(full)

    def persistent_load(self, pid: Any, /) -> _Storage:
        """Return the storage that (storage, type, key, device, number of elements) names, sized by its bytes."""
        if type(pid) is not tuple or [type(value) for value in pid] != [str, _Global, str, str, int]:
            raise _Refused(f"names a storage by other values than torch.save does: {_REMEDY}")
        _, kind, key, _, _ = pid
        if key not in self._storages:
            self._storages[key] = self._archive.read(f"data/{key}")
        return _Storage(DTYPES[_STORAGES[kind.name]], self._storages[key])


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, _gradient: Any, _hooks: Any) -> _Tensor:
    """Return the tensor that _rebuild_tensor_v2 makes; offset and strides in elements."""
    if type(storage) is not _Storage or type(shape) is not tuple or type(strides) is not tuple:
        raise _Refused(f"makes a tensor of other values than torch.save writes: {_REMEDY}")
    if not all(type(value) is int and 0 <= value < MOST_SIZE for value in (offset, *shape, *strides)):
        raise _Refused(f"has a tensor whose offset, sizes or strides are not whole numbers from 0 to {MOST_SIZE - 1}")
    unit = storage.dtype.itemsize
    try:
        if math.prod(shape) * unit > len(storage.values):
            raise ValueError("it has more values than the storage")
        steps = [stride * unit for stride in strides]
        return _Tensor(np.ndarray(shape, storage.dtype, storage.values, offset * unit, steps))
    except ValueError as error:
        raise _Refused(
            f"has a tensor of shape {list(shape)}, strides {list(strides)} and offset {offset}, which does not lie in "
            f"its storage of {len(storage.values)} bytes ({error}); download it again"
        ) from error


def _kind(value: Any) -> str:
    """Return the type of a value, for messages."""
    return type(value).__name__.strip("_").lower()
