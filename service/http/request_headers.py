"""The headers of requests in the OpenAPI document, which every route that works reads. Serves nothing."""

from typing import Any

from service.http.keys import OPEN, OPEN_VERBS
from service.http.timeouts import HEADERS

TIMES = tuple(name.decode() for name in HEADERS)
UNTIMED = ("/models", "/models/{name}")  # they wait for nothing
_TIME = {"type": "integer", "minimum": 1}
_WAITS = "whole milliseconds from 1: what cannot be done by then is refused or dropped, 504"
PARAMETERS: dict[str, tuple[dict[str, Any], str]] = {
    "x-request-id": (
        {"type": "string", "maxLength": 128},
        "what the request is called in logs and in its answer, 1 to 128 visible ASCII characters; left out: made up",
    ),
    "traceparent": (
        {"type": "string"},
        "W3C trace context: the span this request is a child of, and whether it is sampled; read where traces are sent",
    ),
    TIMES[0]: (_TIME, f"how long the caller waits, {_WAITS}"),
    TIMES[1]: (_TIME, f"the same as Envoy says it, {_WAITS}; of both the shorter counts"),
}
"""By header: its schema, and what it is for."""


def describe(document: dict[str, Any]) -> None:
    """Add the headers to every operation that reads them."""
    own = document["components"].setdefault("parameters", {})
    for name, (schema, about) in PARAMETERS.items():
        own[name] = {"name": name, "in": "header", "required": False, "schema": schema, "description": about}
    for path, item in document["paths"].items():
        for verb, operation in item.items():
            if verb.upper() not in OPEN_VERBS or path not in OPEN:
                names = [name for name in PARAMETERS if name not in TIMES or path not in UNTIMED]
                references = [{"$ref": f"#/components/parameters/{name}"} for name in names]
                operation["parameters"] = [*operation.get("parameters", []), *references]
