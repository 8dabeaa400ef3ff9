"""Bodies of POST .../infer: JSON, with raw tensors behind it where the binary tensor extension puts them.

Inference-Header-Content-Length counts the JSON's bytes; raw tensors follow in the order of the list, without
gaps. A length of 0: the whole body is the one input, and every output is binary. Content types are not checked.
"""

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, SkipValidation

from service.embedding import truncation
from service.errors import (
    BadRequest,
    ConflictingFields,
    FieldPath,
    Malformed,
    OutOfRange,
    TooLarge,
    Unsupported,
    WrongShape,
    WrongType,
)
from service.http import formats, json_arrays
from service.http.formats import JSON, OCTETS
from service.http.response import Response
from service.http.validation_errors import parse_json, quoted, validated
from service.http.worker_threads import in_thread, inline_or_in_thread
from service.protocols.oip.data_plane import VERSION
from service.protocols.oip.infer import IDS, TEXT, TRUNCATED, Parameters
from service.protocols.oip.shared_memory import Place, PlaceParameters, Regions, place_parameters
from service.protocols.oip.tensors import (
    BYTES,
    DATATYPES,
    DTYPES,
    MAX_LISTED,
    MAX_STRINGS,
    RAW_ONLY,
    SHOWN_CHARACTERS,
    Raw,
    Tensor,
    check_count,
    elements,
    from_raw,
    from_values,
    input_field,
    raw_of,
    raw_size,
    width,
)

JSON_BYTES = 16  # of a number, at most, but for integers
JSON_BYTES_HEADER = b"inference-header-content-length"
SOURCES = ("data", "binary_data_size", "shared_memory_region")
JSON_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "b": ((bool,), "true and false"),
    "i": ((int,), "whole numbers"),
    "u": ((int,), "whole numbers"),
    "f": ((int, float), "numbers"),
}
"""What numpy's kind of a datatype takes in JSON."""
_JSON_TYPE = (b"content-type", JSON.encode())
_BINARY_TYPE = (b"content-type", OCTETS.encode())
STRICT = ConfigDict(strict=True)


class TensorDescription(BaseModel):
    """A tensor without its data."""

    model_config = STRICT
    name: Annotated[str, Field(description="a string")]
    datatype: Annotated[str, Field(description="a string", json_schema_extra={"enum": list(DATATYPES)})]
    shape: Annotated[list[Any], Field(description="a list", json_schema_extra={"items": {"type": "integer"}})]


class InputParameters(BaseModel):
    """The parameters of an input, besides those of shared memory."""

    model_config = STRICT
    binary_data_size: Annotated[int | None, Field(ge=0, description="bytes, a whole number from 0")] = None


class InferInput(TensorDescription):
    """A tensor of a request: with data, raw bytes behind the JSON, or in shared memory."""

    data: Annotated[
        Any, Field(description="flat or nested as the shape says; BYTES as strings; FP16 and BF16 never")
    ] = None
    parameters: Annotated[SkipValidation[InputParameters | PlaceParameters | None], Field(description="an object")] = (
        None
    )


class OutputParameters(BaseModel):
    """The parameters of a requested output, besides those of shared memory."""

    model_config = STRICT
    binary_data: Annotated[bool | None, Field(description="true or false")] = None


class RequestedOutput(BaseModel):
    """A requested output."""

    model_config = STRICT
    name: Annotated[str, Field(description="a string")]
    parameters: Annotated[SkipValidation[OutputParameters | PlaceParameters | None], Field(description="an object")] = (
        None
    )


class InferParameters(Parameters):
    """The parameters of a request; others are ignored."""

    binary_data_output: Annotated[bool, Field(description="true or false")] = False


class InferRequest(BaseModel):
    """The JSON of an inference request."""

    model_config = STRICT
    inputs: Annotated[list[SkipValidation[InferInput]], Field(description="a list of tensors")]
    outputs: Annotated[list[SkipValidation[RequestedOutput]] | None, Field(description="a list of outputs")] = None
    parameters: Annotated[SkipValidation[InferParameters | None], Field(description="an object")] = None
    id: Annotated[str | None, Field(description="a string, which the answer repeats")] = None


class InferResponse(BaseModel):
    """The JSON of an inference response."""

    model_name: str
    model_version: str
    id: str | None = None
    parameters: Annotated[
        dict[str, Any] | None, Field(description=f"{TRUNCATED}: numbers of the sequences that were cut, as in `0,3`")
    ] = None
    outputs: list[InferInput]


EXAMPLES = {
    "padded_ids": {
        "inputs": [
            {"name": "input_ids", "datatype": "INT64", "shape": [2, 3], "data": [[5, 6, 7], [8, 9, 0]]},
            {"name": "attention_mask", "datatype": "INT64", "shape": [2, 3], "data": [1, 1, 1, 1, 1, 0]},
        ]
    },
    "flat_ids": {
        "inputs": [
            {"name": "input_ids", "datatype": "INT64", "shape": [5], "data": [5, 6, 7, 8, 9]},
            {"name": "lengths", "datatype": "INT64", "shape": [2], "data": [3, 2]},
        ],
        "outputs": [{"name": "input_embeddings"}],
    },
    "texts": {
        "id": "1",
        "parameters": {"normalize": True},
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [2], "data": ["hello world", "hello"]}],
    },
}


