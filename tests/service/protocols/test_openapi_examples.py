"""Each operation's examples are answered: with 2xx, or as documented where the model or the server lacks something."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from service.http.routes import Example, Need, Route
from service.protocols.inlay.openapi_parts import DATA
from tests.openapi_requests import (
    JSON,
    Sent,
    deviations,
    expanded,
    missing_examples,
    operations,
    requests,
    unfit_values,
)
from tests.served import Served, serving

MOST_OF_A_TAG = 20


@pytest.fixture(scope="module")
def demo(minilm_store: Path) -> Iterator[Served]:
    """The demo model alone, as `make serve` serves it."""
    with serving(minilm_store, default_model="minilm") as service:
        yield service


@pytest.fixture(scope="module")
def document(demo: Served) -> dict[str, Any]:
    return expanded(demo.http.get("/openapi.json").json())


def route_of(service: Served, verb: str, path: str) -> Route:
    routes = service.app.pipeline.router.routes
    return next(route for route in routes if (route.verb, route.path.replace(":path}", "}")) == (verb, path))


def unmet(service: Served, sent: Sent) -> Need | None:
    """What the request needs and the default model, or the server, does not have."""
    route, default = route_of(service, sent.verb, sent.path), service.app.context.registry.default
    example = route.body.examples[sent.example] if route.body else None
    for need in (route.need, example.need if isinstance(example, Example) else None):
        if need is not None and (need.is_met_by is None or not need.is_met_by(default)):
            return need
    return None


def test_document_is_valid(demo: Served) -> None:
    document = demo.http.get("/openapi.json").json()
    assert [str(fault) for fault in OpenAPIV31SpecValidator(document).iter_errors()] == []
    del document["info"]["version"]
    assert [*OpenAPIV31SpecValidator(document).iter_errors()]


def test_every_operation_has_examples(document: dict[str, Any]) -> None:
    assert missing_examples(document) == []
    assert unfit_values(document) == []


def test_operation_without_an_example_is_found(document: dict[str, Any]) -> None:
    changed = deepcopy(document)
    del changed["paths"]["/embed"]["post"]["requestBody"]["content"][JSON]["examples"]
    del changed["paths"]["/models/{name}"]["get"]["parameters"][0]["example"]
    for each in changed["paths"]["/positions/sinusoidal"]["get"]["parameters"]:
        each.pop("example", None)
    assert missing_examples(changed) == [
        "POST /embed: body",
        "GET /models/{name}: name",
        "GET /positions/sinusoidal: dim",
    ]


@pytest.mark.parametrize("tag", DATA.tags)
def test_examples_are_answered_as_documented(demo: Served, document: dict[str, Any], tag: str) -> None:
    sent = list(requests(document, tag))
    assert sent
    for each in sent:
        answer, need = each.to(demo.http), unmet(demo, each)
        told = each.verb, each.path, each.example, answer.status_code, answer.text[:300]
        assert deviations(document, each, answer) == [], told
        if need is None:
            assert answer.is_success, told
            continue
        operation = document["paths"][each.path][each.verb.lower()]
        examples = operation.get("requestBody", {}).get("content", {}).get(JSON, {}).get("examples", {})
        about = operation.get("description", "") + examples.get(each.example, {}).get("summary", "")
        assert f"needs {need.what}; without it the answer is {answer.status_code}" in about, told
        assert answer.status_code == need.status, told


@pytest.mark.parametrize("name", ["rope", "alibi", "t5", "images", "logits"])
def test_demo_model_lacks_what_the_document_says(document: dict[str, Any], name: str) -> None:
    for operation in document["paths"][f"/models/{{name}}/{name}"].values():
        assert "It needs a model " in operation["description"]
        assert {"404", "422"} & operation["responses"].keys()


def test_examples_name_a_loaded_model_that_can_answer(served: Served) -> None:
    raw = expanded(served.http.get("/openapi.json").json())
    names = {
        sent.path: sent.url.split("/")[2]
        for tag in DATA.tags
        for sent in requests(raw, tag)
        if "/models/{" in sent.path
    }
    assert names["/models/{name}/rope"] == "llama"
    assert names["/models/{name}"] == names["/models/{name}/learned"] == "bert"
    for sent in requests(raw, "positions of a model: numbers"):
        if "/rope" in sent.path or "/learned" in sent.path:
            answer = sent.to(served.http)
            assert answer.is_success, (sent, answer.text)
            assert deviations(raw, sent, answer) == [], sent


def test_bodies_name_a_model_that_is_not_the_default(score_store: Path) -> None:
    with serving(score_store, default_model="embedder") as service:
        raw = expanded(service.http.get("/openapi.json").json())
        sent = [each for each in requests(raw, "text-embeddings-inference") if each.path in ("/predict", "/rerank")]
        named = {(each.path, each.example): each.body.get("model") for each in sent}
        assert named == {
            ("/predict", "example"): "classifier",
            ("/rerank", "documents"): None,
            ("/rerank", "texts"): "ranker",
        }
        answers = [(each, each.to(service.http)) for each in sent]
        assert all(answer.is_success and deviations(raw, each, answer) == [] for each, answer in answers)


def test_document_follows_the_loaded_models(tiny_store: Path) -> None:
    def name_of(service: Served) -> tuple[str, str]:
        answer = service.http.get("/openapi.json")
        rope = expanded(answer.json())["paths"]["/models/{name}/rope"]["get"]
        return next(each["example"] for each in rope["parameters"] if each["name"] == "name"), answer.headers["etag"]

    with serving(tiny_store, default_model="bert", model_control="explicit") as service:
        first, etag = name_of(service)
        assert service.http.post("/v2/repository/models/llama/unload", json={}).is_success
        second, other = name_of(service)
        assert service.http.post("/v2/repository/models/llama/load", json={}).is_success
        assert (first, second) == ("llama", "bert")
        assert etag != other
        assert name_of(service) == (first, etag)


def test_document_is_sent_once_to_a_client_that_keeps_it(demo: Served) -> None:
    answer = demo.http.get("/openapi.json")
    assert answer.headers["cache-control"] == "no-cache"
    again = demo.http.get("/openapi.json", headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_tags_are_described_in_order_and_none_is_long(document: dict[str, Any]) -> None:
    assert {tag["name"]: tag["description"] for tag in document["tags"]} == DATA.tags
    assert [tag["name"] for tag in document["tags"]] == list(DATA.tags)
    used = [operation["tags"] for _, _, operation in operations(document)]
    for tag in DATA.tags:
        assert 0 < used.count([tag]) <= MOST_OF_A_TAG, tag


def test_page_is_folded_and_filtered(demo: Served) -> None:
    page = demo.http.get("/docs").text
    for option in ('"docExpansion": "none"', '"filter": true', '"deepLinking": true', '"displayRequestDuration": true'):
        assert option in page
    script = page.partition('<script src="')[2].partition('"')[0]
    answer = demo.http.get(script)
    assert "const opsFilter" in answer.text
    assert "immutable" in answer.headers["cache-control"]
    assert demo.http.get(script, headers={"if-none-match": answer.headers["etag"]}).status_code == 304
