"""Moves parts that several operations of the OpenAPI document share to its `components`."""

import json
import re
from collections import Counter
from typing import Any

SHORTEST = 100  # characters of a part that is worth a reference, which takes about 50
Place = tuple[Any, Any, str]  # a part's holder, its key in it, and a name for it


def share_parts(document: dict[str, Any]) -> None:
    """Move equal response headers, responses and parameters to `components`, and leave references to them."""
    operations = [operation for item in document["paths"].values() for operation in item.values()]
    answers = [(f"{each['operationId']}.{status}", status, each) for each in operations for status in each["responses"]]
    headers = [each["responses"][status].get("headers", {}) for _, status, each in answers]
    lists = [each.get("parameters", []) for each in operations]
    places: dict[str, list[Place]] = {
        "headers": [(holder, name, name) for holder in headers for name in holder],
        "responses": [(each["responses"], status, name) for name, status, each in answers],
        "parameters": [(holder, index, each["name"]) for holder in lists for index, each in enumerate(holder)],
    }
    for kind, of_kind in places.items():  # headers first: a response refers to them
        _share(document["components"].setdefault(kind, {}), kind, of_kind)


def _share(components: dict[str, Any], kind: str, places: list[Place]) -> None:
    """Move the parts of one kind that are equal and long to `components`."""
    texts = [json.dumps(holder[key], sort_keys=True) for holder, key, _ in places]
    counts, references = Counter(texts), dict[str, dict[str, str]]()
    for text, (holder, key, name) in zip(texts, places, strict=True):
        if counts[text] == 1 or len(text) < SHORTEST:
            continue
        if text not in references:
            name = re.sub(r"[^A-Za-z0-9._-]", "_", name)
            names = [name, *(f"{name}_{number}" for number in range(2, len(components) + 2))]
            free = next(each for each in names if each not in components)
            components[free] = holder[key]
            references[text] = {"$ref": f"#/components/{kind}/{free}"}
        holder[key] = references[text]
