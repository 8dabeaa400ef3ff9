"""The OpenAPI document: FastAPI's own for plain routes, all others from the models that validate them. Serves none."""

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from service.http import request_headers
from service.http.formats import (
    FORMATS,
    JSON,
    NPY,
    OCTETS,
    SAFETENSORS,
    TENSOR_HEADERS,
)
from service.http.keys import OPEN
from service.http.problem_details import MEDIA_TYPE, Problem
from service.protocols.inlay import image_docs, logits, table_docs
from service.protocols.inlay.embed import PATH
from service.protocols.inlay.embed_body import EXAMPLES, EmbedBody
from service.protocols.inlay.positions import described
from service.protocols.oip import documents as oip
from service.protocols.openai import documents as openai
from service.protocols.tei import documents as tei

TEMPLATE = "#/components/schemas/{model}"
MODELS: tuple[type[BaseModel], ...] = (
    EmbedBody,
    *image_docs.MODELS,
    Problem,
    *described.MODELS,
    *table_docs.MODELS,
    logits.BODY,
    *tei.MODELS,
    *openai.MODELS,
)
REFUSALS = {
    400: "no inputs, or a body that is not JSON",
    401: "no key, or not one of this server's",
    404: "no such model",
    406: "no format the client accepts can carry the answer",
    408: "the request came too slowly",
    413: "the body is too large",
    415: "the body is not declared to be JSON",
    422: "a field or an input cannot be served",
    424: "the engine failed on this request, or the model is of another kind",
    429: "the queue is full; see Retry-After",
    431: "the line and headers are too large",
    503: "the service is starting or stopping",
    504: "the time the caller allowed is over, or would be",
}
KEYS = {
    True: "Every operation with a lock takes `authorization: Bearer KEY`.",
    False: "This server asks for no key (`INLAY_API_KEYS` would have it ask for one).",
}
INFO = f"""{{keys}}

A refusal is `{MEDIA_TYPE}`: `detail` says what came, what is allowed and what to do, and `code` is stable and the
same over gRPC. OpenAI's paths and those under `/v2` refuse in their own protocol's words.

`Accept` chooses the form of vectors and tables: {", ".join(FORMATS)}."""
TAGS = [
    {"name": "embed", "description": "Vectors of texts and token ids."},
    {"name": "models", "description": "What is loaded."},
    described.TAG,
    tei.TAG,
    oip.TAG,
    {"name": "operation", "description": "For probes and scrapers."},
]

VECTOR = {"type": "array", "items": {"type": "number"}}
VECTORS = {"type": "array", "items": VECTOR}
BASE64_TENSOR = {
    "type": "object",
    "required": ["dtype", "shape", "data"],
    "properties": {
        "dtype": {"enum": ["float32", "float16", "bfloat16"]},
        "shape": {"type": "array", "items": {"type": "integer"}},
        "data": {"type": "string", "contentEncoding": "base64", "description": "little-endian, row-major"},
    },
}
NAMED = {
    "type": "object",
    "required": ["model", "outputs", "usage"],
    "properties": {
        "model": {"type": "string"},
        "outputs": {
            "type": "object",
            "description": "by name, one entry an input: a vector where pooled, else a vector a token",
            "additionalProperties": {"type": "array", "items": {"anyOf": [VECTOR, VECTORS, BASE64_TENSOR]}},
        },
        "usage": {"type": "object", "properties": {"tokens": {"type": "integer"}}, "required": ["tokens"]},
    },
}
HANDED = {
    "type": "object",
    "title": "With `encoding_format` prompt_embeds or input_embeds",
    "required": ["model", "usage"],
    "anyOf": [{"required": ["prompt_embeds"]}, {"required": ["input_embeds"]}],
    "properties": {
        "model": {"type": "string"},
        "prompt_embeds": {"type": "array", "items": {"type": "string", "contentEncoding": "base64"}},
        "input_embeds": {"type": "array", "items": {"anyOf": [VECTOR, VECTORS]}},
        "usage": NAMED["properties"]["usage"],  # type: ignore[index]
    },
}
BARE = {
    "type": "array",
    "title": "With no `outputs`: one entry an input",
    "items": {"anyOf": [VECTOR, VECTORS, {"type": "string", "contentEncoding": "base64"}, BASE64_TENSOR]},
}
ANSWERS: dict[str, dict[str, Any]] = {
    "bare": {"value": [[0.01, -0.02, 0.03]]},
    "outputs": {
        "value": {
            "model": "minilm",
            "outputs": {"input_embeddings": [[[0.01, -0.02], [0.03, 0.04]]]},
            "usage": {"tokens": 2},
        }
    },
}
BINARY = {
    OCTETS: "The rows of all inputs, one below the other, little-endian.",
    NPY: "The same rows as a NumPy file; not in bfloat16.",
    SAFETENSORS: "A tensor `{index}/{output}` for each input and output.",
}


