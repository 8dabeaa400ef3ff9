"""Translates tensors to the core's requests, and its results back to tensors, for REST and gRPC.

A request may hold
    input_ids        [B, T], padded on either side where attention_mask [B, T] says so, or flat [N] with lengths [B]
    attention_mask, token_type_ids, position_ids and a family's extra inputs: shaped as input_ids (bbox: one axis more)
    text             BYTES [B] or [B, 1], UTF-8, instead of all of these
    text_pair        beside it, the second text of each pair, for models with labels
    query, documents BYTES [1] and [B] instead: pairs of one query with each document
Outputs are [B, d] where pooled; else [B, T, d] as padded as the ids came, [N, d] for flat ids, and for texts [B, T, d]
padded with zeros on the right. `scores` [B, labels] of models with labels are their activated `class_logits`.
`lengths` [B], rows of each, may be requested, and is always sent with rows of texts.
Sparse vectors are three tensors: sparse_embedding [N], the values of all inputs; sparse_embedding_indices [N], their
columns; sparse_embedding_lengths [B], how many of them each input has. Without `outputs` all three come.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from models.artifacts.card import CLASS_LOGITS, MULTI_VECTOR, SPARSE, Card
from models.recipes.extra_inputs import Extra
from models.recipes.heads import ScoreActivation
from service.embedding.limits import check_inputs
from service.embedding.pooling import POOLINGS
from service.embedding.quantization import PRECISIONS
from service.embedding.ranking import classifies, label_activation, reads_pairs
from service.embedding.requests import (
    DTYPES,
    Direction,
    EmbedOptions,
    EmbedRequest,
    EmbedResult,
    Ids,
    Input,
    InputType,
    Int64s,
    Output,
    Text,
)
from service.embedding.scores import ACTIVATIONS
from service.embedding.tokenize.prompts import SPELLINGS, USES
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
from service.protocols.oip.padding import LENGTHS, Spans, placed, right_padded, spans_of
from service.protocols.oip.tensors import BYTES, DATATYPE_OF, SHOWN_CHARACTERS, Tensor, input_field
from service.settings import Settings

TRUNCATED = "truncated_inputs"
QUERY, DOCUMENTS, PAIR, SCORES = "query", "documents", "text_pair", "scores"
SPARSE_INDICES, SPARSE_LENGTHS = f"{SPARSE}_indices", f"{SPARSE}_lengths"
IDS, TEXT, MASK, TYPES, POSITIONS = "input_ids", "text", "attention_mask", "token_type_ids", "position_ids"
INTEGERS = ("INT64", "INT32", "UINT64", "UINT32")
FLAGS = (*INTEGERS, "BOOL", "UINT8", "INT8")
DTYPE_NAMES = {"FP32": "float32", "FP16": "float16", "BF16": "bfloat16", "INT8": "int8", "UINT8": "uint8"}
ALL_DTYPES = (*DTYPES, *PRECISIONS)
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
    dtype: Annotated[
        str, _either(DTYPE_NAMES, ALL_DTYPES), Field(description=", ".join((*ALL_DTYPES, *DTYPE_NAMES)))
    ] = "float32"
    prompt_name: Annotated[str | None, Field(description="the name of one of the model's prompts")] = None
    task: Annotated[str | None, Field(description="one of the model's tasks, whose adapters and prompt are used")] = (
        None
    )
    input_type: Annotated[
        InputType | None, _either(SPELLINGS, tuple(USES)), Field(description=", ".join(SPELLINGS))
    ] = None
    max_active_dims: Annotated[int | None, Field(ge=1, description="a whole number from 1")] = None
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
        activation: that makes `scores` of logits; None: the model gives none.
    """

    request: EmbedRequest
    outputs: tuple[str, ...]
    spans: Spans | None
    max_bytes: int
    activation: ScoreActivation | None = None


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
    if DOCUMENTS in tensors:
        rows = _pairs(_strings(tensors[QUERY]), tensors[DOCUMENTS])
    elif TEXT in tensors:
        rows = _texts(tensors)
    else:
        rows, spans = _sequences(card, tensors, settings)
    activation = score_activation(card)
    computed = {SPARSE_INDICES: SPARSE, SPARSE_LENGTHS: SPARSE} | ({SCORES: CLASS_LOGITS} if activation else {})
    options = EmbedOptions(
        outputs=tuple(dict.fromkeys([computed.get(name, name) for name in names if name != LENGTHS])),
        truncate=parameters.truncate,
        truncation_direction=parameters.truncation_direction,
        normalize=parameters.normalize,
        dimensions=parameters.dimensions,
        pooling=parameters.pooling,
        dtype=parameters.dtype,
        prompt_name=parameters.prompt_name,
        task=parameters.task,
        input_type=parameters.input_type,
        max_active_dims=parameters.max_active_dims,
    )
    return Prepared(EmbedRequest(rows, card.name, options), names, spans, settings.max_answer_bytes, activation)


