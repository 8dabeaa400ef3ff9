"""Late chunking: the whole text is encoded once, and each of its spans is pooled separately.

Source: Günther et al. 2024, arXiv:2409.04701, and its code, jina-ai/late-chunking.
"""

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import Card
from models.checkpoints.sentence_transformers import JOIN
from service.embedding.limits import check_inputs
from service.embedding.outputs.dense import SentenceVector
from service.embedding.outputs.kind import HIDDEN, Job, Planning
from service.embedding.pooling import SPAN_POOLINGS, pool
from service.embedding.requests import Chunking, Chunks, EmbedRequest, Ids, Int64s, OwnTokens, Spans, Text
from service.embedding.tokenize.packing import Rows
from service.embedding.tokenize.text_tokens import own_ids
from service.errors import BadInput, ConflictingFields, MissingField, OutOfRange, TooLarge, WrongShape
from service.settings import Settings

OTHER_POOLING = 'leave it out, or send "pooling": "mean" for the plain mean of each span'


class SpanVectors(SentenceVector):
    """One vector for each span of an input."""

    fields = (*SentenceVector.fields, "spans", "chunking")
    checks = prepares = reduces_in_thread = locates = True
    pooled = False

    def __init__(self, planning: Planning, name: str) -> None:
        super().__init__(planning, name)
        self.cache_form = self.row_pooling = None
        self._field = planning.spans
        self._check_mode(planning.card, (self._field,))

    @classmethod
    def makes(cls, planning: Planning, name: str) -> bool:
        """Return whether spans were asked for."""
        return bool(planning.spans) and super().makes(planning._replace(spans=""), name)

    def _check_mode(self, card: Card, field: tuple[str, ...]) -> None:
        if self.mode is None:
            raise ConflictingFields(
                f"needs hidden states to pool, and {card.name} gives sentence vectors as they are",
                field=field,
                remedy=OTHER_POOLING if HIDDEN in card.outputs else "leave it out",
            )
        if single := [mode for mode in self.mode.split(JOIN) if mode not in SPAN_POOLINGS]:
            raise ConflictingFields(
                f"is sent, and {card.name} pools one token ({single[0]}), which a span does not have",
                field=field,
                allowed=f"spans are pooled by {', '.join(SPAN_POOLINGS)}",
                remedy=OTHER_POOLING,
            )

    def check(self, job: Job) -> None:
        """Raise an InlayError for spans that are invalid whatever the tokens are.

        Raises:
            ConflictingFields: an input is a pair.
            OutOfRange, WrongShape, TooManyInputs: the spans do not fit the inputs, or there are too many.
        """
        request, spans = job.request, job.request.late_chunking
        if any(isinstance(item, Text) and item.pair is not None for item in request.inputs):
            raise ConflictingFields(
                "makes spans of a text, and an input is a pair",
                field=(self._field,),
                remedy="send texts or token ids",
            )
        if isinstance(spans, Chunking):
            if spans.size < 1:
                raise OutOfRange(
                    f"is {spans.size}", field=("chunking", "size"), allowed="a chunk has one token at least"
                )
            if not 0 <= spans.overlap < spans.size:
                allowed = f"it is 0 to {spans.size - 1}, less than size"
                raise OutOfRange(f"is {spans.overlap}", field=("chunking", "overlap"), allowed=allowed)
        elif spans is not None:
            _check_spans(spans, request, job.settings)

    def prepare(self, job: Job) -> None:
        """Find the place of each input's spans among its hidden states."""
        job.chunks = _placed(job)
        job.vectors = sum([len(each.rows) for each in job.chunks])

    def reduce(self, job: Job, index: int, rows: Rows) -> Rows:
        """Return a vector of each span of an input, [spans, d]."""
        assert self.mode is not None
        hidden, counted = rows[HIDDEN], job.ids[index].attended
        places = job.chunks[index].rows.tolist()
        vectors = [pool(self.mode, hidden[start:stop], counted[start:stop]) for start, stop in places]
        return {self.name: np.stack(vectors)}


def field_of(request: EmbedRequest) -> str:
    """Return the name of the field that asks for spans; empty: the request has none."""
    asked = request.late_chunking
    return "" if asked is None else "chunking" if isinstance(asked, Chunking) else "spans"


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
    check_inputs(len(spans.bounds), settings.max_inputs, "spans")
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


def _raise_first(spans: Spans, wrong: NDArray[np.bool_], allowed: str) -> None:
    """Raise OutOfRange for the first invalid span, if there is one."""
    if wrong.any():
        place = int(np.argmax(wrong))
        ends = np.cumsum(spans.counts)
        index = int(np.searchsorted(ends, place, side="right"))
        number = place - int(ends[index]) + spans.counts[index]
        raise OutOfRange(f"is {spans.bounds[place].tolist()}", field=("spans", index, number), allowed=allowed)


# ---- from spans to hidden states


def _placed(job: Job) -> tuple[Chunks, ...]:
    """Return the chunks of each input.

    Raises:
        BadInput, OutOfRange: a span covers no token that is read.
        TooLarge: there are too many chunks, or they have too many tokens together.
    """
    request, settings = job.request, job.settings
    left = job.plan.cuts[0].direction == "left"
    chunks: list[Chunks] = []
    ends = np.cumsum(request.late_chunking.counts).tolist() if isinstance(request.late_chunking, Spans) else ()
    count = tokens = 0
    for index, (item, sequence) in enumerate(zip(request.inputs, job.ids, strict=True)):
        located = own_ids(item, sequence, left) if isinstance(item, Ids) else job.located[index]
        spans = request.late_chunking
        if isinstance(spans, Chunking):
            check_inputs(count + _chunk_count(len(located.rows), spans), settings.max_inputs, "spans")
            places = _steps(index, len(located.rows), spans)
        else:
            assert spans is not None
            places = _places(index, spans, ends[index], located, sequence.cut)
        chunks.append(_chunks(index, places, located, sequence))
        rows = chunks[-1].rows
        if isinstance(spans, Spans) and spans.joined:
            first = job.prompts.get(index, 0)
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


def _places(index: int, spans: Spans, end: int, located: OwnTokens, cut: bool) -> Int64s:
    """Return the own tokens [start, stop) of every span of an input; a token that is partly inside counts.

    Args:
        end: the last of the input's spans + 1, counted among all spans.
    """
    bounds = spans.bounds[end - spans.counts[index] : end]
    if spans.unit == "tokens":
        if located.total is not None and (beyond := bounds[:, 1] > located.total).any():
            number = int(np.argmax(beyond))
            received, allowed = f"is {bounds[number].tolist()}", f"the input has {located.total} tokens"
            raise OutOfRange(received, field=("spans", index, number), allowed=allowed)
        places = np.clip(bounds - located.skipped, 0, len(located.rows))
    else:
        assert located.starts is not None  # it is a text
        assert located.stops is not None
        starts = np.searchsorted(located.stops, bounds[:, 0], side="right")
        stops = np.searchsorted(located.starts, bounds[:, 1], side="left")
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


def _chunks(index: int, places: Int64s, located: OwnTokens, sequence: Ids) -> Chunks:
    first, last = places[:, 0], places[:, 1] - 1
    rows = np.stack([located.rows[first], located.rows[last] + 1], axis=1)
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
    if located.starts is not None and located.stops is not None:
        characters = np.stack([located.starts[first], located.stops[last]], axis=1)
    return Chunks(rows, places + located.skipped, characters)
