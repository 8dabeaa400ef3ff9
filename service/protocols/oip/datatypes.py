"""The protocol's datatypes as numpy's, and elements as their little-endian raw bytes. Checks no shape."""

import struct
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from service.errors import BadRequest

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
NAMES: dict[type, str] = {dtype.type: name for name, dtype in DTYPES.items()}
"""The datatype of a numpy scalar type."""
RAW_ONLY = ("FP16", "BF16")
"""What neither JSON nor typed contents can carry."""
MOST_STRINGS = 1 << 16
"""Elements of BYTES in one tensor: each costs Python's time, and 4 bytes are enough for one."""
Raw = bytes | memoryview
Values = NDArray[Any] | list[bytes]


def width(datatype: str) -> int | None:
    """Bytes of one element; None for BYTES, whose elements differ.

    raises   BadRequest for a name the protocol does not have
    """
    if datatype == BYTES:
        return None
    if datatype not in DTYPES:
        raise BadRequest(f"datatype is {datatype[:40]!r}; allowed: {', '.join(DATATYPES)}")
    return DTYPES[datatype].itemsize


def decode(datatype: str, raw: Raw) -> Values:
    """The elements, flat; an array lends `raw`'s memory where that is aligned for it.

    raises   BadRequest: no whole number of elements, a BOOL above 1, BYTES that end early
    """
    size = width(datatype)
    if size is None:
        return _strings(memoryview(raw))
    if len(raw) % size:
        raise BadRequest(f"{len(raw)} bytes are no whole number of {datatype} elements, which take {size} each")
    if datatype == "BOOL":
        flags = np.frombuffer(raw, np.uint8)
        if flags.size and flags.max() > 1:
            raise BadRequest(f"a BOOL is byte {flags.max()}; allowed: 0 and 1")
        return flags.view(np.bool_)
    array = np.frombuffer(raw, DTYPES[datatype])
    return array if array.flags.aligned else array.copy()  # engines take addresses, and trust them


def encode(datatype: str, values: Values) -> Raw:
    """The raw bytes; those of a C-contiguous array are lent, not copied."""
    if isinstance(values, list):
        return b"".join([part for each in values for part in (struct.pack("<I", len(each)), each)])
    flat = np.ascontiguousarray(values, DTYPES[datatype]).reshape(-1)
    if not flat.size:
        return b""
    return flat.view(np.uint8).data


def size_of(values: Values) -> int:
    """How many bytes `encode` gives."""
    return sum([4 + len(each) for each in values]) if isinstance(values, list) else values.nbytes


def _strings(raw: memoryview) -> list[bytes]:
    found, at, end = list[bytes](), 0, len(raw)
    while at < end:
        start = at + 4
        if start > end:
            raise BadRequest(f"BYTES end inside the length of element {len(found)}: each is 4 bytes of length, then it")
        at = start + int.from_bytes(raw[at:start], "little")
        if at > end:
            raise BadRequest(f"element {len(found)} of BYTES has {at - start} bytes; {end - start} are left")
        found.append(bytes(raw[start:at]))
        if len(found) > MOST_STRINGS:
            raise BadRequest(f"more than {MOST_STRINGS} elements of BYTES came, which is the most a tensor may have")
    return found
