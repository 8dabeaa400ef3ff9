"""Decodes inlay.v1.EmbedRequest."""

from functools import lru_cache
from typing import Any

import numpy as np

from proto import embed_pb2 as pb
from service.embedding.limits import check_inputs
from service.embedding.requests import Direction, EmbedOptions, EmbedRequest, Ids, Input, Int64s, Text
from service.embedding.tokenize.prompts import SPELLINGS
from service.errors import BadRequest, MissingField, UnknownValue, WrongShape
from service.http.validation_errors import CACHED_BYTES
from service.protocols.inlay import late_chunking
from service.protocols.inlay.embed import AnswerForm
from service.protocols.inlay.prompt_embeds import INPUT_EMBEDS, PROMPT_EMBEDS
from service.protocols.inlay.rpc_fields import dtype_name
from service.protocols.inlay.rpc_messages import DTYPE_OF

ENCODINGS = {pb.ENCODING_UNSPECIFIED: "float", pb.PROMPT_EMBEDS: PROMPT_EMBEDS, pb.INPUT_EMBEDS: INPUT_EMBEDS}
FEW = 64  # integers are faster one by one; more, through the array that a repeated field makes (protobuf 7, upb)
SIDES: dict[int, Direction | None] = {pb.RIGHT: None, pb.LEFT: "left"}  # a message without it says RIGHT
POOLINGS = {
    pb.POOLING_UNSPECIFIED: None,
    pb.CLS: "cls",
    pb.MEAN: "mean",
    pb.MAX: "max",
    pb.LAST_TOKEN: "lasttoken",
    pb.MEAN_SQRT_LEN: "mean_sqrt_len_tokens",
    pb.WEIGHTED_MEAN: "weightedmean",
}

OPTIONAL = ("truncate", "normalize", "dimensions", "prompt_name", "task", "max_active_dims", "instruction")


def decode(message: pb.EmbedRequest, max_inputs: int | None = None) -> tuple[EmbedRequest, AnswerForm]:
    """Return the request in a message and the form of its response, and clear the message.

    Args:
        max_inputs: the limit, checked before any input is read.

    Raises:
        TooManyInputs: there are more than `max_inputs`.
        BadRequest: an input cannot be read, or an option has a value that it cannot have.
    """
    check_inputs(len(message.inputs), max_inputs)
    inputs = [_input(index, item) for index, item in enumerate(message.inputs)]
    message.ClearField("inputs")
    spans = late_chunking.read_message(message, max_inputs)
    is_short = message.ByteSize() <= CACHED_BYTES
    model, options, form = _known_options(message.SerializeToString()) if is_short else _options(message)
    return EmbedRequest(inputs, model, options, spans), form


@lru_cache(maxsize=256)
def _known_options(message_without_inputs: bytes) -> tuple[str | None, EmbedOptions, AnswerForm]:
    """Return what `_options` does; cached, because callers repeat their options."""
    return _options(pb.EmbedRequest.FromString(message_without_inputs))


def _options(message: pb.EmbedRequest) -> tuple[str | None, EmbedOptions, AnswerForm]:
    """Return the model, the options and the form of the response."""
    if message.pooling not in POOLINGS:
        raise _not_one_of("pooling", message.pooling, pb.Pooling.keys())
    if (side := message.truncation_direction) not in SIDES:
        raise _not_one_of("truncation_direction", side, pb.TruncationDirection.keys())
    if message.encoding not in ENCODINGS:
        raise _not_one_of("encoding", message.encoding, pb.Encoding.keys())
    if message.dtype not in DTYPE_OF:
        raise _not_one_of("dtype", dtype_name(message.dtype), map(pb.DType.Name, DTYPE_OF))
    if message.HasField("input_type") and message.input_type not in SPELLINGS:
        raise _not_one_of("input_type", repr(message.input_type[:40]), SPELLINGS)
    options = EmbedOptions(
        outputs=tuple(message.outputs),
        truncation_direction=SIDES[side],
        pooling=POOLINGS[message.pooling],
        dtype=DTYPE_OF[message.dtype],
        input_type=SPELLINGS[message.input_type] if message.HasField("input_type") else None,
        **{name: getattr(message, name) for name in OPTIONAL if message.HasField(name)},
    )
    form = AnswerForm(ENCODINGS[message.encoding], message.dtype != pb.DTYPE_UNSPECIFIED)
    return message.model or None, options, form


def _not_one_of(field: str, value: object, allowed: Any) -> BadRequest:
    return UnknownValue(f"is {value}", field=(field,), allowed=f"allowed: {', '.join(allowed)}")


def _input(index: int, message: pb.Input) -> Input:
    kind = message.WhichOneof("kind")
    if kind == "ids":
        fields = message.ids.ListFields()
        if len(fields) == 1 and fields[0][0].name == "input_ids":
            return Ids(_integers(fields[0][1]))
        return _ids(index, message.ids)
    if kind == "text":
        return Text(message.text)
    if kind == "pair":
        return Text(message.pair.first, message.pair.second)
    raise MissingField("is empty", field=("inputs", index), remedy="set text, pair or ids")


def _ids(index: int, ids: pb.TokenIds) -> Ids:
    """Return token ids with their mask, segments, positions and extra inputs."""
    extras = {name: _integers(values) for name in ("task_type_ids", "langs", "bbox") if (values := getattr(ids, name))}
    if "bbox" in extras:
        if len(extras["bbox"]) % 4:
            count = len(extras["bbox"])
            raise WrongShape(f"has {count} values", field=("inputs", index, "bbox"), allowed="a box has four")
        extras["bbox"] = extras["bbox"].reshape(-1, 4)
    return Ids(
        _integers(ids.input_ids),
        _integers(ids.attention_mask) if ids.attention_mask else None,
        _integers(ids.token_type_ids) if ids.token_type_ids else None,
        _integers(ids.position_ids) if ids.position_ids else None,
        extras or None,
    )


def _integers(values: Any) -> Int64s:
    if len(values) < FEW:
        return np.fromiter(values, np.int64, len(values))
    return np.array(values, np.int64)
