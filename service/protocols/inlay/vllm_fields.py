"""Fields of vLLM's bodies that several protocols read: how texts are cut, what is read of a pair, and raw scores."""

from typing import Annotated, NamedTuple

from pydantic import Field

from models.recipes.classifier import ScoreActivation
from service.embedding.requests import Direction

NOT_SPECIFIED = "default/not-specified"  # what infinity-client sends for a model that was not named
ModelName = Annotated[str | None, Field(description="a model's name; left out: the server's default")]
UseActivation = Annotated[bool | None, Field(description="false leaves scores as the model gives them")]
TruncationSide = Annotated[
    str | None, Field(pattern="^(left|right)$", description="right keeps the beginning, left the end")
]
TokenLimit = Annotated[int | None, Field(ge=0, description="an integer from 0, which is no limit")]
Instruction = Annotated[str | None, Field(description="a text: what a causal reranker is to judge by")]
RequestId = Annotated[str | None, Field(description="a text: becomes part of the response's id")]


class Cut(NamedTuple):
    """How texts that are too long are cut, by the names of EmbedOptions."""

    truncate: bool | None
    direction: Direction
    max_tokens: int | None


def cut(tokens: int | None, side: str | None, truncate: bool | None = None) -> Cut:
    """Return how texts are cut.

    Args:
        tokens: `truncate_prompt_tokens`: -1 for as many as the model reads; None or 0: it does not say.
        side: `truncation_side`.
        truncate: whether to cut where `tokens` does not say.
    """
    most = tokens if tokens and tokens > 0 else None
    return Cut(True if tokens else truncate, "left" if side == "left" else "right", most)


def activation(raw: bool | None) -> ScoreActivation | None:
    """Return what is made of a model's scores: nothing where they are raw, else None, the model's own activation."""
    return "identity" if raw else None
