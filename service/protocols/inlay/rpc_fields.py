"""Converts fields of inlay.v1's messages to the values that the HTTP routes validate, and tensors both ways."""

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from proto import embed_pb2 as pb
from service.errors import ConflictingFields, FieldPath, MissingField, UnknownValue, WrongType
from service.heavy.lane import run_beside
from service.http.tensors import tensor_of_bytes
from service.http.validation_errors import validated
from service.http.worker_threads import INLINE_BYTES

FLOATS: dict[int, str] = {
    number: pb.DType.Name(number).lower() for number in (pb.FLOAT32, pb.FLOAT16, pb.BFLOAT16, pb.FLOAT64)
}
DTYPES = FLOATS | {pb.DTYPE_UNSPECIFIED: "float32"}
NAMES = {"token_id": "token"}  # of fields that HTTP calls otherwise
Fields = TypeVar("Fields", bound=BaseModel)


async def read_message(parameters: type[Fields], message: Any) -> Fields:
    """Return a message as the parameters of an HTTP route; a large one is read by the heavy process."""
    if message.ByteSize() > INLINE_BYTES:
        return await run_beside(_read, parameters, message)
    return _read(parameters, message)


def _read(parameters: type[Fields], message: Any) -> Fields:
    in_struct = "parameters" in message.DESCRIPTOR.fields_by_name
    fields = parameters_of(message) if in_struct else fields_of(message)
    return validated(parameters, {NAMES.get(name, name): value for name, value in fields.items()}, strict=True)


def parameters_of(request: Any) -> dict[str, Any]:
    """Return the struct, the tensors and the dtype as one dict of parameters."""
    values = {name: _json_value(value) for name, value in request.parameters.fields.items()}
    tensors = {name: array_of(tensor, (name,)) for name, tensor in request.tensors.items()}
    beside = tensors | ({"dtype": float_dtype(request.dtype)} if request.dtype else {})
    for name in beside.keys() & values.keys():
        raise ConflictingFields(
            "came in parameters and beside them", field=(name,), remedy="send it once", verbatim=True
        )
    return values | beside


def _json_value(value: Any) -> Any:
    """Return a google.protobuf.Value as a JSON value; all its numbers are floats, so whole ones become integers."""
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return {name: _json_value(member) for name, member in value.struct_value.fields.items()}
    if kind == "list_value":
        return [_json_value(member) for member in value.list_value.values]
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() and abs(number) <= 2**53 else number
    return None if kind in (None, "null_value") else getattr(value, kind)


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
