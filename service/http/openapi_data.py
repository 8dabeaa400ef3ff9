"""Reads what a package says in the OpenAPI document beside its routes and types, in its openapi.json."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import orjson

from service.http.parameter_types import TENSOR
from service.http.routes import OpenApiData, Schema

REFERENCE = "#/components/schemas/{model}"


def read(package: str, parts: Mapping[str, Any] = {}) -> OpenApiData:
    """Return the openapi.json beside the modules of a package; `parts` of another may stand in it."""
    data = OpenApiData(**orjson.loads((files(package) / "openapi.json").read_bytes()))
    parts = {**parts, **data.parts, "tensor": TENSOR}
    operations: dict[str, Schema] = {}
    for key, operation in data.operations.items():
        like = operations[operation["$like"]] if "$like" in operation else {}
        operations[key] = like | _whole({name: each for name, each in operation.items() if name != "$like"}, parts)
    return OpenApiData(operations, _whole(data.schemas, parts), _whole(data.parts, parts), data.tags)


def _whole(value: Any, parts: Mapping[str, Any]) -> Any:
    """Return a value with the parts that it names in their places."""
    if isinstance(value, list):
        return [_whole(each, parts) for each in value]
    if not isinstance(value, dict):
        return value
    members = {name: _whole(each, parts) for name, each in value.items() if name not in ("$part", "$fields")}
    whole = _whole(parts[value["$part"]], parts) if "$part" in value else {}
    if "$fields" in value:
        fields = _whole(value["$fields"], parts)
        whole = {"type": "object", "required": list(fields), "properties": fields}
    return members | {name: each for name, each in whole.items() if name not in members}


def reference(name: str) -> Schema:
    """Return a reference to a schema of the document's components."""
    return {"$ref": REFERENCE.format(model=name)}
