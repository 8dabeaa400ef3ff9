"""ModelInferRequest → tensors, tensors → the wire bytes of ModelInferResponse. Knows messages; no channel, no model.

Setting a `bytes` field and serialising copies a tensor three times; here small messages are written by protobuf, once
for answers of one shape, and the tensors are put behind them. Byte for byte what protobuf writes.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from proto import open_inference_pb2 as pb
from service.errors import BadRequest, Unsupported
from service.protocols.inlay.rpc_messages import varint
from service.protocols.oip.datatypes import (
    BYTES,
    DTYPES,
    RAW_ONLY,
    Raw,
    width,
)
from service.protocols.oip.infer import VERSION
from service.protocols.oip.shared_memory import Place, Regions, place_of
from service.protocols.oip.tensors import (
    Tensor,
    from_raw,
    from_values,
    raw_of,
)
from service.settings import Settings

CONTENTS: dict[str, str] = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}
"""Where typed contents of a datatype lie."""
LAST = "triton_final_response"
ID, PARAMETERS, ANSWER, RAW = b"\x1a", b"\x22", b"\x12", b"\x32"  # field 3, 4 and 6 of a response, 2 of a stream's


class Wanted(NamedTuple):
    """An output a request names; `place`: where in shared memory it goes."""

    name: str
    place: Place | None


class Reply(NamedTuple):
    """An answer before it is bytes.

    lent    parameters of the outputs that went to shared memory, by name
    last    the client asked to be told that no further answer follows this one
    """

    model: str
    id: str
    tensors: Sequence[Tensor]
    lent: Mapping[str, Place]
    last: bool = False


def tensors_of(message: pb.ModelInferRequest, settings: Settings, regions: Regions) -> list[Tensor]:
    """The input tensors, in order.

    raises   BadRequest where raw and typed contents are mixed, or do not fit what is said of them
    """
    places = [_place(each, settings) for each in message.inputs]
    raws, sent = message.raw_input_contents, [place is None for place in places]
    if not raws:
        return [_one(each, place, regions) for each, place in zip(message.inputs, places, strict=True)]
    for each in message.inputs:
        if each.HasField("contents"):
            raise BadRequest(
                f"input {each.name!r} has contents beside raw_input_contents: send every tensor raw, or every one typed"
            )
    if len(raws) != sum(sent):
        raise BadRequest(
            f"raw_input_contents has {len(raws)} tensors for {sum(sent)} inputs: send one each, in their order"
        )
    left = iter(raws)
    return [
        from_raw(each.name, each.datatype, tuple(each.shape), regions.read(place) if place else next(left))
        for each, place in zip(message.inputs, places, strict=True)
    ]


def wanted_of(message: pb.ModelInferRequest, settings: Settings) -> list[Wanted]:
    """The outputs a request names; raises BadRequest, Unsupported."""
    found = []
    for each in message.outputs:
        parameters = values_of(each.parameters)
        if parameters.get("classification"):
            raise Unsupported(f"output {each.name!r}: classification is not supported; leave the parameter out")
        found.append(Wanted(each.name, place_of(each.name, parameters, settings)))
    return found


def values_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A map of parameters as JSON has it; those that are not set are left out."""
    chosen = {name: (each, each.WhichOneof("parameter_choice")) for name, each in parameters.items()}
    return {name: getattr(each, choice) for name, (each, choice) in chosen.items() if choice}


def response(reply: Reply) -> bytes:
    """A serialised ModelInferResponse."""
    return b"".join(_parts(reply))


def stream_response(reply: Reply) -> bytes:
    """A serialised ModelStreamInferResponse that holds `infer_response`."""
    parts = _parts(reply)
    return b"".join([ANSWER, varint(sum(map(len, parts))), *parts])


def _parts(reply: Reply) -> list[Raw]:
    head = _head(reply.model)
    id_ = reply.id.encode()
    parts: list[Raw] = [head, ID, varint(len(id_)), id_] if id_ else [head]
    if reply.last:
        parts.append(_LAST)
    shapes = tuple([(each.name, each.datatype, each.shape, reply.lent.get(each.name)) for each in reply.tensors])
    parts.append(_outputs(shapes))
    for tensor in reply.tensors:
        raw = b"" if tensor.name in reply.lent else raw_of(tensor)  # an empty one keeps the order of those that follow
        parts += (RAW, varint(len(raw)), raw)
    return parts


@lru_cache(maxsize=1024)
def _head(model: str) -> bytes:
    return bytes(pb.ModelInferResponse(model_name=model, model_version=VERSION).SerializeToString())


@lru_cache(maxsize=1024)
def _outputs(shapes: tuple[tuple[str, str, tuple[int, ...], Place | None], ...]) -> bytes:
    entries = [
        pb.ModelInferResponse.InferOutputTensor(name=name, datatype=kind, shape=shape, parameters=_lent(place))
        for name, kind, shape, place in shapes
    ]
    return bytes(pb.ModelInferResponse(outputs=entries).SerializeToString())


_LAST = bytes(pb.ModelInferResponse(parameters={LAST: pb.InferParameter(bool_param=True)}).SerializeToString())


def _lent(place: Place | None) -> dict[str, pb.InferParameter]:
    if place is None:
        return {}
    return {
        "shared_memory_region": pb.InferParameter(string_param=place.region),
        "shared_memory_offset": pb.InferParameter(int64_param=place.offset),
        "shared_memory_byte_size": pb.InferParameter(int64_param=place.byte_size),
    }


def _place(tensor: Any, settings: Settings) -> Place | None:
    return place_of(tensor.name, values_of(tensor.parameters), settings) if tensor.parameters else None


def _one(tensor: Any, place: Place | None, regions: Regions) -> Tensor:
    """A tensor in shared memory or in typed contents."""
    name, datatype, shape = tensor.name, tensor.datatype, tuple(tensor.shape)
    if place:
        return from_raw(name, datatype, shape, regions.read(place))
    width(datatype)
    if datatype in RAW_ONLY:
        raise BadRequest(f"input {name!r}: {datatype} has no typed contents; send it in raw_input_contents")
    field = CONTENTS[datatype]
    others = [each.name for each, _ in tensor.contents.ListFields() if each.name != field]
    if others:
        raise BadRequest(f"input {name!r} of datatype {datatype} has {', '.join(others)}; send {field} alone")
    values = getattr(tensor.contents, field)
    if datatype == BYTES:
        return from_values(name, datatype, shape, list(values))
    return from_values(name, datatype, shape, _narrowed(name, datatype, np.array(values, _SENT[field])))


_SENT = {
    "bool_contents": np.dtype(np.bool_),
    "int_contents": np.dtype(np.int32),
    "int64_contents": np.dtype(np.int64),
    "uint_contents": np.dtype(np.uint32),
    "uint64_contents": np.dtype(np.uint64),
    "fp32_contents": np.dtype(np.float32),
    "fp64_contents": np.dtype(np.float64),
}


def _narrowed(name: str, datatype: str, values: Any) -> Any:
    """The values in their own dtype; contents of small integers are as wide as the largest of their kind."""
    dtype = DTYPES[datatype]
    if values.dtype == dtype or not values.size:
        return values.astype(dtype, copy=False)
    ends = np.iinfo(dtype)
    if values.min() < ends.min or values.max() > ends.max:
        raise BadRequest(f"input {name!r} holds a number outside {datatype}: {ends.min} to {ends.max}")
    return values.astype(dtype)
