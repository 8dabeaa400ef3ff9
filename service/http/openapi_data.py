"""Reads what a package says in the OpenAPI document beside its routes: answers and examples, in its openapi.json."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any, NamedTuple

import orjson

from service.http.routes import Schema

REFERENCE = "#/components/schemas/{model}"


class OpenApiData(NamedTuple):
    """The content of an openapi.json.

    Args:
        schemas: JSON schemas of answers by name, for the document's components.
        examples: JSON bodies by name, for each kind of body.
    """

    schemas: Mapping[str, Schema]
    examples: dict[str, dict[str, Any]]


def read(package: str) -> OpenApiData:
    """Return the openapi.json beside the modules of a package."""
    return OpenApiData(**orjson.loads((files(package) / "openapi.json").read_bytes()))


def reference(name: str) -> Schema:
    """Return a reference to a schema of the document's components."""
    return {"$ref": REFERENCE.format(model=name)}
