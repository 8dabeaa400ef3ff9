"""Tensors → EmbedRequest, EmbedResult → tensors, and the way between them. Knows neither HTTP nor gRPC.

What a request may hold
    input_ids        [B, T], padded on either side where attention_mask [B, T] says so, or flat [N] with lengths [B]
    attention_mask, token_type_ids, position_ids and a family's extras: shaped as input_ids (bbox: one axis more)
    text             BYTES [B] or [B, 1], UTF-8, instead of all of these
Answers are [B, d] where pooled; else [B, T, d] as padded as the ids came, [N, d] for flat ids, and for texts [B, T, d]
padded with zeros on the right. `lengths` [B], rows of each, may be asked for, and comes unasked with rows of texts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from models.artifacts.card import Card
from models.families.extra_inputs import Extra
from service.context import ServiceContext
from service.embedding.context import ANONYMOUS, RequestContext
from service.embedding.model import Model
from service.embedding.requests import (
    EmbedRequest,
    EmbedResult,
    Ids,
    Input,
    Int64s,
    Output,
    Text,
)
from service.errors import BadInput, BadRequest, EmptyRequest, NotFound, TooLarge
from service.protocols.oip.datatypes import BYTES, NAMES
from service.protocols.oip.padding import (
    LENGTHS,
    Spans,
    placed,
    right_padded,
    spans_of,
)
from service.protocols.oip.parameters import options_of, seconds_of
from service.protocols.oip.tensors import Tensor
from service.scheduling import deadlines
from service.settings import Settings

VERSION = "1"
IDS, TEXT, MASK, TYPES, POSITIONS = "input_ids", "text", "attention_mask", "token_type_ids", "position_ids"
INTEGERS = ("INT64", "INT32", "UINT64", "UINT32")
FLAGS = (*INTEGERS, "BOOL", "UINT8", "INT8")


class Asked(NamedTuple):
    """A request on its way, and what its answer needs to be put back into the caller's shape.

    wanted       names of outputs, `lengths` among them; empty: the default
    spans        where the sequences lay; None: they were texts
    max_bytes    of token rows in an answer, padding counted
    """

    request: EmbedRequest
    wanted: tuple[str, ...]
    spans: Spans | None
    max_bytes: int


async def infer(
    context: ServiceContext,
    name: str,
    version: str,
    inputs: Sequence[Tensor],
    parameters: Mapping[str, Any],
    wanted: Sequence[str],
    call: RequestContext = ANONYMOUS,
) -> tuple[str, list[Tensor]]:
    """The name of the model that answered and its output tensors, in the order of `wanted`; counted for its statistics.

    name, version   "" for the server's default model, and for its one version
    parameters      of the request; those that are not ours are ignored
    wanted          names of outputs; empty: the model's default one
    raises          an InlayError
    """
    card = model_of(context, name, version).card
    started = perf_counter()
    try:
        asked = request_of(card, inputs, parameters, wanted, context.settings)
        if (seconds := seconds_of(parameters)) is not None:
            until = started + seconds
            call = replace(call, deadline=until if call.deadline is None else min(call.deadline, until))
        async with deadlines.within(call.deadline):
            result = await context.embedder.embed(asked.request, call)
        outputs = outputs_of(result, asked)
    except Exception:
        context.statistics.failed(card.name, perf_counter() - started)
        raise
    context.statistics.succeeded(card.name, len(asked.request.inputs), perf_counter() - started, result.times)
    return result.model, outputs


def model_of(context: ServiceContext, name: str, version: str = "") -> Model:
    """The model of that name; there is one version of each, "1".

    raises   NotFound
    """
    model = context.registry.get(name)
    if version not in ("", VERSION):
        raise NotFound(f"{model.card.name} has no version {version!r}; it has {VERSION!r}")
    return model


def request_of(
    card: Card, inputs: Sequence[Tensor], parameters: Mapping[str, Any], wanted: Sequence[str], settings: Settings
) -> Asked:
    """The request these tensors stand for.

    raises   BadRequest, BadInput or TooLarge naming the tensor, what came and what is allowed
    """
    options, tensors, names = options_of(parameters), _by_name(card, inputs), tuple(wanted)
    if len(set(names)) < len(names):
        raise BadRequest(f"outputs names one twice: {', '.join(names)}; ask for each once")
    spans, given = None, list[Input]()
    if TEXT in tensors:
        given = _texts(tensors)
    else:
        given, spans = _sequences(card, tensors, settings.max_request_tokens)
    outputs = tuple([name for name in names if name != LENGTHS])
    return Asked(EmbedRequest(given, card.name, outputs, *options), names, spans, settings.max_answer_bytes)


def outputs_of(result: EmbedResult, asked: Asked) -> list[Tensor]:
    """The tensors of a result, put back into the shape the request had.

    raises   TooLarge where padding makes an answer larger than the server sends
    """
    _check_size(result, asked)
    found = {output.name: _tensor(output, asked) for output in result.outputs}
    names = asked.wanted
    if not asked.request.outputs:
        (default,) = result.outputs
        if not names:
            names = (default.name,) if default.pooled or asked.spans else (default.name, LENGTHS)
    if LENGTHS in names:
        counted = next((output.lengths for output in result.outputs if not output.pooled), result.lengths)
        found[LENGTHS] = Tensor(LENGTHS, "INT64", (len(counted),), np.array(counted, np.int64))
    return [found[name] for name in names]


def _tensor(output: Output, asked: Asked) -> Tensor:
    rows = output.rows
    datatype = NAMES[rows.dtype.type]
    if output.pooled:
        return Tensor(output.name, datatype, rows.shape, rows)
    spans, left = asked.spans, asked.request.truncation_direction == "left"
    if spans is None:
        spans, left = right_padded(output.lengths), False
    array = placed(rows, output.lengths, spans, left)
    return Tensor(output.name, datatype, array.shape, array)


def _check_size(result: EmbedResult, asked: Asked) -> None:
    size = 0
    for output in result.outputs:
        if not output.pooled:
            shape = asked.spans.shape if asked.spans else (len(output.lengths), max(output.lengths))
            size += math.prod(shape) * output.rows.shape[1] * output.rows.itemsize
    if size > asked.max_bytes:
        raise TooLarge(
            f"padded, the outputs are {size} bytes; this server answers with {asked.max_bytes} at most: send sequences "
            "of like length together, or flat ids"
        )


def _by_name(card: Card, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
    tensors = {tensor.name: tensor for tensor in inputs}
    if len(tensors) < len(inputs):
        raise BadRequest(f"inputs holds a tensor twice: {', '.join([each.name for each in inputs])}; send each once")
    allowed = input_names(card)
    if unknown := [name for name in tensors if name not in allowed]:
        raise BadRequest(f"{card.name} has no input {unknown[0][:80]!r}; allowed: {', '.join(allowed)}")
    if TEXT in tensors and len(tensors) > 1:
        raise BadRequest(f'"{TEXT}" came with {", ".join(tensors.keys() - {TEXT})}: send texts or token ids, not both')
    if TEXT not in tensors and IDS not in tensors:
        wanted = f'"{IDS}" or "{TEXT}"' if TEXT in allowed else f'"{IDS}"'
        came = ", ".join(map(repr, tensors)) or "no inputs"
        raise BadRequest(f"{wanted} is missing; {came} came")
    return tensors


def input_names(card: Card) -> tuple[str, ...]:
    """The names of the tensors a model takes."""
    texts = (TEXT,) if card.tokenizer else ()
    extras = [extra.name for extra in card.extras if extra.sent]
    return (*texts, IDS, MASK, LENGTHS, TYPES, POSITIONS, *extras)


def _texts(tensors: dict[str, Tensor]) -> list[Input]:
    tensor = tensors[TEXT]
    if tensor.datatype != BYTES or not isinstance(tensor.data, list):
        raise _datatype(tensor, (BYTES,))
    if len(tensor.shape) not in (1, 2) or (len(tensor.shape) == 2 and tensor.shape[1] != 1):
        raise BadRequest(f'input "{TEXT}" has shape {list(tensor.shape)}; allowed: [B] or [B, 1]')
    return [_text(index, raw) for index, raw in enumerate(tensor.data)]


def _text(index: int, raw: bytes) -> Text:
    try:
        return Text(raw.decode())
    except UnicodeDecodeError as error:
        raise BadInput(f"element {index} of {TEXT} is not UTF-8: {error.reason} at byte {error.start}", index) from None


def _sequences(card: Card, tensors: dict[str, Tensor], max_tokens: int) -> tuple[list[Input], Spans]:
    """Each sequence's ids and what goes with them, padding left out."""
    ids = tensors[IDS]
    values = _integers(ids, INTEGERS)
    if not len(values):
        raise EmptyRequest(f'input "{IDS}" has shape {list(ids.shape)}: send one token id at least')
    if len(values) > max_tokens:
        raise TooLarge(f'input "{IDS}" has {len(values)} elements; this server takes {max_tokens} a request')
    mask = _mask(tensors[MASK], ids) if MASK in tensors else None
    spans = spans_of(ids, _lengths(tensors.get(LENGTHS)), mask)
    beside = {name: _beside(tensors[name], ids) for name in (TYPES, POSITIONS) if name in tensors}
    extras = {extra.name: _extra(extra, tensors[extra.name], ids) for extra in card.extras if extra.name in tensors}
    sent = mask if card.mask_from == "pad_count" or spans.holes is not None else None
    if not beside and not extras and sent is None:
        return _bare(values, spans), spans
    return [_cut(span, values, sent, beside, extras) for span in spans.bounds], spans


