"""The routes of positions in the OpenAPI document, from the same pydantic models that validate them. Serves nothing."""

from typing import Any

from pydantic import BaseModel

from service.http.formats import (
    JSON,
    NPY,
    OCTETS,
    SAFETENSORS,
)
from service.protocols.inlay.positions import graphs, rotation
from service.protocols.inlay.positions import plots as pictures
from service.protocols.inlay.positions.model_schemes import BOUND, Bound
from service.protocols.inlay.positions.schemes import SCHEMES, Scheme

PURE, OF_A_MODEL = "/positions", "/models/{name}"
TAG = {"name": "positions", "description": "Positional encodings: of any parameters, and those of a model."}
TENSOR_MODELS: tuple[type[BaseModel], ...] = (rotation.ROTATE, rotation.ROTATE_OF_A_MODEL, rotation.CONVERT)
MODELS: tuple[type[BaseModel], ...] = (
    *(row.parameters for row in SCHEMES.values()),
    *(row.parameters for row in BOUND.values()),
    *TENSOR_MODELS,
)
FLOATS = {"type": "array", "items": {}}
DOCUMENT = {
    "type": "object",
    "description": "How the values were made, then each output by its name: nested lists, or base64 of its bytes.",
    "required": ["scheme", "arithmetic", "dtype", "notes", "shapes"],
    "properties": {
        "scheme": {"type": "string"},
        "arithmetic": {"enum": ["exact", "parity"]},
        "dtype": {"type": "string"},
        "formula": {"type": "string"},
        "inverse_frequency": {"type": "array", "items": {"type": "number"}, "description": "radians per position"},
        "attention_factor": {"type": "number", "description": "cos and sin are already multiplied by it"},
        "notes": {"type": "array", "items": {"type": "string"}, "description": "what libraries do otherwise"},
        "shapes": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "integer"}}},
    },
    "additionalProperties": True,
}
BINARY = {
    OCTETS: "The outputs one below the other, little-endian; several must be of one shape, or `output` names one.",
    NPY: "The same array as a NumPy file; not in bfloat16.",
    SAFETENSORS: "A tensor for each output; what is known of them in __metadata__.",
}
HEADERS = {
    "etag": "of these bytes, this version and this form",
    "inlay-shape": f"with {OCTETS} and {NPY}",
    "inlay-dtype": f"with {OCTETS} and {NPY}",
    "inlay-arithmetic": "exact or parity",
    "inlay-facts": "JSON: how the values were made, without lists; where it is short",
    "accept-ranges": "bytes, where the format has a fixed length",
}
NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}, "description": "of a model"}


def paths(problem: dict[str, Any]) -> dict[str, Any]:
    """Every path of positions and what it answers to which verb; `problem` describes a refusal."""
    found = {
        PURE: {"get": _listing("Every scheme, its parameters and plots", problem)},
        f"{PURE}/presets": {"get": _listing("RoPE configurations by name, with their sources", problem)},
    }
    for prefix, rows in ((PURE, SCHEMES), (OF_A_MODEL, BOUND)):
        for name, row in rows.items():
            found[f"{prefix}/{name}"] = _table(row, prefix, problem)
            if "GET" in row.methods and pictures.drawable(name):
                for form, media_type in pictures.MEDIA_TYPES.items():
                    found[f"{prefix}/{name}.{form}"] = {"get": _picture(row, prefix, form, media_type, problem)}
            if "GET" in row.methods and graphs.emitted(name):
                found[f"{prefix}/{name}.onnx"] = {"get": _graph(row, prefix, problem)}
    rotations = ((PURE, "rotate", rotation.ROTATE), (OF_A_MODEL, "rotate", rotation.ROTATE_OF_A_MODEL))
    for prefix, name, model in (*rotations, (PURE, "convert", rotation.CONVERT)):
        summary = {"rotate": "q and k turned by their positions", "convert": "Weights of q or k for another layout"}[
            name
        ]
        found[f"{prefix}/rope/{name}"] = {"post": post(model, prefix, summary, f"{name}_tensors", problem)}
    return found


