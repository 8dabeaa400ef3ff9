"""Bodies of POST .../infer: JSON, followed by raw tensors as in the binary tensor extension.

Inference-Header-Content-Length counts the JSON's bytes; raw tensors follow in the order of the list, without
gaps. Content types are not checked.
"""

from collections.abc import Callable
from itertools import chain
from typing import Any

from pydantic import BaseModel, Field, SkipValidation

from service.embedding import truncation
from service.errors import BadRequest, ConflictingFields, Malformed, WrongShape, WrongType
from service.http.formats import OCTETS, array_response
from service.http.json_arrays import INLINE_VALUES, dumps, json_pieces
from service.http.response import Response
from service.http.validation_errors import parse_json, quoted, validated
from service.http.worker_threads import in_thread
from service.protocols.oip import messages

RAW_ONLY = ("FP16", "BF16")  # outputs that JSON does not carry
JSON_TYPES = {"BOOL": (bool, "true and false"), messages.BYTES: (str, "strings")}  # of elements; else whole numbers
JSON_BYTES = 16  # of a number, at most, but for integers
JSON_BYTES_HEADER = b"inference-header-content-length"
_BINARY_TYPE = (b"content-type", OCTETS.encode())


class TensorParameters(BaseModel, strict=True):
    """The parameters of an input, or of a requested output."""

    binary_data_size: int | None = Field(None, ge=0, description="bytes, a whole number from 0")
    binary_data: bool | None = Field(None, description="true or false")


class InferInput(BaseModel, strict=True):
    """A tensor of a request, with its data here or as raw bytes after the JSON."""

    name: str = Field(description="a string")
    datatype: str = Field(description="a string", json_schema_extra={"enum": list(messages.CONTENTS)})
    shape: list[Any] = Field(description="a list", json_schema_extra={"items": {"type": "integer"}})
    data: Any = Field(None, description="flat or nested as the shape says; BYTES as strings; FP16 and BF16 never")
    parameters: SkipValidation[TensorParameters | None] = Field(None, description="an object")


class RequestedOutput(BaseModel, strict=True):
    """A requested output."""

    name: str = Field(description="a string")
    parameters: SkipValidation[TensorParameters | None] = Field(None, description="an object")


class InferRequest(BaseModel, strict=True):
    """The JSON of an inference request."""

    inputs: list[SkipValidation[InferInput]] = Field(description="a list of tensors")
    outputs: list[SkipValidation[RequestedOutput]] | None = Field(None, description="a list of outputs")
    parameters: SkipValidation[messages.InferParameters | None] = Field(None, description="an object")
    id: str | None = Field(None, description="a string, which the answer repeats")


def read(body: bytes, header: bytes | None) -> messages.Inference:
    """Return the request of a body; raise Malformed, BadRequest, TooLarge or Unsupported if it is invalid.

    Args:
        header: JSON_BYTES_HEADER of the request.
    """
    length = _json_bytes(header, len(body))
    try:
        request = validated(InferRequest, parse_json(body[:length]))
    except Malformed as error:
        remedy = "with binary data send Inference-Header-Content-Length"
        raise Malformed(error.received, remedy=remedy) from None
    messages.check_counts(request.inputs, request.outputs or ())
    parameters = messages.parameters_of(request.parameters)
    inputs, rest = [], memoryview(body)[length:]
    for index, sent in enumerate(request.inputs):
        tensor, rest = _input(index, sent, rest)
        inputs.append(tensor)
    if rest:
        remedy = "give each its binary_data_size"
        raise WrongShape(f"{len(rest)} bytes behind the JSON belong to no input", remedy=remedy)
    outputs = [validated(RequestedOutput, sent, ("outputs", index)) for index, sent in enumerate(request.outputs or ())]
    wishes = {entry.name: _parameters(entry.parameters, "outputs", entry.name).binary_data for entry in outputs}
    binary = {name: wish for name, wish in wishes.items() if wish is not None}
    return messages.Inference(inputs, [entry.name for entry in outputs], parameters, request.id, binary)


async def respond(answer: messages.Answer, reserve: Callable[[int], None]) -> Response:
    """Return an answer as JSON, followed by raw tensors.

    Args:
        reserve: keeps memory for bytes of the response.

    Raises:
        BadRequest: JSON does not carry an output.
    """
    document, raws, values = _document(answer)
    if not raws:
        return array_response(document, values)
    if values > INLINE_VALUES:
        reserve(JSON_BYTES * values)  # it has to be whole, since its length stands before it
        head = await in_thread(b"".join, json_pieces(document))
    else:
        head = dumps(document)
    return Response((head, *raws), (_BINARY_TYPE,), lines=b"%b: %d\r\n" % (JSON_BYTES_HEADER, len(head)))


