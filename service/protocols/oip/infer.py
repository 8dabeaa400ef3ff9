"""Translates tensors to the core's requests, and its results back to tensors, for REST and gRPC.

A request may hold
    input_ids        [B, T], padded on either side where attention_mask [B, T] says so, or flat [N] with lengths [B]
    attention_mask, token_type_ids, position_ids and a family's extra inputs: shaped as input_ids (bbox: one axis more)
    text             BYTES [B] or [B, 1], UTF-8, instead of all of these
Outputs are [B, d] where pooled; else [B, T, d] as padded as the ids came, [N, d] for flat ids, and for texts [B, T, d]
padded with zeros on the right. `lengths` [B], rows of each, may be requested, and is always sent with rows of texts.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from models.artifacts.card import Card
from models.families.extra_inputs import Extra
from service.embedding.pooling import POOLINGS
from service.embedding.requests import DTYPES, Direction, EmbedRequest, EmbedResult, Ids, Input, Int64s, Output, Text
from service.errors import (
    BadRequest,
    ConflictingFields,
    EmptyRequest,
    MissingField,
    OutOfRange,
    TooLarge,
    UnknownField,
    WrongType,
)
from service.http.validation_errors import validated
from service.protocols.inlay.inputs import too_many_inputs
from service.protocols.oip.padding import LENGTHS, Spans, placed, right_padded, spans_of
from service.protocols.oip.tensors import BYTES, DATATYPE_OF, SHOWN_CHARACTERS, Tensor, input_field
from service.settings import Settings

TRUNCATED = "truncated_inputs"
IDS, TEXT, MASK, TYPES, POSITIONS = "input_ids", "text", "attention_mask", "token_type_ids", "position_ids"
INTEGERS = ("INT64", "INT32", "UINT64", "UINT32")
FLAGS = (*INTEGERS, "BOOL", "UINT8", "INT8")
DTYPE_NAMES = {"FP32": "float32", "FP16": "float16", "BF16": "bfloat16"}
POOLING_NAMES = {"last-token": "lasttoken"}  # text-embeddings-inference's name


def _either(names: Mapping[str, str], allowed: Collection[str]) -> BeforeValidator:
    """Return what reads one of the `allowed` strings, or another name of one."""

    def read(value: Any) -> Any:
        name = names.get(value, value) if isinstance(value, str) else None
        if name not in allowed and value is not None:
            raise PydanticCustomError("not_allowed", "not allowed")
        return name

    return BeforeValidator(read)


class Parameters(BaseModel):
    """The request parameters that are read; the protocol lets clients send others, which are ignored as Triton does."""

    model_config = ConfigDict(strict=True)
    truncate: Annotated[bool | None, Field(description="true or false")] = None
    truncation_direction: Annotated[
        Direction,
        _either({"Right": "right", "Left": "left"}, ("right", "left")),
        Field(description="right or left"),
    ] = "right"
    normalize: Annotated[bool | None, Field(description="true or false")] = None
    dimensions: Annotated[int | None, Field(ge=1, description="a whole number from 1")] = None
    pooling: Annotated[str | None, _either(POOLING_NAMES, POOLINGS), Field(description=", ".join(POOLINGS))] = None
    dtype: Annotated[str, _either(DTYPE_NAMES, DTYPES), Field(description=", ".join((*DTYPES, *DTYPE_NAMES)))] = (
        "float32"
    )
    prompt_name: Annotated[str | None, Field(description="the name of one of the model's prompts")] = None
    task: Annotated[str | None, Field(description="one of the model's tasks, whose adapters and prompt are used")] = (
        None
    )
    timeout: Annotated[int, Field(ge=0, description="microseconds, a whole number from 0, which is no limit")] = 0


NO_PARAMETERS = Parameters()


def parameters_of(sent: Mapping[str, Any]) -> Parameters:
    """Return a request's parameters; raise BadRequest if one is invalid."""
    return validated(Parameters, dict(sent), ("parameters",)) if sent else NO_PARAMETERS


class Prepared(NamedTuple):
    """A request to the core, and what is needed to bring its result into the caller's shape.

    Args:
        outputs: the requested names, `lengths` among them; empty: the default.
        spans: where the sequences lie in the caller's tensors; None: they are texts.
        max_bytes: of token rows in the answer, padding counted.
    """

    request: EmbedRequest
    outputs: tuple[str, ...]
    spans: Spans | None
    max_bytes: int


