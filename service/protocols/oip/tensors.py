"""Tensors of the protocol: its datatypes as numpy's, and elements as little-endian raw bytes."""

import math
import struct
from collections.abc import Sequence, Sized
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from service.errors import FieldPath, OutOfRange, TooLarge, WrongShape, WrongType

DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
BYTES = "BYTES"
DATATYPES = (*DTYPES, BYTES)
DATATYPE_OF: dict[type, str] = {dtype.type: name for name, dtype in DTYPES.items()}
"""The datatype of a numpy scalar type."""
RAW_ONLY = ("FP16", "BF16")
"""What neither JSON nor typed contents can carry."""
MAX_STRINGS = 1 << 16  # BYTES elements of one tensor: each costs a Python object, and 4 bytes are enough for one
MAX_LISTED = 1 << 20  # elements of one tensor in JSON
MAX_TENSORS = 256  # inputs or outputs of one request
MAX_DIMENSIONS = 8
SHOWN_CHARACTERS = 40  # of a caller's name or value that a message repeats
Raw = bytes | memoryview
Values = NDArray[Any] | list[bytes]


class Tensor(NamedTuple):
    """A tensor whose data has as many elements as its shape says.

    Args:
        data: an array of the datatype, in any shape of that size; list[bytes] for BYTES.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Values


def input_field(name: str) -> FieldPath:
    """Return the path of an input, for errors."""
    return ("inputs", name[:SHOWN_CHARACTERS])


def check_count(name: str, tensors: Sized) -> None:
    """Raise TooLarge for more inputs or outputs than one request has.

    Args:
        name: "inputs" or "outputs".
    """
    if len(tensors) > MAX_TENSORS:
        raise TooLarge(f"holds {len(tensors)} tensors", field=(name,), allowed=f"this server reads {MAX_TENSORS}")


def from_raw(name: str, datatype: str, shape: Sequence[Any], raw: Raw) -> Tensor:
    """Return the tensor of raw bytes.

    Args:
        raw: little-endian elements; for BYTES, 4 bytes of length before each.

    Raises:
        BadRequest: an unknown datatype, an invalid shape, or another number of bytes than the shape takes.
    """
    count, size = elements(name, shape), width(datatype, input_field(name))
    if size is not None and len(raw) != count * size:
        takes = f"{datatype} {list(shape)} takes {count} x {size} = {count * size}"
        raise WrongShape(f"has {len(raw)} bytes", field=input_field(name), allowed=takes)
    return from_values(name, datatype, shape, decode(datatype, raw, input_field(name)))


def from_values(name: str, datatype: str, shape: Sequence[Any], values: Values) -> Tensor:
    """Return the tensor of elements that have its datatype; raise BadRequest unless they fit the shape."""
    count = elements(name, shape)
    received = len(values) if isinstance(values, list) else values.size
    if received != count:
        raise WrongShape(
            f"has {received} elements", field=input_field(name), allowed=f"shape {list(shape)} takes {count}"
        )
    return Tensor(name, datatype, tuple(shape), values)


def elements(name: str, shape: Sequence[Any]) -> int:
    """Return the number of elements of a shape; raise BadRequest if the shape is invalid."""
    if len(shape) > MAX_DIMENSIONS:
        allowed = f"allowed: up to {MAX_DIMENSIONS}"
        raise WrongShape(f"has {len(shape)} dimensions", field=input_field(name), allowed=allowed)
    for size in shape:
        if type(size) is not int or size < 0:
            shown = str(list(shape))[:SHOWN_CHARACTERS]
            raise WrongShape(f"has shape {shown}", field=input_field(name), allowed="allowed: whole numbers from 0")
    return math.prod(shape)


def width(datatype: str, field: FieldPath = ()) -> int | None:
    """Return the bytes of one element; None for BYTES, whose elements differ.

    Raises:
        BadRequest: the protocol has no such datatype.
    """
    if datatype == BYTES:
        return None
    if datatype not in DTYPES:
        shown = datatype[:SHOWN_CHARACTERS]
        raise WrongType(f"has datatype {shown!r}", field=field, allowed=f"allowed: {', '.join(DATATYPES)}")
    return DTYPES[datatype].itemsize


def decode(datatype: str, raw: Raw, field: FieldPath = ()) -> Values:
    """Return the elements of raw bytes, flat; an array shares `raw`'s memory where that is aligned.

    Raises:
        BadRequest: no whole number of elements, a BOOL above 1, or BYTES that end early.
    """
    size = width(datatype, field)
    if size is None:
        return _strings(memoryview(raw), field)
    if len(raw) % size:
        raise WrongShape(f"has {len(raw)} bytes", field=field, allowed=f"an element of {datatype} takes {size}")
    if datatype == "BOOL":
        flags = np.frombuffer(raw, np.uint8)
        if flags.size and flags.max() > 1:
            raise OutOfRange(f"holds byte {flags.max()}", field=field, allowed="a BOOL is 0 or 1")
        return flags.view(np.bool_)
    array = np.frombuffer(raw, DTYPES[datatype])
    return array if array.flags.aligned else array.copy()  # engines read through the address and trust its alignment


def _strings(raw: memoryview, field: FieldPath) -> list[bytes]:
    strings, at, end = list[bytes](), 0, len(raw)
    while at < end:
        start = at + 4
        if start > end:
            received = f"ends inside the length of element {len(strings)}"
            raise WrongShape(received, field=field, allowed="each element is 4 bytes of length, then its bytes")
        at = start + int.from_bytes(raw[at:start], "little")
        if at > end:
            received = f"has an element {len(strings)} of {at - start} bytes"
            raise WrongShape(received, field=field, allowed=f"{end - start} are left")
        strings.append(bytes(raw[start:at]))
        if len(strings) > MAX_STRINGS:
            raise TooLarge(f"has more than {MAX_STRINGS} elements", field=field, allowed=f"BYTES: up to {MAX_STRINGS}")
    return strings


def encode(datatype: str, values: Values) -> Raw:
    """Return the raw bytes of elements; a C-contiguous array's memory is shared, not copied."""
    if isinstance(values, list):
        return b"".join([part for element in values for part in (struct.pack("<I", len(element)), element)])
    flat = np.ascontiguousarray(values, DTYPES[datatype]).reshape(-1)
    return flat.view(np.uint8).data if flat.size else b""


def raw_of(tensor: Tensor) -> Raw:
    """Return a tensor's raw bytes."""
    return encode(tensor.datatype, tensor.data)


def raw_size(tensor: Tensor) -> int:
    """Return how many bytes `raw_of` returns."""
    values = tensor.data
    return sum([4 + len(element) for element in values]) if isinstance(values, list) else values.nbytes
