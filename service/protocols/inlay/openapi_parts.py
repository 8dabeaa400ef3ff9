"""Parts of the OpenAPI document that follow from no type, by name: openapi_parts.json, and models.json for /models.

In a schema {"$part": NAME} stands for the schema of that name, with the members beside it added, and "$fields" for the
properties of an object that has them all.
"""

import json
from pathlib import Path
from typing import Any

from service.http.parameter_types import TENSOR


def _read(name: str) -> dict[str, Any]:
    parts: dict[str, Any] = json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    return parts


_PARTS = _read("openapi_parts.json")
_SCHEMAS: dict[str, Any] = _PARTS["schemas"] | _read("models.json")
EMBED = "embed"  # tags of operations
RERANK = "rerank and classify"
POSITIONS = "positions"
MODELS = "models"
TEI = "text-embeddings-inference"
OIP = "Open Inference Protocol"
OIP_REPOSITORY = "Open Inference Protocol: model repository"
OPERATION = "operation"
TAGS: dict[str, str] = _PARTS["tags"]
"""The descriptions of the tags of every protocol's operations, in the order of the documentation page."""
EXAMPLES: dict[str, dict[str, Any]] = _PARTS["examples"]
DESCRIPTIONS: dict[str, dict[str, str]] = _PARTS["descriptions"]


def schema(name: str) -> dict[str, Any]:
    """Return the JSON schema of a name."""
    return TENSOR if name == "tensor" else _whole(_SCHEMAS[name])


def _whole(part: Any) -> Any:
    """Return a part with the schemas that it names in their places."""
    if isinstance(part, list):
        return [_whole(each) for each in part]
    if not isinstance(part, dict):
        return part
    whole = schema(part["$part"]) if "$part" in part else {}
    if "$fields" in part:
        whole = {"type": "object", "required": list(part["$fields"]), "properties": _whole(part["$fields"])}
    return whole | {name: _whole(each) for name, each in part.items() if name not in ("$part", "$fields")}
