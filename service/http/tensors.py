"""Reads tensors that callers send: nested lists, or base64 with a dtype and a shape."""

from math import prod
from typing import Any

import numpy as np
import pybase64
from numpy.typing import NDArray

from models.checkpoints.safetensors import MAX_DIMENSIONS
from models.positions.table import DTYPES

MEMBERS = ("dtype", "shape", "data")
SAFETENSORS = "application/vnd.safetensors"
SAFETENSORS_DTYPES = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int8": "I8",
    "uint8": "U8",
    "float64": "F64",
    "int64": "I64",
    "int32": "I32",
    "bool": "BOOL",
}


def tensor(value: Any) -> NDArray[Any]:
    """Return a JSON value as an array: nested lists (float64) or {dtype, shape, data}.

    Raises:
        ValueError: the value is neither; the message says what is allowed.
    """
    if isinstance(value, list):
        array = array_of_lists(value, {int, float}, "numbers")
        if array.dtype.kind not in "if":
            raise ValueError("the lists are too deep, or hold an integer beyond 64 bits")
        return _checked(array.astype(np.float64))
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
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"shape has {len(shape)} dimensions; allowed: up to {MAX_DIMENSIONS}")
    needed = prod(shape) * np.dtype(DTYPES[dtype]).itemsize
    if needed != len(data):
        raise ValueError(f"data has {len(data)} bytes; {dtype} of shape {shape} takes {needed}")
    return _checked(np.frombuffer(data, DTYPES[dtype]).reshape(shape))


def array_of_lists(value: list[Any], allowed: set[type], what: str) -> NDArray[Any]:
    """Return nested lists as an array; raise ValueError for other values than `what`, or lists of different lengths."""
    if not _holds(value, allowed):
        raise ValueError(f"only {what} can stand in the lists")
    try:
        return np.array(value)
    except (ValueError, OverflowError):
        raise ValueError("the lists are of different lengths") from None


def _holds(values: list[Any], allowed: set[type]) -> bool:
    """Return whether the lists hold only allowed types; numpy would read true as 1, and texts as seconds."""
    kinds = set(map(type, values))
    if list not in kinds:
        return kinds <= allowed
    return kinds <= {list, *allowed} and all([_holds(each, allowed) for each in values if type(each) is list])


def _checked(array: NDArray[Any]) -> NDArray[Any]:
    if not np.isfinite(array.astype(np.float64)).all():
        raise ValueError("every number must be finite")
    return array
