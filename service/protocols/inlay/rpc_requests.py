"""inlay.v1.EmbedRequest → the request every protocol decodes to. Knows no channel."""

from functools import lru_cache
from typing import Any

import numpy as np

from proto import embed_pb2 as pb
from service.embedding.requests import (
    EmbedRequest,
    Ids,
    Input,
    Int64s,
    Text,
)
from service.errors import BadInput, BadRequest
from service.protocols.inlay import rpc_messages as protobuf
from service.protocols.inlay.prompt_embeds import INPUT_EMBEDS, PROMPT_EMBEDS

ENCODINGS = {pb.ENCODING_UNSPECIFIED: None, pb.PROMPT_EMBEDS: PROMPT_EMBEDS, pb.INPUT_EMBEDS: INPUT_EMBEDS}
FEW = 64  # integers: one by one is quicker; above, the buffer a repeated field lends (protobuf 7, upb)
SIDES = {pb.RIGHT: "right", pb.LEFT: "left"}
POOLINGS = {
    pb.POOLING_UNSPECIFIED: None,
    pb.CLS: "cls",
    pb.MEAN: "mean",
    pb.MAX: "max",
    pb.LAST_TOKEN: "lasttoken",
    pb.MEAN_SQRT_LEN: "mean_sqrt_len_tokens",
    pb.WEIGHTED_MEAN: "weightedmean",
}


def encoding(message: pb.EmbedRequest) -> str | None:
    """How the answer hands rows over; None: it does not.

    raises   BadRequest
    """
    if message.encoding not in ENCODINGS:
        raise BadRequest(f"encoding is {message.encoding}; allowed: {', '.join(pb.Encoding.keys())}")
    return ENCODINGS[message.encoding]


def decode(message: pb.EmbedRequest) -> EmbedRequest:
    """The request a message stands for; the message is used up.

    raises   BadInput, BadRequest
    """
    inputs = [_input(index, each) for index, each in enumerate(message.inputs)]
    message.ClearField("inputs")
    return EmbedRequest(inputs, *_options(message.SerializeToString()))


@lru_cache(maxsize=256)
def _options(rest: bytes) -> tuple[Any, ...]:
    """Everything but the inputs, in EmbedRequest's order. Callers repeat themselves, so it is read once."""
    message = pb.EmbedRequest.FromString(rest)
    if message.pooling not in POOLINGS:
        raise BadRequest(f"pooling is {message.pooling}; allowed: {', '.join(pb.Pooling.keys())}")
    if (side := message.truncation_direction) not in SIDES:
        raise BadRequest(f"truncation_direction is {side}; allowed: {', '.join(pb.TruncationDirection.keys())}")
    return (
        message.model or None,
        tuple(message.outputs),
        message.truncate if message.HasField("truncate") else None,
        SIDES[side],
        message.normalize if message.HasField("normalize") else None,
        message.dimensions if message.HasField("dimensions") else None,
        POOLINGS[message.pooling],
        _dtype(message.dtype),
        message.prompt_name if message.HasField("prompt_name") else None,
    )


def _input(index: int, message: pb.Input) -> Input:
    kind = message.WhichOneof("kind")
    if kind == "ids":
        ids = message.ids
        return Ids(
            _integers(ids.input_ids),
            _integers(ids.attention_mask) if ids.attention_mask else None,
            _integers(ids.token_type_ids) if ids.token_type_ids else None,
            _integers(ids.position_ids) if ids.position_ids else None,
            _extras(index, ids),
        )
    if kind == "text":
        return Text(message.text)
    if kind == "pair":
        return Text(message.pair.first, message.pair.second)
    raise BadInput(f"inputs[{index}] is empty: set text, pair or ids", index)


def _extras(index: int, ids: pb.TokenIds) -> dict[str, Int64s] | None:
    if not (ids.task_type_ids or ids.langs or ids.bbox):
        return None
    found = {name: _integers(sent) for name in ("task_type_ids", "langs", "bbox") if (sent := getattr(ids, name))}
    if "bbox" in found:
        if len(found["bbox"]) % 4:
            raise BadInput(f"inputs[{index}].bbox has {len(found['bbox'])} values; a box has four", index)
        found["bbox"] = found["bbox"].reshape(-1, 4)
    return found


def _integers(values: Any) -> Int64s:
    if len(values) < FEW:
        return np.fromiter(values, np.int64, len(values))
    return np.array(values, np.int64)


def _dtype(number: int) -> str:
    if number not in protobuf.DTYPE_OF:
        raise BadRequest(f"dtype is {dtype_name(number)}; allowed: {', '.join(map(pb.DType.Name, protobuf.DTYPE_OF))}")
    return protobuf.DTYPE_OF[number]


def dtype_name(number: int) -> str:
    """A DType as the contract calls it; of a number it has no name for, the number."""
    return pb.DType.Name(number) if number in pb.DType.values() else str(number)
