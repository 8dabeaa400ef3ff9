"""Reads where the tensors of a `torch.save` file lie, by an unpickler that admits nothing else.

The file is a zip of stored entries in one folder: data.pkl, a pickle of protocol 2 that describes the tensors; data/N,
their values; byteorder and version. The unpickler knows the globals and opcodes of a dict of tensors alone; no global
is imported. The values that it makes cannot be called or changed by a pickle. Sizes and counts are bounded, and
every tensor must lie inside its storage, whose checksum must be right; its values are mapped, not read.

Source: torch 2.13, serialization._save and _utils._rebuild_tensor_v2; pickletools, for the opcodes; PKWARE's
    APPNOTE.TXT (4.3.7, the local header of an entry).
"""

import io
import math
import mmap
import pickle
import pickletools
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from models.checkpoints.safetensors import DTYPES, MAX_DIMENSIONS, Tensor
from models.errors import BadCheckpoint

MOST_PICKLE_BYTES = 1 << 21  # a tensor takes some 250, with the metadata of its module
MOST_DEPTH = 4  # of tuples in one another: a tensor's arguments hold its sizes
MOST_READ_BYTES = 1 << 20  # at once: of the zip's central directory, which has 46 and more an entry
MOST_SIZE = 1 << 31  # of a dimension

_STORAGES = {
    "torch.FloatStorage": "F32",
    "torch.HalfStorage": "F16",
    "torch.BFloat16Storage": "BF16",
    "torch.DoubleStorage": "F64",
    "torch.LongStorage": "I64",
    "torch.IntStorage": "I32",
    "torch.ShortStorage": "I16",
    "torch.CharStorage": "I8",
    "torch.ByteStorage": "U8",
    "torch.BoolStorage": "BOOL",
}
_REBUILD = "torch._utils._rebuild_tensor_v2"
_PARAMETER = "torch._utils._rebuild_parameter"
_ORDERED_DICT = "collections.OrderedDict"
_GLOBALS = (_REBUILD, _PARAMETER, _ORDERED_DICT, *_STORAGES)
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


