"""Classifying: the scores of the labels that a model gives texts, or pairs of texts."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import CLASS_LOGITS, Card
from models.recipes.heads import Classifier, ScoreActivation
from service.embedding.model import Model
from service.embedding.pipeline import EmbeddingPipeline
from service.embedding.ranking import ACTIVATIONS
from service.embedding.requests import Direction, EmbedOptions, EmbedRequest, EmbedResult, Input, Text
from service.errors import WrongModelKind
from service.request_context import RequestContext

MULTI_LABEL = "multi_label_classification"


class Labelled(NamedTuple):
    """The scores of the labels of texts.

    Args:
        scores: [texts, labels].
        labels: their names.
        result: of the core, for the facts about the run.
    """

    scores: NDArray[np.float64]
    labels: tuple[str, ...]
    result: EmbedResult

    def best_first(self, index: int) -> list[tuple[str, float]]:
        """Return the labels of one text with their scores, the highest first, of equal ones the lower number first."""
        row = self.scores[index]
        return [(self.labels[number], float(row[number])) for number in np.argsort(-row, kind="stable")]


def classifies(card: Card) -> bool:
    """Return whether a model gives a text, not a token, scores of labels."""
    return card.classifier is not None and card.classifier.pooling is not None


def reads_pairs(card: Card) -> bool:
    """Return whether a model gives labels to texts and pairs as they are, not in a template of its own."""
    return card.classifier is not None and classifies(card) and card.classifier.template is None


async def classify(
    embedder: EmbeddingPipeline,
    model: Model,
    inputs: Sequence[Input],
    context: RequestContext,
    truncate: bool | None = None,
    direction: Direction = "right",
    activation: ScoreActivation | None = None,
    max_tokens: int | None = None,
    special_tokens: bool = True,
) -> Labelled:
    """Return the scores of each input's labels; they do not depend on the other inputs.

    Args:
        activation: of the logits; None: `label_activation`.
        max_tokens: as of EmbedOptions.
        special_tokens: as of EmbedOptions.

    Raises:
        WrongModelKind: the model gives a text no labels.
        InlayError: as of EmbeddingPipeline.embed.
    """
    card, classifier = model.card, model.card.classifier
    if classifier is None or not classifies(card):
        raise not_a_classifier(card)
    if not reads_pairs(card) and any([type(item) is Text for item in inputs]):
        raise WrongModelKind(
            "Model is not a classifier model", remedy=f"{card.name} reads pairs in a template: /rerank"
        )
    options = EmbedOptions((CLASS_LOGITS,), truncate, direction, max_tokens=max_tokens, special_tokens=special_tokens)
    result = await embedder.embed(EmbedRequest(inputs, card.name, options), context)
    logits = result.outputs[0].rows.astype(np.float64)
    return Labelled(ACTIVATIONS[activation or label_activation(classifier)](logits), classifier.labels, result)


def label_activation(classifier: Classifier) -> ScoreActivation:
    """Return what makes scores of a classifier's logits: the sigmoid of one label, or of several that may hold
    together; else the softmax (text-embeddings-inference 1.9, transformers' pipeline).
    """
    together = classifier.problem_type == MULTI_LABEL
    return "sigmoid" if len(classifier.labels) == 1 or together else "softmax"


def not_a_classifier(card: Card) -> WrongModelKind:
    """Return the error for a model that gives a text no labels."""
    what = "labels of tokens" if card.classifier else "embeddings"
    return WrongModelKind("Model is not a classifier model", remedy=f"{card.name} gives {what}, by /embed")
