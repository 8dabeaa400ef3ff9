"""Fields of vLLM's bodies that several protocols read: how to cut texts, how to read pairs, and raw scores."""

from typing import Annotated, NamedTuple, Protocol

from pydantic import Field

from models.recipes.heads import ScoreActivation
from service.embedding.ranking import Reading
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


class PairFields(Protocol):
    """The fields of a body that say how pairs of texts are read and scored."""

    use_activation: bool | None
    truncate_prompt_tokens: int | None
    truncation_side: str | None
    max_tokens_per_query: int | None
    max_tokens_per_doc: int | None
    instruction: str | None


class Cut(NamedTuple):
    """How texts that are too long are cut; the fields are named as in EmbedOptions."""

    truncate: bool | None
    direction: Direction
    max_tokens: int | None


def cut(tokens: int | None, side: str | None, truncate: bool | None = None) -> Cut:
    """Return how texts are cut.

    Args:
        tokens: `truncate_prompt_tokens`: -1 for as many as the model reads; None or 0: it does not say.
        side: `truncation_side`.
        truncate: whether to cut if `tokens` does not say.
    """
    most = tokens if tokens and tokens > 0 else None
    return Cut(True if tokens else truncate, "left" if side == "left" else "right", most)


def activation(*raw: bool | None) -> ScoreActivation | None:
    """Return the activation of scores: none if a field asks for raw scores; None: the model's own."""
    return "identity" if any(raw) else None


def reading(
    body: PairFields, truncate: bool | None = None, raw: bool | None = None, max_chunks: int | None = None
) -> Reading:
    """Return how the pairs of a body are read; models of sentence vectors score them by cosine, as in vLLM.

    Args:
        truncate: whether to cut if `truncate_prompt_tokens` does not say.
        raw: whether another field asks for raw scores.
        max_chunks: largest number of chunks of a long document.
    """
    how = cut(body.truncate_prompt_tokens, body.truncation_side, truncate)
    return Reading(
        how.truncate,
        how.direction,
        activation(raw, body.use_activation is False),
        how.max_tokens,
        max_query_tokens=body.max_tokens_per_query,
        max_document_tokens=body.max_tokens_per_doc,
        max_chunks=max_chunks,
        instruction=body.instruction,
        cosine=True,
    )
