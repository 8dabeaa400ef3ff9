"""The OpenAPI document says what the code does."""

from typing import Any

import orjson
import pytest
from pydantic import TypeAdapter

from service.wire import body
from service.wire.body import EXAMPLES
from service.wire.formats import FORMATS, TENSOR_HEADERS
from service.wire.problems import Problem
from service.wire.status import STATUSES
from service.wire.tei import spent
from tests.served import Served


@pytest.fixture(scope="module")
def document(served: Served) -> dict[str, Any]:
    found: dict[str, Any] = served.http.get("/openapi.json").json()
    return found


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if "$ref" in node else set()
        return own.union(*(references(each) for each in node.values()))
    return set().union(*(references(each) for each in node)) if isinstance(node, list) else set()


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
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
            for parameter in item.get("get", {}).get("parameters", []):
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
    assert {each["name"] for each in rope["parameters"]} >= {"name", "start", "length", "positions", "dtype", "format"}


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


def test_every_refusal_of_embed_is_described(document: dict[str, Any]) -> None:
    described = {int(status) for status in document["paths"]["/embed"]["post"]["responses"]} - {200}
    assert described == {row.http for row in STATUSES.values()} - {405, 416, 500, 501}


def test_a_real_problem_fits_the_schema(served: Served) -> None:
    TypeAdapter(Problem).validate_json(served.post({"inputs": [[99]]}).content, strict=True)


def test_no_refusal_is_described_in_fastapis_own_form(document: dict[str, Any]) -> None:
    assert "HTTPValidationError" not in document["components"]["schemas"]