def request_of(
    card: Card, inputs: Sequence[Tensor], parameters: Parameters, outputs: Sequence[str], settings: Settings
) -> Prepared:
    """Return the core's request of input tensors.

    Raises:
        BadRequest, BadInput, TooLarge: the tensors make no valid request.
    """
    tensors, names = _by_name(card, inputs), tuple(outputs)
    if len(set(names)) < len(names):
        shown = ", ".join(names)[:SHOWN_CHARACTERS]
        raise ConflictingFields("names one twice", field=("outputs",), allowed=shown, remedy="ask for each once")
    spans, rows = None, list[Input]()
    if TEXT in tensors:
        rows = _texts(tensors[TEXT])
    else:
        rows, spans = _sequences(card, tensors, settings)
    request = EmbedRequest(
        rows,
        card.name,
        tuple([name for name in names if name != LENGTHS]),
        parameters.truncate,
        parameters.truncation_direction,
        parameters.normalize,
        parameters.dimensions,
        parameters.pooling,
        parameters.dtype,
        parameters.prompt_name,
        parameters.task,
    )
    return Prepared(request, names, spans, settings.max_answer_bytes)


def outputs_of(result: EmbedResult, prepared: Prepared) -> list[Tensor]:
    """Return the tensors of a result, in the shape that the request had."""
    tensors = {output.name: _tensor(output, prepared) for output in result.outputs}
    names = prepared.outputs
    if not prepared.request.outputs:
        (default,) = result.outputs
        if not names:
            names = (default.name,) if default.pooled or prepared.spans else (default.name, LENGTHS)
    if LENGTHS in names:
        counted = next((output.lengths for output in result.outputs if not output.pooled), result.lengths)
        tensors[LENGTHS] = Tensor(LENGTHS, "INT64", (len(counted),), np.array(counted, np.int64))
    return [tensors[name] for name in names]


def _tensor(output: Output, prepared: Prepared) -> Tensor:
    rows = output.rows
    datatype = DATATYPE_OF[rows.dtype.type]
    if output.pooled:
        return Tensor(output.name, datatype, rows.shape, rows)
    spans, left = prepared.spans, prepared.request.truncation_direction == "left"
    if spans is None:
        spans, left = right_padded(output.lengths), False
    array = placed(rows, output.lengths, spans, left)
    return Tensor(output.name, datatype, array.shape, array)


def padded_bytes(result: EmbedResult, prepared: Prepared) -> int:
    """Return the bytes of the token rows of a result with their padding.

    Raises:
        TooLarge: padding makes them larger than this server sends.
    """
    size = 0
    for output in result.outputs:
        if not output.pooled:
            shape = prepared.spans.shape if prepared.spans else (len(output.lengths), max(output.lengths))
            size += math.prod(shape) * output.rows.shape[1] * output.rows.itemsize
    if size > prepared.max_bytes:
        raise TooLarge(
            f"padded, the outputs are {size} bytes",
            allowed=f"this server answers with {prepared.max_bytes} at most",
            remedy="send sequences of like length together, or flat ids",
        )
    return size


