"""Inference requests and answers as REST and gRPC share them, and how tensors are read and written.

Every input of a model is whole numbers or texts, so a tensor becomes an int64 array or a list of texts at once.
"""

import math
from collections.abc import Mapping, Sequence, Sized
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from service.embedding.quantization import PRECISIONS
from service.embedding.requests import DTYPES, Int64s
from service.errors import BadRequest, OutOfRange, TooLarge, Unsupported, WrongShape, WrongType
from service.http.validation_errors import validated
from service.protocols.inlay.options import OptionFields

VERSION = "1"  # of every model
TRUNCATED = "truncated_inputs"  # the parameter of an answer that lists the sequences that were cut
UNSUPPORTED = ("classification", "shared_memory_region")  # parameters of tensors that must not be ignored
MAX_STRINGS = 1 << 16  # BYTES elements of one tensor: each costs a Python object, and 4 bytes are enough for one
MAX_TENSORS = 256  # inputs or outputs of one request
MAX_DIMENSIONS = 8
SHOWN_CHARACTERS = 40  # of a caller's name or value that a message repeats
Raw = bytes | memoryview


BYTES = "BYTES"  # texts; raw, each stands after its length in 4 bytes
CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    BYTES: "bytes_contents",
}
"""The datatypes of inputs, with the field of InferTensorContents that carries each."""
FLOATS = {"FP32": "float32", "FP16": "float16", "BF16": "bfloat16"}
"""The datatypes of outputs that numpy calls otherwise."""


class InputTensor(NamedTuple):
    """A tensor of a request.

    Args:
        values: int64, flat; texts for BYTES. As many as the shape says.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: Int64s | list[str]


class OutputTensor(NamedTuple):
    """A tensor of an answer."""

    name: str
    array: NDArray[Any]

    @property
    def datatype(self) -> str:
        """The protocol's name of its datatype."""
        name = self.array.dtype.name
        return next((datatype for datatype, floats in FLOATS.items() if floats == name), name.upper())

    def raw(self) -> memoryview:
        """Return the elements as little-endian bytes; a C-contiguous array's memory is shared, not copied."""
        return self.array.ravel().view(np.uint8).data


DTYPE_NAMES = {name: name for name in (*DTYPES, *PRECISIONS)} | FLOATS | {"INT8": "int8", "UINT8": "uint8"}
DtypeName = Annotated[str, Field(pattern=f"^({'|'.join(DTYPE_NAMES)})$"), AfterValidator(DTYPE_NAMES.__getitem__)]


class InferParameters(OptionFields):
    """The parameters of a request; others are ignored."""

    dtype: DtypeName = Field("float32", description=", ".join(DTYPE_NAMES))
    priority: int = Field(0, ge=0, description="a whole number from 0; 2 and more: bulk, which gives way to others")
    timeout: int = Field(0, ge=0, description="microseconds, a whole number from 0, which is no limit")
    binary_data_output: bool = Field(False, description="true or false")
    triton_enable_empty_final_response: bool = Field(
        False, description="true or false; gRPC: mark the only answer last"
    )


def parameters_of(sent: Any) -> InferParameters:
    """Return a request's parameters; raise BadRequest if one is invalid."""
    return validated(InferParameters, {} if sent is None else sent, ("parameters",))


class Inference(NamedTuple):
    """An inference request.

    Args:
        outputs: names; empty: the model's default output.
        id: id that the answer repeats; None: there is none.
        binary: over REST: whether an output is sent as raw bytes, of those whose `parameters` say it.
    """

    inputs: Sequence[InputTensor]
    outputs: Sequence[str]
    parameters: InferParameters
    id: str | None
    binary: Mapping[str, bool] = {}


class Answer(NamedTuple):
    """The answer to an inference request.

    Args:
        model: the name of the model that computed it.
        outputs: the tensors, in the order of the request.
        truncated: numbers of the sequences that were cut.
    """

    model: str
    inference: Inference
    outputs: Sequence[OutputTensor]
    truncated: tuple[int, ...]


def input_error(kind: type[BadRequest], name: str, received: str, allowed: str = "", remedy: str = "") -> BadRequest:
    """Return an error that names an input."""
    return kind(received, field=("inputs", name[:SHOWN_CHARACTERS]), allowed=allowed, remedy=remedy)


def check_supported(parameters: Mapping[str, Any], kind: str, name: str) -> None:
    """Raise Unsupported if the parameters of a tensor ask for a feature that this server lacks.

    Args:
        kind: "inputs" or "outputs".
    """
    if asked := [parameter for parameter in UNSUPPORTED if parameters.get(parameter)]:
        field = (kind, name[:SHOWN_CHARACTERS], "parameters", asked[0])
        raise Unsupported("is not supported", field=field, remedy="leave the parameter out")


