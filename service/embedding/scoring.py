"""Scoring: the scores of pairs of texts, long documents cut or split into chunks, of which the best counts."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import Card
from models.recipes.heads import ScoreActivation
from service.embedding import limits
from service.embedding.classifying import reads_pairs
from service.embedding.model import Model
from service.embedding.output_plan import POOLED
from service.embedding.pair_templates import added_tokens
from service.embedding.pipeline import COUNTED_CHARACTERS, EmbeddingPipeline
from service.embedding.ranking import Ranks, rank, score_pairs
from service.embedding.requests import Direction, EmbedOptions, EmbedRequest, EmbedResult, Text
from service.embedding.tokenization import Span
from service.errors import TooLong, TooManyInputs, WrongModelKind
from service.request_context import RequestContext
from service.scheduling.memory_budget import MemoryBudget
from service.settings import Settings

MOST_TOGETHER = 16  # queries of one request that wait or run
CHARACTER_BYTES = 256  # of memory for a character whose tokens' places are kept
Scores = NDArray[np.float64]


def ranks_pairs(card: Card) -> bool:
    """Return whether `rank` takes a model: a cross-encoder, or one that compares vectors of tokens."""
    return bool((card.classifier and card.classifier.ranks) or card.multi_vector)


class Reading(NamedTuple):
    """How pairs are read. None and 0 set no limit.

    Args:
        truncate: as of EmbedOptions.
        direction: as of EmbedOptions.
        activation: of the logits; None: the model's own.
        max_tokens: of a pair.
        max_query_tokens: of the first part of a pair; the rest of it is not read.
        max_document_tokens: of the second part.
        max_chunks: of a document that does not fit beside its query; None: it is cut.
        instruction: what a causal reranker is to judge by; None: its own.
        cosine: a model of sentence vectors scores a pair by their cosine; False: it is refused.
    """

    truncate: bool | None = None
    direction: Direction = "right"
    activation: ScoreActivation | None = None
    max_tokens: int | None = None
    max_query_tokens: int | None = None
    max_document_tokens: int | None = None
    max_chunks: int | None = None
    instruction: str | None = None
    cosine: bool = False


class _Parts(NamedTuple):
    """The pairs that the model reads.

    Args:
        pairs: of a query and a document, or a chunk of one.
        owners: the number of the pair that each is of, in order.
        cut: numbers of the pairs of which a part is not read.
    """

    pairs: Sequence[tuple[str, str]]
    owners: Sequence[int]
    cut: Sequence[int]


class Scorer:
    """Scores pairs of texts.

    Args:
        embedder: runs the models.
        budget: of the memory of all requests.
        settings: the limits of one request.
    """

    def __init__(self, embedder: EmbeddingPipeline, budget: MemoryBudget, settings: Settings) -> None:
        self._embedder, self._budget, self._settings = embedder, budget, settings

    async def score(
        self, model: Model, pairs: Sequence[tuple[str, str]], context: RequestContext, reading: Reading
    ) -> Ranks:
        """Return the score of each pair, which does not depend on the others.

        Raises:
            WrongModelKind: the model scores no pairs.
            TooLong: a query leaves no room for a chunk.
            InlayError: as of EmbeddingPipeline.embed.
        """
        limits.check_count(pairs, self._settings)
        if not (reading.max_query_tokens or reading.max_document_tokens or reading.max_chunks):
            return await self._scored(model, pairs, context, reading)
        parts = await self._parts(model, pairs, reading)
        if reading.max_chunks:  # a chunk may have more tokens by itself than in its document
            reading = reading._replace(truncate=True)
        ranks = await self._scored(model, parts.pairs, context, reading)
        starts = np.flatnonzero(np.diff(parts.owners, prepend=-1))
        cut = tuple(sorted({*parts.cut, *(parts.owners[index] for index in ranks.result.truncated)}))
        context.truncated = cut
        return Ranks(np.maximum.reduceat(ranks.scores, starts), ranks.result._replace(truncated=cut))

    async def _scored(
        self, model: Model, pairs: Sequence[tuple[str, str]], context: RequestContext, reading: Reading
    ) -> Ranks:
        card = model.card
        if reading.cosine and card.default_output == POOLED and not (card.classifier and card.classifier.ranks):
            return await self._cosines(model, pairs, context, reading)
        return await self.score_each(model, pairs, context, [reading] * len(pairs))

    async def score_each(
        self, model: Model, pairs: Sequence[tuple[str, str]], context: RequestContext, readings: Sequence[Reading]
    ) -> Ranks:
        """Return the score of each pair, read as its own `Reading` says; one in parts, and cosines, are not read here.

        Raises:
            WrongModelKind: the model is no re-ranker.
            InlayError: as of EmbeddingPipeline.embed.
        """
        one_query = not reads_pairs(model.card)
        places: dict[tuple[str, Reading], list[int]] = {}
        for index, ((query, _), reading) in enumerate(zip(pairs, readings, strict=True)):
            places.setdefault((query if one_query else "", reading), []).append(index)
        together = asyncio.Semaphore(MOST_TOGETHER)  # all at once would fill the queue
        calls = [
            asyncio.ensure_future(self._read(model, [pairs[index] for index in own], context, reading, together))
            for (_, reading), own in places.items()
        ]
        try:
            ranked = await asyncio.gather(*calls)
        except BaseException:
            for call in calls:
                call.cancel()
            raise
        scores = np.empty(len(pairs))
        for own, ranks in zip(places.values(), ranked, strict=True):
            scores[own] = ranks.scores
        result = _together([ranks.result for ranks in ranked], list(places.values()))
        context.truncated = result.truncated
        return Ranks(scores, result)

    async def _read(
        self,
        model: Model,
        pairs: Sequence[tuple[str, str]],
        context: RequestContext,
        reading: Reading,
        together: asyncio.Semaphore,
    ) -> Ranks:
        """Return the scores of pairs, of one query unless a cross-encoder reads them."""
        card, (truncate, direction, activation, most, *_) = model.card, reading
        if card.classifier and card.classifier.ranks and reads_pairs(card):
            texts, how = [Text(*pair) for pair in pairs], activation or card.classifier.activation
            return await score_pairs(
                self._embedder, model, texts, context, truncate, direction, how, max_tokens=most or None
            )
        async with together:
            query, documents = pairs[0][0], [document for _, document in pairs]
            return await rank(
                self._embedder,
                model,
                query,
                documents,
                context,
                truncate,
                direction,
                activation,
                instruction=reading.instruction,
                max_tokens=most or None,
            )

    async def _cosines(
        self, model: Model, pairs: Sequence[tuple[str, str]], context: RequestContext, reading: Reading
    ) -> Ranks:
        """Return the cosine of the vectors of each pair; each text is embedded once."""
        numbers = {text: number for number, text in enumerate(dict.fromkeys(text for pair in pairs for text in pair))}
        options = EmbedOptions(
            (POOLED,), reading.truncate, reading.direction, normalize=True, max_tokens=reading.max_tokens or None
        )
        request = EmbedRequest([Text(text) for text in numbers], model.card.name, options)
        result = await self._embedder.embed(request, context)
        rows = result.outputs[0].rows.astype(np.float64)
        one, other = ([numbers[pair[side]] for pair in pairs] for side in (0, 1))
        scores = np.einsum("nd,nd->n", rows[one], rows[other])
        cut = tuple(
            index
            for index, pair in enumerate(pairs)
            if not {numbers[text] for text in pair}.isdisjoint(result.truncated)
        )
        context.truncated = cut
        return Ranks(scores, result._replace(truncated=cut))

    async def _parts(self, model: Model, pairs: Sequence[tuple[str, str]], reading: Reading) -> _Parts:
        """Return the pairs with queries and documents cut, and long documents in chunks."""
        card, tokenizer = model.card, model.tokenizer
        if tokenizer is None:
            raise WrongModelKind(f"{card.name} was exported without a tokenizer", allowed="it reads ids alone")
        texts = [Text(query, document) for query, document in pairs]
        characters = limits.check_characters(texts, self._settings)
        lengths = (card.max_tokens, self._settings.max_input_tokens or None, reading.max_tokens or None)
        longest = min([length for length in lengths if length is not None], default=None)
        with self._budget.held_for(CHARACTER_BYTES * characters if characters > COUNTED_CHARACTERS else 0):
            distinct = list(dict.fromkeys(text for pair in pairs for text in pair))
            spans = dict(zip(distinct, await tokenizer.spans(distinct), strict=True))
            template = card.classifier and card.classifier.template
            added = added_tokens(template, tokenizer) if template else tokenizer.added_to_pairs
            parts = await asyncio.to_thread(_split, pairs, spans, added, longest, reading)
        if (count := len(parts.pairs)) > self._settings.max_inputs:
            raise TooManyInputs(
                f"make {count} chunks",
                field=("documents",),
                allowed=f"this server takes {self._settings.max_inputs} a request",
                remedy="send fewer documents, or a smaller max_chunks_per_doc",
            )
        return parts


def _split(
    pairs: Sequence[tuple[str, str]],
    spans: dict[str, list[Span]],
    added: int,
    longest: int | None,
    reading: Reading,
) -> _Parts:
    made: list[tuple[str, str]] = []
    owners: list[int] = []
    cut: list[int] = []
    for index, (query, document) in enumerate(pairs):
        places, query_tokens = spans[document], len(spans[query])
        kept = query
        if reading.max_query_tokens and query_tokens > reading.max_query_tokens:
            query_tokens = reading.max_query_tokens
            kept = _sliced(query, spans[query], 0, query_tokens)
        read = min(len(places), reading.max_document_tokens or len(places))
        room = read
        if reading.max_chunks and longest is not None:
            room = longest - added - query_tokens
            if room < 1:
                raise TooLong(
                    f"has {query_tokens} tokens",
                    field=("query",),
                    allowed=f"the model reads {longest} with the document's and {added} special ones",
                    remedy="shorten it or leave max_chunks_per_doc out, so that the longer part is cut",
                )
        starts = range(0, read, room)[: reading.max_chunks or 1] if read else range(1)
        made += [(kept, _sliced(document, places, start, min(start + room, read))) for start in starts]
        owners += [index] * len(starts)
        if kept is not query or min(starts[-1] + room, read) < len(places):
            cut.append(index)
    return _Parts(made, owners, cut)


def _sliced(text: str, places: list[Span], start: int, stop: int) -> str:
    """Return the part of a text that holds its tokens from `start` to `stop`; the text itself where that is all."""
    if start == 0 and stop == len(places):
        return text
    return text[places[start][0] : places[stop - 1][1]]


def _together(results: Sequence[EmbedResult], places: Sequence[Sequence[int]]) -> EmbedResult:
    """Return the facts of several results as of one, for pairs at these places."""
    cut = [own[index] for result, own in zip(results, places, strict=True) for index in result.truncated]
    return results[0]._replace(
        tokens=sum([result.tokens for result in results]),
        characters=sum([result.characters for result in results]),
        truncated=tuple(sorted(cut)),
    )
