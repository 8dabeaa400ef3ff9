"""Bodies and responses of text-embeddings-inference's routes.

Besides TEI's fields a body may name a `model`.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, WithJsonSchema

from service.embedding.limits import too_many_tokens
from service.errors import WrongType
from service.http.validation_errors import body_of, quoted, validated
from service.protocols.inlay import DATA
from service.protocols.inlay.options import CutFields
from service.protocols.inlay.vllm_fields import ModelName

MAX_ID = 2**32 - 1
ONLY_INT = {int}
ID_LIST = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": MAX_ID}}

PromptName = Annotated[str | None, Field(description="the name of one of the model's prompts")]
RawScores = Annotated[bool, Field(description="true leaves scores as the model gives them")]
Texts = Annotated[list[str], Field(description="a list of texts", fail_fast=True)]  # else every fault is kept
OneOrTwoTexts = Annotated[list[str], Field(min_length=1, max_length=2)]


class StrictBody(BaseModel, strict=True):
    """A body whose values are not converted."""


class TokenVectorsBody(CutFields):
    """What to embed token by token."""

    inputs: Annotated[Any, WithJsonSchema(DATA.parts["inputs"])]
    model: ModelName = None
    prompt_name: PromptName = None
    normalize: bool | None = Field(None, description="true or false; not used: tei-client sends it")


class AllVectorsBody(TokenVectorsBody):
    """What to embed token by token, and whether to normalize the vectors."""

    normalize_tokens: bool | None = Field(
        None, description="true scales the vector of each token to unit length; left out: false"
    )


class SparseBody(TokenVectorsBody):
    """What to embed as sparse vectors."""

    input_type: Literal["query", "document"] | None = Field(
        None, description="query or document, where the model reads them in different ways"
    )
    max_active_dims: int | None = Field(
        None, gt=0, description="an integer from 1: the largest values kept of each vector"
    )


class ComparedTexts(StrictBody):
    """A text, and the texts to compare it with."""

    source_sentence: str = Field(description="a text")
    sentences: Texts


class ComparisonParameters(CutFields):
    """How texts are read."""

    prompt_name: PromptName = None


class SimilarityBody(StrictBody):
    """A text, the texts to compare it with, and how they are read."""

    inputs: Annotated[dict[str, Any], WithJsonSchema(ComparedTexts.model_json_schema())] = Field(
        description="an object with source_sentence and sentences"
    )
    parameters: Annotated[dict[str, Any] | None, WithJsonSchema(ComparisonParameters.model_json_schema())] = Field(
        None, description="an object with truncate, truncation_direction and prompt_name"
    )
    model: ModelName = None


class TokenizeBody(StrictBody):
    """Texts, and whether to add the model's special tokens."""

    inputs: str | Texts = Field(description="a text or a list of texts")
    add_special_tokens: bool = Field(True, description="true or false; left out: true")
    prompt_name: PromptName = None
    model: ModelName = None


class DecodeBody(StrictBody):
    """Token ids, and whether to leave special tokens out of their text."""

    ids: Annotated[Any, WithJsonSchema({"anyOf": [ID_LIST, {"type": "array", "items": ID_LIST}]})]
    skip_special_tokens: bool = Field(True, description="true or false; left out: true")
    model: ModelName = None


class PredictParameters(StrictBody, extra="forbid"):
    """The parameters that huggingface_hub sends with a text, as in Hugging Face's Inference API."""

    function_to_apply: Literal["sigmoid", "softmax", "none"] | None = Field(
        default=None, description="sigmoid, softmax or none"
    )
    top_k: int | None = Field(default=None, ge=1, description="an integer from 1: so many labels, the best")


class PredictBody(CutFields):
    """Texts or pairs to classify."""

    inputs: str | OneOrTwoTexts | Annotated[list[OneOrTwoTexts], Field(min_length=1, fail_fast=True)] = Field(
        description='a text, a pair ["a", "b"] or a list of ["a"] and ["a", "b"]'
    )
    raw_scores: RawScores = False
    parameters: PredictParameters | None = Field(
        None, description="an object with function_to_apply and top_k; with it a single text has a list of one"
    )
    model: ModelName = None


class RerankBody(CutFields):
    """A query and texts to rank."""

    query: str = Field(description="a text")
    texts: Texts
    raw_scores: RawScores = False
    return_text: bool = Field(False, description="true repeats each text in the response")
    model: ModelName = None


class InfoQuery(StrictBody):
    """The query of /info."""

    model: ModelName = None


def similarity_body(sent: bytes) -> tuple[SimilarityBody, ComparedTexts, ComparisonParameters]:
    """Return a body of /similarity and its members; raise BadRequest for the first fault."""
    body = body_of(sent, SimilarityBody)
    texts = validated(ComparedTexts, body.inputs, ("inputs",))
    return body, texts, validated(ComparisonParameters, body.parameters or {}, ("parameters",))


def id_lists(ids: Any, most: int) -> list[list[int]]:
    """Return one list of ids as a list of lists; several as they are.

    Args:
        most: ids of all lists together, beyond which no more are looked at.

    Raises:
        BadRequest: a value is not an id or a list of ids, or there are too many.
    """
    if type(ids) is not list:
        raise WrongType(f"is {quoted(ids)}", field=("ids",), allowed="send a list of ids, or a list of such lists")
    nested = bool(ids) and type(ids[0]) is list
    lists = ids if nested or not ids else [ids]
    count = 0
    for index, ids in enumerate(lists):
        if type(ids) is not list:
            allowed = "where one is a list of ids, all are"
            raise WrongType(f"is {quoted(ids)}", field=("ids", index), allowed=allowed)
        count += len(ids)
        if count > most:
            raise too_many_tokens(count, most, ("ids",))
        if set(map(type, ids)) <= ONLY_INT and (not ids or (min(ids) >= 0 and max(ids) <= MAX_ID)):
            continue
        place, value = next(item for item in enumerate(ids) if type(item[1]) is not int or not 0 <= item[1] <= MAX_ID)
        field = ("ids", index, place) if nested else ("ids", place)
        allowed = f"an id is an integer from 0 to {MAX_ID}"
        raise WrongType(f"is {quoted(value)}", index, field=field, allowed=allowed)
    return lists
