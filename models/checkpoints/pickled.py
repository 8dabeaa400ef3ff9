"""Reads the tensors of a file that `torch.save` wrote, without unpickling it: dicts of tensors alone are admitted.

The file is a zip of stored entries in one folder: data.pkl, a pickle of protocol 2 that describes the tensors; data/N,
their values; byteorder and version. The pickle is read by a small stack machine that makes dicts, tuples, texts and
numbers, and notes where tensors lie. It imports no name and calls nothing; any opcode or global that such a dict does
not need is an error. Sizes, counts and depths are bounded, and every tensor must lie inside its storage.

Source: torch 2.13, serialization._save and _utils._rebuild_tensor_v2; pickletools, for the opcodes.
"""

import io
import math
import mmap
import pickletools
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.checkpoints.safetensors import DTYPES
from models.errors import BadCheckpoint

MOST_BYTES = 1 << 30  # of a file: this reads heads, not whole models
MOST_PICKLE_BYTES = 1 << 20
MOST_DIRECTORY_BYTES = 1 << 20  # of the zip's central directory, 46 and more an entry
MOST_ENTRIES = 10_000
MOST_TENSORS = 4096  # and dicts, counted wherever they are named
MOST_DEPTH = 8  # of dicts in dicts
MOST_NAME = 1024  # characters of a tensor's name, with those of the dicts around it
MOST_STACK = 10_000  # torch writes items of a dict a thousand at a time
MOST_DIMENSIONS = 16
MOST_SIZE = 1 << 31  # of a dimension

_STORAGES = {
    "torch FloatStorage": "F32",
    "torch HalfStorage": "F16",
    "torch BFloat16Storage": "BF16",
    "torch DoubleStorage": "F64",
    "torch LongStorage": "I64",
}
_REBUILD = "torch._utils _rebuild_tensor_v2"
_ORDERED_DICT = "collections OrderedDict"
_ZIP = b"PK\3\4"
_LOCAL_HEADER = struct.Struct("<26x2H")  # lengths of name and extra field at its end (APPNOTE 4.3.7)
_ENCRYPTED = 1
_LEGACY = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"  # the magic number that torch before 1.6 pickled
_REMEDY = (
    "load it with torch where you trust it, and write its tensors with torch.save(module.state_dict(), path) of torch "
    "1.6 or later, or as safetensors"
)
# what zipfile and struct raise for broken files; zipfile raises RuntimeError for files of a newer format version
_MALFORMED = (ValueError, IndexError, OverflowError, EOFError, OSError, struct.error, RuntimeError)


class _Refused(Exception):
    """What is wrong with the file; the message goes behind its name."""


@dataclass(frozen=True, slots=True, eq=False)
class _Global:
    """A name that the pickle refers to, one of those that are admitted."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class _Storage:
    """Where the values of tensors lie: `count` elements from byte `offset` of the file."""

    dtype: str
    offset: int
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class _Tensor:
    """A tensor's place in its storage; offset and strides in elements."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Entry:
    """The bytes of a file of the zip: from byte `offset` of the zip itself."""

    offset: int
    bytes: int


def read_pickled(path: Path) -> dict[str, NDArray[Any]]:
    """Return the tensors of a file of `torch.save` by name, as read-only views of the mapped file.

    Args:
        path: of a dict of tensors, such as a state_dict; the names of tensors in inner dicts are joined by dots.

    Returns:
        Arrays of float32, float16, bfloat16, float64 or int64.

    Raises:
        BadCheckpoint: the file is damaged, hostile, of another format, or holds anything but dicts of tensors.
    """
    if not path.is_file():
        raise BadCheckpoint(f"{path} is missing or no file")
    try:
        with path.open("rb") as file:
            _check_start(file.read(len(_LEGACY)), path.stat().st_size)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        entries = _entries(path, mapped)
        machine = _Machine(entries)
        tensors = dict(_flattened(machine.run(_pickle(entries, mapped))))
        return {name: _view(tensor, mapped) for name, tensor in tensors.items()}
    except _Refused as refused:
        raise BadCheckpoint(f"{path} {refused}") from refused
    except _MALFORMED as error:
        reason = " ".join(str(error).split())[:200]
        raise BadCheckpoint(
            f"{path} is not a whole file of torch.save ({type(error).__name__}: {reason}); download it again"
        ) from error


