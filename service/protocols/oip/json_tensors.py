"""Tensors as JSON lists, nested or flat, and back. Knows the elements; the envelope is binary.py's."""

from itertools import chain
from typing import Any

import numpy as np

from service.errors import BadRequest
from service.protocols.inlay.inputs import show
from service.protocols.oip.datatypes import BYTES, DTYPES, RAW_ONLY
from service.protocols.oip.tensors import Tensor, elements, from_values

KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "b": ((bool,), "true and false"),
    "i": ((int,), "whole numbers"),
    "u": ((int,), "whole numbers"),
    "f": ((int, float), "numbers"),
}
"""What numpy's kind of a datatype takes in JSON."""


def tensor_of(name: str, datatype: str, shape: list[int], data: Any) -> Tensor:
    """The tensor of a JSON list, flat or nested as its shape says.

    raises   BadRequest naming the tensor
    """
    if datatype in RAW_ONLY:
        raise BadRequest(f"input {name!r}: receiving {datatype} data via JSON is not supported; send it as binary data")
    flat = _flat(name, shape, data)
    if datatype == BYTES:
        _check(name, flat, (str,), "strings")
        return from_values(name, datatype, shape, [text.encode() for text in flat])
    dtype = DTYPES[datatype]
    _check(name, flat, *KINDS[dtype.kind])
    try:
        return from_values(name, datatype, shape, np.array(flat, dtype))
    except OverflowError:
        ends = np.iinfo(dtype)
        raise BadRequest(f"input {name!r} holds a number outside {datatype}: {ends.min} to {ends.max}") from None


def list_of(tensor: Tensor) -> Any:
    """What orjson writes as a flat list.

    raises   BadRequest for what JSON does not carry: FP16, BF16, bytes that are no text
    """
    if tensor.datatype in RAW_ONLY:
        raise BadRequest(
            f"output {tensor.name!r}: sending {tensor.datatype} data via JSON is not supported; ask for it with "
            '"parameters": {"binary_data": true}'
        )
    if isinstance(tensor.data, list):
        return [each.decode() for each in tensor.data]
    return np.ascontiguousarray(tensor.data).reshape(-1)


def _flat(name: str, shape: list[int], data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise BadRequest(f'input {name!r} has data {show(data)}; allowed: a list, flat or nested as "shape" says')
    elements(name, shape)
    if not data or type(data[0]) is not list:
        return data
    for depth, size in enumerate(shape[1:], 1):
        if {len(each) if type(each) is list else -1 for each in data} - {size}:
            raise BadRequest(
                f'input {name!r} has a list in data that is not {size} long at depth {depth}; "shape" is {shape}'
            )
        data = list(chain.from_iterable(data))
    return list[Any](data)


def _check(name: str, values: list[Any], kinds: tuple[type, ...], allowed: str) -> None:
    if set(map(type, values)) <= set(kinds):
        return
    index, odd = next((index, each) for index, each in enumerate(values) if type(each) not in kinds)
    raise BadRequest(f"input {name!r} holds {show(odd)} as element {index}; allowed: {allowed}")
