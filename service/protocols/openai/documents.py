"""/v1/embeddings, /embeddings, /pooling and /v1/models in the OpenAPI document, from the models that validate them."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from service.error_status import STATUSES
from service.http.formats import JSON, OCTETS
from service.protocols.openai.bodies import EXAMPLES, EmbeddingsBody, PoolingBody
from service.protocols.openai.embeddings import EMBEDDINGS, POOLING, UNVERSIONED
from service.protocols.openai.models import MODELS as LIST


class OpenAIFault(BaseModel):
    """What OpenAI's clients raise as APIStatusError."""

    message: Annotated[str, Field(description="What came, what is allowed, what to do.")]
    type: Annotated[str, Field(examples=sorted({status.openai[1] for status in STATUSES.values()}))]
    param: Annotated[str | None, Field(description="the member to blame")]
    code: Annotated[str, Field(examples=["model_not_found", "bad_input"])]


class OpenAIError(BaseModel):
    """A refusal of these paths."""

    error: OpenAIFault


MODELS: tuple[type[BaseModel], ...] = (EmbeddingsBody, PoolingBody, OpenAIError)
REF = "#/components/schemas/{}"
NUMBERS = {"type": "array", "items": {"type": "number"}}
BASE64 = {"type": "string", "contentEncoding": "base64", "description": "in embed_dtype and endianness"}
USAGE = {"type": "object", "properties": {name: {"type": "integer"} for name in ("prompt_tokens", "total_tokens")}}
MODEL = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by"],
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "model"},
        "created": {"type": "integer", "description": "when it was exported, in seconds since 1970"},
        "owned_by": {"const": "inlay"},
        "max_model_len": {"type": ["integer", "null"], "description": "longest text, in tokens"},
        "root": {"type": "string", "description": "what it was exported from"},
        "parent": {"type": "null"},
    },
}
METADATA = {
    "metadata": {
        "schema": {"type": "string"},
        "description": "with encoding_format bytes: JSON that says where each vector lies, as vLLM has it",
    }
}


def paths(refusal: dict[str, Any]) -> dict[str, Any]:
    """The five paths; they word their own refusals, so `refusal` is not used."""
    about = "OpenAI's route, with vLLM's and infinity's members. One vector an input."
    pooled = "vLLM's route: as /v1/embeddings, and rows of tokens where the model or `task` gives them."
    vectors, rows = _answer("embedding", NUMBERS), _answer("data", {"type": "array", "items": NUMBERS})
    one = _get("openai_model", "One model, as OpenAI has it", MODEL)
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    listed = {"type": "object", "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": MODEL}}}
    return {
        EMBEDDINGS: {"post": _post("openai_embeddings", "Embed as OpenAI does", about, EmbeddingsBody, vectors)},
        UNVERSIONED: {"post": _post("embeddings", "The same without /v1", about, EmbeddingsBody, vectors)},
        POOLING: {"post": _post("pooling", "Embed as vLLM's pooling does", pooled, PoolingBody, rows)},
        LIST: {"get": _get("openai_models", "Every loaded model, as OpenAI lists them", listed)},
        LIST + "/{name}": {"get": one | {"parameters": [name]}},
    }


def _post(name: str, summary: str, about: str, body: type[BaseModel], answer: dict[str, Any]) -> dict[str, Any]:
    examples = {key: {"value": value} for key, value in EXAMPLES.items()}
    content = {JSON: {"schema": {"$ref": REF.format(body.__name__)}, "examples": examples}}
    bare = {"schema": {"type": "string", "format": "binary", "description": "vectors in the order of the inputs"}}
    found = {
        "description": "The vectors, in the order of the inputs.",
        "headers": METADATA,
        "content": {JSON: {"schema": answer}, OCTETS: bare},
    }
    return {
        "tags": ["embed"],
        "summary": summary,
        "description": about,
        "operationId": name,
        "requestBody": {"required": True, "content": content},
        "responses": {"200": found, "default": _refusal()},
    }


def _get(name: str, summary: str, schema: dict[str, Any]) -> dict[str, Any]:
    found = {"description": "What is loaded.", "content": {JSON: {"schema": schema}}}
    return {
        "tags": ["models"],
        "summary": summary,
        "operationId": name,
        "responses": {"200": found, "default": _refusal()},
    }


def _answer(member: str, vector: dict[str, Any]) -> dict[str, Any]:
    entry = {
        "type": "object",
        "required": ["object", "index", member],
        "properties": {
            "object": {"type": "string"},
            "index": {"type": "integer"},
            member: {"anyOf": [NUMBERS, vector, BASE64]},
        },
    }
    strings = {name: {"type": "string"} for name in ("id", "object", "model")}
    return {
        "type": "object",
        "required": ["object", "data", "model", "usage"],
        "properties": strings
        | {"created": {"type": "integer"}, "data": {"type": "array", "items": entry}, "usage": USAGE},
    }


def _refusal() -> dict[str, Any]:
    content = {JSON: {"schema": {"$ref": REF.format(OpenAIError.__name__)}}}
    return {"description": "What went wrong and what to do, as OpenAI words it.", "content": content}
