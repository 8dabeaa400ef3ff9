"""/similar, /gradient and /analysis in the OpenAPI document, from the models that validate them. Serves nothing."""

from typing import Any

from pydantic import BaseModel

from models.tables.similar import MEASURES
from service.http.formats import (
    JSON,
    NPY,
    OCTETS,
    SAFETENSORS,
)
from service.protocols.inlay import analysis, gradient, similar
from service.protocols.inlay.positions.plots import MEDIA_TYPES

MODELS: tuple[type[BaseModel], ...] = (similar.BODY, gradient.BODY)
NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}, "description": "of a model"}
NUMBERS = {"type": "array", "items": {"type": "number"}}
COUNTED = {"type": "object", "properties": {"count": {"type": "integer"}, "ids": {"type": "array", "items": {}}}}
TOKEN = {
    "type": "object",
    "required": ["id", "token"],
    "properties": {
        "id": {"type": "integer"},
        "token": {"type": ["string", "null"], "description": "null: no tokenizer, or none of that id"},
        "score": {"type": "number", "description": "computed in float64; a distance is sent as minus the distance"},
    },
}
SIMILAR = {
    "type": "object",
    "required": ["model", "table", "measure", "inputs", "results"],
    "properties": {
        "model": {"type": "string"},
        "table": {"type": "object", "description": "as it is stored: before any scaling, projection or norm"},
        "measure": {"enum": list(MEASURES)},
        "inputs": {"type": "array", "items": TOKEN, "description": "the tokens that were sent"},
        "results": {"type": "array", "items": TOKEN, "description": "best first"},
    },
}
GRADIENT = {
    "type": "object",
    "description": "Facts, then each array by its name.",
    "properties": {
        "tables": {"type": "object", "description": "whose gradient token_rows and the others are"},
        "loss": {"type": "number", "description": "with targets"},
        "token_indices": {"type": "array", "items": {"type": "integer"}, "description": "rising; not with rows=all"},
        "token_rows": {"type": "array", "items": NUMBERS},
    },
    "additionalProperties": True,
}
ANALYSIS = {
    "type": "object",
    "properties": {
        "model": {"type": "string"},
        "table": {"type": "object", "description": "the word table: name, shape, dtype, bytes, parameters"},
        "norms": {"type": "object", "description": "of its rows: min, mean, max, std and a histogram"},
        "zero_rows": COUNTED,
        "duplicate_rows": COUNTED | {"description": "rows equal bit for bit to another, in groups; zeros aside"},
        "mean_cosine": {"type": ["number", "null"], "description": "of two different rows, over all pairs"},
        "mean_vector_norm": {"type": "number"},
        "memory": {"type": "object"},
        "flops": {"type": "object"},
        "components": {"type": "object", "description": "each step: tensors, parameters, bytes, FLOPs a token"},
        "spectrum": {
            "type": "object",
            "properties": {
                "effective_rank": {"type": "number"},
                "definition": {"type": "string"},
                "energy_ranks": {"type": "object", "description": "share of the squared sum: singular values it takes"},
                "reliable_above": {"type": "number", "description": "smaller singular values are rounding"},
                "singular_values": NUMBERS | {"description": "the largest first"},
            },
        },
    },
}
BINARY = {
    OCTETS: "One output, little-endian: send `output`.",
    NPY: "One output as a NumPy file: send `output`.",
    SAFETENSORS: "A tensor for each output; what is known of them in __metadata__.",
}


def paths(problem: dict[str, Any]) -> dict[str, Any]:
    """The three paths; `problem` describes a refusal."""
    tensors = {
        media_type: {"schema": {"type": "string", "format": "binary", "description": about}}
        for media_type, about in BINARY.items()
    }
    found = _operation("similar", "The tokens nearest to a token, a text, a vector or an analogy")
    loss = _operation("gradient", "Gradients of the tables, from that of the input layer's output")
    looks = _operation("analysis", "What the word table looks like, and what each step costs")
    drawn = {f"{analysis.PATH}.{form}": {"get": _picture(form, kind, problem)} for form, kind in MEDIA_TYPES.items()}
    return drawn | {
        similar.PATH: {"post": found | _body(similar.BODY, similar.EXAMPLES) | _answer(SIMILAR, problem, {})},
        gradient.PATH: {"post": loss | _body(gradient.BODY, gradient.EXAMPLES) | _answer(GRADIENT, problem, tensors)},
        analysis.PATH: {
            "get": looks | {"parameters": [NAME, *_query(analysis.QUERY)]} | _answer(ANALYSIS, problem, {})
        },
    }


def _picture(form: str, media_type: str, problem: dict[str, Any]) -> dict[str, Any]:
    content = {media_type: {"schema": {"type": "string", "format": "binary"}}}
    responses = {"200": {"description": "The picture.", "content": content}, "default": problem}
    found = _operation(f"analysis_{form}", "Singular values and lengths of the word table, drawn")
    return found | {"parameters": [NAME, *_query(analysis.PICTURE)], "responses": responses}


def _query(model: type[BaseModel]) -> list[dict[str, Any]]:
    """Each parameter as OpenAPI has it."""
    found = []
    for name, entry in model.model_json_schema()["properties"].items():
        about = {key: value for key, value in entry.items() if key not in ("title", "description")}
        found.append({"name": name, "in": "query", "schema": about, "description": entry["description"]})
    return found


def _operation(name: str, summary: str) -> dict[str, Any]:
    return {"tags": ["models"], "summary": summary, "operationId": f"model_{name}", "parameters": [NAME]}


def _body(model: type[BaseModel], examples: dict[str, Any]) -> dict[str, Any]:
    named = {name: {"value": value} for name, value in examples.items()}
    content: dict[str, Any] = {
        JSON: {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}, "examples": named},
        SAFETENSORS: {"schema": {"type": "string", "format": "binary"}},
    }
    about = "JSON, or safetensors: tensors of floats by name, other parameters in __metadata__, lists as 1,2,3."
    return {"description": about, "requestBody": {"required": True, "content": content}}


def _answer(schema: dict[str, Any], problem: dict[str, Any], besides: dict[str, Any]) -> dict[str, Any]:
    found = {"description": "What was found.", "content": {JSON: {"schema": schema}} | besides}
    return {"responses": {"200": found, "default": problem}}