class OutputForm(NamedTuple):
    """How one output is sent: as raw bytes, in shared memory, or as a JSON list."""

    name: str
    binary: bool
    place: Place | None


class Inference(NamedTuple):
    """A parsed request.

    Args:
        outputs: those named; empty: the default, as raw bytes if `binary`.
    """

    inputs: list[Tensor]
    outputs: list[OutputForm]
    parameters: dict[str, Any]
    id: str | None
    binary: bool


async def read(body: bytes, headers: Mapping[bytes, bytes], regions: Regions) -> Inference:
    """Return the request of a body; raise Malformed, BadRequest, TooLarge or Unsupported if it is invalid."""
    length = _json_bytes(headers.get(JSON_BYTES_HEADER), len(body))
    if length == 0:
        return _single_input(body, headers.get(b"content-type", b""))
    end = len(body) if length is None else length
    request = await inline_or_in_thread(end, _request, body[:end])
    parameters = _object(request.parameters, ("parameters",))
    binary = parameters.get("binary_data_output", False)
    if type(binary) is not bool:
        field = ("parameters", "binary_data_output")
        raise WrongType(f"is {quoted(binary)}", field=field, allowed="allowed: true or false")
    tail = _Tail(memoryview(body)[end:])
    inputs = [_input(index, tensor, tail, regions) for index, tensor in enumerate(request.inputs)]
    tail.end()
    outputs = [_output(index, output, binary, regions) for index, output in enumerate(request.outputs or ())]
    return Inference(inputs, outputs, parameters, request.id, binary)


def _request(text: bytes) -> InferRequest:
    """Return the JSON of a body."""
    try:
        request = validated(InferRequest, parse_json(text))
    except Malformed as error:
        remedy = "with binary data send Inference-Header-Content-Length"
        raise Malformed(error.received, remedy=remedy) from None
    for name, tensors in (("inputs", request.inputs), ("outputs", request.outputs or ())):
        check_count(name, tensors)
    return request


async def respond(
    model: str,
    inference: Inference,
    outputs: list[Tensor],
    regions: Regions,
    reserve: Callable[[int], None],
    truncated: truncation.Numbers = (),
) -> Response:
    """Return outputs in the requested forms.

    Args:
        reserve: keeps memory for bytes of the response.
        truncated: numbers of the sequences that were cut.

    Raises:
        BadRequest: JSON does not carry an output, or a region has no room for it.
    """
    forms = inference.outputs or [OutputForm(tensor.name, inference.binary, None) for tensor in outputs]
    entries, raws, values = [], list[Raw](), 0
    for tensor, form in zip(outputs, forms, strict=True):
        entry: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        if form.place:
            entry["parameters"] = place_parameters(regions.write(form.place, raw_of(tensor)))
        elif form.binary:
            entry["parameters"] = {"binary_data_size": raw_size(tensor)}
            raws.append(raw_of(tensor))
        else:
            entry["data"] = _json_list(tensor)
            values += len(entry["data"])
        entries.append(entry)
    document: dict[str, Any] = {"model_name": model, "model_version": VERSION, "outputs": entries}
    if inference.id is not None:
        document["id"] = inference.id
    if truncated:
        document["parameters"] = {TRUNCATED: truncation.shown(truncated)}
    head = json_arrays.dumps(document, values)
    if not any(form.binary and not form.place for form in forms):
        return formats.response((_JSON_TYPE,), head if isinstance(head, json_arrays.JsonPieces) else (head,))
    if isinstance(head, json_arrays.JsonPieces):  # its length stands before it
        reserve(JSON_BYTES * values)
        head = await in_thread(b"".join, head)
    return Response((head, *raws), (_BINARY_TYPE,), lines=b"%b: %d\r\n" % (JSON_BYTES_HEADER, len(head)))


