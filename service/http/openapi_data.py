"""Reads what a package says in the OpenAPI document beside its routes and types, in its openapi.json."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any, NamedTuple

import orjson

from service.http.parameter_types import TENSOR
from service.http.routes import Schema

REFERENCE = "#/components/schemas/{model}"
_NONE: Mapping[str, Any] = {}


class OpenApiData(NamedTuple):
    """The content of an openapi.json.

    In a schema {"$part": NAME} stands for a schema of `parts`, with the members beside it added, and "$fields" for the
    properties of an object that has them all.

    Args:
        schemas: JSON schemas of answers by name, for the document's components.
        examples: JSON bodies by name, for each kind of body.
        parts: JSON schemas that stand in others, and those of bodies and answers without a name in the document.
        descriptions: texts by name, for each kind of thing.
        tags: the descriptions of tags of operations, in the order of the documentation page.
    """

    schemas: Mapping[str, Schema]
    examples: dict[str, dict[str, Any]]
    parts: Mapping[str, Schema] = _NONE
    descriptions: Mapping[str, dict[str, str]] = _NONE
    tags: Mapping[str, str] = _NONE


def read(package: str) -> OpenApiData:
    """Return the openapi.json beside the modules of a package."""
    data = OpenApiData(**orjson.loads((files(package) / "openapi.json").read_bytes()))
    parts = {**data.parts, "tensor": TENSOR}
    return data._replace(schemas=_whole(data.schemas, parts), parts=_whole(data.parts, parts))


def _whole(value: Any, parts: Mapping[str, Any]) -> Any:
    """Return a schema with the parts that it names in their places."""
    if isinstance(value, list):
        return [_whole(each, parts) for each in value]
    if not isinstance(value, dict):
        return value
    members = {name: _whole(each, parts) for name, each in value.items() if name not in ("$part", "$fields")}
    whole = _whole(parts[value["$part"]], parts) if "$part" in value else {}
    if "$fields" in value:
        fields = _whole(value["$fields"], parts)
        whole = {"type": "object", "required": list(fields), "properties": fields}
    return whole | members


def reference(name: str) -> Schema:
    """Return a reference to a schema of the document's components."""
    return {"$ref": REFERENCE.format(model=name)}
