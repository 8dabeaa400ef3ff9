"""Late chunking: the whole text is encoded once, and each of its spans is pooled by itself.

Source: Günther et al. 2024, arXiv:2409.04701, and its code, jina-ai/late-chunking.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import Card
from models.checkpoints.sentence_transformers import JOIN
from service.embedding import validation
from service.embedding.output_plan import HIDDEN, POOLED, Plan
from service.embedding.pooling import SPAN_POOLINGS, pool
from service.embedding.reduction import PromptTokens
from service.embedding.requests import Chunking, Chunks, EmbedRequest, Ids, Int64s, Spans, Text
from service.embedding.sparse_vectors import INDICES as SPARSE_INDICES
from service.embedding.token_offsets import OwnTokens, own_ids
from service.errors import BadInput, ConflictingFields, MissingField, OutOfRange, TooLarge, TooManyInputs, WrongShape
from service.settings import Settings

INLINE_INPUTS = 24  # whose spans are placed on the event loop: half a millisecond
INLINE_VALUES = 1 << 17  # of hidden states that are pooled on the event loop, and as many spans take as long:
SPAN_VALUES = 1 << 13
OTHER_POOLING = 'leave it out, or send "pooling": "mean" for the plain mean of each span'
Rows = dict[str, NDArray[Any]]


def field_of(request: EmbedRequest) -> str:
    """Return the name of the field that asks for spans."""
    return "chunking" if isinstance(request.spans, Chunking) else "spans"


def check(card: Card, plan: Plan, request: EmbedRequest, settings: Settings) -> None:
    """Raise an InlayError for spans that a model cannot pool or that are wrong in themselves; tokens are not known yet.

    Raises:
        ConflictingFields: the model or the request makes no vectors of spans.
        OutOfRange, WrongShape, TooManyInputs: the spans do not fit the inputs, or there are too many.
    """
    spans, field = request.spans, (field_of(request),)
    if POOLED not in plan.outputs:
        raise ConflictingFields(
            f"applies to {POOLED} alone, and {card.name} was asked for {', '.join(plan.outputs)}",
            field=field,
            remedy=f"leave it out or ask for {POOLED}",
        )
    _check_mode(card, plan, field)
    if any(isinstance(item, Text) and item.pair is not None for item in request.inputs):
        raise ConflictingFields(
            "makes spans of a text, and an input is a pair", field=field, remedy="send texts or token ids"
        )
    if isinstance(spans, Chunking):
        if spans.size < 1:
            raise OutOfRange(f"is {spans.size}", field=("chunking", "size"), allowed="a chunk has one token at least")
        if not 0 <= spans.overlap < spans.size:
            allowed = f"it is 0 to {spans.size - 1}, less than size"
            raise OutOfRange(f"is {spans.overlap}", field=("chunking", "overlap"), allowed=allowed)
    elif spans is not None:
        _check_spans(spans, request, settings)


def _check_mode(card: Card, plan: Plan, field: tuple[str, ...]) -> None:
    if plan.mode is None:
        raise ConflictingFields(
            f"needs hidden states to pool, and {card.name} gives sentence vectors as they are",
            field=field,
            remedy=OTHER_POOLING if HIDDEN in card.outputs else "leave it out",
        )
    if single := [mode for mode in plan.mode.split(JOIN) if mode not in SPAN_POOLINGS]:
        raise ConflictingFields(
            f"is sent, and {card.name} pools one token ({single[0]}), which a span does not have",
            field=field,
            allowed=f"spans are pooled by {', '.join(SPAN_POOLINGS)}",
            remedy=OTHER_POOLING,
        )


def _check_spans(spans: Spans, request: EmbedRequest, settings: Settings) -> None:
    if len(spans.counts) != len(request.inputs):
        raise WrongShape(
            f"has lists for {len(spans.counts)} inputs, and {len(request.inputs)} came",
            field=("spans",),
            remedy="send a list of spans for each input",
        )
    if 0 in spans.counts:
        index = spans.counts.index(0)
        raise MissingField("is empty", field=("spans", index), remedy="send one span at least")
    _check_count(len(spans.bounds), settings)
    starts, stops = spans.bounds.T
    _raise_first(spans, (starts < 0) | (starts >= stops), "a span is [start, stop], 0 <= start < stop")
    if spans.unit == "characters":
        lengths = [len(item.text) if isinstance(item, Text) else -1 for item in request.inputs]
        if -1 in lengths:
            raise ConflictingFields(
                "counts characters, and the input is token ids",
                field=("spans", lengths.index(-1)),
                remedy='send "span_unit": "tokens"',
            )
        _raise_first(spans, stops > np.repeat(lengths, spans.counts), "it ends behind the input's last character")


def _check_count(count: int, settings: Settings) -> None:
    if count > settings.max_inputs:
        raise TooManyInputs(
            f"{count} spans", allowed=f"this server takes {settings.max_inputs} a request", remedy="send fewer"
        )


def _raise_first(spans: Spans, wrong: NDArray[np.bool_], allowed: str) -> None:
    """Raise OutOfRange for the first span that is wrong, if there is one."""
    if wrong.any():
        place = int(np.argmax(wrong))
        ends = np.cumsum(spans.counts)
        index = int(np.searchsorted(ends, place, side="right"))
        number = place - int(ends[index]) + spans.counts[index]
        raise OutOfRange(f"is {spans.bounds[place].tolist()}", field=("spans", index, number), allowed=allowed)


# ---- from spans to hidden states


async def placed(
    request: EmbedRequest,
    ids: Sequence[Ids],
    located: Mapping[int, OwnTokens],
    prompts: PromptTokens,
    settings: Settings,
) -> tuple[Chunks, ...]:
    """Return the chunks of each input.

    Args:
        ids: of each input, as they are read.
        located: the own tokens of each text by its number.
        prompts: leading tokens by the number of the input that pooling leaves out.

    Raises:
        BadInput, OutOfRange: a span covers no token that is read.
        TooLarge: there are too many chunks, or they have too many tokens together.
    """
    if len(ids) <= INLINE_INPUTS:
        return _placed(request, ids, located, prompts, settings)
    return await asyncio.to_thread(_placed, request, ids, located, prompts, settings)


def _placed(
    request: EmbedRequest,
    ids: Sequence[Ids],
    located: Mapping[int, OwnTokens],
    prompts: PromptTokens,
    settings: Settings,
) -> tuple[Chunks, ...]:
    left = request.options.truncation_direction == "left"
    chunks: list[Chunks] = []
    ends = np.cumsum(request.spans.counts).tolist() if isinstance(request.spans, Spans) else ()
    count = tokens = 0
    for index, (item, sequence) in enumerate(zip(request.inputs, ids, strict=True)):
        own = own_ids(item, sequence, left) if isinstance(item, Ids) else located[index]
        spans = request.spans
        if isinstance(spans, Chunking):
            _check_count(count + _chunk_count(len(own.rows), spans), settings)
            places = _steps(index, len(own.rows), spans)
        else:
            assert spans is not None
            places = _places(index, spans, ends[index], own, sequence.cut)
        chunks.append(_chunks(index, places, own, sequence))
        rows = chunks[-1].rows
        if isinstance(spans, Spans) and spans.joined:
            first = prompts.get(index, 0)
            rows[0, 0] = first if first < rows[0, 1] else rows[0, 0]  # of a text whose beginning was cut off
            rows[-1, 1] = len(sequence.ids)
        count += len(places)
        tokens += int(np.diff(rows).sum())
        if tokens > settings.max_request_tokens:
            raise TooLarge(
                f"has chunks of {tokens} tokens together",
                field=(field_of(request),),
                allowed=f"this server takes {settings.max_request_tokens} a request",
                remedy="let them overlap less, or send fewer inputs",
            )
    return tuple(chunks)


def _chunk_count(tokens: int, chunking: Chunking) -> int:
    return max(1, -(-(tokens - chunking.overlap) // (chunking.size - chunking.overlap)))


def _steps(index: int, tokens: int, chunking: Chunking) -> Int64s:
    """Return the own tokens [start, stop) of every chunk."""
    if not tokens:
        raise BadInput("has no token of its own to make chunks of", field=("inputs", index), remedy="send some text")
    starts = np.arange(_chunk_count(tokens, chunking)) * (chunking.size - chunking.overlap)
    return np.stack([starts, np.minimum(starts + chunking.size, tokens)], axis=1)


def _places(index: int, spans: Spans, end: int, own: OwnTokens, cut: bool) -> Int64s:
    """Return the own tokens [start, stop) of every span of an input; a token that is partly inside counts.

    Args:
        end: of the input's spans among all.
    """
    bounds = spans.bounds[end - spans.counts[index] : end]
    if spans.unit == "tokens":
        beyond = bounds[:, 1] > own.total
        if beyond.any():
            number = int(np.argmax(beyond))
            received, allowed = f"is {bounds[number].tolist()}", f"the input has {own.total} tokens"
            raise OutOfRange(received, field=("spans", index, number), allowed=allowed)
        places = np.clip(bounds - own.skipped, 0, len(own.rows))
    else:
        assert own.starts is not None  # it is a text
        assert own.stops is not None
        starts = np.searchsorted(own.stops, bounds[:, 0], side="right")
        stops = np.searchsorted(own.starts, bounds[:, 1], side="left")
        places = np.stack([starts, stops], axis=1)
    empty = places[:, 0] >= places[:, 1]
    if empty.any():
        number = int(np.argmax(empty))
        received = "has no token" if spans.joined else f"is {bounds[number].tolist()} and covers no token"
        raise BadInput(
            received + " that is read, since the input was cut" * cut,
            field=("inputs", number) if spans.joined else ("spans", index, number),
            remedy="send less text, or leave it out" if cut else "leave it out",
        )
    return places


def _chunks(index: int, places: Int64s, own: OwnTokens, sequence: Ids) -> Chunks:
    first, last = places[:, 0], places[:, 1] - 1
    rows = np.stack([own.rows[first], own.rows[last] + 1], axis=1)
    if sequence.mask is not None:
        attended = np.concatenate(([0], np.cumsum(sequence.mask)))
        hidden = attended[rows[:, 0]] == attended[rows[:, 1]]
        if hidden.any():
            raise BadInput(
                "is all 0 in one of the spans",
                field=("inputs", index, "attention_mask"),
                allowed="a span needs one token to attend to",
            )
    characters = None
    if own.starts is not None and own.stops is not None:
        characters = np.stack([own.starts[first], own.stops[last]], axis=1)
    return Chunks(rows, places + own.skipped, characters)


# ---- pooling


async def pooled(plan: Plan, rows: Rows, sequence: Ids, chunks: Chunks) -> Rows:
    """Return the arrays of one input, its hidden states replaced by a vector of each chunk under POOLED [chunks, d]
    unless they are asked for themselves.
    """
    hidden = rows[HIDDEN]
    size = int(np.diff(chunks.rows).sum()) * hidden.shape[1] + SPAN_VALUES * len(chunks.rows)
    arguments = plan, hidden, sequence, chunks.rows
    vectors = _pooled(*arguments) if size <= INLINE_VALUES else await asyncio.to_thread(_pooled, *arguments)
    kept = {name: own for name, own in rows.items() if name in plan.outputs or name == SPARSE_INDICES}
    return kept | {POOLED: vectors}


def _pooled(plan: Plan, hidden: NDArray[np.float32], sequence: Ids, spans: Int64s) -> NDArray[np.float32]:
    assert plan.mode is not None
    attended = validation.attended(sequence)
    return np.stack([pool(plan.mode, hidden[start:stop], attended[start:stop]) for start, stop in spans.tolist()])
