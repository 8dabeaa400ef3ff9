"""Every protocol that says how much was used says the same."""

from typing import Any

import pytest

from tests.served import Served

USED: list[tuple[str, dict[str, Any], list[str | int]]] = [
    ("/embed", {"inputs": "a b", "outputs": ["sentence_embedding"]}, ["usage", "tokens"]),
    ("/v1/embeddings", {"input": "a b", "model": "bert"}, ["usage", "prompt_tokens"]),
    ("/v1/embeddings", {"input": "a b", "model": "bert"}, ["usage", "total_tokens"]),
    ("/pooling", {"input": "a b", "model": "bert"}, ["usage", "total_tokens"]),
    ("/score", {"text_1": "a", "text_2": "b", "model": "bert"}, ["usage", "total_tokens"]),
    ("/v1/embed", {"texts": ["a b"], "model": "bert"}, ["meta", "billed_units", "input_tokens"]),
    (
        "/v2/embed",
        {"texts": ["a b"], "model": "bert", "input_type": "classification"},
        ["meta", "billed_units", "input_tokens"],
    ),
    ("/api/embed", {"input": "a b", "model": "bert"}, ["prompt_eval_count"]),
]


@pytest.mark.parametrize(("path", "body", "place"), USED)
def test_usage_is_the_tokens_that_the_model_read(
    path: str, body: dict[str, Any], place: list[str], served: Served
) -> None:
    answer = served.http.post(path, json=body)
    document = answer.raise_for_status().json()
    for name in place:
        document = document[name]
    assert document == (6 if path == "/score" else 4)  # with [CLS] and [SEP] of each text


def test_usage_is_a_header_where_answers_are_bare_vectors(served: Served) -> None:
    assert served.http.post("/embed", json={"inputs": "a b"}).headers["x-compute-tokens"] == "4"
