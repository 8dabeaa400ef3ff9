"""Fields of vLLM's bodies, and parts of answers, that several protocols share: cutting, pairs, raw scores, labels."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from models.recipes.heads import ScoreActivation
from service.embedding.document_chunks import Parts
from service.embedding.ranking import Labelled, Reading
from service.embedding.requests import DIRECTIONS, EmbedOptions
from service.errors import EmptyRequest, TooManyInputs

NOT_SPECIFIED = "default/not-specified"  # what infinity-client sends for a model that was not named
ModelName = Annotated[str | None, Field(description="a model's name; left out: the server's default")]
Priority = Annotated[
    int, Field(ge=-(2**31), lt=2**31, description="an integer; above 0: bulk, which gives way to other requests")
]
RequestId = Annotated[str | None, Field(description="a text: becomes part of the response's id")]


class PromptBody(BaseModel, strict=True):
    """The fields that every body of vLLM's has. Other fields are ignored, and named in a header."""

    model: ModelName = None
    truncate_prompt_tokens: int | None = Field(
        None, ge=-1, description="-1 cuts to what the model reads, an integer from 1 to so many tokens"
    )
    truncation_side: Literal["left", "right"] | None = Field(
        None, description="right keeps the beginning, left the end"
    )

    priority: Priority = 0

    @property
    def named(self) -> str | None:
        """The name of the model; None: the body names none."""
        return None if self.model == NOT_SPECIFIED else self.model


class ScoredBody(PromptBody):
    """The fields that every body of scores has."""

    use_activation: bool | None = Field(None, description="false leaves scores as the model gives them")


class PairsBody(ScoredBody):
    """The fields that every body of pairs has: of a query and documents, or of two texts each."""

    max_tokens_per_query: int | None = Field(None, ge=0, description="an integer from 0, which is no limit")
    max_tokens_per_doc: int | None = Field(None, ge=0, description="an integer from 0, which is no limit")
    instruction: str | None = Field(None, description="a text: what a causal reranker is to judge by")

    def reading(self, truncate: bool | None = None, raw: bool | None = None, max_chunks: int | None = None) -> Reading:
        """Return how the pairs are read; a model of sentence vectors scores them by their cosines, as in vLLM.

        Args:
            truncate: whether to cut where `truncate_prompt_tokens` does not say.
            raw: whether another field asks for raw scores.
            max_chunks: of a long document.
        """
        return Reading(
            cut(self.truncate_prompt_tokens, self.truncation_side, truncate),
            activation(raw, self.use_activation is False),
            Parts(self.max_tokens_per_query, self.max_tokens_per_doc, max_chunks),
            self.instruction,
            cosine=True,
        )


def cut(tokens: int | None, side: str | None, truncate: bool | None = None) -> EmbedOptions:
    """Return how texts are cut.

    Args:
        tokens: `truncate_prompt_tokens`: -1 for as many as the model reads; None or 0: it does not say.
        side: `truncation_side`.
        truncate: whether to cut where `tokens` does not say.
    """
    most = tokens if tokens and tokens > 0 else None
    direction = DIRECTIONS.get(side, "right")
    return EmbedOptions(truncate=True if tokens else truncate, truncation_direction=direction, max_tokens=most)


def activation(*raw: bool | None) -> ScoreActivation | None:
    """Return what is made of a model's scores: nothing where one field asks for raw ones; None: the model's own."""
    return "identity" if any(raw) else None


def usage(tokens: int) -> dict[str, int]:
    """Return the `usage` of an answer."""
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def listed(name: str, texts: str | list[Any], max_inputs: int, what: str = "text") -> list[Any]:
    """Return one text, or a list of them, as a list.

    Args:
        what: an item is, for errors.

    Raises:
        BadRequest: the list is empty, or holds more than this server takes.
    """
    items = [texts] if isinstance(texts, str) else texts
    if not items:
        raise EmptyRequest("is empty", field=(name,), remedy=f"send one {what} at least")
    if len(items) > max_inputs:
        allowed = f"this server takes {max_inputs} a request"
        raise TooManyInputs(f"holds {len(items)} {what}s", field=(name,), allowed=allowed, remedy="send fewer")
    return items


def best_labels(labelled: Labelled, top_k: int | None = None) -> list[list[dict[str, Any]]]:
    """Return the best `top_k` labels of each text with their scores, as TEI and infinity have them; None: all."""
    return [
        [{"score": score, "label": label} for label, score in labelled.best_first(index)[:top_k]]
        for index in range(len(labelled.scores))
    ]