def read_header(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file of `torch.save` by name; tensors may share their bytes.

    Args:
        path: path of a file with a dict of tensors, such as a state_dict.

    Raises:
        BadCheckpoint: the file is damaged, hostile, of another format, or holds anything but a dict of tensors.
    """
    if not path.is_file():
        raise BadCheckpoint(f"{path} is missing or no file")
    try:
        with _BoundedFile(path) as file:
            if (start := file.read(len(_LEGACY))) == _LEGACY:
                raise _Refused(
                    f"is in the format of torch before 1.6; the zip format since then is read: {_REMEDY}: "
                    f"torch.save(torch.load({path.name!r}, weights_only=True), {path.name!r})"
                )
            if not start.startswith(_ZIP):
                raise _Refused(
                    f"begins with {start[:4]!r}; a zip file that torch.save wrote is read: download it again"
                )
            with zipfile.ZipFile(file) as archive, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _tensors(_Archive(path, archive, content))
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
    """The stored entries of the zip by their names in its one folder, and where their bytes lie in the file."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, content: mmap.mmap) -> None:
        listed = archive.infolist()
        self.path, self._content = path, content
        self.entries = {info.filename.partition("/")[2]: info for info in listed}
        folders = {info.filename.partition("/")[0] for info in listed}
        if len(folders) != 1 or len(self.entries) != len(listed) or "data.pkl" not in self.entries:
            raise _Refused(f"is a zip, but not one folder that holds data.pkl, each name once: {_REMEDY}")
        if zipped := [info.filename for info in listed if info.compress_type != zipfile.ZIP_STORED]:
            raise _Refused(f"holds the compressed entry {zipped[0][:80]!a}; torch.save stores entries as they are")
        if (total := sum(info.file_size for info in listed)) > len(content):
            raise _Refused(f"has entries of {total:,} bytes and {len(content):,} itself; download it again")

    def read(self, name: str, most: int) -> bytes:
        """Return the bytes of an entry; _Refused if it has more than `most`."""
        if (size := self.entries[name].file_size) > most:
            raise _Refused(f"has a {name[:80]} of {size:,} bytes, and at most {most:,} are read")
        begin, end = self.place(name)
        return self._content[begin:end]

    def place(self, name: str) -> tuple[int, int]:
        """Return where the bytes of an entry begin and end in the file, after checking their checksum."""
        info = self.entries[name]
        header = self._content[info.header_offset : info.header_offset + 30]
        named, extra = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
        begin = info.header_offset + 30 + named + extra
        if header[:4] != _ZIP or (end := begin + info.file_size) > len(self._content):
            raise ValueError(f"the entry {info.filename[:80]!a} does not lie in the file")
        checksum = 0
        with memoryview(self._content) as whole:
            for at in range(begin, end, MOST_READ_BYTES):
                checksum = zlib.crc32(whole[at : min(at + MOST_READ_BYTES, end)], checksum)
        if checksum != info.CRC:
            raise zipfile.BadZipFile(f"Bad CRC-32 for file {info.filename[:80]!a}")
        return begin, end


def _tensors(archive: _Archive) -> dict[str, Tensor]:
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
    return {name: tensor.placed(name, archive.path) for name, tensor in value.items()}


def _check_opcodes(pickled: bytes) -> None:
    """Raise _Refused for opcodes that no dict of tensors needs, and for those that let a short pickle take long.

    The unpickler makes room for the memo's highest number. As the key of a dict, tuples deep in one another overflow
    the interpreter's stack, and tuples that hold one another several times, by the memo, take exponential time.
    """
    depths: list[int | None] = []  # of the tuples on the unpickler's stack; 0: no tuple; None: a mark
    memo: dict[int, int] = {}
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name not in _OPCODES:
            raise _Refused(f"has a pickle with the opcode {opcode.name}, which no dict of tensors needs: {_REMEDY}")
        number: Any = argument
        if opcode.name in _PUTS:
            if number > len(pickled):
                raise _Refused(f"has a pickle that remembers a value as number {number}; download it again")
            memo[number] = depths[-1] or 0
        elif opcode.name in _GETS and memo.get(number, 0):
            raise _Refused(f"has a pickle that holds one tuple several times: {_REMEDY}")
        elif opcode.name == "MARK":
            depths.append(None)
        else:
            held = _popped(depths, opcode)
            if opcode.name in _TUPLES and (depth := 1 + max(held, default=0)) > MOST_DEPTH:
                raise _Refused(f"has a pickle with more than {MOST_DEPTH} tuples in one another: {_REMEDY}")
            depths += [depth if opcode.name in _TUPLES else 0] * len(opcode.stack_after)


def _popped(depths: list[int | None], opcode: pickletools.OpcodeInfo) -> list[int]:
    """Take what an opcode takes off the stack; of values before a mark the opcode gives back, none matters."""
    if pickletools.markobject in opcode.stack_before:
        held: list[int] = []
        while (depth := depths.pop()) is not None:
            held.append(depth)
        for _ in opcode.stack_before[: opcode.stack_before.index(pickletools.markobject)]:
            depths.pop()
        return held
    return [depths.pop() or 0 for _ in opcode.stack_before]


class _Storage(NamedTuple):
    """Where the values of tensors lie in the file; a named tuple has no state that a pickle could set."""

    dtype: str
    begin: int
    end: int


class _Tensor(NamedTuple):
    """Where a tensor lies; offset in bytes from the beginning of the file, strides in elements."""

    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def placed(self, name: str, path: Path) -> Tensor:
        """Return the place under the tensor's name."""
        size = math.prod(self.shape)
        row_major = tuple(math.prod(self.shape[at + 1 :]) for at in range(len(self.shape)))
        moved = any(
            step != usual for step, usual, count in zip(self.strides, row_major, self.shape, strict=True) if count > 1
        )
        strides = self.strides if size and moved else None
        return Tensor(
            name, self.dtype, self.shape, path, self.offset, size * DTYPES[self.dtype].itemsize, strides=strides
        )


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
        if self.name == _PARAMETER and len(arguments) == 3 and type(arguments[0]) is _Tensor:
            return arguments[0]
        if self.name == _ORDERED_DICT and not arguments:
            return _Dict()
        raise _Refused(f"calls {self.name} with {len(arguments)} values: {_REMEDY}")


class _Unpickler(pickle.Unpickler):
    """Makes only dicts and tensors, whatever the pickle names."""

    def __init__(self, pickled: bytes, archive: _Archive) -> None:
        super().__init__(io.BytesIO(pickled))
        self._archive = archive
        self._places: dict[str, tuple[int, int]] = {}

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
        if key not in self._places:
            self._places[key] = self._archive.place(f"data/{key}")
        return _Storage(_STORAGES[kind.name], *self._places[key])


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, _gradient: Any, _hooks: Any) -> _Tensor:
    """Return the tensor that _rebuild_tensor_v2 makes; offset and strides in elements."""
    if type(storage) is not _Storage or type(shape) is not tuple or type(strides) is not tuple:
        raise _Refused(f"makes a tensor of other values than torch.save writes: {_REMEDY}")
    if not all(type(value) is int and 0 <= value < MOST_SIZE for value in (offset, *shape, *strides)):
        raise _Refused(f"has a tensor whose offset, sizes or strides are not whole numbers from 0 to {MOST_SIZE - 1}")
    unit, held = DTYPES[storage.dtype].itemsize, storage.end - storage.begin
    size = math.prod(shape)
    last = sum(stride * (count - 1) for stride, count in zip(strides, shape, strict=False)) if size else -1
    fits = len(shape) == len(strides) <= MAX_DIMENSIONS and size * unit <= held
    if not fits or (offset + last + 1) * unit > held:
        raise _Refused(
            f"has a tensor of shape {list(shape)[:MAX_DIMENSIONS]}, strides {list(strides)[:MAX_DIMENSIONS]} and "
            f"offset {offset}, which does not lie in its storage of {held} bytes; download it again"
        )
    return _Tensor(storage.dtype, storage.begin + offset * unit, shape, strides)


def _kind(value: Any) -> str:
    """Return the type of a value, for messages."""
    return type(value).__name__.strip("_").lower()
