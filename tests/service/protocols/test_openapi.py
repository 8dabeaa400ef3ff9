"""The OpenAPI document describes exactly the routes that are served, and what they take and answer."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import TypeAdapter

from models import VERSION
from service.embedding import truncation
from service.error_status import STATUSES
from service.http.formats import FORMATS, TENSOR_HEADERS
from service.http.openapi import PLACEHOLDER, build_document, operation_of
from service.http.problem_details import Problem
from service.http.router import Router
from service.http.routes import Route, RouteGroup
from service.protocols import inlay
from service.protocols.inlay import DATA
from service.protocols.inlay.embed import TIMING_HEADERS, read
from service.protocols.inlay.positions.responses import OFFERS as TABLE_FORMATS
from tests.openapi_requests import expanded, operations
from tests.served import Served, serving

Operation = tuple[str, str]
DATA_FILE = Path(inlay.__file__).with_name("openapi.json")
DOCS = {"/docs/swagger-ui.js", "/docs/swagger-ui.css", "/docs/favicon.png"}
PAGES = {"/docs", *DOCS, "/openapi.json", "/web/{file:path}"}
VERBS = ("GET", "POST", "PUT", "PATCH", "DELETE")
FILLED = {"name": "bert", "version": "1", "region": "none"}


@pytest.fixture(scope="module")
def raw(served: Served) -> dict[str, Any]:
    openapi: dict[str, Any] = served.http.get("/openapi.json").json()
    return openapi


@pytest.fixture(scope="module")
def document(raw: dict[str, Any]) -> dict[str, Any]:
    return expanded(raw)


@pytest.fixture(scope="module")
def router(served: Served) -> Router:
    return served.app.pipeline.router


def described(document: dict[str, Any]) -> set[Operation]:
    return {(verb.upper(), path) for path, item in document["paths"].items() for verb in item}


def plain(path: str) -> str:
    return path.replace(":path}", "}")


def differences(document: dict[str, Any], router: Router) -> set[Operation]:
    """Return the operations that the document or the router has alone, documentation pages aside."""
    routes = {(route.verb, plain(route.path)) for route in router.routes if route.path not in PAGES}
    return described(document) ^ routes


def filled(path: str) -> str:
    return path.format(**FILLED)


def route_of(router: Router, verb: str, path: str) -> Route:
    return next(route for route in router.routes if (route.verb, plain(route.path)) == (verb, path))


# ---- the document and the routes


def test_document_lists_exactly_the_routes_of_the_router(document: dict[str, Any], router: Router) -> None:
    assert len(described(document)) > 100
    assert differences(document, router) == set()


def test_only_documentation_pages_are_not_in_the_document(router: Router) -> None:
    unlisted = [route for group in router.groups for route in group.routes if operation_of(group, route) is None]
    assert {route.path for route in unlisted} == PAGES


def test_comparison_finds_added_and_removed_routes(document: dict[str, Any], router: Router) -> None:
    own, *others = router.groups
    added = replace(own.routes[0], path="/embed_more", operation=DATA.operations["POST /embed"])
    removed = own.routes[0]
    more = Router([own._replace(routes=[*own.routes, added]), *others])
    less = Router([own._replace(routes=own.routes[1:]), *others])
    assert differences(document, more) == {("POST", "/embed_more")}
    assert differences(document, less) == {(removed.verb, removed.path)}
    assert described(build_document(more, VERSION, guarded=False)) ^ described(document) == {("POST", "/embed_more")}


def test_every_documented_operation_is_served(document: dict[str, Any], served: Served) -> None:
    for verb, path in sorted(described(document)):
        answer = served.http.request(verb, filled(path))
        assert answer.status_code != 405, (verb, path)
        assert "there is no /" not in answer.text, (verb, path)


def test_no_other_verb_is_served(document: dict[str, Any], served: Served) -> None:
    for path, item in document["paths"].items():
        verbs = {verb.upper() for verb in item}
        for verb in set(VERBS) - verbs:
            answer = served.http.request(verb, filled(path))
            expected = verbs | ({"HEAD"} if "GET" in verbs else set())
            assert answer.status_code == 405, (verb, path)
            assert set(answer.headers["allow"].split(", ")) == expected, (verb, path)


def test_every_operation_has_an_id_of_its_own(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-zA-Z_0-9]+", name) for name in names)
    tags = {each["name"] for each in document["tags"]}
    for verb, path, operation in operations(document):
        assert operation["summary"], (verb, path)
        assert set(operation["tags"]) <= tags, (verb, path, operation["tags"])


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if "$ref" in node else set()
        return own.union(*(references(each) for each in node.values()))
    return set().union(*(references(each) for each in node)) if isinstance(node, list) else set()


def test_every_reference_is_defined(raw: dict[str, Any]) -> None:
    components = {kind: raw["components"][kind] for kind in ("schemas", "parameters")}
    known = {f"#/components/{kind}/{name}" for kind, parts in components.items() for name in parts}
    assert references(raw) <= known


# ---- parameters, bodies and answers


def test_every_scheme_is_described_with_its_parameters(document: dict[str, Any], served: Served) -> None:
    for scheme in served.http.get("/positions").json()["schemes"]:
        item = document["paths"][scheme["paths"][0]]
        assert {method.upper() for method in item} == set(scheme["methods"])
        body = item["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        properties = document["components"]["schemas"][body.rpartition("/")[2]]["properties"]
        assert {name: entry["description"] for name, entry in properties.items()} == scheme["parameters"]
        for parameter in item.get("get", {}).get("parameters", []):
            assert parameter["description"] == scheme["parameters"][parameter["name"]]
            assert parameter["schema"].keys() & {"type", "anyOf", "enum", "const"}, parameter


def test_scaling_parameters_have_a_type_and_a_meaning(document: dict[str, Any]) -> None:
    rope = document["paths"]["/positions/rope"]["get"]
    parameters = {each["name"]: each for each in rope["parameters"]}
    assert parameters["factor"]["schema"]["type"] == "number"
    assert parameters["truncate"]["schema"]["type"] == "boolean"
    assert parameters["short_factor"]["schema"]["type"] == "array"
    assert "context length" in parameters["factor"]["description"]
    assert "linear (required)" in parameters["factor"]["description"]


def test_every_example_can_be_read(document: dict[str, Any]) -> None:
    content = document["paths"]["/embed"]["post"]["requestBody"]["content"]["application/json"]
    assert content["examples"].keys() == DATA.operations["POST /embed"]["examples"].keys()
    for example in content["examples"].values():
        read(orjson.dumps(example["value"]))


def test_every_format_is_described_with_its_headers(document: dict[str, Any]) -> None:
    answer = document["paths"]["/embed"]["post"]["responses"]["200"]
    assert answer["content"].keys() == FORMATS.keys()
    of_contents = (truncation.INPUTS, truncation.COUNT, *dict(truncation.RANDOM_WEIGHTS))
    assert set(answer["headers"]) == {*TENSOR_HEADERS, *TIMING_HEADERS, *of_contents}
    rope = document["paths"]["/models/{name}/rope"]["get"]
    assert set(rope["responses"]["200"]["content"]) == set(TABLE_FORMATS)
    names = {each["name"] for each in rope["parameters"]}
    assert names >= {"name", "start", "length", "positions", "dtype", "format"}


@pytest.mark.parametrize("path", ["/embed", "/", "/invocations"])
@pytest.mark.parametrize("encoding", ["float", "base64", "prompt_embeds", "input_embeds", "bytes", "bytes_only"])
def test_answers_in_every_encoding_have_a_schema(
    document: dict[str, Any], served: Served, path: str, encoding: str
) -> None:
    answer = served.http.post(path, json={"inputs": ["hello"], "encoding_format": encoding})
    content = document["paths"][path]["post"]["responses"]["200"]["content"][answer.headers["content-type"]]
    if answer.headers["content-type"] == "application/json":
        kinds = "object" if isinstance(response := answer.json(), dict) else "array"
        fitting = [each for each in _alternatives(content["schema"]) if each.get("type") == kinds]
        assert any(set(response) <= each["properties"].keys() for each in fitting) if kinds == "object" else fitting


def _alternatives(schema: dict[str, Any]) -> list[dict[str, Any]]:
    if "type" in schema or "anyOf" not in schema:
        return [schema]
    return [each for inner in schema["anyOf"] for each in _alternatives(inner)]


def test_timing_headers_are_described(document: dict[str, Any], served: Served) -> None:
    headers = document["paths"]["/embed"]["post"]["responses"]["200"]["headers"]
    sent = served.post({"inputs": "hello world"}).headers
    for name in TIMING_HEADERS:
        assert ("milliseconds" in headers[name]["description"]) is name.endswith("-time"), name
    assert sent["x-compute-type"] in headers["x-compute-type"]["description"].replace(",", "").split()


def test_common_request_headers_are_described_once(
    document: dict[str, Any], raw: dict[str, Any], served: Served
) -> None:
    listed = {name for name, part in raw["components"]["parameters"].items() if part["in"] == "header"}
    assert listed == {
        "x-request-id",
        "traceparent",
        "inlay-timeout-ms",
        "x-envoy-expected-rq-timeout-ms",
        "inlay-priority",
    }
    assert all(f"`{name}`: " in document["info"]["description"] for name in listed)
    for verb, path, operation in operations(document):
        assert all(each["in"] != "header" for each in operation["parameters"]), (verb, path)
        for name in ("inlay-timeout-ms", "x-envoy-expected-rq-timeout-ms"):
            answer = served.http.request(verb, filled(path), headers={name: "soon"})
            assert f"the header {name} is 'soon'" in answer.text, (verb, path, answer.text)
        names = [(each["in"], each["name"]) for each in operation["parameters"]]
        assert len(names) == len(set(names)), (verb, path)


# ---- keys and errors


@pytest.fixture(scope="module")
def guarded(tiny_store: Path) -> Iterator[Served]:
    with serving(tiny_store, default_model="bert", api_keys="correct-horse-battery-staple") as service:
        yield service


def test_errors_of_callers_without_a_key_are_described(guarded: Served) -> None:
    document = expanded(guarded.http.get("/openapi.json").json())
    for verb, path, operation in operations(document):
        if operation.get("security") == []:
            continue
        answer = guarded.http.request(verb, filled(path))
        assert answer.status_code in (401, 403)
        response = operation["responses"].get(str(answer.status_code)) or operation["responses"]["default"]
        media_type = answer.headers.get("content-type")
        assert set(response.get("content", {})) == ({media_type} if answer.content else set()), (verb, path)


def test_document_says_which_operations_need_a_key(guarded: Served) -> None:
    document = guarded.http.get("/openapi.json").json()
    router = guarded.app.pipeline.router
    for verb, path, operation in operations(document):
        assert (operation.get("security") != []) is route_of(router, verb, path).needs_key, (verb, path)


def test_document_names_models_only_where_metrics_do(guarded: Served, served: Served, tiny_store: Path) -> None:
    settings = {"default_model": "bert", "api_keys": "correct-horse-battery-staple", "management_port": 0}

    def names(service: Served) -> set[str]:
        found = expanded(service.http.get("/openapi.json").json())
        each = [parameter for _, _, operation in operations(found) for parameter in operation["parameters"]]
        return {parameter["example"] for parameter in each if parameter["name"] == "name"}

    assert names(guarded) == names(served) == {"bert"}
    with serving(tiny_store, **settings) as hidden:
        assert names(hidden) == {PLACEHOLDER}


def test_document_describes_keys_errors_and_formats(guarded: Served, served: Served) -> None:
    closed, open_ = (each.http.get("/openapi.json").json()["info"]["description"] for each in (guarded, served))
    assert "authorization: Bearer KEY" in closed
    assert "asks for no key" in open_
    for about in (closed, open_):
        assert "application/problem+json" in about
        assert all(media_type in about for media_type in FORMATS)


def test_every_error_status_of_embed_is_described(document: dict[str, Any]) -> None:
    statuses = set(document["paths"]["/embed"]["post"]["responses"]) - {"200", "default"}
    assert {int(status) for status in statuses} == {row.http for row in STATUSES.values()} - {405, 416, 500, 501}


def test_a_problem_fits_its_schema(served: Served) -> None:
    TypeAdapter(Problem).validate_json(served.post({"inputs": [[99]]}).content, strict=True)


def test_every_group_describes_its_errors(router: Router, document: dict[str, Any]) -> None:
    groups: tuple[RouteGroup, ...] = router.groups
    for group in groups:
        model = group.error_model[0] if group.error_model else Problem
        assert model.__name__ in document["components"]["schemas"]
    assert "HTTPValidationError" not in document["components"]["schemas"]


def test_every_part_of_the_data_is_used() -> None:
    package = DATA_FILE.parent.parent
    text = "".join(path.read_text() for path in package.rglob("*.py"))
    data = orjson.loads(DATA_FILE.read_bytes())
    parts = {name for name in data["parts"] if f'{{"$part": "{name}"' not in DATA_FILE.read_text()}
    others = "".join(path.read_text() for path in package.rglob("openapi.json"))
    assert {name for name in parts if f'["{name}"]' not in text and f'{{"$part": "{name}"' not in others} == set()
