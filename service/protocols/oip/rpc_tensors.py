"""Messages of ModelInfer as tensors, and tensors as the wire bytes of its answers, byte for byte protobuf's own.

Setting a `bytes` field and serializing copies a tensor three times; here protobuf writes the small messages, once for
answers of one shape, and the tensors are joined to them.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from proto import open_inference_pb2 as pb
from service.embedding import truncation
from service.errors import BadRequest, ConflictingFields, OutOfRange
from service.protocols.inlay.rpc_messages import varint
from service.protocols.oip.bodies import check_no_classification
from service.protocols.oip.data_plane import VERSION
from service.protocols.oip.infer import TRUNCATED
from service.protocols.oip.shared_memory import Place, Regions, place_parameters
from service.protocols.oip.tensors import (
    BYTES,
    DTYPES,
    RAW_ONLY,
    SHOWN_CHARACTERS,
    Raw,
    Tensor,
    check_count,
    from_raw,
    from_values,
    input_field,
    raw_of,
    width,
)

CONTENTS: dict[str, tuple[str, Any]] = {
    "BOOL": ("bool_contents", np.bool_),
    **dict.fromkeys(("INT8", "INT16", "INT32"), ("int_contents", np.int32)),
    "INT64": ("int64_contents", np.int64),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), ("uint_contents", np.uint32)),
    "UINT64": ("uint64_contents", np.uint64),
    "FP32": ("fp32_contents", np.float32),
    "FP64": ("fp64_contents", np.float64),
    BYTES: ("bytes_contents", None),
}
"""The field of a datatype's typed contents, and the numpy dtype in which they come."""
FINAL_RESPONSE = "triton_final_response"
ID, RAW, STREAMED = b"\x1a", b"\x32", b"\x12"  # fields 3 and 6 of a response, 2 of a stream's


class RequestedOutput(NamedTuple):
    """An output that a request names, and where in shared memory it goes, if it does."""

    name: str
    place: Place | None


class Answer(NamedTuple):
    """An answer before it is serialized.

    Args:
        places: of the outputs that were written to shared memory, by name.
        final: whether the answer states that no further one follows.
        truncated: numbers of the sequences that were cut.
    """

    model: str
    id: str
    tensors: Sequence[Tensor]
    places: Mapping[str, Place]
    final: bool = False
    truncated: truncation.Numbers = ()


def input_tensors(message: pb.ModelInferRequest, regions: Regions) -> list[Tensor]:
    """Return the input tensors, in order.

    Raises:
        BadRequest: raw and typed contents are mixed, or do not fit the tensor's datatype and shape.
        TooLarge: there are more tensors than this server reads.
    """
    check_count("inputs", message.inputs)
    places = [_place(tensor, regions) for tensor in message.inputs]
    raws, sent = message.raw_input_contents, [place is None for place in places]
    if not raws:
        return [_typed(tensor, place, regions) for tensor, place in zip(message.inputs, places, strict=True)]
    for tensor in message.inputs:
        if tensor.HasField("contents"):
            raise ConflictingFields(
                "has contents beside raw_input_contents",
                field=input_field(tensor.name),
                remedy="send every tensor raw, or every one typed",
            )
    if len(raws) != sum(sent):
        received = f"raw_input_contents has {len(raws)} tensors for {sum(sent)} inputs"
        raise BadRequest(received, remedy="send one each, in their order")
    left = iter(raws)
    return [
        from_raw(tensor.name, tensor.datatype, tuple(tensor.shape), regions.read(place) if place else next(left))
        for tensor, place in zip(message.inputs, places, strict=True)
    ]


def requested_outputs(message: pb.ModelInferRequest, regions: Regions) -> list[RequestedOutput]:
    """Return the outputs that a request names; raise BadRequest, TooLarge or Unsupported."""
    check_count("outputs", message.outputs)
    outputs = []
    for output in message.outputs:
        field = ("outputs", output.name[:SHOWN_CHARACTERS], "parameters")
        parameters = values_of(output.parameters)
        check_no_classification(parameters, field)
        outputs.append(RequestedOutput(output.name, regions.place(parameters, field)))
    return outputs


