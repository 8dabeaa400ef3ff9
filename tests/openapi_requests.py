"""The OpenAPI document as a client reads it: its references resolved, and the requests that Swagger UI makes of it."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, NamedTuple

import httpx
from jsonschema import Draft202012Validator

JSON = "application/json"
TYPES = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}
SHARED = ("parameters", "responses", "headers")


class Sent(NamedTuple):
    """A request as Swagger UI sends it where nothing was typed.

    example   the name of the body's example; "" without a body
    """

    verb: str
    path: str
    url: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any
    example: str

    def to(self, client: httpx.Client) -> httpx.Response:
        content: dict[str, Any] = {} if self.body is None else {"json": self.body}
        return client.request(self.verb, self.url, params=self.query, headers=self.headers, **content)


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(verb.upper(), path, each) for path, item in document["paths"].items() for verb, each in item.items()]


def expanded(document: dict[str, Any]) -> dict[str, Any]:
    """A copy whose operations hold their parameters, responses and response headers, and no references to them."""
    copy = deepcopy(document)

    def of(part: Any) -> Any:
        kind, _, name = part.get("$ref", "").removeprefix("#/components/").partition("/")
        return deepcopy(copy["components"][kind][name]) if kind in SHARED else part

    for _, _, operation in operations(copy):
        operation["parameters"] = [of(each) for each in operation.get("parameters", [])]
        operation["responses"] = {status: of(each) for status, each in operation["responses"].items()}
        for response in operation["responses"].values():
            response["headers"] = {name: of(each) for name, each in response.get("headers", {}).items()}
    return copy


def missing_examples(document: dict[str, Any]) -> list[str]:
    """What stops a request: parameters that must be sent and bodies, without an example. `document` is expanded."""
    missing = []
    for verb, path, operation in operations(document):
        needed = [each for each in operation["parameters"] if each["required"] and "default" not in each["schema"]]
        missing += [f"{verb} {path}: {each['name']}" for each in needed if "example" not in each]
        content = operation.get("requestBody", {}).get("content", {})
        if JSON in content and not content[JSON].get("examples"):
            missing.append(f"{verb} {path}: body")
    return missing


def unfit_values(document: dict[str, Any]) -> list[str]:
    """Parameters that Swagger UI would not send as they stand: of another type, or with an exponent."""
    unfit = []
    for verb, path, operation in operations(document):
        for each in operation["parameters"]:
            value, kind = each.get("example", each["schema"].get("default")), each["schema"].get("type")
            fits = value is None or kind is None or isinstance(value, TYPES[kind])
            if not fits or ("e" in repr(value) and isinstance(value, float)):
                unfit += [f"{verb} {path}: {each['name']}"]
    return unfit


def requests(document: dict[str, Any], tag: str) -> Iterator[Sent]:
    """The requests of a tag's operations: of examples, else defaults, one for each body. `document` is expanded."""
    for verb, path, operation in operations(document):
        if operation["tags"] != [tag]:
            continue
        values = {(each["in"], each["name"]): _shown(each) for each in operation["parameters"]}
        named = {name: value for (place, name), value in values.items() if place == "path"}
        query = {name: value for (place, name), value in values.items() if place == "query" and value is not None}
        accept = next(iter(operation["responses"]["200"].get("content", {})), "*/*")
        content = operation.get("requestBody", {}).get("content", {})
        examples = content.get(JSON, {}).get("examples", {"": {"value": None}})
        for example, entry in examples.items():
            yield Sent(verb, path, path.format(**named), query, {"accept": accept}, entry["value"], example)


def deviations(document: dict[str, Any], sent: Sent, answer: httpx.Response) -> list[str]:
    """Where an answer is not as the document says: its status, its media type, what its JSON holds."""
    responses = document["paths"][sent.path][sent.verb.lower()]["responses"]
    response = responses.get(str(answer.status_code), responses.get("default"))
    if response is None:
        return [f"status {answer.status_code}"]
    content = response.get("content", {})
    media_type = answer.headers.get("content-type", "").partition(";")[0]
    if (media_type or None) not in (content or {None}):
        return [f"media type {media_type}"]
    if not media_type.endswith("json"):
        return []
    schema = content[media_type]["schema"] | {"components": document["components"]}
    return [error.message[:200] for error in Draft202012Validator(schema).iter_errors(answer.json())]


def _shown(parameter: dict[str, Any]) -> str | None:
    """What stands in the parameter's field when an operation is unfolded."""
    value = parameter.get("example", parameter["schema"].get("default"))
    if isinstance(value, list):
        assert parameter["explode"] is False, parameter
        return ",".join(map(str, value))
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)