def _check_start(start: bytes, size: int) -> None:
    """Raise _Refused unless the file begins as a zip and has a size that is read."""
    if start.startswith(_LEGACY):
        raise _Refused(f"is in the format of torch before 1.6; the zip format since then is read: {_REMEDY}")
    if not start.startswith(_ZIP):
        raise _Refused(f"begins with {start[:4]!r}, and files of torch.save with {_ZIP!r}: {_REMEDY}")
    if size > MOST_BYTES:
        raise _Refused(f"has {size:,} bytes, and at most {MOST_BYTES:,} are read: save it as safetensors")


class _BoundedFile(io.FileIO):
    """A file that gives the zipfile module at most MOST_DIRECTORY_BYTES at once."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Return `size` bytes; all that may be read for -1."""
        if size is None or size < 0:
            size = MOST_DIRECTORY_BYTES
        if size > MOST_DIRECTORY_BYTES:
            raise _Refused(f"has a directory of {size:,} bytes, and at most {MOST_DIRECTORY_BYTES:,} are read")
        return super().read(size) or b""


def _entries(path: Path, mapped: mmap.mmap) -> dict[str, _Entry]:
    """Return the files of the zip by their names in its one folder."""
    try:
        with _BoundedFile(path) as file, zipfile.ZipFile(file) as archive:
            listed = archive.infolist()
    except zipfile.BadZipFile as error:
        raise _Refused(f"is cut off or no zip ({error}); download it again") from error
    if len(listed) > MOST_ENTRIES:
        raise _Refused(f"has {len(listed)} entries, and at most {MOST_ENTRIES} are read")
    folders = {info.filename.partition("/")[0] for info in listed}
    entries = {info.filename.partition("/")[2]: _entry(info, mapped) for info in listed}
    if len(folders) != 1 or len(entries) != len(listed) or "data.pkl" not in entries:
        raise _Refused(f"is a zip, but not one folder that holds data.pkl, each name once: {_REMEDY}")
    return entries


def _entry(info: zipfile.ZipInfo, mapped: mmap.mmap) -> _Entry:
    """Return the place of a stored entry, checked against its own header and the end of the file."""
    name = ascii(info.filename[:80])
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size or info.flag_bits & _ENCRYPTED:
        raise _Refused(f"holds the compressed or encrypted entry {name}; torch.save stores entries as they are")
    begin = max(info.header_offset or 0, 0)
    header = mapped[begin : begin + 30]
    if not header.startswith(_ZIP):
        raise _Refused(f"holds no entry where its directory says that {name} begins; download it again")
    offset = begin + 30 + sum(_LOCAL_HEADER.unpack(header))
    if offset + info.file_size > len(mapped):
        raise _Refused(f"ends before its entry {name}; download it again")
    return _Entry(offset, info.file_size)


def _pickle(entries: dict[str, _Entry], mapped: mmap.mmap) -> bytes:
    """Return the bytes of data.pkl; _Refused for a big-endian file or too long a pickle."""
    if order := entries.get("byteorder"):
        content = mapped[order.offset : order.offset + min(order.bytes, 16)]
        if content != b"little":
            raise _Refused(f"says of its bytes that their order is {content!r}; b'little' is read: {_REMEDY}")
    entry = entries["data.pkl"]
    if entry.bytes > MOST_PICKLE_BYTES:
        raise _Refused(f"has a data.pkl of {entry.bytes:,} bytes, and at most {MOST_PICKLE_BYTES:,} are read")
    return mapped[entry.offset : entry.offset + entry.bytes]


_MARK = object()


