"""vLLM's /score and /classify, and infinity's /classify."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.score_models import CLASSIFIER, EMBEDDER, LABELS, RANKER
from tests.served import Served, serving

LONG = "a " * 60
ERRORS: list[tuple[str, dict[str, Any], int, str | None, str]] = [
    ("/score", {}, 400, None, "no pair of fields came: send text_1 and text_2 or data_1"),
    ("/score", {"text_1": "a"}, 400, None, "no pair of fields came"),
    ("/score", {"text_1": "a", "text_2": "b", "queries": "a", "items": "b"}, 400, None, "more than one pair"),
    ("/score", {"text_1": ["a", "b"], "text_2": ["c"]}, 400, "text_1", "holds 2 texts and text_2 1"),
    ("/score", {"text_1": "a", "text_2": []}, 400, "text_2", "is empty"),
    ("/score", {"text_1": "a", "text_2": ["b"] * 9}, 400, "text_2", "holds 9 texts; this server takes 8"),
    ("/score", {"text_1": "a", "text_2": {"content": []}}, 400, "text_2", "is an object"),
    ("/score", {"text_1": "a", "text_2": "b", "model": "nobody"}, 404, "model", "no model 'nobody'"),
    ("/score", {"text_1": "a", "text_2": "b", "model": CLASSIFIER}, 400, "model", "Model is not a re-ranker model"),
    ("/classify", {}, 400, "input", "input is missing"),
    ("/classify", {"messages": []}, 400, "input", "no chats are read here"),
    ("/classify", {"input": []}, 400, "input", "empty"),
    ("/classify", {"input": ["a"] * 9}, 400, "input", "holds 9 inputs"),
    ("/classify", {"input": [[5], [1.5]]}, 400, "input", "input[1][0] is 1.5"),
    ("/classify", {"input": "a", "truncate_prompt_tokens": -2}, 400, "truncate_prompt_tokens", "is -2"),
    ("/classify", {"input": "a", "model": EMBEDDER}, 400, "model", "Model is not a classifier model"),
]


@pytest.fixture(scope="module")
def served(score_store: Path) -> Iterator[Served]:
    with serving(score_store, default_model=RANKER, max_inputs=8) as service:
        yield service


def post(served: Served, path: str, **body: Any) -> httpx.Response:
    response = served.http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response


def scores(served: Served, **body: Any) -> list[float]:
    return [entry["score"] for entry in post(served, "/score", **body).json()["data"]]


@pytest.mark.parametrize(("path", "body", "status", "param", "message"), ERRORS)
def test_errors_are_openais(
    served: Served, path: str, body: dict[str, Any], status: int, param: str | None, message: str
) -> None:
    response = served.http.post(path, json=body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert message in error["message"]


def test_score_answers_as_vllm_does(served: Served) -> None:
    document = post(served, "/score", text_1="a b", text_2=["c", "d"], request_id="mine").json()
    assert document | {"created": 0, "data": []} == {
        "id": "score-mine",
        "object": "list",
        "created": 0,
        "model": RANKER,
        "data": [],
        "usage": {"prompt_tokens": 12, "total_tokens": 12},
    }
    assert [entry | {"score": 0} for entry in document["data"]] == [
        {"index": number, "object": "score", "score": 0} for number in (0, 1)
    ]


def test_one_text_is_scored_with_each_or_each_with_its_own(served: Served) -> None:
    [first], [second], [third] = (
        scores(served, text_1=one, text_2=other) for one, other in (("a b", "c"), ("a b", "d"), ("e", "d"))
    )
    assert scores(served, text_1="a b", text_2=["c", "d"]) == [first, second]
    assert scores(served, text_1=["a b"], text_2=["c", "d"]) == [first, second]
    assert scores(served, text_1=["a b", "e"], text_2=["c", "d"]) == [first, third]
    for one, other in (("queries", "documents"), ("queries", "items"), ("data_1", "data_2")):
        assert scores(served, **{one: ["a b", "e", "a b"], other: ["c", "d", "d"]}) == [first, third, second]


def test_many_queries_are_one_request(score_store: Path) -> None:
    """More than the queue takes requests."""
    texts = [f"{first} {second}" for first in "abcdefghij" for second in "abcdefghij"]
    with serving(score_store, default_model=RANKER, max_concurrent_requests=8) as service:
        together = scores(service, text_1=texts, text_2=texts[::-1])
        assert scores(service, text_1=texts[41], text_2=texts[58]) == [together[41]]
        assert len(together) == 100


def test_score_reads_its_options(served: Served) -> None:
    raw = np.array(scores(served, text_1="a", text_2=["c", "d"], use_activation=False))
    np.testing.assert_allclose(scores(served, text_1="a", text_2=["c", "d"]), 1 / (1 + np.exp(-raw)), atol=1e-12)
    for limit in ({"max_tokens_per_doc": 4}, {"truncate_prompt_tokens": 8}):
        assert scores(served, text_1="a", text_2=LONG, **limit) == scores(served, text_1="a", text_2="a " * 4)
    assert scores(served, text_1=LONG, text_2="b", max_tokens_per_query=2) == scores(served, text_1="a a", text_2="b")
    ignored = post(served, "/score", text_1="a", text_2="b", priority=0, mm_processor_kwargs={}, cache_salt="a")
    assert ignored.headers["inlay-ignored-fields"] == "mm_processor_kwargs,cache_salt"


def test_cosines_name_the_pairs_whose_text_was_cut(served: Served) -> None:
    response = post(served, "/score", model=EMBEDDER, text_1=["a", LONG, "b"], text_2=["b", "a", LONG])
    assert response.headers["inlay-truncated-inputs"] == "1,2"
    assert response.json()["usage"]["prompt_tokens"] == 3 + 3 + 24  # each text once


def test_classify_answers_as_vllm_does(served: Served) -> None:
    document = post(served, "/classify", model=CLASSIFIER, input=["a", "b c"], request_id="mine").json()
    assert document | {"created": 0, "data": []} == {
        "id": "classify-mine",
        "object": "list",
        "created": 0,
        "model": CLASSIFIER,
        "data": [],
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }
    for number, entry in enumerate(document["data"]):
        assert (entry["index"], entry["num_classes"]) == (number, len(LABELS))
        assert sum(entry["probs"]) == pytest.approx(1)
        assert entry["label"] == LABELS[int(np.argmax(entry["probs"]))]


def test_classify_answers_as_infinity_if_raw_scores_is_sent(served: Served) -> None:
    document = post(served, "/classify", model=CLASSIFIER, input=["a", "b"], raw_scores=False).json()
    assert document["object"] == "classify"
    for entries in document["data"]:
        assert {entry["label"] for entry in entries} == set(LABELS)
        assert [entry["score"] for entry in entries] == sorted([entry["score"] for entry in entries], reverse=True)
    raw = post(served, "/classify", model=CLASSIFIER, input=["a"], raw_scores=True).json()["data"][0]
    powers = np.exp([entry["score"] for entry in raw])
    np.testing.assert_allclose([entry["score"] for entry in document["data"][0]], powers / powers.sum(), atol=1e-12)


def test_classify_reads_ids_and_its_options(served: Served) -> None:
    def probabilities(**body: Any) -> list[list[float]]:
        return [entry["probs"] for entry in post(served, "/classify", model=CLASSIFIER, **body).json()["data"]]

    [text] = probabilities(input="a b")
    assert probabilities(input=[2, 5, 6, 3]) == [text]
    assert probabilities(input=[[2, 5, 6, 3], [5, 6]])[0] == text
    assert probabilities(input="a b", add_special_tokens=False) == probabilities(input=[5, 6])
    assert probabilities(input=LONG, truncate_prompt_tokens=4) == probabilities(input="a a")
    assert probabilities(input="a a b c", truncate_prompt_tokens=4, truncation_side="left") == probabilities(
        input="b c"
    )
    [raw] = probabilities(input="a b", use_activation=False)
    np.testing.assert_allclose(text, np.exp(raw) / np.exp(raw).sum(), atol=1e-12)