def _bare(ids: Int64s, spans: Spans) -> list[Input]:
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
        raise BadRequest(f'input "{MASK}" holds {odd}; allowed: 0 and 1')
    return mask


def _lengths(tensor: Tensor | None) -> Int64s | None:
    if tensor is None:
        return None
    if len(tensor.shape) != 1:
        raise BadRequest(f'input "{LENGTHS}" has shape {list(tensor.shape)}; allowed: [B]')
    return _integers(tensor, INTEGERS)


def _beside(tensor: Tensor, ids: Tensor, datatypes: tuple[str, ...] = INTEGERS) -> Int64s:
    if tensor.shape != ids.shape:
        raise BadRequest(
            f'input "{tensor.name}" has shape {list(tensor.shape)}; allowed: that of {IDS}, {list(ids.shape)}'
        )
    return _integers(tensor, datatypes)


def _extra(extra: Extra, tensor: Tensor, ids: Tensor) -> Int64s:
    if extra.columns == 1:
        return _beside(tensor, ids)
    if tensor.shape != (*ids.shape, extra.columns):
        raise BadRequest(
            f'input "{tensor.name}" has shape {list(tensor.shape)}; allowed: {[*ids.shape, extra.columns]}'
        )
    return _integers(tensor, INTEGERS).reshape(-1, extra.columns)


def _integers(tensor: Tensor, datatypes: tuple[str, ...]) -> Int64s:
    """The elements, flat, as int64."""
    values = tensor.data
    if tensor.datatype not in datatypes or isinstance(values, list):
        raise _datatype(tensor, datatypes)
    flat = values.reshape(-1)
    if tensor.datatype == "UINT64" and flat.size and flat.max() >= 1 << 63:
        raise BadRequest(f'input "{tensor.name}" holds {flat.max()}; allowed: below 2**63')
    return flat.astype(np.int64, copy=False)


def _datatype(tensor: Tensor, allowed: tuple[str, ...]) -> BadRequest:
    return BadRequest(f'input "{tensor.name}" has datatype {tensor.datatype}; allowed: {", ".join(allowed)}')