@dataclass(slots=True)
class _Machine:
    """The stack machine of a pickle.

    No value is compared, hashed or printed unless its type is known: of tuples that share parts, each would take
    exponential time.
    """

    entries: dict[str, _Entry]
    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def run(self, pickled: bytes) -> Any:
        """Return the value of a pickle."""
        for number, (opcode, argument, position) in enumerate(pickletools.genops(pickled)):
            if number == 0 and (opcode.name, argument) != ("PROTO", 2):
                raise _Refused(f"has a pickle that begins with {opcode.name} {str(argument)[:20]}; protocol 2 is read")
            if opcode.name == "STOP":
                if len(self.stack) != 1 or (position or 0) + 1 != len(pickled):
                    raise _Refused("has a pickle that ends early or leaves values behind; download it again")
                return self.stack[0]
            if opcode.name not in _OPCODES:
                raise _Refused(f"has a pickle with the opcode {opcode.name}, which no dict of tensors needs: {_REMEDY}")
            _OPCODES[opcode.name](self, argument)
            if len(self.stack) > MOST_STACK:
                raise _Refused(f"has a pickle that stacks more than {MOST_STACK} values")
        raise _Refused("has a pickle without an end; download it again")

    def pop(self, kind: type, what: str) -> Any:
        """Return the uppermost value; _Refused unless it is of a type."""
        if not self.stack or not isinstance(value := self.stack.pop(), kind):
            raise _Refused(f"has a pickle that gives no {what} where one is needed; {_REMEDY}")
        return value

    def since_mark(self) -> list[Any]:
        """Return and remove the values above the last mark, and the mark."""
        at = next((at for at in range(len(self.stack) - 1, -1, -1) if self.stack[at] is _MARK), None)
        if at is None:
            raise _Refused("has a pickle that ends what it did not begin; download it again")
        values, self.stack[at:] = self.stack[at + 1 :], []
        return values

    def push(self, argument: Any) -> None:
        """Put the opcode's argument on the stack."""
        self.stack.append(argument)

    def push_tuple(self, count: int) -> None:
        """Put the last `count` values on the stack as a tuple."""
        if len(self.stack) < count:
            raise _Refused("has a pickle that ends what it did not begin; download it again")
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def put(self, number: int) -> None:
        """Remember the uppermost value."""
        self.memo[number] = self.stack[-1]

    def get(self, number: int) -> None:
        """Put a remembered value on the stack."""
        if number not in self.memo:
            raise _Refused("has a pickle that names a value it did not make; download it again")
        self.stack.append(self.memo[number])

    def set_items(self, items: list[Any]) -> None:
        """Add keys and values, one after the other, to the dict on the stack."""
        held = self.pop(dict, "dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str) or key in held:
                raise _Refused(f"has a dict with a key that is a {type(key).__name__} or there twice: {_REMEDY}")
            held[key] = value
        self.stack.append(held)

    def set_item(self) -> None:
        """Add the last two values to the dict below them."""
        value = self.stack.pop()
        self.set_items([self.stack.pop(), value])

    def name_global(self, name: str) -> None:
        """Put an admitted global on the stack."""
        if name not in (_REBUILD, _ORDERED_DICT, *_STORAGES):
            allowed = ", ".join(known.replace(" ", ".") for known in (_REBUILD, _ORDERED_DICT, *_STORAGES))
            shown = ascii(name[:80].replace(" ", "."))[1:-1]
            raise _Refused(
                f"names the global {shown}, which can be code or a type that is not read; dicts of tensors name "
                f"{allowed}: {_REMEDY}"
            )
        self.stack.append(_Global(name))

    def reduce(self) -> None:
        """Make a dict or a tensor, which is what the admitted globals stand for when called."""
        arguments, named = self.pop(tuple, "tuple"), self.pop(_Global, "global")
        if named.name == _REBUILD:
            self.stack.append(_tensor(arguments))
        elif named.name == _ORDERED_DICT and not arguments:
            self.stack.append({})
        else:
            raise _Refused(f"calls {named.name.replace(' ', '.')} with {len(arguments)} values: {_REMEDY}")

    def build(self) -> None:
        """Drop the attributes of a dict, such as the _metadata of a state_dict."""
        self.pop(dict, "dict")
        self.stack.append(self.pop(dict, "dict"))

    def find_storage(self) -> None:
        """Put the storage on the stack that the tuple there names: storage, type, key, device, elements."""
        named = self.pop(tuple, "tuple")
        if [type(value) for value in named] != [str, _Global, str, str, int] or named[1].name not in _STORAGES:
            raise _Refused(f"names a storage by other values than torch.save does: {_REMEDY}")
        key, count, dtype = named[2], named[4], _STORAGES[named[1].name]
        entry = self.entries.get(f"data/{key}") if len(key) < MOST_NAME else None
        if entry is None:
            raise _Refused(f"holds no entry data/{ascii(key[:80])[1:-1]}, which its pickle names; download it again")
        if entry.bytes != count * DTYPES[dtype].itemsize:
            raise _Refused(
                f"has a storage of {str(count)[:20]} elements of {dtype} in the {entry.bytes} bytes of data/{key[:80]}"
            )
        self.stack.append(_Storage(dtype, entry.offset, count))


_OPCODES: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda machine, argument: None,
    "MARK": lambda machine, argument: machine.push(_MARK),
    "EMPTY_DICT": lambda machine, argument: machine.push({}),
    "EMPTY_TUPLE": lambda machine, argument: machine.push(()),
    "NONE": lambda machine, argument: machine.push(None),
    "NEWTRUE": lambda machine, argument: machine.push(True),
    "NEWFALSE": lambda machine, argument: machine.push(False),
    **dict.fromkeys(("BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"), _Machine.push),
    "TUPLE": lambda machine, argument: machine.push(tuple(machine.since_mark())),
    "TUPLE1": lambda machine, argument: machine.push_tuple(1),
    "TUPLE2": lambda machine, argument: machine.push_tuple(2),
    "TUPLE3": lambda machine, argument: machine.push_tuple(3),
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "SETITEM": lambda machine, argument: machine.set_item(),
    "SETITEMS": lambda machine, argument: machine.set_items(machine.since_mark()),
    "GLOBAL": _Machine.name_global,
    "REDUCE": lambda machine, argument: machine.reduce(),
    "BUILD": lambda machine, argument: machine.build(),
    "BINPERSID": lambda machine, argument: machine.find_storage(),
}


