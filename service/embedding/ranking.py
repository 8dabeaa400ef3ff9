"""Scores of texts and of pairs of texts: classifiers, cross-encoders, causal rerankers, MaxSim and cosines.

A long document is cut, or read in chunks of which the best counts.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import CLASS_LOGITS, MULTI_VECTOR, Card
from models.recipes.heads import Classifier, PairTemplate, ScoreActivation
from service.embedding import limits
from service.embedding.document_chunks import Chunks, Parts, most_tokens, split
from service.embedding.listwise import Reads, lists_of, scores_of
from service.embedding.model import Model
from service.embedding.outputs.kind import POOLED
from service.embedding.requests import Embedder, EmbedOptions, EmbedRequest, EmbedResult, Input, Picture, Text
from service.embedding.scores import maxsim
from service.embedding.tokenize.packing import split as split_rows
from service.embedding.tokenize.pair_templates import added_tokens, texts_of
from service.embedding.tokenize.tokenizer import Tokenizer, beside
from service.errors import BadInput, ConflictingFields, TooManyInputs, WrongModelKind
from service.request_context import RequestContext
from service.scheduling.memory_budget import MemoryBudget
from service.settings import Settings

MOST_TOGETHER = 16  # queries of one request that wait or run
COPIED_INLINE = 1 << 17  # characters of pairs that are joined on the event loop
MULTI_LABEL = "multi_label_classification"
NO_CLASSIFIER = "Model is not a classifier model"
Scores = NDArray[np.float64]
Document = str | Picture
Pair = tuple[str, Document]
"""A query and a document."""


class Ranks(NamedTuple):
    """The scores of texts by their numbers, and the core's result, for the facts about the run."""

    scores: Scores
    result: EmbedResult

    def best_first(self) -> Iterator[tuple[int, float]]:
        """Yield number and score of each text, the highest score first; of equal ones the lower number is first."""
        for index in np.argsort(-self.scores, kind="stable").tolist():
            yield index, float(self.scores[index])


class Labelled(NamedTuple):
    """The scores of the labels of texts.

    Args:
        scores: [texts, labels].
        labels: names of the labels.
        result: the core's result, for the facts about the run.
    """

    scores: Scores
    labels: tuple[str, ...]
    result: EmbedResult

    def best_first(self, index: int) -> list[tuple[str, float]]:
        """Return one text's labels with their scores, the highest first; of equal ones the lower number is first."""
        row = self.scores[index]
        return [(self.labels[number], float(row[number])) for number in np.argsort(-row, kind="stable")]


class Reading(NamedTuple):
    """How texts or pairs are read.

    Args:
        options: how texts are read and cut; `max_tokens` is of a pair, or of a late-interaction model's document.
        activation: activation of the logits; None: the model's own. MaxSim has none.
        parts: how many tokens of each text are read, and in how many chunks.
        instruction: what a causal reranker is to judge by; None: its own. It keeps the end of what it reads of a pair,
            so a `truncation_direction` of left is refused. Other models ignore the instruction.
        cosine: a model of sentence vectors scores a pair by their cosine; False: it is refused.
    """

    options: EmbedOptions = EmbedOptions()
    activation: ScoreActivation | None = None
    parts: Parts = Parts()
    instruction: str | None = None
    cosine: bool = False


# ---- what a model can do


def classifier_of(card: Card) -> Classifier | None:
    """Return the classifier of a model; None if it has none."""
    return card.classifier


def classifies(card: Card) -> bool:
    """Return whether a model scores the labels of a text, not of its tokens."""
    return card.classifier is not None and card.classifier.pooling is not None


def reads_pairs(card: Card) -> bool:
    """Return whether a model labels texts and pairs as they are, without a template."""
    return card.classifier is not None and classifies(card) and card.classifier.template is None


def _ranker(card: Card) -> Classifier | None:
    return card.classifier if card.classifier and card.classifier.ranks else None


def ranks_pairs(card: Card) -> bool:
    """Return whether `rank` takes a model: a cross-encoder, or one that compares vectors of tokens."""
    return bool(_ranker(card) or card.multi_vector)


def label_activation(classifier: Classifier) -> ScoreActivation:
    """Return the activation of a classifier's logits: the sigmoid of one label, or of several that may hold together;
    else the softmax (text-embeddings-inference 1.9, transformers' pipeline)."""
    together = classifier.problem_type == MULTI_LABEL
    return "sigmoid" if len(classifier.labels) == 1 or together else "softmax"


def text_activation(card: Card) -> ScoreActivation | None:
    """Return the activation of the logits of a text; None if the model gives a text none."""
    if card.classifier is None or not classifies(card):
        return None
    return card.classifier.activation if card.classifier.ranks else label_activation(card.classifier)


