"""Each operation's examples are answered: with 2xx, or as documented where the model or the server lacks something."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from service.protocols.inlay import DATA
from tests.openapi_requests import (
    JSON,
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


# Examples that the demo model cannot answer though their route needs nothing else of a model, with the answer.
OF_OTHER_MODELS = {
    ("/", "ranking"): 424,
    ("/invocations", "ranking"): 424,
    ("/rerank", "texts"): 424,
    ("/v1/embeddings", "image"): 400,
    ("/embeddings", "image"): 400,
    ("/infinity/embeddings", "image"): 400,
    ("/pooling", "image"): 400,
}


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
        answer = each.to(demo.http)
        told = each.verb, each.path, each.example, answer.status_code, answer.text[:300]
        assert deviations(document, each, answer) == [], told
        about = document["paths"][each.path][each.verb.lower()].get("description", "")
        needed = f"; without it the answer is {answer.status_code}"
        expected = OF_OTHER_MODELS.get((each.path, each.example))
        assert answer.is_success or needed in about or answer.status_code == expected, told


@pytest.mark.parametrize("name", ["rope", "alibi", "t5", "images", "logits"])
def test_demo_model_lacks_what_the_document_says(document: dict[str, Any], name: str) -> None:
    for operation in document["paths"][f"/models/{{name}}/{name}"].values():
        assert "It needs a model " in operation["description"]
        assert {"404", "422"} & operation["responses"].keys()


def test_examples_name_the_default_model(tiny_store: Path) -> None:
    def name_of(service: Served) -> tuple[str, str]:
        answer = service.http.get("/openapi.json")
        rope = expanded(answer.json())["paths"]["/models/{name}/rope"]["get"]
        return next(each["example"] for each in rope["parameters"] if each["name"] == "name"), answer.headers["etag"]

    with serving(tiny_store, model_control="explicit") as service:
        both = name_of(service)
        assert service.http.post("/v2/repository/models/bert/unload", json={}).is_success
        alone = name_of(service)
        assert (both[0], alone[0]) == ("bert", "llama")
        assert both[1] != alone[1]


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