def check_counts(inputs: Sized, outputs: Sized) -> None:
    """Raise TooLarge if a request has too many inputs or outputs."""
    for kind, tensors in (("inputs", inputs), ("outputs", outputs)):
        if len(tensors) > MAX_TENSORS:
            raise TooLarge(f"holds {len(tensors)} tensors", field=(kind,), allowed=f"this server reads {MAX_TENSORS}")


def check_datatype(name: str, datatype: str) -> None:
    """Raise WrongType if no input has this datatype."""
    if datatype not in CONTENTS:
        received = f"has datatype {datatype[:SHOWN_CHARACTERS]!r}"
        raise input_error(WrongType, name, received, f"allowed: {', '.join(CONTENTS)}")


def dtype_of(datatype: str) -> np.dtype[Any]:
    """Return numpy's dtype of the raw bytes of an input that is no text."""
    return np.dtype("uint8" if datatype == "BOOL" else datatype.lower())


def elements(name: str, shape: Sequence[Any]) -> int:
    """Return the number of elements of a shape; raise WrongShape if the shape is invalid."""
    if len(shape) > MAX_DIMENSIONS:
        raise input_error(WrongShape, name, f"has {len(shape)} dimensions", f"allowed: up to {MAX_DIMENSIONS}")
    if any([type(size) is not int or size < 0 for size in shape]):
        received = f"has shape {str(list(shape))[:SHOWN_CHARACTERS]}"
        raise input_error(WrongShape, name, received, "allowed: whole numbers from 0")
    return math.prod(shape)


def from_values(name: str, datatype: str, shape: Sequence[Any], values: list[Any]) -> InputTensor:
    """Return the tensor of a list of numbers or, for BYTES, of texts or their bytes.

    Raises:
        WrongShape: the shape takes another number of values.
        OutOfRange: a number is outside the datatype.
        WrongType: a text is not UTF-8.
    """
    if len(values) != (count := elements(name, shape)):
        raise input_error(WrongShape, name, f"has {len(values)} elements", f"shape {list(shape)} takes {count}")
    if datatype == BYTES:
        return InputTensor(name, datatype, tuple(shape), [_text(name, *each) for each in enumerate(values)])
    try:
        return _numbers(name, datatype, shape, np.array(values, dtype_of(datatype)))
    except OverflowError:
        ends = np.iinfo(dtype_of(datatype))
        allowed = f"it goes from {ends.min} to {ends.max}"
        raise input_error(OutOfRange, name, f"holds a number outside {datatype}", allowed) from None


def from_raw(name: str, datatype: str, shape: Sequence[Any], raw: Raw) -> InputTensor:
    """Return the tensor of raw bytes; INT64 shares their memory if that is aligned.

    Args:
        raw: little-endian elements; for BYTES, 4 bytes of length before each.

    Raises:
        BadRequest: an unknown datatype, an invalid shape, or bytes that do not fit them.
    """
    check_datatype(name, datatype)
    if datatype == BYTES:
        return from_values(name, datatype, shape, _strings(name, memoryview(raw)))
    count, dtype = elements(name, shape), dtype_of(datatype)
    size = dtype.itemsize
    if len(raw) != count * size:
        takes = f"{datatype} {list(shape)} takes {count} x {size} = {count * size}"
        raise input_error(WrongShape, name, f"has {len(raw)} bytes", takes)
    array = np.frombuffer(raw, dtype)
    return _numbers(name, datatype, shape, array if array.flags.aligned else array.copy())  # as engines need it


def _numbers(name: str, datatype: str, shape: Sequence[int], array: NDArray[Any]) -> InputTensor:
    if datatype == "UINT64" and array.max(initial=0) >= 1 << 63:
        raise input_error(OutOfRange, name, f"holds {array.max()}", "allowed: below 2**63")
    return InputTensor(name, datatype, tuple(shape), array.astype(np.int64, copy=False))


def _text(name: str, index: int, text: str | bytes) -> str:
    try:
        return text if isinstance(text, str) else text.decode()
    except UnicodeDecodeError as error:
        received = f"is not UTF-8: {error.reason} at byte {error.start}"
        raise WrongType(received, field=("inputs", name[:SHOWN_CHARACTERS], index)) from None


def _strings(name: str, raw: memoryview) -> list[bytes]:
    strings, at = list[bytes](), 0
    while at < len(raw):
        size = int.from_bytes(raw[at : at + 4], "little")
        at += 4 + size
        if at > len(raw):
            allowed = "each element is 4 bytes of length, then its bytes"
            raise input_error(WrongShape, name, f"ends inside element {len(strings)}", allowed)
        strings.append(bytes(raw[at - size : at]))
        if len(strings) > MAX_STRINGS:
            raise input_error(TooLarge, name, f"has more than {MAX_STRINGS} elements", f"BYTES: up to {MAX_STRINGS}")
    return strings