def _listing(summary: str, problem: dict[str, Any]) -> dict[str, Any]:
    content = {JSON: {"schema": {"type": "object"}}}
    responses = {"200": {"description": "The list.", "content": content}, "default": problem}
    return {"tags": [TAG["name"]], "summary": summary, "operationId": _words(summary), "responses": responses}


def _table(row: Scheme | Bound, prefix: str, problem: dict[str, Any]) -> dict[str, Any]:
    found = {}
    if "GET" in row.methods:
        found["get"] = _operation(row.summary, f"get_{row.name}", prefix, _query(row.parameters)) | {
            "responses": {
                "200": _tables(),
                "206": {"description": "The bytes of a Range.", "content": _binary()},
                "304": {"description": "The client's copy is current."},
                "416": problem | {"description": "The range begins behind the last byte."},
                "default": problem,
            },
        }
    if "POST" in row.methods:
        found["post"] = post(row.parameters, prefix, row.summary, f"post_{row.name}", problem)
    return found


def _picture(row: Scheme | Bound, prefix: str, form: str, media_type: str, problem: dict[str, Any]) -> dict[str, Any]:
    parameters = _query(pictures.model_of(row))
    operation = _operation(f"{row.summary}, drawn", f"draw_{row.name}_{form}", prefix, parameters)
    return operation | _file("The picture.", media_type, problem)


def _graph(row: Scheme | Bound, prefix: str, problem: dict[str, Any]) -> dict[str, Any]:
    parameters = _query(graphs.model_of(row))
    operation = _operation(f"{row.summary}, as an ONNX graph", f"graph_{row.name}", prefix, parameters)
    return operation | _file("The graph, of any positions and lengths.", OCTETS, problem)


def _file(about: str, media_type: str, problem: dict[str, Any]) -> dict[str, Any]:
    return {
        "responses": {
            "200": {
                "description": about,
                "content": {media_type: {"schema": {"type": "string", "format": "binary"}}},
            },
            "304": {"description": "The client's copy is current."},
            "default": problem,
        }
    }


def post(model: type[BaseModel], prefix: str, summary: str, verb: str, problem: dict[str, Any]) -> dict[str, Any]:
    """A POST of tensors."""
    content: dict[str, Any] = {JSON: {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}
    content |= {SAFETENSORS: {"schema": {"type": "string", "format": "binary"}}}
    return _operation(summary, verb, prefix, []) | {
        "description": "The body is JSON, or safetensors: tensors by name, other parameters in __metadata__.",
        "requestBody": {"required": True, "content": content},
        "responses": {"200": _tables(), "default": problem},
    }


def _operation(summary: str, verb: str, prefix: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    named = [NAME, *parameters] if prefix == OF_A_MODEL else parameters
    identity = _words(f"{verb} of a model" if prefix == OF_A_MODEL else verb)
    return {"tags": [TAG["name"]], "summary": summary, "operationId": identity, "parameters": named}


def _words(text: str) -> str:
    return text.lower().replace(",", "").replace("-", "_").replace(" ", "_")


def _query(model: type[BaseModel]) -> list[dict[str, Any]]:
    """Each parameter as OpenAPI has it; a parameter that may be left out is one without a null."""
    schema = model.model_json_schema()
    found = []
    for name, entry in schema["properties"].items():
        about = {key: value for key, value in entry.items() if key not in ("description", "title", "anyOf")}
        options = [option for option in entry.get("anyOf", []) if option != {"type": "null"}]
        about |= options[0] if len(options) == 1 else {"anyOf": options} if options else {}
        if about.get("default", ...) is None:
            del about["default"]
        required = name in schema.get("required", [])
        found.append(
            {"name": name, "in": "query", "required": required, "schema": about, "description": entry["description"]}
        )
    return found


def _tables() -> dict[str, Any]:
    headers = {name: {"schema": {"type": "string"}, "description": about} for name, about in HEADERS.items()}
    return {"description": "The table.", "headers": headers, "content": {JSON: {"schema": DOCUMENT}} | _binary()}


def _binary() -> dict[str, Any]:
    return {
        media_type: {"schema": {"type": "string", "format": "binary", "description": about}}
        for media_type, about in BINARY.items()
    }