def not_a_ranker(card: Card) -> WrongModelKind:
    """Return the error for a model that cannot score pairs."""
    return WrongModelKind(
        "Model is not a re-ranker model",
        remedy=f"{card.name} gives {', '.join(card.outputs)}; /similarity compares a text with others",
    )


# ---- activations of logits


def _softmax(logits: Scores) -> Scores:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def _sigmoid(logits: Scores) -> Scores:
    return np.asarray(np.where(logits >= 0, 1.0, np.exp(-np.abs(logits))) / (1.0 + np.exp(-np.abs(logits))))


ACTIVATIONS: dict[ScoreActivation, Callable[[Scores], Scores]] = {
    "identity": lambda logits: logits,
    "sigmoid": _sigmoid,
    "softmax": _softmax,
    "tanh": np.tanh,
    "relu": lambda logits: np.maximum(logits, 0.0),
}


def _activated(result: EmbedResult, activation: ScoreActivation) -> Scores:
    """Return the activated logits of inputs, [inputs, labels]."""
    return ACTIVATIONS[activation](result.outputs[0].rows.astype(np.float64))


def _check_template(card: Card, template: PairTemplate, reading: Reading) -> None:
    """Raise ConflictingFields for an instruction, or a side to cut, that the model's template does not support."""
    instruction = reading.instruction
    if instruction is not None and template.instruction is None:
        raise ConflictingFields(
            f"is {instruction[:40]!r}",
            field=("instruction",),
            allowed=f"{card.name} reads a query and a document alone",
            remedy="leave it out",
        )
    if reading.options.truncation_direction == "left":
        raise ConflictingFields(
            "is left",
            field=("truncation_direction",),
            allowed=f"{card.name} reads the end of its template, so documents are cut at their end",
            remedy="leave it out",
        )


def _tokenizer_of(model: Model) -> Tokenizer:
    if model.tokenizer is None:
        raise WrongModelKind(f"{model.card.name} was exported without a tokenizer", allowed="it reads ids alone")
    return model.tokenizer


def _as_input(document: Document) -> Input:
    return Text(document) if isinstance(document, str) else document


# ---- scores of texts and of pairs


