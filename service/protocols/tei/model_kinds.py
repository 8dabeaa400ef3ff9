"""What a model of another kind is told, in text-embeddings-inference's words and what to do instead."""

from models.artifacts.card import Card
from service.embedding.output_plan import HIDDEN, POOLED
from service.embedding.pooling import POOLINGS
from service.errors import WrongModelKind

INPUT_LAYER = "input_embeddings"


def not_sparse(card: Card) -> WrongModelKind:
    """The refusal of sparse vectors."""
    return WrongModelKind(
        f"Model is not an embedding model with SPLADE pooling: {card.name} gives dense vectors, by /embed"
    )


def not_a_classifier(card: Card) -> WrongModelKind:
    """The refusal of labels and scores."""
    return WrongModelKind(f"Model is not a classifier model: {card.name} gives embeddings, by /embed")


def not_a_ranker(card: Card) -> WrongModelKind:
    """The refusal of ranks."""
    return WrongModelKind(
        f"Model is not a re-ranker model: {card.name} gives embeddings; /similarity compares a text with others"
    )


def pooled_output(card: Card) -> str:
    """The output that holds a vector a text.

    raises   WrongModelKind
    """
    if POOLED in card.outputs:
        return POOLED
    held = ", ".join(card.outputs)
    todo = f"send a pooling ({', '.join(POOLINGS)}) to /embed" if HIDDEN in card.outputs else "ask /embed for these"
    raise WrongModelKind(f"Model is not an embedding model: {card.name} has {held} and no sentence vector: {todo}")


def token_output(card: Card) -> str:
    """The output that holds a vector a token: the encoder's, or the input layer's where there is no encoder.

    raises   WrongModelKind
    """
    for name in (HIDDEN, INPUT_LAYER):
        if name in card.outputs:
            return name
    raise WrongModelKind(f"Model has no token embeddings: {card.name} gives {', '.join(card.outputs)} alone, by /embed")