def _document(answer: messages.Answer) -> tuple[dict[str, Any], list[memoryview], int]:
    """Return the JSON of an answer, the raw tensors that follow it, and the number of values in its lists."""
    binary, default = answer.inference.binary, answer.inference.parameters.binary_data_output
    entries, raws, values = [], list[memoryview](), 0
    for tensor in answer.outputs:
        entry: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.array.shape}
        if binary.get(tensor.name, default):
            raws.append(tensor.raw())
            entry["parameters"] = {"binary_data_size": len(raws[-1])}
        elif tensor.datatype in RAW_ONLY:
            received = f"sending {tensor.datatype} data via JSON is not supported"
            raise BadRequest(received, remedy=f'ask for {tensor.name} with "parameters": {{"binary_data": true}}')
        else:
            entry["data"] = tensor.array.ravel()
            values += tensor.array.size
        entries.append(entry)
    document: dict[str, Any] = {"model_name": answer.model, "model_version": messages.VERSION, "outputs": entries}
    if answer.inference.id is not None:
        document["id"] = answer.inference.id
    if answer.truncated:
        document["parameters"] = {messages.TRUNCATED: truncation.shown(answer.truncated)}
    return document, raws, values


def _json_bytes(header: bytes | None, size: int) -> int:
    """Return the length of a body's JSON: what the header says, by default the whole body."""
    if header is None:
        return size
    text = header.strip()
    if not text.isdigit() or len(text) > 18 or int(text) > size:
        shown = header[: messages.SHOWN_CHARACTERS].decode("latin-1")
        allowed = f"allowed: 1 to {size}, the body's bytes"
        raise WrongType(f"Inference-Header-Content-Length is {shown!r}", allowed=allowed)
    return int(text)


def _input(index: int, sent: Any, rest: memoryview) -> tuple[messages.InputTensor, memoryview]:
    """Return an input, and the raw bytes that follow its own."""
    entry = validated(InferInput, sent, ("inputs", index))
    name = entry.name
    messages.check_datatype(name, entry.datatype)
    size = _parameters(entry.parameters, "inputs", name).binary_data_size
    if ("data" in sent) is (size is not None):
        received = "has data and binary_data_size" if "data" in sent else "has neither data nor binary_data_size"
        raise messages.input_error(ConflictingFields, name, received, remedy="send exactly one")
    if size is None:
        return messages.from_values(name, entry.datatype, entry.shape, _listed(entry)), rest
    if size > len(rest):
        allowed = f"{len(rest)} bytes are left behind the JSON"
        raise messages.input_error(WrongShape, name, f"has binary_data_size {size}", allowed)
    return messages.from_raw(name, entry.datatype, entry.shape, rest[:size]), rest[size:]


def _parameters(sent: Any, kind: str, name: str) -> TensorParameters:
    parameters = {} if sent is None else sent
    read = validated(TensorParameters, parameters, (kind, name[: messages.SHOWN_CHARACTERS], "parameters"))
    messages.check_supported(parameters, kind, name)
    return read


def _listed(tensor: InferInput) -> list[Any]:
    """Return the values of a JSON list, flat or nested as its shape says."""
    name, values = tensor.name, tensor.data
    kind, called = JSON_TYPES.get(tensor.datatype, (int, "whole numbers"))
    messages.elements(name, tensor.shape)  # checks the shape
    if not isinstance(values, list):
        allowed = 'allowed: a list, flat or nested as "shape" says'
        raise messages.input_error(WrongType, name, f"has data {quoted(values)}", allowed)
    for depth, size in enumerate(tensor.shape[1:] if values and type(values[0]) is list else (), 1):
        if {len(item) if type(item) is list else -1 for item in values} - {size}:
            received = f"has a list in data that is not {size} long at depth {depth}"
            raise messages.input_error(WrongShape, name, received, f'"shape" is {tensor.shape}')
        values = list(chain.from_iterable(values))
    if not set(map(type, values)) <= {kind}:
        index, odd = next((index, value) for index, value in enumerate(values) if type(value) is not kind)
        raise messages.input_error(WrongType, name, f"holds {quoted(odd)} as element {index}", f"allowed: {called}")
    return list[Any](values)