def problem_response(description: str) -> dict[str, Any]:
    """A response that holds a problem document."""
    return {"description": description, "content": {MEDIA_TYPE: {"schema": {"$ref": TEMPLATE.format(model="Problem")}}}}


def binary_content(descriptions: dict[str, str]) -> dict[str, Any]:
    """A response's `content` for formats of bytes, with what each holds."""
    return {
        media_type: {"schema": {"type": "string", "format": "binary", "description": description}}
        for media_type, description in descriptions.items()
    }


def describe(app: FastAPI, guarded: bool = False) -> None:
    """Complete the document of `app` the first time it is asked for; `guarded`: operations need a key."""
    plain = app.openapi

    def complete() -> dict[str, Any]:
        if not app.openapi_schema:
            document = plain()
            _, definitions = models_json_schema([(model, "validation") for model in MODELS], ref_template=TEMPLATE)
            document.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
            refusal = problem_response("What went wrong and what to do.")
            own = {PATH: {"post": _embed() | {"responses": _embed()["responses"] | {"401": tei.STRANGER}}}}
            own |= image_docs.paths(_embed(), refusal)
            document["paths"] = own | document["paths"] | described.paths(refusal) | table_docs.paths(refusal)
            document["paths"] |= logits.paths(refusal)
            for path, item in tei.paths(refusal, _embed()["responses"]["200"]["content"]).items():
                document["paths"].setdefault(path, {}).update(item)
            document["paths"] |= oip.paths(refusal)
            document["paths"] |= openai.paths(refusal)
            document["tags"] = TAGS
            document["info"]["description"] = INFO.format(keys=KEYS[guarded])
            request_headers.describe(document)
            if guarded:
                _guard(document)
        return app.openapi_schema or document

    app.openapi = complete  # type: ignore[method-assign]


def _guard(document: dict[str, Any]) -> None:
    scheme = {"type": "http", "scheme": "bearer", "description": "One of this server's keys."}
    document["components"]["securitySchemes"] = {"key": scheme}
    document["security"] = [{"key": []}]
    for path in OPEN & document["paths"].keys():
        document["paths"][path].get("get", {})["security"] = []


def _embed() -> dict[str, Any]:
    examples = {name: {"value": value} for name, value in EXAMPLES.items()}
    return {
        "tags": ["embed"],
        "summary": "Embed texts or token ids",
        "description": "A strict superset of text-embeddings-inference's route. `Accept` chooses the answer's format.",
        "operationId": "embed",
        "requestBody": {
            "required": True,
            "content": {JSON: {"schema": {"$ref": TEMPLATE.format(model="EmbedBody")}, "examples": examples}},
        },
        "responses": {
            "200": {
                "description": "The vectors, in the order of the inputs.",
                "headers": {
                    name: {"schema": {"type": "string"}, "description": f"with {OCTETS} and {NPY}"}
                    for name in TENSOR_HEADERS
                }
                | tei.headers(),
                "content": {JSON: {"schema": {"anyOf": [BARE, NAMED, HANDED]}, "examples": ANSWERS}}
                | binary_content(BINARY),
            }
        }
        | {str(status): problem_response(description) for status, description in REFUSALS.items()},
    }
