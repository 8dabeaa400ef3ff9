"""A named tensor as every form of the protocol gives and takes it. Knows no wire format but the raw bytes."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from service.errors import BadRequest
from service.protocols.oip.datatypes import (
    BYTES,
    Raw,
    Values,
    decode,
    encode,
    size_of,
    width,
)

MOST_DIMENSIONS = 8


class Tensor(NamedTuple):
    """A tensor whose data has as many elements as its shape says.

    data   a numpy array of the datatype, in any shape of that size; list[bytes] for BYTES
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Values


def from_raw(name: str, datatype: str, shape: Sequence[Any], raw: Raw) -> Tensor:
    """The tensor of these little-endian bytes (BYTES: 4 bytes of length before each element).

    raises   BadRequest naming the tensor: its datatype, its shape, or a size that is not shape x width
    """
    count = elements(name, shape)
    size = _named(name, width, datatype)
    if size is not None and len(raw) != count * size:
        raise BadRequest(
            f"input {name!r} has {len(raw)} bytes; {datatype} {list(shape)} takes {count} x {size} = {count * size}"
        )
    return from_values(name, datatype, shape, _named(name, decode, datatype, raw))


def from_values(name: str, datatype: str, shape: Sequence[Any], values: Values) -> Tensor:
    """The tensor of these elements, already of the datatype.

    raises   BadRequest naming the tensor where they are not as many as its shape says
    """
    count = elements(name, shape)
    came = len(values) if isinstance(values, list) else values.size
    if came != count:
        raise BadRequest(f"input {name!r} has {came} elements; shape {list(shape)} takes {count}")
    return Tensor(name, datatype, tuple(shape), values)


def raw_of(tensor: Tensor) -> Raw:
    """Its raw bytes, lent where they can be."""
    return encode(tensor.datatype, tensor.data)


def raw_size(tensor: Tensor) -> int:
    """How many bytes `raw_of` gives."""
    return size_of(tensor.data)


def elements(name: str, shape: Sequence[Any]) -> int:
    """The product of a shape's dimensions.

    raises   BadRequest naming the tensor for a shape that is none
    """
    if len(shape) > MOST_DIMENSIONS:
        raise BadRequest(f"input {name!r} has {len(shape)} dimensions; allowed: up to {MOST_DIMENSIONS}")
    for dimension in shape:
        if type(dimension) is not int or dimension < 0:
            raise BadRequest(f"input {name!r} has shape {list(shape)}; allowed: whole numbers from 0")
    return math.prod(shape)


def _named(name: str, function: Any, *arguments: Any) -> Any:
    """What the function gives; its refusal with the tensor's name."""
    try:
        return function(*arguments)
    except BadRequest as error:
        raise BadRequest(f"input {name!r}: {error.message}") from None


__all__ = ["BYTES", "Tensor", "elements", "from_raw", "from_values", "raw_of", "raw_size"]
