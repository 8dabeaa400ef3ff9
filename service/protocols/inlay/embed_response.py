"""The response of /embed in the OpenAPI document."""

from collections.abc import Mapping
from typing import Any

from service.http.formats import JSON, NPY, OCTETS, SAFETENSORS, TENSOR_HEADERS
from service.http.routes import Answer
from service.protocols.tei import timing_headers

VECTOR = {"type": "array", "items": {"type": "number"}}
VECTORS = {"type": "array", "items": VECTOR}
USAGE = {"type": "object", "properties": {"tokens": {"type": "integer"}}, "required": ["tokens"]}
BASE64 = {"type": "string", "contentEncoding": "base64"}
BASE64_TENSOR = {
    "type": "object",
    "required": ["dtype", "shape", "data"],
    "properties": {
        "dtype": {"enum": ["float32", "float16", "bfloat16"]},
        "shape": {"type": "array", "items": {"type": "integer"}},
        "data": BASE64 | {"description": "little-endian, row-major"},
    },
}
BARE = {
    "type": "array",
    "title": "With no `outputs`: one entry an input",
    "items": {"anyOf": [VECTOR, VECTORS, BASE64, BASE64_TENSOR]},
}
NAMED = {
    "type": "object",
    "title": "With `outputs`",
    "required": ["model", "outputs", "usage"],
    "properties": {
        "model": {"type": "string"},
        "outputs": {
            "type": "object",
            "description": "by name, one entry an input: a vector where pooled, else a vector a token",
            "additionalProperties": {"type": "array", "items": {"anyOf": [VECTOR, VECTORS, BASE64_TENSOR]}},
        },
        "usage": USAGE,
    },
}
FOR_ENGINES = {
    "type": "object",
    "title": "With `encoding_format` prompt_embeds or input_embeds",
    "required": ["model", "usage"],
    "anyOf": [{"required": ["prompt_embeds"]}, {"required": ["input_embeds"]}],
    "properties": {
        "model": {"type": "string"},
        "prompt_embeds": {"type": "array", "items": BASE64},
        "input_embeds": {"type": "array", "items": {"anyOf": [VECTOR, VECTORS]}},
        "usage": USAGE,
    },
}
EMBED_JSON: Mapping[str, Any] = {"anyOf": [BARE, NAMED, FOR_ENGINES]}
EMBED_BYTES: Mapping[str, Any] = {
    media_type: {"type": "string", "format": "binary", "description": description}
    for media_type, description in (
        (OCTETS, "The rows of all inputs, one below the other, little-endian."),
        (NPY, "The same rows as a NumPy file; not in bfloat16."),
        (SAFETENSORS, "A tensor `{index}/{output}` for each input and output."),
    )
}
EMBED_ANSWER = Answer(
    description="The vectors, in the order of the inputs.",
    content={JSON: EMBED_JSON, **EMBED_BYTES},
    headers={name: f"with {OCTETS} and {NPY}" for name in TENSOR_HEADERS} | timing_headers.HEADERS,
    examples={
        "bare": [[0.01, -0.02, 0.03]],
        "outputs": {
            "model": "minilm",
            "outputs": {"input_embeddings": [[[0.01, -0.02], [0.03, 0.04]]]},
            "usage": {"tokens": 2},
        },
    },
)
