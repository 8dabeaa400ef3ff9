"""The Open Inference Protocol in the OpenAPI document: what rest, lending and repository serve. Serves nothing."""

import re
from typing import Any

from pydantic import BaseModel

from service.http.formats import JSON, OCTETS
from service.protocols.oip import repository
from service.protocols.oip import routes as rest
from service.protocols.oip import shared_memory_routes as lending
from service.protocols.oip.datatypes import DATATYPES
from service.protocols.oip.parameters import OURS

MODELS: tuple[type[BaseModel], ...] = ()
TAG = {"name": "open inference", "description": "The Open Inference Protocol v2, as Triton and KServe speak it."}
STRING, NUMBER, FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
SHAPE = {"type": "array", "items": NUMBER}
DATA = {"type": "array", "description": "flat or nested as the shape says; BYTES as strings; FP16 and BF16 never"}
PLACE = {"shared_memory_region": STRING, "shared_memory_offset": NUMBER, "shared_memory_byte_size": NUMBER}
OWN = {name: {"description": f"allowed: {allowed}"} for name, (_, allowed) in OURS.items()}


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def _list(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item}


TENSOR = {"name": STRING, "datatype": {"enum": list(DATATYPES)}, "shape": SHAPE}
METADATA = _list(_object(TENSOR, *TENSOR))
INPUT = _object(TENSOR | {"data": DATA, "parameters": _object({"binary_data_size": NUMBER} | PLACE)}, *TENSOR)
OUTPUT = _object({"name": STRING, "parameters": _object({"binary_data": FLAG} | PLACE)}, "name")
REQUEST = _object(
    {
        "id": STRING,
        "parameters": _object({"binary_data_output": FLAG} | OWN),
        "inputs": _list(INPUT),
        "outputs": _list(OUTPUT),
    },
    "inputs",
)
REPLY = _object(
    {"model_name": STRING, "model_version": STRING, "id": STRING, "outputs": _list(INPUT)}, "model_name", "outputs"
)
ERROR = _object({"error": STRING}, "error")
EXAMPLES = {
    "padded_ids": {
        "inputs": [
            {"name": "input_ids", "datatype": "INT64", "shape": [2, 3], "data": [[5, 6, 7], [8, 9, 0]]},
            {"name": "attention_mask", "datatype": "INT64", "shape": [2, 3], "data": [1, 1, 1, 1, 1, 0]},
        ]
    },
    "flat_ids": {
        "inputs": [
            {"name": "input_ids", "datatype": "INT64", "shape": [5], "data": [5, 6, 7, 8, 9]},
            {"name": "lengths", "datatype": "INT64", "shape": [2], "data": [3, 2]},
        ],
        "outputs": [{"name": "input_embeddings"}],
    },
    "texts": {
        "id": "1",
        "parameters": {"normalize": True},
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [2], "data": ["hello world", "hello"]}],
    },
}
MODEL = _object(
    {"name": STRING, "versions": _list(STRING), "platform": STRING, "inputs": METADATA, "outputs": METADATA}
)
REGIONS = _list(_object({"name": STRING, "key": STRING, "offset": NUMBER, "byte_size": NUMBER}))
INDEX = _list(_object({"name": STRING, "version": STRING, "state": STRING, "reason": STRING}))
SERVER = _object({"name": STRING, "version": STRING, "extensions": _list(STRING)})
# by the name in the metrics: what it is for, and what it answers (None: an empty body)
ANSWERS: dict[str, tuple[str, dict[str, Any] | None]] = {
    "oip_server": ("What this server is and which extensions it has", SERVER),
    "oip_live": ("The process answers", _object({"live": FLAG})),
    "oip_ready": ("New requests are welcome", _object({"ready": FLAG})),
    "oip_statistics": ("What was answered over this protocol, by model", _object({"model_stats": _list(_object({}))})),
    "oip_model": ("The tensors a model takes and gives", MODEL),
    "oip_model_ready": ("The model answers", _object({"name": STRING, "ready": FLAG})),
    "oip_config": ("The same in Triton's words", _object({})),
    "oip_infer": ("Token ids or texts → vectors", REPLY),
    "oip_shared_memory_status": ("The regions that are registered", REGIONS),
    "oip_shared_memory_register": ("Lend a region", None),
    "oip_shared_memory_unregister": ("Take a region back, or all", None),
    "oip_index": ("Every model of the store, and whether it is loaded", INDEX),
    "oip_load": ("Serve the store's present version of a model", None),
    "oip_unload": ("Stop serving a model", None),
    "oip_cuda_status": ("Not supported", None),
    "oip_cuda": ("Not supported", None),
}
REPOSITORY = (
    ("POST", "oip_index", None, f"{repository.PATH}/index"),
    ("POST", "oip_load", None, f"{repository.MODEL}/load"),
    ("POST", "oip_unload", None, f"{repository.MODEL}/unload"),
)
BODIES: dict[str, dict[str, Any]] = {
    "oip_infer": REQUEST,
    "oip_shared_memory_register": _object({"key": STRING, "offset": NUMBER, "byte_size": NUMBER}, "key", "byte_size"),
}


def paths(refusal: dict[str, Any]) -> dict[str, Any]:
    """Every path; `refusal` is how other paths refuse, these have the protocol's own words."""
    found: dict[str, Any] = {}
    for verb, method, _, *own in (*rest.ROUTES, *lending.ROUTES, *REPOSITORY):
        for number, path in enumerate(own):
            operation = _operation(method, path) | {"operationId": f"{method}_{number}" if number else method}
            found.setdefault(path, {})[verb.lower()] = operation
    return found


def _operation(method: str, path: str) -> dict[str, Any]:
    summary, answer = ANSWERS[method]
    error = {"description": "What went wrong and what to do.", "content": {JSON: {"schema": ERROR}}}
    operation: dict[str, Any] = {
        "tags": [TAG["name"]],
        "summary": summary,
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": STRING} for name in re.findall(r"{(\w+)}", path)
        ],
        "responses": {"200": _answered(method, answer), "default": error},
    }
    if method in BODIES:
        operation["requestBody"] = {"required": True, "content": _content(method, BODIES[method], EXAMPLES)}
    return operation


def _answered(method: str, answer: dict[str, Any] | None) -> dict[str, Any]:
    if answer is None:
        return {"description": "Done."}
    return {"description": "The answer.", "content": _content(method, answer, {})}


def _content(method: str, schema: dict[str, Any], examples: dict[str, Any]) -> dict[str, Any]:
    if method != "oip_infer":
        return {JSON: {"schema": schema}}
    named = {"examples": {name: {"value": value} for name, value in examples.items()}} if examples else {}
    about = "JSON, then raw tensors as they are listed; Inference-Header-Content-Length has the JSON's bytes."
    return {
        JSON: {"schema": schema} | named,
        OCTETS: {"schema": {"type": "string", "format": "binary", "description": about}},
    }