def values_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a map of parameters as JSON has it; those that are not set are left out."""
    chosen = {name: (parameter, parameter.WhichOneof("parameter_choice")) for name, parameter in parameters.items()}
    return {name: getattr(parameter, choice) for name, (parameter, choice) in chosen.items() if choice}


def _place(tensor: Any, regions: Regions) -> Place | None:
    if not tensor.parameters:
        return None
    return regions.place(values_of(tensor.parameters), (*input_field(tensor.name), "parameters"))


def _typed(tensor: Any, place: Place | None, regions: Regions) -> Tensor:
    """Return a tensor that lies in shared memory or in typed contents."""
    name, datatype, shape = tensor.name, tensor.datatype, tuple(tensor.shape)
    if place:
        return from_raw(name, datatype, shape, regions.read(place))
    width(datatype, input_field(name))
    if datatype in RAW_ONLY:
        received, remedy = f"has datatype {datatype}, which has no typed contents", "send it in raw_input_contents"
        raise BadRequest(received, field=input_field(name), remedy=remedy)
    field, dtype = CONTENTS[datatype]
    others = [descriptor.name for descriptor, _ in tensor.contents.ListFields() if descriptor.name != field]
    if others:
        received = f"has datatype {datatype} and {', '.join(others)}"
        raise ConflictingFields(received, field=input_field(name), remedy=f"send {field} alone")
    values = getattr(tensor.contents, field)
    if datatype == BYTES:
        return from_values(name, datatype, shape, list(values))
    return from_values(name, datatype, shape, _narrowed(name, datatype, np.array(values, dtype)))


def _narrowed(name: str, datatype: str, values: Any) -> Any:
    """Return values in their own dtype; contents of small integers are as wide as the largest of their kind."""
    dtype = DTYPES[datatype]
    if values.dtype == dtype or not values.size:
        return values.astype(dtype, copy=False)
    ends = np.iinfo(dtype)
    if values.min() < ends.min or values.max() > ends.max:
        allowed = f"it goes from {ends.min} to {ends.max}"
        raise OutOfRange(f"holds a number outside {datatype}", field=input_field(name), allowed=allowed)
    return values.astype(dtype)


def response(answer: Answer) -> bytes:
    """Return a serialized ModelInferResponse."""
    return b"".join(_parts(answer))


def stream_response(answer: Answer) -> bytes:
    """Return a serialized ModelStreamInferResponse that holds `infer_response`."""
    parts = _parts(answer)
    return b"".join([STREAMED, varint(sum(map(len, parts))), *parts])


def _parts(answer: Answer) -> list[Raw]:
    head, id_ = _head(answer.model), answer.id.encode()
    parts: list[Raw] = [head, ID, varint(len(id_)), id_] if id_ else [head]
    if answer.final:
        parts.append(_FINAL)
    if answer.truncated:
        named = {TRUNCATED: pb.InferParameter(string_param=truncation.shown(answer.truncated))}
        parts.append(pb.ModelInferResponse(parameters=named).SerializeToString())
    shapes = tuple(
        [(tensor.name, tensor.datatype, tensor.shape, answer.places.get(tensor.name)) for tensor in answer.tensors]
    )
    parts.append(_outputs(shapes))
    for tensor in answer.tensors:
        raw = b"" if tensor.name in answer.places else raw_of(tensor)  # an empty one keeps the order of the others
        parts += (RAW, varint(len(raw)), raw)
    return parts


@lru_cache(maxsize=1024)
def _head(model: str) -> bytes:
    return bytes(pb.ModelInferResponse(model_name=model, model_version=VERSION).SerializeToString())


@lru_cache(maxsize=1024)
def _outputs(shapes: tuple[tuple[str, str, tuple[int, ...], Place | None], ...]) -> bytes:
    entries = [
        pb.ModelInferResponse.InferOutputTensor(name=name, datatype=kind, shape=shape, parameters=_parameters(place))
        for name, kind, shape, place in shapes
    ]
    return bytes(pb.ModelInferResponse(outputs=entries).SerializeToString())


def _parameters(place: Place | None) -> dict[str, pb.InferParameter]:
    values = place_parameters(place) if place else {}
    return {
        name: pb.InferParameter(**{"string_param" if isinstance(value, str) else "int64_param": value})
        for name, value in values.items()
    }


_FINAL = bytes(
    pb.ModelInferResponse(parameters={FINAL_RESPONSE: pb.InferParameter(bool_param=True)}).SerializeToString()
)
