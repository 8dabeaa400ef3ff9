"""Tensors that callers send: nested lists, base64 with a dtype and a shape, or a safetensors body."""

from math import prod
from typing import Any

import numpy as np
import orjson
import pybase64
from numpy.typing import NDArray

from models.positions.table import DTYPES
from service.errors import Malformed
from service.http.formats import SAFETENSORS, SAFETENSORS_DTYPES
from service.http.json_structure import check_structure

MEMBERS = ("dtype", "shape", "data")
NAMED = {name: dtype for dtype, name in SAFETENSORS_DTYPES.items() if dtype in DTYPES}
LENGTH_BYTES = 8
NUMBERS = {int, float}


def tensor(value: Any) -> NDArray[Any]:
    """Return a JSON value as an array: nested lists (float64) or {dtype, shape, data}.

    Raises:
        ValueError: it is neither; the message says what is allowed.
    """
    if isinstance(value, list):
        return _nested(value)
    if not isinstance(value, dict) or set(value) != set(MEMBERS):
        raise ValueError("send nested lists of numbers or an object of dtype, shape and data (base64)")
    try:
        data = pybase64.b64decode(value["data"], validate=True)
    except (TypeError, ValueError):
        raise ValueError("data is not base64") from None
    return tensor_of_bytes(value["dtype"], value["shape"], data)


def tensor_of_bytes(dtype: Any, shape: Any, data: bytes | memoryview) -> NDArray[Any]:
    """Return little-endian bytes as an array.

    Args:
        dtype: one of DTYPES.
        shape: a list of integers, 0 or more.

    Raises:
        ValueError: another dtype or shape, as many bytes as it does not take, or numbers that are not finite.
    """
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"dtype is {str(dtype)[:40]}; it is one of {', '.join(DTYPES)}")
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < 2**32 for size in shape):
        raise ValueError("shape is a list of integers, 0 or more")
    needed = prod(shape) * np.dtype(DTYPES[dtype]).itemsize
    if needed != len(data):
        raise ValueError(f"data has {len(data)} bytes; {dtype} of shape {shape} takes {needed}")
    return _checked(np.frombuffer(data, DTYPES[dtype]).reshape(shape))


def from_safetensors(body: bytes) -> dict[str, Any]:
    """Return the tensors of a safetensors body and its metadata, by name.

    Raises:
        Malformed: it is none.
        TooLarge: its header holds more lists, members or values than this server reads.
    """
    length = int.from_bytes(body[:LENGTH_BYTES], "little")
    begin = LENGTH_BYTES + length
    try:
        if len(body) < begin or length < 2:
            raise ValueError(f"its header claims {length} bytes of {len(body)}")
        check_structure(text := body[LENGTH_BYTES:begin])
        header = orjson.loads(text)
        metadata = header.pop("__metadata__", {})
        data = memoryview(body)[begin:]
        return dict(metadata) | {name: _entry(name, entry, data) for name, entry in header.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Malformed(f"the body is not {SAFETENSORS}: {error}") from None


def _entry(name: str, entry: dict[str, Any], data: memoryview) -> NDArray[Any]:
    begin, end = entry["data_offsets"]
    if type(begin) is not int or type(end) is not int or not 0 <= begin <= end <= len(data):
        raise ValueError(f"{name} lies outside the body")
    if entry["dtype"] not in NAMED:
        raise ValueError(f"{name} is {str(entry['dtype'])[:20]}; allowed: {', '.join(NAMED)}")
    return tensor_of_bytes(NAMED[entry["dtype"]], entry["shape"], data[begin:end])


def _nested(value: list[Any]) -> NDArray[Any]:
    if not _holds_numbers(value):
        raise ValueError("only numbers can stand in the lists")
    try:
        array = np.array(value)
    except (ValueError, OverflowError):
        raise ValueError("the lists are of different lengths") from None
    if array.dtype.kind not in "if":
        raise ValueError("the lists are too deep, or hold an integer beyond 64 bits")
    return _checked(array.astype(np.float64))


def _holds_numbers(values: list[Any]) -> bool:
    """Return whether nothing but numbers stands in the lists; numpy would read true as 1, and texts for seconds."""
    kinds = set(map(type, values))
    if list not in kinds:
        return kinds <= NUMBERS
    return kinds <= {list, *NUMBERS} and all([_holds_numbers(each) for each in values if type(each) is list])


def _checked(array: NDArray[Any]) -> NDArray[Any]:
    if not np.isfinite(array.astype(np.float64)).all():
        raise ValueError("every number must be finite")
    return array
