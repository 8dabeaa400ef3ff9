"""Ollama's routes over HTTP: vectors, models, errors in its form, and 501 for what writes texts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.minilm_golden import cases
from tests.served import Served, serving

CASES = [case for case in cases() if case.name in ("hello", "fox")]
TEXTS = [case.input for case in CASES]
UNIT = 1e-6


@pytest.fixture(scope="module")
def minilm(minilm_store: Path) -> Iterator[Served]:
    with serving(minilm_store) as running:
        yield running


def answer(served: Served, path: str, **body: Any) -> Any:
    response = served.http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("name", ["minilm", "minilm:latest", None])
def test_vectors_match_sentence_transformers(minilm: Served, name: str | None) -> None:
    document = answer(minilm, "/api/embed", model=name, input=TEXTS)
    np.testing.assert_allclose(document["embeddings"], [case.unit for case in CASES], rtol=0, atol=UNIT)
    assert document["model"] == (name or "minilm")
    assert document["prompt_eval_count"] == sum(len(case.input_ids) for case in CASES)
    assert document["total_duration"] > 0
    [vector] = answer(minilm, "/api/embed", model=name, input=TEXTS[0])["embeddings"]
    assert vector == document["embeddings"][0]
    assert answer(minilm, "/api/embeddings", model=name, prompt=TEXTS[0]) == {"embedding": vector}


def test_no_texts_give_no_vectors(minilm: Served) -> None:
    for nothing in ("", [], None):
        assert answer(minilm, "/api/embed", model="minilm", input=nothing)["embeddings"] == []
    assert answer(minilm, "/api/embeddings", model="minilm") == {"embedding": []}


def test_dimensions_cut_then_normalise(minilm: Served) -> None:
    [vector] = answer(minilm, "/api/embed", input=TEXTS[0], dimensions=8)["embeddings"]
    expected = CASES[0].unit[:8] / np.linalg.norm(CASES[0].unit[:8])
    np.testing.assert_allclose(vector, expected, rtol=0, atol=UNIT)


def test_options_are_ignored_and_named(minilm: Served) -> None:
    body = {"model": "minilm", "input": "a", "options": {"num_ctx": 512}}
    response = minilm.http.post("/api/embed", json=body)
    assert response.headers["inlay-ignored-fields"] == "options"


def test_body_is_read_whatever_its_content_type(minilm: Served) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    body = b'{"model": "minilm", "input": "a"}'
    assert minilm.http.post("/api/embed", content=body, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/api/embed", {"model": "nobody", "input": "a"}, 404, "no model 'nobody' here"),
        ("/api/embed", {"input": 5}, 400, "input is 5"),
        ("/api/embed", {"input": "a " * 999, "truncate": False}, 400, '"truncate": true'),
        ("/api/embed", {"imput": "a"}, 400, 'did you mean "input"?'),
        ("/api/embeddings", {"prompt": ["a"]}, 400, "prompt is a list of 1"),
        ("/api/show", {"model": "nobody"}, 404, "no model 'nobody' here"),
        ("/api/generate", {"model": "minilm"}, 501, "there is no /api/generate here"),
        ("/api/chat", {}, 501, "writes no texts"),
        ("/api/blobs/sha256:1", {}, 501, "there is no"),
    ],
)
def test_errors_have_ollamas_form(minilm: Served, path: str, body: Any, status: int, says: str) -> None:
    response = minilm.http.post(path, json=body)
    assert response.status_code == status
    assert list(response.json()) == ["error"]
    assert says in response.json()["error"]


def test_other_verbs_and_paths_have_ollamas_form(minilm: Served) -> None:
    assert minilm.http.get("/api/nothing").status_code == 501
    assert minilm.http.request("DELETE", "/api/delete").status_code == 501
    refused = minilm.http.get("/api/embed")
    assert (refused.status_code, list(refused.json())) == (405, ["error"])


def test_models_are_listed_and_described(minilm: Served) -> None:
    for path in ("/api/tags", "/api/ps"):
        [entry] = minilm.http.get(path).json()["models"]
        assert (entry["name"], entry["model"], len(entry["digest"])) == ("minilm", "minilm", 64)
    for name in ({"model": "minilm:latest"}, {"name": "minilm"}):
        document = answer(minilm, "/api/show", **name)
        assert document["capabilities"] == ["embedding"]
        assert document["model_info"]["bert.embedding_length"] == 384
    assert set(minilm.http.get("/api/version").json()) == {"version"}
