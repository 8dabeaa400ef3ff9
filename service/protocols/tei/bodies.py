"""The JSON bodies of text-embeddings-inference's routes. pydantic validates and describes them; reads no model.

Besides theirs a body may name a `model`. A member nobody knows is refused: it is a typing error.
"""

from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema

from service.embedding.requests import Direction
from service.errors import BadRequest, Malformed
from service.protocols.inlay.embed_body import INPUTS, explain
from service.protocols.inlay.inputs import show

MOST_ID = 2**32 - 1
ID_LIST = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": MOST_ID}}
TEXTS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
PAIR = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2}
PREDICTED = {"anyOf": [{"type": "string"}, PAIR, {"type": "array", "items": PAIR}]}
STRICT = ConfigDict(extra="forbid", strict=True)

Named = Annotated[str | None, Field(description="a model's name; left out: the server's default")]
Truncate = Annotated[bool | None, Field(description="true cuts inputs that are too long, false refuses them")]
Side = Annotated[
    Literal["Right", "right", "Left", "left"], Field(description="Right keeps the beginning, Left the end")
]
Prompt = Annotated[str | None, Field(description="the name of one of the model's prompts")]
Raw = Annotated[bool, Field(description="true leaves scores as the model gives them")]


class TokenVectorsBody(BaseModel):
    """What to embed token by token."""

    model_config = STRICT
    inputs: Annotated[Any, WithJsonSchema(INPUTS)]
    model: Named = None
    truncate: Truncate = None
    truncation_direction: Side = "Right"
    prompt_name: Prompt = None
    normalize: Annotated[bool | None, Field(description="true or false; not used: tei-client sends it")] = None


class ComparedTexts(BaseModel):
    """A text and those it is compared with."""

    model_config = STRICT
    source_sentence: Annotated[str, Field(description="a text")]
    sentences: Annotated[list[str], Field(description="a list of texts")]


class ComparedHow(BaseModel):
    """How texts are read."""

    model_config = STRICT
    truncate: Truncate = None
    truncation_direction: Side = "Right"
    prompt_name: Prompt = None


class SimilarityBody(BaseModel):
    """A text, those it is compared with, and how they are read."""

    model_config = STRICT
    inputs: Annotated[Any, WithJsonSchema(ComparedTexts.model_json_schema())]
    parameters: Annotated[Any, WithJsonSchema(ComparedHow.model_json_schema())] = None
    model: Named = None


class TokenizeBody(BaseModel):
    """Texts, and whether the model's special tokens are wanted."""

    model_config = STRICT
    inputs: Annotated[str | list[str], WithJsonSchema(TEXTS), Field(description="a text or a list of texts")]
    add_special_tokens: Annotated[bool, Field(description="true or false; left out: true")] = True
    prompt_name: Prompt = None
    model: Named = None


class DecodeBody(BaseModel):
    """Token ids, and whether special tokens are left out of their text."""

    model_config = STRICT
    ids: Annotated[Any, WithJsonSchema({"anyOf": [ID_LIST, {"type": "array", "items": ID_LIST}]})]
    skip_special_tokens: Annotated[bool, Field(description="true or false; left out: true")] = True
    model: Named = None


class PredictBody(BaseModel):
    """What a classifier would read."""

    model_config = STRICT
    inputs: Annotated[Any, WithJsonSchema(PREDICTED)]
    truncate: Truncate = None
    truncation_direction: Side = "Right"
    raw_scores: Raw = False
    model: Named = None


class RerankBody(BaseModel):
    """What a re-ranker would read."""

    model_config = STRICT
    query: Annotated[str, Field(description="a text")]
    texts: Annotated[list[str], Field(description="a list of texts")]
    truncate: Truncate = None
    truncation_direction: Side = "Right"
    raw_scores: Raw = False
    return_text: Annotated[bool, Field(description="true repeats each text in the answer")] = False
    model: Named = None


class VertexBody(BaseModel):
    """Requests of Vertex AI, answered one by one."""

    model_config = STRICT
    instances: Annotated[list[dict[str, Any]], Field(description="a list of bodies of /embed")]


Body = TypeVar("Body", bound=BaseModel)


def parsed(body: bytes) -> Any:
    """The JSON value of a body.

    raises   Malformed
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Malformed(f"the body is not JSON: {error}") from None


def valid(model: type[Body], data: Any) -> Body:
    """The body as `model`.

    raises   BadRequest naming the member, what came and what is allowed
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise BadRequest(explain(error, model)) from None


def inner(model: type[Body], data: Any, name: str) -> Body:
    """An object inside a body.

    raises   BadRequest naming the member it is in
    """
    if type(data) is not dict:
        raise BadRequest(f"{name} is {show(data)}; send an object with {', '.join(model.model_fields)}")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise BadRequest(f"in {name}: {explain(error, model)}") from None


def side(value: str) -> Direction:
    """The direction a member named."""
    return "left" if value in ("Left", "left") else "right"


def id_lists(ids: Any) -> list[list[int]]:
    """One list of ids, or several, as several.

    raises   BadRequest naming the place
    """
    if type(ids) is not list:
        raise BadRequest(f"ids is {show(ids)}; send a list of ids, or a list of such lists")
    if not ids:
        return []
    nested = type(ids[0]) is list
    for index, each in enumerate(ids):
        if nested and type(each) is not list:
            raise BadRequest(f"ids[{index}] is {show(each)}; where one is a list of ids, all are")
    for index, each in enumerate(ids if nested else [ids]):
        for place, value in enumerate(each):
            if type(value) is not int or not 0 <= value <= MOST_ID:
                at = f"[{index}][{place}]" if nested else f"[{place}]"
                raise BadRequest(f"ids{at} is {show(value)}; an id is an integer from 0 to {MOST_ID}")
    return ids if nested else [ids]


def check_predicted(inputs: Any) -> None:
    """Raise BadRequest unless this is a text, a pair of texts or a list of [text] and [text, text]."""
    if type(inputs) is str or _is_pair(inputs):
        return
    if type(inputs) is not list or not inputs or not all(_is_pair(each) for each in inputs):
        raise BadRequest(f'inputs is {show(inputs)}; send a text, a pair ["a", "b"] or a list of ["a"] and ["a", "b"]')


def _is_pair(value: Any) -> bool:
    return type(value) is list and len(value) in (1, 2) and all(type(each) is str for each in value)
