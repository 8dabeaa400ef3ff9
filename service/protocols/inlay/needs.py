"""Answers what protocols ask about a model."""

from models.artifacts.card import MULTI_VECTOR, Card
from models.artifacts.card import SPARSE as SPARSE_VECTOR
from service.embedding.model import Model
from service.embedding.outputs.kind import POOLED
from service.embedding.ranking import classifies, ranks_pairs


def reads_images(model: Model) -> bool:
    """Return whether a model reads images or spectrograms instead of texts."""
    return model.card.image is not None


def takes_images(model: Model) -> bool:
    """Return whether a model reads images, alone or among the tokens of its texts."""
    return reads_images(model) or model.card.image_tokens is not None


def kind_of(model: Model) -> str:
    """Return text-embeddings-inference's word for a model: embedding, classifier or reranker."""
    classifier = model.card.classifier
    if classifier is None or not classifies(model.card):
        return "embedding"
    return "reranker" if classifier.ranks else "classifier"


def ranks(model: Model) -> bool:
    """Return whether a model is made to rank texts: a cross-encoder, or one that compares vectors of tokens."""
    return ranks_pairs(model.card)


def has_sparse_vectors(model: Model) -> bool:
    """Return whether a model gives a sparse vector per text."""
    return sparse_output(model.card) is not None


def labels_of(model: Model) -> tuple[str, ...]:
    """Return the names of the labels that a model gives a text; none for a model of vectors."""
    return model.card.classifier.labels if model.card.classifier and classifies(model.card) else ()


def compares_tokens(model: Model) -> bool:
    """Return whether a model compares texts by the vectors of their tokens, because it has none for a whole text."""
    return model.card.multi_vector is not None and POOLED not in model.card.outputs


def is_sparse(output: str) -> bool:
    """Return whether an output holds sparse vectors."""
    return output == SPARSE_VECTOR


def sparse_output(card: Card) -> str | None:
    """Return the name of the output that holds a sparse vector per text; None if the model has none."""
    return next(filter(is_sparse, card.outputs), None)


def has_row_per_token(output: str) -> bool:
    """Return whether an output has one row for each token that was read."""
    return output != MULTI_VECTOR


def _labels(model: Model) -> bool:
    return classifies(model.card)


LABELLING = (lambda model: kind_of(model) == "classifier", _labels)
"""Kinds of models that label texts, the best first: classifiers, then rerankers."""