class _Tail:
    """The raw tensors behind the JSON, taken one by one."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def take(self, name: str, size: int) -> memoryview:
        left = len(self._data) - self._at
        if size > left:
            allowed = f"{left} bytes are left behind the JSON"
            raise WrongShape(f"has binary_data_size {size}", field=input_field(name), allowed=allowed)
        self._at += size
        return self._data[self._at - size : self._at]

    def end(self) -> None:
        if left := len(self._data) - self._at:
            remedy = "give each its binary_data_size"
            raise WrongShape(f"{left} bytes behind the JSON belong to no input", remedy=remedy)


def _json_bytes(value: bytes | None, size: int) -> int | None:
    if value is None:
        return None
    text = value.strip()
    if not text.isdigit() or len(text) > 18 or int(text) > size:
        shown = value[:SHOWN_CHARACTERS].decode("latin-1")
        allowed = f"allowed: 0 to {size}, the body's bytes"
        raise WrongType(f"Inference-Header-Content-Length is {shown!r}", allowed=allowed)
    return int(text)


def _single_input(body: bytes, content_type: bytes) -> Inference:
    """Return the whole body as one input: a text if its type says so, else token ids of one sequence."""
    if content_type.lower().startswith(b"text/"):
        tensor = from_values(TEXT, BYTES, [1], [body])
    else:
        tensor = from_raw(IDS, "INT64", [1, len(body) // 8], body)
    return Inference([tensor], [], {}, None, True)


def _object(value: Any, field: FieldPath) -> dict[str, Any]:
    if value is not None and type(value) is not dict:
        raise WrongType(f"is {quoted(value)}", field=field, allowed="allowed: an object")
    return value or {}


def _input(index: int, sent: Any, tail: _Tail, regions: Regions) -> Tensor:
    entry = validated(InferInput, sent, ("inputs", index))
    name, datatype, shape = entry.name, entry.datatype, entry.shape
    width(datatype, input_field(name))
    field = (*input_field(name), "parameters")
    parameters = _object(entry.parameters, field)
    size = validated(InputParameters, parameters, field).binary_data_size
    place = regions.place(parameters, field)
    sources = [source for source in SOURCES if source in sent or parameters.get(source) is not None]
    if len(sources) != 1:
        received = f"has {' and '.join(sources) or 'none'} of {', '.join(SOURCES)}"
        raise ConflictingFields(received, field=input_field(name), remedy="send exactly one")
    if place:
        return from_raw(name, datatype, shape, regions.read(place))
    if size is not None:
        return from_raw(name, datatype, shape, tail.take(name, size))
    return _from_json(name, datatype, shape, entry.data)


def _output(index: int, sent: Any, binary: bool, regions: Regions) -> OutputForm:
    entry = validated(RequestedOutput, sent, ("outputs", index))
    field = ("outputs", entry.name[:SHOWN_CHARACTERS], "parameters")
    parameters = _object(entry.parameters, field)
    check_no_classification(parameters, field)
    chosen = validated(OutputParameters, parameters, field).binary_data
    return OutputForm(entry.name, binary if chosen is None else chosen, regions.place(parameters, field))


def check_no_classification(parameters: Mapping[str, Any], field: FieldPath) -> None:
    """Raise Unsupported where an output's parameters ask for Triton's classification."""
    if parameters.get("classification"):
        raise Unsupported("is not supported", field=(*field, "classification"), remedy="leave the parameter out")


def _from_json(name: str, datatype: str, shape: list[Any], data: Any) -> Tensor:
    """Return the tensor of a JSON list, flat or nested as its shape says."""
    field = input_field(name)
    if datatype in RAW_ONLY:
        received = f"receiving {datatype} data via JSON is not supported"
        raise BadRequest(received, remedy=f"send {name[:SHOWN_CHARACTERS]!r} as binary data")
    values = _flat(name, datatype, shape, data)
    if datatype == BYTES:
        _check_types(values, (str,), "strings", field)
        return from_values(name, datatype, shape, [text.encode() for text in values])
    dtype = DTYPES[datatype]
    _check_types(values, *JSON_TYPES[dtype.kind], field)
    try:
        return from_values(name, datatype, shape, np.array(values, dtype))
    except OverflowError:
        ends = np.iinfo(dtype)
        allowed = f"it goes from {ends.min} to {ends.max}"
        raise OutOfRange(f"holds a number outside {datatype}", field=field, allowed=allowed) from None


def _flat(name: str, datatype: str, shape: list[Any], data: Any) -> list[Any]:
    if not isinstance(data, list):
        allowed = 'allowed: a list, flat or nested as "shape" says'
        raise WrongType(f"has data {quoted(data)}", field=input_field(name), allowed=allowed)
    most = MAX_STRINGS if datatype == BYTES else MAX_LISTED
    if max(len(data), elements(name, shape)) > most:
        received, remedy = f"has {max(len(data), elements(name, shape))} elements", "send it as binary data"
        raise TooLarge(received, field=input_field(name), allowed=f"as JSON this server reads {most}", remedy=remedy)
    if not data or type(data[0]) is not list:
        return data
    for depth, size in enumerate(shape[1:], 1):
        if {len(item) if type(item) is list else -1 for item in data} - {size}:
            received = f"has a list in data that is not {size} long at depth {depth}"
            raise WrongShape(received, field=input_field(name), allowed=f'"shape" is {shape}')
        data = list(chain.from_iterable(data))
    return list[Any](data)


def _check_types(values: list[Any], types: tuple[type, ...], allowed: str, field: FieldPath) -> None:
    if set(map(type, values)) <= set(types):
        return
    index, odd = next((index, value) for index, value in enumerate(values) if type(value) not in types)
    raise WrongType(f"holds {quoted(odd)} as element {index}", field=field, allowed=f"allowed: {allowed}")


def _json_list(tensor: Tensor) -> Any:
    """Return what orjson writes as a flat list; raise BadRequest for what JSON does not carry."""
    if tensor.datatype in RAW_ONLY:
        received = f"sending {tensor.datatype} data via JSON is not supported"
        raise BadRequest(received, remedy=f'ask for {tensor.name} with "parameters": {{"binary_data": true}}')
    if isinstance(tensor.data, list):
        return [string.decode() for string in tensor.data]
    return np.ascontiguousarray(tensor.data).reshape(-1)
