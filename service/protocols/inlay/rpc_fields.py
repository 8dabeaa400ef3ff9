"""Converts fields of inlay.v1's messages to the values that the HTTP routes validate, and tensors both ways."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from proto import embed_pb2 as pb
from service.errors import FieldPath, MissingField, UnknownValue, WrongType
from service.http.tensors import tensor_of_bytes

FLOATS: dict[int, str] = {
    number: pb.DType.Name(number).lower() for number in (pb.FLOAT32, pb.FLOAT16, pb.BFLOAT16, pb.FLOAT64)
}
DTYPES = FLOATS | {pb.DTYPE_UNSPECIFIED: "float32"}


def fields_of(message: Any) -> dict[str, Any]:
    """Return the fields that were sent in a message by name, except the model's name.

    Raises:
        BadRequest: a tensor cannot be read, or there is no such dtype.
    """
    return {
        field.name: float_dtype(value) if field.name == "dtype" else _value(value, (field.name,))
        for field, value in message.ListFields()
        if field.name != "model"
    }


def _value(value: Any, path: FieldPath) -> Any:
    if isinstance(value, pb.Tensor):
        return array_of(value, path)
    if isinstance(value, pb.SimilarItem):
        kind = value.WhichOneof("kind")
        if kind is None:
            raise MissingField("is empty", field=path, remedy="set id, text or vector", verbatim=True)
        return _value(getattr(value, kind), path)
    if isinstance(value, str | int | float):
        return value
    return [_value(each, (*path, number)) for number, each in enumerate(value)]


def float_dtype(number: int) -> str:
    """Return the name of a floating-point DType; float32 if it is unset."""
    if number not in DTYPES:
        allowed = f"allowed: {', '.join(map(pb.DType.Name, DTYPES))}"
        raise UnknownValue(f"is {dtype_name(number)}", field=("dtype",), allowed=allowed)
    return DTYPES[number]


def array_of(tensor: pb.Tensor, path: FieldPath) -> NDArray[Any]:
    """Return a tensor's values; raise WrongType if it cannot be read."""
    try:
        return tensor_of_bytes(float_dtype(tensor.dtype), list(tensor.shape), tensor.data)
    except ValueError as error:
        raise WrongType(f"cannot be read: {error}", field=path, verbatim=True) from None


def tensor_of(rows: NDArray[Any], dtype: str) -> pb.Tensor:
    """Return values of a dtype as a Tensor message."""
    return pb.Tensor(dtype=dtype.upper(), shape=rows.shape, data=np.ascontiguousarray(rows).tobytes())


def dtype_name(number: int) -> str:
    """Return a DType's name in the contract, its number if it has none."""
    return pb.DType.Name(number) if number in pb.DType.values() else str(number)
