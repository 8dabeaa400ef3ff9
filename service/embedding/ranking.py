"""Ranking: the scores of a query with each of several texts, by a model that reads them in pairs."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import CLASS_LOGITS, Card
from models.recipes.heads import PairTemplate, ScoreActivation
from service.embedding import late_interaction
from service.embedding.model import Model
from service.embedding.pair_templates import texts_of
from service.embedding.pipeline import EmbeddingPipeline
from service.embedding.requests import Direction, EmbedOptions, EmbedRequest, EmbedResult, Text
from service.errors import ConflictingFields, WrongModelKind
from service.request_context import RequestContext

COPIED_INLINE = 1 << 17  # characters of pairs that are joined on the event loop
Scores = NDArray[np.float64]


class Ranks(NamedTuple):
    """The scores of texts.

    Args:
        scores: by the number of the text.
        result: of the core, for the facts about the run.
    """

    scores: NDArray[np.float64]
    result: EmbedResult

    def best_first(self) -> Iterator[tuple[int, float]]:
        """Yield number and score of each text, the highest score first, of equal ones the lower number first."""
        for index in np.argsort(-self.scores, kind="stable").tolist():
            yield index, float(self.scores[index])


async def rank(
    embedder: EmbeddingPipeline,
    model: Model,
    query: str,
    texts: Sequence[str],
    context: RequestContext,
    truncate: bool | None = None,
    direction: Direction = "right",
    activation: ScoreActivation | None = None,
    *,
    max_tokens: int | None = None,
    instruction: str | None = None,
) -> Ranks:
    """Return the score of each text with the query; a score does not depend on the other texts.

    Args:
        activation: of the logits; None: the model's own. A late-interaction model has none: its scores are MaxSim's.
        max_tokens: of a pair, special ones included, or of a late-interaction model's document; None: as many as the
            model reads.
        instruction: what a causal reranker is to judge by; None: its own. It keeps the end of what it reads of a pair,
            so `direction` left is refused.

    Raises:
        WrongModelKind: the model gives no scores.
        ConflictingFields: the model reads no instruction, or cannot be cut at that side.
        InlayError: as of EmbeddingPipeline.embed.
    """
    classifier = model.card.classifier
    if model.card.multi_vector and not (classifier and classifier.ranks):
        return Ranks(
            *await late_interaction.rank(
                embedder, model, query, texts, context, truncate, direction, max_tokens=max_tokens
            )
        )
    if classifier is None or not classifier.ranks:
        raise not_a_ranker(model.card)
    pairs = [Text(query, text) for text in texts]
    how = activation or classifier.activation
    return await score_pairs(
        embedder, model, pairs, context, truncate, direction, how, max_tokens=max_tokens, instruction=instruction
    )


async def score_pairs(
    embedder: EmbeddingPipeline,
    model: Model,
    pairs: Sequence[Text],
    context: RequestContext,
    truncate: bool | None,
    direction: Direction,
    activation: ScoreActivation,
    *,
    max_tokens: int | None = None,
    instruction: str | None = None,
) -> Ranks:
    """Return the scores that a model with one label gives pairs; the arguments and errors are those of `rank`."""
    template = model.card.classifier.template if model.card.classifier else None
    _check_template(model.card, template, direction, instruction)
    if template:
        inline = sum([len(pair.text) + len(pair.pair or "") for pair in pairs]) <= COPIED_INLINE
        making = template, model.tokenizer, pairs, instruction
        pairs = texts_of(*making) if inline else await asyncio.to_thread(texts_of, *making)
    options = EmbedOptions((CLASS_LOGITS,), truncate, direction, max_tokens=max_tokens, special_tokens=template is None)
    result = await embedder.embed(EmbedRequest(pairs, model.card.name, options), context)
    logits = result.outputs[0].rows.astype(np.float64)
    return Ranks(ACTIVATIONS[activation](logits)[:, 0], result)


def _check_template(card: Card, template: PairTemplate | None, direction: Direction, instruction: str | None) -> None:
    """Raise ConflictingFields for an instruction, or a side to cut, that the model's template has no place for."""
    if instruction is not None and (template is None or template.instruction is None):
        raise ConflictingFields(
            f"is {instruction[:40]!r}",
            field=("instruction",),
            allowed=f"{card.name} reads a query and a document alone",
            remedy="leave it out",
        )
    if template and direction == "left":
        raise ConflictingFields(
            "is left",
            field=("truncation_direction",),
            allowed=f"{card.name} reads the end of its template, so documents are cut at their end",
            remedy="leave it out",
        )


def not_a_ranker(card: Card) -> WrongModelKind:
    """Return the error for a model that scores no pairs."""
    return WrongModelKind(
        "Model is not a re-ranker model",
        remedy=f"{card.name} gives {', '.join(card.outputs)}; /similarity compares a text with others",
    )


def _softmax(logits: Scores) -> Scores:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def _sigmoid(logits: Scores) -> Scores:
    return np.asarray(np.where(logits >= 0, 1.0, np.exp(-np.abs(logits))) / (1.0 + np.exp(-np.abs(logits))))


ACTIVATIONS: dict[ScoreActivation, Callable[[Scores], Scores]] = {
    "identity": lambda logits: logits,
    "sigmoid": _sigmoid,
    "softmax": _softmax,
}
