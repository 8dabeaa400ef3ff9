"""Parts of the OpenAPI document that follow from no type: openapi_parts.json holds them, by name.

In a schema {"$part": NAME} stands for the schema of that name, with the members beside it added.
"""

import json
from pathlib import Path
from typing import Any

from service.http.parameter_types import TENSOR

_PARTS: dict[str, Any] = json.loads(Path(__file__).with_name("openapi_parts.json").read_text(encoding="utf-8"))
TAGS: dict[str, str] = _PARTS["tags"]
EXAMPLES: dict[str, dict[str, Any]] = _PARTS["examples"]
DESCRIPTIONS: dict[str, dict[str, str]] = _PARTS["descriptions"]


def schema(name: str) -> dict[str, Any]:
    """Return the JSON schema of a name."""
    return TENSOR if name == "tensor" else _whole(_PARTS["schemas"][name])


def _whole(part: Any) -> Any:
    """Return a part with the schemas that it names in their places."""
    if isinstance(part, list):
        return [_whole(each) for each in part]
    if not isinstance(part, dict):
        return part
    shared = schema(part["$part"]) if "$part" in part else {}
    return shared | {name: _whole(each) for name, each in part.items() if name != "$part"}
