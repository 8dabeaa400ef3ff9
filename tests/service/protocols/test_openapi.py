"""The OpenAPI document says what the code does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import TypeAdapter

from service.error_status import STATUSES
from service.http.formats import FORMATS, TENSOR_HEADERS
from service.http.keys import OPEN
from service.http.problem_details import Problem
from service.protocols.inlay import embed_body as body
from service.protocols.inlay.embed_body import EXAMPLES
from service.protocols.tei import timing_headers as spent
from tests.served import Served, serving


@pytest.fixture(scope="module")
def document(served: Served) -> dict[str, Any]:
    found: dict[str, Any] = served.http.get("/openapi.json").json()
    return found


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if "$ref" in node else set()
        return own.union(*(references(each) for each in node.values()))
    return set().union(*(references(each) for each in node)) if isinstance(node, list) else set()


def own_parameters(operation: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that are not every operation's."""
    return [each for each in operation.get("parameters", []) if "$ref" not in each]


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(verb, path, each) for path, item in document["paths"].items() for verb, each in item.items()]


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    components = document["components"]
    known = {f"#/components/{kind}/{name}" for kind in ("schemas", "parameters") for name in components[kind]}
    assert references(document) <= known


def test_every_route_is_described(document: dict[str, Any], served: Served) -> None:
    described = {(method, path) for path, item in document["paths"].items() for method in item}
    assert described >= {
        ("post", "/embed"),
        ("get", "/models"),
        ("get", "/models/{name}"),
        ("get", "/models/{name}/rope"),
        ("get", "/positions"),
        ("get", "/positions/presets"),
        ("post", "/positions/rope/rotate"),
        ("get", "/positions/rope.png"),
        ("get", "/"),
        ("get", "/health/live"),
        ("get", "/health/ready"),
        ("get", "/metrics"),
    }
    for method, path in described:  # a route that is not there, or not with this verb, says so
        answer = served.http.request(method, path.format(name="bert", version="1", region="none"))
        assert answer.status_code != 405, (method, path)
        assert "there is no /" not in answer.text, (method, path)