def _by_name(card: Card, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
    tensors = {tensor.name: tensor for tensor in inputs}
    if len(tensors) < len(inputs):
        shown = ", ".join([tensor.name for tensor in inputs])[: 2 * SHOWN_CHARACTERS]
        raise ConflictingFields("holds a tensor twice", field=("inputs",), allowed=shown, remedy="send each once")
    allowed = input_names(card)
    if unknown := [name for name in tensors if name not in allowed]:
        raise UnknownField(f"{card.name} has no input {unknown[0][:80]!r}", allowed=f"allowed: {', '.join(allowed)}")
    if TEXT in tensors and len(tensors) > 1:
        received = f"came with {', '.join(sorted(tensors.keys() - {TEXT}))}"
        raise ConflictingFields(received, field=input_field(TEXT), remedy="send texts or token ids, not both")
    if TEXT not in tensors and IDS not in tensors:
        required = f'"{IDS}" or "{TEXT}"' if TEXT in allowed else f'"{IDS}"'
        received = ", ".join(map(repr, tensors)) or "no inputs"
        raise MissingField(f"{required} is missing", allowed=f"{received} came")
    return tensors


def input_names(card: Card) -> tuple[str, ...]:
    """Return the names of the tensors a model takes."""
    texts = (TEXT,) if card.tokenizer else ()
    extras = [extra.name for extra in card.extras if extra.sent]
    return (*texts, IDS, MASK, LENGTHS, TYPES, POSITIONS, *extras)


def _texts(tensor: Tensor) -> list[Input]:
    if tensor.datatype != BYTES or not isinstance(tensor.data, list):
        raise _datatype_error(tensor, (BYTES,))
    if len(tensor.shape) not in (1, 2) or (len(tensor.shape) == 2 and tensor.shape[1] != 1):
        raise _shape_error(tensor, "[B] or [B, 1]")
    return [_text(index, raw) for index, raw in enumerate(tensor.data)]


def _text(index: int, raw: bytes) -> Text:
    try:
        return Text(raw.decode())
    except UnicodeDecodeError as error:
        received = f"is not UTF-8: {error.reason} at byte {error.start}"
        raise WrongType(received, field=(*input_field(TEXT), index)) from None


def _sequences(card: Card, tensors: dict[str, Tensor], settings: Settings) -> tuple[list[Input], Spans]:
    """Return each sequence's ids and what goes with them, padding left out."""
    ids = tensors[IDS]
    values = _integers(ids, INTEGERS)
    if not len(values):
        remedy = "send one token id at least"
        raise EmptyRequest(f"has shape {list(ids.shape)}", field=input_field(IDS), remedy=remedy)
    if len(values) > settings.max_request_tokens:
        allowed = f"this server takes {settings.max_request_tokens} a request"
        raise TooLarge(f"has {len(values)} elements", field=input_field(IDS), allowed=allowed)
    mask = _mask(tensors[MASK], ids) if MASK in tensors else None
    spans = spans_of(ids, _lengths(tensors.get(LENGTHS)), mask)
    if (count := len(spans.starts)) > settings.max_inputs:  # before each is an object
        raise too_many_inputs(count, settings.max_inputs)
    beside = {name: _beside(tensors[name], ids) for name in (TYPES, POSITIONS) if name in tensors}
    extras = {extra.name: _extra(extra, tensors[extra.name], ids) for extra in card.extras if extra.name in tensors}
    sent = mask if card.mask_from == "pad_count" or spans.holes is not None else None
    if not beside and not extras and sent is None:
        return _ids_alone(values, spans), spans
    return [_cut(span, values, sent, beside, extras) for span in spans.bounds], spans


def _ids_alone(ids: Int64s, spans: Spans) -> list[Input]:
    if len(spans.shape) == 2 and not spans.padded:
        return [Ids(row) for row in ids.reshape(spans.shape)]  # half the time of slicing
    return [Ids(ids[start:stop]) for start, stop in spans.bounds]


def _cut(
    span: tuple[int, int], ids: Int64s, mask: Int64s | None, beside: dict[str, Int64s], extras: dict[str, Int64s]
) -> Ids:
    own = slice(*span)
    types, positions = beside.get(TYPES), beside.get(POSITIONS)
    return Ids(
        ids[own],
        None if mask is None else mask[own],
        None if types is None else types[own],
        None if positions is None else positions[own],
        {name: values[own] for name, values in extras.items()} or None,
    )


def _mask(tensor: Tensor, ids: Tensor) -> Int64s:
    mask = _beside(tensor, ids, FLAGS)
    if (mask.view(np.uint64) > 1).any():  # negative values wrap to huge ones
        odd = mask[int(np.argmax((mask < 0) | (mask > 1)))]
        raise OutOfRange(f"holds {odd}", field=input_field(MASK), allowed="allowed: 0 and 1")
    return mask


def _lengths(tensor: Tensor | None) -> Int64s | None:
    if tensor is None:
        return None
    if len(tensor.shape) != 1:
        raise _shape_error(tensor, "[B]")
    return _integers(tensor, INTEGERS)


def _beside(tensor: Tensor, ids: Tensor, datatypes: tuple[str, ...] = INTEGERS) -> Int64s:
    if tensor.shape != ids.shape:
        raise _shape_error(tensor, f"that of {IDS}, {list(ids.shape)}")
    return _integers(tensor, datatypes)


def _extra(extra: Extra, tensor: Tensor, ids: Tensor) -> Int64s:
    if extra.columns == 1:
        return _beside(tensor, ids)
    if tensor.shape != (*ids.shape, extra.columns):
        raise _shape_error(tensor, f"{[*ids.shape, extra.columns]}")
    return _integers(tensor, INTEGERS).reshape(-1, extra.columns)


def _integers(tensor: Tensor, datatypes: tuple[str, ...]) -> Int64s:
    """Return the elements, flat, as int64."""
    values = tensor.data
    if tensor.datatype not in datatypes or isinstance(values, list):
        raise _datatype_error(tensor, datatypes)
    flat = values.reshape(-1)
    if tensor.datatype == "UINT64" and flat.size and flat.max() >= 1 << 63:
        raise OutOfRange(f"holds {flat.max()}", field=input_field(tensor.name), allowed="allowed: below 2**63")
    return flat.astype(np.int64, copy=False)


def _shape_error(tensor: Tensor, allowed: str) -> BadRequest:
    return BadRequest(f"has shape {list(tensor.shape)}", field=input_field(tensor.name), allowed=f"allowed: {allowed}")


def _datatype_error(tensor: Tensor, allowed: tuple[str, ...]) -> BadRequest:
    return BadRequest(
        f"has datatype {tensor.datatype}", field=input_field(tensor.name), allowed=f"allowed: {', '.join(allowed)}"
    )