def outputs_of(result: EmbedResult, prepared: Prepared) -> list[Tensor]:
    """Return the tensors of a result, in the shape that the request had."""
    tensors = {output.name: _tensor(output, prepared) for output in result.outputs if output.indices is None}
    sparse = [tensor for output in result.outputs if output.indices is not None for tensor in _sparse(output)]
    tensors |= {tensor.name: tensor for tensor in sparse}
    names = prepared.outputs
    if SCORES in names and prepared.activation:
        logits = next(output.rows for output in result.outputs if output.name == CLASS_LOGITS)
        scores = ACTIVATIONS[prepared.activation](logits.astype(np.float64)).astype(logits.dtype)
        tensors[SCORES] = Tensor(SCORES, DATATYPE_OF[scores.dtype.type], scores.shape, scores)
    if not prepared.request.options.outputs:
        (default,) = result.outputs
        if not names:
            names = (default.name,) if default.pooled or _spans(default, prepared) else (default.name, LENGTHS)
            names = tuple([tensor.name for tensor in sparse]) or names
    if LENGTHS in names:
        rows = (output.lengths for output in result.outputs if not output.pooled and output.indices is None)
        counted = next(rows, result.lengths)
        tensors[LENGTHS] = Tensor(LENGTHS, "INT64", (len(counted),), np.array(counted, np.int64))
    return [tensors[name] for name in names]


def _sparse(output: Output) -> list[Tensor]:
    indices, values = output.indices, output.rows[:, 0]
    assert indices is not None
    lengths = np.array(output.lengths, np.int64)
    return [
        Tensor(output.name, DATATYPE_OF[values.dtype.type], values.shape, values),
        Tensor(SPARSE_INDICES, "INT32", indices.shape, indices),
        Tensor(SPARSE_LENGTHS, "INT64", lengths.shape, lengths),
    ]


def _tensor(output: Output, prepared: Prepared) -> Tensor:
    rows = output.rows
    datatype = DATATYPE_OF[rows.dtype.type]
    if output.pooled:
        return Tensor(output.name, datatype, rows.shape, rows)
    spans, left = _spans(output, prepared), prepared.request.options.truncation_direction == "left"
    if spans is None:
        spans, left = right_padded(output.lengths), False
    array = placed(rows, output.lengths, spans, left)
    return Tensor(output.name, datatype, array.shape, array)


def _spans(output: Output, prepared: Prepared) -> Spans | None:
    """Return where the rows of an output lie in the caller's tensors; None: it has no row for each of their tokens."""
    return None if output.name == MULTI_VECTOR else prepared.spans


def padded_bytes(result: EmbedResult, prepared: Prepared) -> int:
    """Return the bytes of the token rows of a result with their padding.

    Raises:
        TooLarge: padding makes them larger than this server sends.
    """
    size = 0
    for output in result.outputs:
        if not output.pooled and output.indices is None:
            spans = _spans(output, prepared)
            shape = spans.shape if spans else (len(output.lengths), max(output.lengths))
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
    for first, second in ((QUERY, DOCUMENTS), (TEXT, PAIR)):
        if others := tensors.keys() - {first, second} if first in tensors else ():
            received = f"came with {', '.join(sorted(others))}"
            raise ConflictingFields(received, field=input_field(first), remedy="send texts or token ids, not both")
    for name, other in ((QUERY, DOCUMENTS), (DOCUMENTS, QUERY), (PAIR, TEXT)):
        if name in tensors and other not in tensors:
            raise MissingField(f'"{other}" is missing', allowed=f'"{name}" came', remedy="send both")
    if not tensors.keys() & {TEXT, IDS, QUERY}:
        required = f'"{IDS}" or "{TEXT}"' if TEXT in allowed else f'"{IDS}"'
        received = ", ".join(map(repr, tensors)) or "no inputs"
        raise MissingField(f"{required} is missing", allowed=f"{received} came")
    return tensors


def input_names(card: Card) -> tuple[str, ...]:
    """Return the names of the tensors a model takes."""
    texts = text_names(card)
    extras = [extra.name for extra in card.extras if extra.sent]
    return (*texts, IDS, MASK, LENGTHS, TYPES, POSITIONS, *extras)


def text_names(card: Card) -> tuple[str, ...]:
    """Return the names of the tensors of texts a model takes."""
    pairs = (PAIR, QUERY, DOCUMENTS) if reads_pairs(card) else ()
    return (TEXT, *pairs) if card.tokenizer else ()


def score_activation(card: Card) -> ScoreActivation | None:
    """Return what makes `scores` of a model's logits; None: it gives a text none."""
    if card.classifier is None or not classifies(card):
        return None
    return card.classifier.activation if card.classifier.ranks else label_activation(card.classifier)


def _texts(tensors: Mapping[str, Tensor]) -> list[Input]:
    texts = _strings(tensors[TEXT])
    return _pairs(texts, tensors[PAIR]) if PAIR in tensors else [Text(text) for text in texts]


def _pairs(texts: list[str], pairs: Tensor) -> list[Input]:
    """Return each text with its own pair, or one text with each."""
    others = _strings(pairs)
    if len(texts) not in (1, len(others)):
        raise _shape_error(pairs, f"[{len(texts)}], as many as the texts, or one text with any number")
    texts = texts * len(others) if len(texts) == 1 else texts
    return [Text(text, other) for text, other in zip(texts, others, strict=True)]


def _strings(tensor: Tensor) -> list[str]:
    if tensor.datatype != BYTES or not isinstance(tensor.data, list):
        raise _datatype_error(tensor, (BYTES,))
    if len(tensor.shape) not in (1, 2) or (len(tensor.shape) == 2 and tensor.shape[1] != 1):
        raise _shape_error(tensor, "[B] or [B, 1]")
    return [_text(tensor.name, index, raw) for index, raw in enumerate(tensor.data)]


def _text(name: str, index: int, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        received = f"is not UTF-8: {error.reason} at byte {error.start}"
        raise WrongType(received, field=(*input_field(name), index)) from None


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
    check_inputs(len(spans.starts), settings.max_inputs)  # before each is an object
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
