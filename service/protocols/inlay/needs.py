"""Answers what protocols ask about a model, and what operations need of a model, for the OpenAPI document."""

from dataclasses import replace

from models.artifacts.card import MULTI_VECTOR, Card
from models.artifacts.card import SPARSE as SPARSE_VECTOR
from service.embedding.model import Model
from service.embedding.outputs.kind import POOLED
from service.embedding.ranking import classifies, ranks_pairs
from service.embedding.word_table import has_word_table
from service.http.routes import Need


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


def _reads_pictures(model: Model) -> bool:
    image = model.card.image
    return image is not None and image.feed != "features"


def _labels(model: Model) -> bool:
    return classifies(model.card)


def _ranks(model: Model) -> bool:
    return model.card.classifier is not None and model.card.classifier.ranks


LABELLING = (lambda model: kind_of(model) == "classifier", _labels)
"""Kinds of models that label texts, the best first: classifiers, then rerankers."""
TABLE = Need(what="a model with a word table, exported with Inlay", status=404, is_met_by=has_word_table)
HEAD = Need(
    what="a model with an output head, such as a GPT-2 or a Llama",
    status=404,
    is_met_by=lambda model: model.card.head is not None,
)
IMAGES = Need(
    what="a model that reads images, such as a ViT, a CLIP or a SigLIP", status=422, is_met_by=_reads_pictures
)
IMAGES_OF_OPENAI = replace(IMAGES, status=400)
TWO_TOWERS = Need(
    what="a model that compares texts with images, such as a CLIP or a SigLIP",
    status=404,
    is_met_by=lambda model: model.card.similarity is not None,
)
SPARSE_VECTORS = Need(
    what="a model with sparse vectors, such as SPLADE",
    status=424,
    is_met_by=lambda model: model.card.sparse is not None,
)
RANKER = Need(what="a reranker (cross-encoder)", status=424, is_met_by=_ranks)
CLASSIFIER = Need(what="a classifier", status=424, is_met_by=_labels)
CLASSIFIER_OF_OPENAI = replace(CLASSIFIER, status=400)
