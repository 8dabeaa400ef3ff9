"""Parts that several operations of the OpenAPI document have, described once under its `components`."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

SHORTEST = 100  # characters of a part that is worth a reference, which takes about 50
KINDS = ("headers", "responses", "parameters")  # headers first: a response refers to them


class Place(NamedTuple):
    """Where a part lies, `holder[key]`, and a name for it."""

    holder: Any
    key: Any
    name: str

    @property
    def text(self) -> str:
        """The part as JSON: equal parts have equal texts."""
        return json.dumps(self.holder[self.key], sort_keys=True)


def share_parts(document: dict[str, Any]) -> None:
    """Move equal response headers, responses and parameters to `components`, and refer to them in their places."""
    for kind in KINDS:
        places = [(place, place.text) for place in _PLACES[kind](document)]
        counts = Counter(text for _, text in places)
        components = document["components"].setdefault(kind, {})
        references: dict[str, dict[str, str]] = {}
        for place, text in places:
            if counts[text] == 1 or len(text) < SHORTEST:
                continue
            if text not in references:
                name = _free_name(place.name, components)
                components[name] = place.holder[place.key]
                references[text] = {"$ref": f"#/components/{kind}/{name}"}
            place.holder[place.key] = references[text]


def _free_name(name: str, taken: Any) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    names = [name, *(f"{name}_{number}" for number in range(2, len(taken) + 2))]
    return next(each for each in names if each not in taken)


def _operations(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (operation for item in document["paths"].values() for operation in item.values())


def _headers(document: dict[str, Any]) -> Iterator[Place]:
    for operation in _operations(document):
        for response in operation["responses"].values():
            headers = response.get("headers", {})
            yield from [Place(headers, name, name) for name in headers]


def _responses(document: dict[str, Any]) -> Iterator[Place]:
    for operation in _operations(document):
        responses = operation["responses"]
        yield from [Place(responses, status, f"{operation['operationId']}.{status}") for status in responses]


def _parameters(document: dict[str, Any]) -> Iterator[Place]:
    for operation in _operations(document):
        parameters = operation.get("parameters", [])
        yield from [Place(parameters, index, each["name"]) for index, each in enumerate(parameters)]


_PLACES = {"headers": _headers, "responses": _responses, "parameters": _parameters}