class Scorer:
    """Scores texts by their labels, and pairs of texts.

    Args:
        embedder: runs the models.
        budget: the memory of all requests.
        settings: the limits of one request.
    """

    def __init__(self, embedder: Embedder, budget: MemoryBudget, settings: Settings) -> None:
        self._embedder, self._budget, self._settings = embedder, budget, settings

    async def classify(
        self, model: Model, inputs: Sequence[Input], context: RequestContext, reading: Reading
    ) -> Labelled:
        """Return the scores of each input's labels, which do not depend on the other inputs.

        They are activated as the reading says, else by `label_activation`.

        Raises:
            WrongModelKind: the model gives a text no labels.
            InlayError: as EmbeddingPipeline.embed.
        """
        card, classifier = model.card, model.card.classifier
        if classifier is None or not classifies(card):
            what = "labels of tokens" if classifier else "embeddings"
            raise WrongModelKind(NO_CLASSIFIER, remedy=f"{card.name} gives {what}, by /embed")
        if not reads_pairs(card) and any([type(item) is Text for item in inputs]):
            raise WrongModelKind(NO_CLASSIFIER, remedy=f"{card.name} reads pairs in a template: /rerank")
        request = EmbedRequest(inputs, card.name, reading.options._replace(outputs=(CLASS_LOGITS,)))
        result = await self._embedder.embed(request, context)
        scores = _activated(result, reading.activation or label_activation(classifier))
        return Labelled(scores, classifier.labels, result)

    async def maxsim(
        self, model: Model, query: str, documents: Sequence[Document], context: RequestContext, options: EmbedOptions
    ) -> Ranks:
        """Return the score of each document with a query, and the facts about both runs.

        Args:
            options: how both are read and cut; `max_tokens` is of a text alone.

        Raises:
            InlayError: as EmbeddingPipeline.embed.
        """
        card, embed = model.card, self._embedder.embed
        assert card.multi_vector is not None
        of_documents = options._replace(outputs=(MULTI_VECTOR,), input_type="document")
        of_query = of_documents._replace(input_type="query", max_tokens=None)
        asked = await embed(EmbedRequest([Text(query)], card.name, of_query), context)
        result = await embed(EmbedRequest([*map(_as_input, documents)], card.name, of_documents), context)
        vectors, rows = asked.outputs[0].rows, result.outputs[0]
        scores = await asyncio.to_thread(maxsim, vectors, split_rows(rows.rows, rows.lengths), card.multi_vector.mean)
        whole = result._replace(tokens=asked.tokens + result.tokens, characters=asked.characters + result.characters)
        return Ranks(scores, whole)

    async def score(self, model: Model, pairs: Sequence[Pair], context: RequestContext, reading: Reading) -> Ranks:
        """Return the score of each pair, which does not depend on the others.

        Raises:
            WrongModelKind: the model scores no pairs.
            TooLong: a query leaves no room for a chunk.
            InlayError: as EmbeddingPipeline.embed.
        """
        card = model.card
        image = next((index for index, (_, document) in enumerate(pairs) if isinstance(document, Picture)), None)
        if image is not None:
            reading = reading._replace(parts=Parts())  # of texts
            if _ranker(card) or card.image_tokens is None:
                raise BadInput("is an image", field=("documents", image), allowed=f"{card.name} ranks texts")
        if any(reading.parts):
            texts = [(query, document) for query, document in pairs if isinstance(document, str)]
            return await self._score_chunks(model, texts, context, reading)
        if reading.cosine and card.default_output == POOLED and not _ranker(card):
            return await self._cosines(model, pairs, context, reading)
        if len({query for query, _ in pairs}) == 1:
            return await self._read(model, pairs, context, reading)
        return await self.score_each(model, pairs, context, [reading] * len(pairs))

    async def _score_chunks(
        self, model: Model, pairs: Sequence[tuple[str, str]], context: RequestContext, reading: Reading
    ) -> Ranks:
        """Return the score of each pair, of which a long document is cut or split into chunks."""
        limits.check_count(pairs, self._settings)
        chunks = await self._chunks(model, pairs, reading)
        options = reading.options
        if reading.parts.max_chunks:  # a chunk may have more tokens by itself than in its document
            options = options._replace(truncate=True)
        whole = reading._replace(options=options, parts=Parts())
        ranks = await self.score(model, chunks.pairs, context, whole)
        starts = np.flatnonzero(np.diff(chunks.owners, prepend=-1))
        cut = tuple(sorted({*chunks.cut, *(chunks.owners[index] for index in ranks.result.truncated)}))
        context.truncated = cut
        return Ranks(np.maximum.reduceat(ranks.scores, starts), ranks.result._replace(truncated=cut))

    async def score_each(
        self, model: Model, pairs: Sequence[Pair], context: RequestContext, readings: Sequence[Reading]
    ) -> Ranks:
        """Return the score of each pair, read by its own `Reading`; neither parts nor cosines are supported here.

        Raises:
            WrongModelKind: the model is no re-ranker.
            InlayError: as EmbeddingPipeline.embed.
        """
        one_query = not reads_pairs(model.card)
        places: dict[tuple[str, Reading], list[int]] = {}
        for index, ((query, _), reading) in enumerate(zip(pairs, readings, strict=True)):
            places.setdefault((query if one_query else "", reading), []).append(index)
        if len(places) == 1:
            return await self._read(model, pairs, context, readings[0])
        together = asyncio.Semaphore(MOST_TOGETHER if one_query else len(places))  # all at once would fill the queue

        async def read(reading: Reading, group: list[int]) -> Ranks:
            async with together:
                return await self._read(model, [pairs[index] for index in group], context, reading)

        calls = [asyncio.ensure_future(read(reading, group)) for (_, reading), group in places.items()]
        try:
            ranked = await asyncio.gather(*calls)
        except BaseException:
            for call in calls:
                call.cancel()
            raise
        scores = np.empty(len(pairs))
        for group, ranks in zip(places.values(), ranked, strict=True):
            scores[group] = ranks.scores
        result = _together([ranks.result for ranks in ranked], list(places.values()))
        context.truncated = result.truncated
        return Ranks(scores, result)

    async def _read(self, model: Model, pairs: Sequence[Pair], context: RequestContext, reading: Reading) -> Ranks:
        """Return the scores of pairs in one run; all are of one query unless the model reads pairs as they are."""
        card, classifier = model.card, _ranker(model.card)
        if classifier is None:
            if card.multi_vector is None:
                raise not_a_ranker(card)
            documents = [document for _, document in pairs]
            if card.multi_vector.listwise:
                return await self._listwise(model, pairs[0][0], [*map(str, documents)], context, reading)
            return await self.maxsim(model, pairs[0][0], documents, context, reading.options)
        template = classifier.template
        texts = [Text(query, document) for query, document in pairs if isinstance(document, str)]
        if template:
            _check_template(card, template, reading)
            inline = sum([len(pair.text) + len(pair.pair or "") for pair in texts]) <= COPIED_INLINE
            making = template, model.tokenizer, texts, reading.instruction, self._settings.max_request_characters
            texts = texts_of(*making) if inline else await asyncio.to_thread(texts_of, *making)
        options = reading.options._replace(outputs=(CLASS_LOGITS,), special_tokens=template is None)
        result = await self._embedder.embed(EmbedRequest(texts, card.name, options), context)
        return Ranks(_activated(result, reading.activation or classifier.activation)[:, 0], result)

    async def _listwise(
        self, model: Model, query: str, documents: Sequence[str], context: RequestContext, reading: Reading
    ) -> Ranks:
        """Return the scores of all documents of a query, each of which depends on the others."""
        card, settings, options = model.card, self._settings, reading.options
        assert card.multi_vector is not None
        assert card.multi_vector.listwise is not None
        limits.check_count(documents, settings)
        characters = limits.check_characters([Text(query), *map(Text, documents)], settings)
        longest = limits.least(card.max_tokens, settings.max_input_tokens or None)
        truncate = settings.auto_truncate if options.truncate is None else options.truncate
        reads = Reads(card.multi_vector.listwise, reading.instruction, longest, options.max_tokens, truncate)
        tokenizer = _tokenizer_of(model)
        texts, counts, cut = await beside(characters, self._budget, lists_of, tokenizer, reads, query, documents)
        options = options._replace(outputs=(MULTI_VECTOR,), truncate=False, max_tokens=None)
        result = await self._embedder.embed(EmbedRequest([*map(Text, texts)], card.name, options), context)
        vectors = split_rows(result.outputs[0].rows, result.outputs[0].lengths)
        assert [len(each) for each in vectors] == [count + 1 for count in counts]
        context.truncated = cut
        return Ranks(scores_of(vectors), result._replace(truncated=cut))

    async def _cosines(self, model: Model, pairs: Sequence[Pair], context: RequestContext, reading: Reading) -> Ranks:
        """Return the cosine of the vectors of each pair; each text is embedded once."""
        numbers = {text: number for number, text in enumerate(dict.fromkeys(text for pair in pairs for text in pair))}
        options = reading.options._replace(outputs=(POOLED,), normalize=True)
        request = EmbedRequest([*map(_as_input, numbers)], model.card.name, options)
        result = await self._embedder.embed(request, context)
        rows = result.outputs[0].rows.astype(np.float64)
        one, other = ([numbers[pair[side]] for pair in pairs] for side in (0, 1))
        scores = np.einsum("nd,nd->n", rows[one], rows[other])
        shortened = set(result.truncated)
        cut = tuple([index for index, pair in enumerate(pairs) if shortened & {numbers[text] for text in pair}])
        context.truncated = cut
        return Ranks(scores, result._replace(truncated=cut))

    async def _chunks(self, model: Model, pairs: Sequence[tuple[str, str]], reading: Reading) -> Chunks:
        """Return the pairs with queries and documents cut, and long documents in chunks."""
        card, tokenizer = model.card, _tokenizer_of(model)
        limits.check_characters([Text(query, document) for query, document in pairs], self._settings)
        lengths = (card.max_tokens, self._settings.max_input_tokens or None, reading.options.max_tokens)
        longest = min([length for length in lengths if length is not None], default=None)
        distinct = list(dict.fromkeys(text for pair in pairs for text in pair))
        characters, most = sum(map(len, distinct)), most_tokens(reading.parts, longest)
        places = await beside(characters, self._budget, tokenizer.places, distinct, most)
        tokens = dict(zip(distinct, places, strict=True))
        template = card.classifier and card.classifier.template
        added = added_tokens(template, tokenizer) if template else tokenizer.added_to_pairs
        chunks = await asyncio.to_thread(split, pairs, tokens, added, longest, reading.parts)
        if (count := len(chunks.pairs)) > self._settings.max_inputs:
            raise TooManyInputs(
                f"make {count} chunks",
                field=("documents",),
                allowed=f"this server takes {self._settings.max_inputs} a request",
                remedy="send fewer documents, or a smaller max_chunks_per_doc",
            )
        return chunks


def _together(results: Sequence[EmbedResult], places: Sequence[Sequence[int]]) -> EmbedResult:
    """Return the facts of several results as those of one, for pairs at these places."""
    cut = [group[index] for result, group in zip(results, places, strict=True) for index in result.truncated]
    return results[0]._replace(
        tokens=sum([result.tokens for result in results]),
        characters=sum([result.characters for result in results]),
        truncated=tuple(sorted(cut)),
    )
