"""The descriptions of the responses of /embed for the OpenAPI document."""

from typing import Any

from service.embedding import truncation
from service.http.formats import JSON, NPY, OCTETS, TENSOR_HEADERS
from service.http.problem_details import MEDIA_TYPE, Problem
from service.http.routes import Answer, binary
from service.http.tensors import SAFETENSORS
from service.protocols.inlay.embed import TIMING_HEADERS

VECTOR = {"type": "array", "items": {"type": "number"}}
VECTORS = {"type": "array", "items": VECTOR}
BASE64 = {"type": "string", "contentEncoding": "base64"}
BASE64_TENSOR = {
    "type": "object",
    "required": ["dtype", "shape", "data"],
    "properties": {
        "dtype": {"enum": ["float32", "float16", "bfloat16", "int8", "uint8"]},
        "shape": {"type": "array", "items": {"type": "integer"}},
        "data": BASE64 | {"description": "little-endian, row-major"},
    },
}
SPARSE_VECTOR = {
    "type": "object",
    "title": "A sparse vector",
    "required": ["indices", "values"],
    "properties": {
        "indices": {"type": "array", "items": {"type": "integer"}, "description": "ascending"},
        "values": VECTOR,
    },
}
TRUNCATED = {
    "type": "array",
    "items": {"type": "integer"},
    "description": "numbers of the inputs that were cut, from 0; absent: none was cut",
}
_PLACE = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
CHUNKS = {
    "type": "array",
    "items": {
        "type": "array",
        "items": {"type": "object", "required": ["tokens"], "properties": {"characters": _PLACE, "tokens": _PLACE}},
    },
    "description": "with `spans` or `chunking`: the code points [start, stop] of each vector, and its tokens",
}
USAGE = {"type": "object", "properties": {"tokens": {"type": "integer"}}, "required": ["tokens"]}
BARE = {
    "type": "array",
    "title": "With no `outputs`: one entry an input",
    "items": {"anyOf": [VECTOR, VECTORS, BASE64, BASE64_TENSOR, SPARSE_VECTOR]},
}
NAMED = {
    "type": "object",
    "title": "With `outputs`",
    "required": ["model", "outputs", "usage"],
    "properties": {
        "model": {"type": "string"},
        "outputs": {
            "type": "object",
            "description": "by name, one entry an input: a vector where pooled, else a vector a token, or a chunk",
            "additionalProperties": {
                "type": "array",
                "items": {"anyOf": [VECTOR, VECTORS, BASE64_TENSOR, SPARSE_VECTOR]},
            },
        },
        "usage": USAGE,
        "truncated": TRUNCATED,
        "chunks": CHUNKS,
    },
}
PROMPT_EMBEDS = {
    "type": "object",
    "title": "With `encoding_format` prompt_embeds or input_embeds",
    "required": ["model", "usage"],
    "anyOf": [{"required": ["prompt_embeds"]}, {"required": ["input_embeds"]}],
    "properties": {
        "model": {"type": "string"},
        "prompt_embeds": {"type": "array", "items": BASE64},
        "input_embeds": {"type": "array", "items": {"anyOf": [VECTOR, VECTORS]}},
        "usage": USAGE,
        "truncated": TRUNCATED,
    },
}
BINARY = {
    OCTETS: "The rows of all inputs, one below the other, little-endian; signs as bytes, int8 or uint8.",
    NPY: "The same rows as a NumPy file; not in bfloat16.",
    SAFETENSORS: "A tensor `{index}/{output}` for each input and output; `/indices` and `/values` of sparse ones.",
}
EXAMPLES: dict[str, Any] = {
    "bare": [[0.01, -0.02, 0.03]],
    "outputs": {
        "model": "minilm",
        "outputs": {"input_embeddings": [[[0.01, -0.02], [0.03, 0.04]]]},
        "usage": {"tokens": 2},
    },
}
ERRORS = {
    400: "no inputs, or a body that is not JSON",
    404: "no such model",
    406: "no format the client accepts can carry the response",
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
VECTORS_ANSWER = Answer(
    description="The vectors, in the order of the inputs.",
    headers=dict.fromkeys(TENSOR_HEADERS, f"with {OCTETS} and {NPY}") | TIMING_HEADERS | truncation.HEADERS,
    content={JSON: {"anyOf": [BARE, NAMED, PROMPT_EMBEDS]}} | {name: binary(about) for name, about in BINARY.items()},
    examples=EXAMPLES,
)
VECTOR_ANSWERS = {
    200: VECTORS_ANSWER,
    **{status: Answer(description=about, content={MEDIA_TYPE: Problem}) for status, about in ERRORS.items()},
}
UNAUTHORIZED = Answer(
    description="No key, or an unknown one.",
    content={MEDIA_TYPE: Problem},
    headers={"www-authenticate": "Bearer"},
)
EMBED_ANSWERS = VECTOR_ANSWERS | {401: UNAUTHORIZED}