def test_every_scheme_is_described_with_its_own_parameters(document: dict[str, Any], served: Served) -> None:
    for scheme in served.http.get("/positions").json()["schemes"]:
        for path in scheme["paths"][:1]:
            item = document["paths"][path]
            assert {method.upper() for method in item} == set(scheme["methods"])
            body = item["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            properties = document["components"]["schemas"][body.rpartition("/")[2]]["properties"]
            assert {name: entry["description"] for name, entry in properties.items()} == scheme["parameters"]
            for parameter in own_parameters(item.get("get", {})):
                assert parameter["description"] == scheme["parameters"][parameter["name"]]
                assert parameter["schema"].keys() & {"type", "anyOf", "enum", "const"}, parameter


def test_every_operation_has_a_name_of_its_own(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for item in document["paths"].values() for operation in item.values()]
    assert len(names) == len(set(names))


def test_every_example_is_one_the_service_reads(document: dict[str, Any]) -> None:
    content = document["paths"]["/embed"]["post"]["requestBody"]["content"]["application/json"]
    assert content["examples"].keys() == EXAMPLES.keys()
    for example in content["examples"].values():
        body.read(orjson.dumps(example["value"]))


def test_every_format_is_described_with_its_headers(document: dict[str, Any]) -> None:
    answer = document["paths"]["/embed"]["post"]["responses"]["200"]
    assert answer["content"].keys() == FORMATS.keys()
    assert set(answer["headers"]) == {*TENSOR_HEADERS, *spent.NAMES}
    rope = document["paths"]["/models/{name}/rope"]["get"]
    assert rope["responses"]["200"]["content"].keys() == FORMATS.keys()
    assert {each["name"] for each in own_parameters(rope)} >= {
        "name",
        "start",
        "length",
        "positions",
        "dtype",
        "format",
    }


@pytest.mark.parametrize("path", ["/embed", "/", "/invocations"])
@pytest.mark.parametrize("encoding", ["float", "base64", "prompt_embeds", "input_embeds", "bytes", "bytes_only"])
def test_the_answer_in_every_encoding_has_a_schema(
    document: dict[str, Any], served: Served, path: str, encoding: str
) -> None:
    answer = served.http.post(path, json={"inputs": ["hello"], "encoding_format": encoding})
    content = document["paths"][path]["post"]["responses"]["200"]["content"][answer.headers["content-type"]]
    if answer.headers["content-type"] == "application/json":
        kinds = "object" if isinstance(found := answer.json(), dict) else "array"
        fitting = [each for each in _alternatives(content["schema"]) if each["type"] == kinds]
        assert any(set(found) <= each["properties"].keys() for each in fitting) if kinds == "object" else fitting


def _alternatives(schema: dict[str, Any]) -> list[dict[str, Any]]:
    if "type" in schema or "anyOf" not in schema:
        return [schema]
    return [each for inner in schema["anyOf"] for each in _alternatives(inner)]


def test_the_headers_that_tell_what_an_answer_took_are_told_apart(document: dict[str, Any], served: Served) -> None:
    described = document["paths"]["/embed"]["post"]["responses"]["200"]["headers"]
    sent = served.post({"inputs": "hello world"}).headers
    for name in spent.NAMES:
        about = described[name]["description"]
        assert ("milliseconds" in about) is name.endswith("-time"), name
    assert sent["x-compute-type"] in described["x-compute-type"]["description"].replace(",", "").split()


def test_a_header_is_described_with_each_operation_that_reads_it(document: dict[str, Any], served: Served) -> None:
    for verb, path, operation in operations(document):
        headers = {each["$ref"].rpartition("/")[2] for each in operation.get("parameters", []) if "$ref" in each}
        working = path not in OPEN or verb != "get"
        assert (headers >= {"x-request-id", "traceparent"}) is working, (verb, path)
        if not working:  # a probe: nobody sends it such, and only some read it
            continue
        filled = path.format(name="bert", version="1", region="none")
        for name in ("inlay-timeout-ms", "x-envoy-expected-rq-timeout-ms"):
            answer = served.http.request(verb, filled, headers={name: "soon"})
            assert (f"the header {name} is 'soon'" in answer.text) is (name in headers), (verb, path, answer.text)
        names = [each.get("name", each.get("$ref")) for each in operation.get("parameters", [])]
        assert len(names) == len(set(names)), (verb, path)


@pytest.fixture(scope="module")
def guarded(tiny_store: Path) -> Iterator[Served]:
    with serving(tiny_store, default_model="bert", api_keys="correct-horse-battery-staple") as service:
        yield service


def test_what_a_stranger_is_told_is_described_with_each_operation(guarded: Served) -> None:
    document = guarded.http.get("/openapi.json").json()
    for verb, path, operation in operations(document):
        answer = guarded.http.request(verb, path.format(name="bert", version="1", region="none"))
        if verb == "get" and path in OPEN:
            continue
        assert answer.status_code in (401, 403)
        described = operation["responses"].get(str(answer.status_code)) or operation["responses"]["default"]
        assert set(described.get("content", {})) == ({answer.headers["content-type"]} if answer.content else set())


def test_the_document_says_how_keys_errors_and_formats_are(guarded: Served, served: Served) -> None:
    closed, open_ = (each.http.get("/openapi.json").json()["info"]["description"] for each in (guarded, served))
    assert "authorization: Bearer KEY" in closed
    assert "asks for no key" in open_
    for about in (closed, open_):
        assert "application/problem+json" in about
        assert all(media_type in about for media_type in FORMATS)


def test_every_refusal_of_embed_is_described(document: dict[str, Any]) -> None:
    described = {int(status) for status in document["paths"]["/embed"]["post"]["responses"]} - {200}
    assert described == {row.http for row in STATUSES.values()} - {405, 416, 500, 501}


def test_a_real_problem_fits_the_schema(served: Served) -> None:
    TypeAdapter(Problem).validate_json(served.post({"inputs": [[99]]}).content, strict=True)


def test_no_refusal_is_described_in_fastapis_own_form(document: dict[str, Any]) -> None:
    assert "HTTPValidationError" not in document["components"]["schemas"]