def _tensor(arguments: tuple[Any, ...]) -> _Tensor:
    """Return the tensor that _rebuild_tensor_v2 makes of (storage, offset, shape, strides, requires_grad, hooks)."""
    if len(arguments) != 6:
        raise _Refused(f"makes a tensor of {len(arguments)} values, and plain ones are made of 6: {_REMEDY}")
    storage, offset, shape, strides = arguments[:4]
    if not isinstance(storage, _Storage) or not isinstance(shape, tuple) or not isinstance(strides, tuple):
        raise _Refused(f"makes a tensor of other values than torch.save writes: {_REMEDY}")
    if len(shape) != len(strides) or len(shape) > MOST_DIMENSIONS:
        raise _Refused(
            f"has a tensor of {len(shape)} sizes and {len(strides)} strides; as many, and at most {MOST_DIMENSIONS}, "
            "are read"
        )
    if not all(type(value) is int and 0 <= value < MOST_SIZE for value in (offset, *shape, *strides)):
        raise _Refused(f"has a tensor whose offset, sizes or strides are not whole numbers from 0 to {MOST_SIZE - 1}")
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    outside = offset > storage.count if 0 in shape else last >= storage.count
    if outside or math.prod(size for size in shape if size) > max(storage.count, MOST_SIZE if 0 in shape else 0):
        raise _Refused(
            f"has a tensor of shape {list(shape)}, strides {list(strides)} and offset {offset}, which does not lie in "
            f"its storage of {storage.count} elements; download it again"
        )
    return _Tensor(storage, offset, shape, strides)


def _flattened(value: Any) -> Iterator[tuple[str, _Tensor]]:
    """Yield (name, tensor) of a dict of tensors and dicts, each name once."""
    if not isinstance(value, dict):
        raise _Refused(f"holds {_kind(value)}; a dict of tensors is read: {_REMEDY}")
    names: set[str] = set()
    waiting: list[tuple[str, int, dict[str, Any]]] = [("", 1, value)]
    while waiting:
        prefix, depth, held = waiting.pop()
        if depth > MOST_DEPTH:
            raise _Refused(f"holds dicts in more than {MOST_DEPTH} others; {_REMEDY}")
        for key, item in held.items():
            name = prefix + key
            _check_name(name, names)
            names.add(name)
            if isinstance(item, dict):
                waiting.append((f"{name}.", depth + 1, item))
            elif isinstance(item, _Tensor):
                yield name, item
            else:
                raise _Refused(f"holds {name[:80]!a}, {_kind(item)}; tensors and dicts alone are read: {_REMEDY}")


def _check_name(name: str, names: set[str]) -> None:
    """Raise _Refused if a name is too long, given already, or one too many."""
    if len(name) > MOST_NAME:
        raise _Refused(f"holds a name of {len(name)} characters, {name[:80]!a}...; at most {MOST_NAME} are read")
    if name in names:
        raise _Refused(f"holds {name[:80]!a} twice, by itself and in a dict; rename one")
    if len(names) == MOST_TENSORS:
        raise _Refused(f"holds more than {MOST_TENSORS} tensors and dicts; {_REMEDY}")


def _kind(value: Any) -> str:
    """Return what to call a value in messages."""
    named = {_Tensor: "a tensor", _Storage: "a storage", _Global: "a global", type(None): "None"}
    return named.get(type(value), f"a value of type {type(value).__name__}")


def _view(tensor: _Tensor, mapped: mmap.mmap) -> NDArray[Any]:
    """Return a read-only view of a tensor's values."""
    storage, dtype = tensor.storage, DTYPES[tensor.storage.dtype]
    if 0 in tensor.shape:
        return np.empty(tensor.shape, dtype)
    values = np.frombuffer(mapped, dtype, storage.count, storage.offset)[tensor.offset :]
    strides = tuple(stride * dtype.itemsize for stride in tensor.strides)
    return np.lib.stride_tricks.as_strided(values, tensor.shape, strides, writeable=False)
