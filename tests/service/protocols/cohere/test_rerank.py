"""Cohere's /v1/rerank and /v2/rerank, and /rerank with documents: fields of Cohere, Jina, vLLM and infinity."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.score_models import CLASSIFIER, RANKER
from tests.served import Served, serving

PATHS = ("/v1/rerank", "/v2/rerank", "/rerank")
DOCUMENTS = ["c", "d e", "a b c", "j"]
LONG = "a b c d e f g h i j " * 8  # 80 tokens
MOST = 8  # inputs of one request

ERRORS: list[tuple[dict[str, Any], int, str]] = [
    ({"documents": ["a"]}, 400, "query is missing"),
    ({"query": "a"}, 400, "documents is missing"),
    ({"query": "a", "documents": 5}, 400, "documents is 5"),
    ({"query": "a", "documents": []}, 400, "documents is empty: send one document at least"),
    ({"query": "a", "documents": ["b"] * 9}, 400, "holds 9 documents; this server takes 8 a request"),
    ({"query": "a", "documents": [5]}, 400, "documents[0] is 5"),
    ({"query": "a", "documents": [{"title": "b"}]}, 400, "documents[0] has no text"),
    ({"query": "a", "documents": ["b", {"text": 5}]}, 400, "documents[1] has a field that is 5"),
    ({"query": "a", "documents": [{"text": "b"}], "rank_fields": ["title", "body"]}, 400, "has no title or body"),
    ({"query": "a", "documents": ["b"], "top_n": -1}, 400, "top_n is -1"),
    ({"query": "a", "documents": ["b"], "max_chunks_per_doc": 0}, 400, "max_chunks_per_doc is 0"),
    ({"query": "a", "documents": ["b"], "truncation_side": "up"}, 400, 'truncation_side is "up"'),
    ({"query": "a", "documents": ["c", LONG], "truncation": False}, 400,
     'documents[1] and the text paired with it have 84 tokens; this model reads 24: shorten it or send "truncation": '
     'true'),
    ({"query": LONG, "documents": ["b"], "max_chunks_per_doc": 2}, 400, "query has 80 tokens; the model reads 24"),
    ({"query": "a", "documents": [LONG] * 8, "max_chunks_per_doc": 2}, 400, "documents make 16 chunks"),
    ({"query": "a", "documents": ["b"], "model": "nobody"}, 404, "no model 'nobody'"),
    ({"query": "a", "documents": ["b"], "model": CLASSIFIER}, 400, "Model is not a re-ranker model"),
]  # fmt: skip


@pytest.fixture(scope="module")
def served(score_store: Path) -> Iterator[Served]:
    with serving(score_store, default_model=RANKER, max_inputs=MOST) as service:
        yield service


def post(served: Served, path: str = "/v2/rerank", **body: Any) -> httpx.Response:
    response = served.http.post(path, json={"query": "a b", "documents": DOCUMENTS} | body)
    assert response.status_code == 200, response.text
    return response


def scores(response: httpx.Response) -> list[float]:
    """Scores in the order of the documents."""
    results = sorted(response.json()["results"], key=lambda result: result["index"])
    return [result["relevance_score"] for result in results]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("body", "status", "message"), ERRORS)
def test_errors_are_coheres(served: Served, path: str, body: dict[str, Any], status: int, message: str) -> None:
    if path == "/rerank" and "documents" not in body:
        pytest.skip("without documents a body is text-embeddings-inference's")
    response = served.http.post(path, json=body, headers={"x-request-id": "mine"})
    document = response.json()
    assert response.status_code == status, document
    assert set(document) == {"id", "message", "detail"}
    assert (document["id"], document["detail"]) == ("mine", document["message"])
    assert message in document["message"]


def test_bodies_that_are_no_json_objects_are_refused(served: Served) -> None:
    headers = {"content-type": "application/json"}
    for body, status in ((b"{", 400), (b"[]", 400), (b'"a"', 400)):
        response = served.http.post("/v2/rerank", content=body, headers=headers)
        assert (response.status_code, set(response.json())) == (status, {"id", "message", "detail"})
    assert served.http.post("/v2/rerank", content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
    assert served.http.get("/v2/rerank").json()["message"].startswith("/v2/rerank answers POST")


def test_answer_holds_what_every_client_reads(served: Served) -> None:
    response = post(served, "/v1/rerank", return_documents=True)
    document = response.json()
    tokens = sum(6 if text in ("c", "j") else 7 if text == "d e" else 8 for text in DOCUMENTS)
    assert document["id"] == response.headers["x-request-id"]
    assert (document["object"], document["model"]) == ("rerank", RANKER)
    assert document["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert document["meta"] == {
        "api_version": {"version": "1"},
        "billed_units": {"search_units": 1},
        "tokens": {"input_tokens": tokens},
    }
    assert [set(result) for result in document["results"]] == [{"index", "relevance_score", "document"}] * 4
    assert post(served).json()["meta"]["api_version"] == {"version": "2"}


def test_documents_are_repeated_as_each_path_does(served: Served) -> None:
    """Cohere repeats them if it is told to, vLLM's and Jina's /rerank unless it is told not to."""
    for path, sent, shown in (
        ("/v1/rerank", None, False), ("/v1/rerank", True, True),
        ("/v2/rerank", None, False), ("/v2/rerank", True, True),
        ("/rerank", None, True), ("/rerank", False, False),
    ):  # fmt: skip
        for result in post(served, path, return_documents=sent).json()["results"]:
            assert result.get("document") == ({"text": DOCUMENTS[result["index"]]} if shown else None)
    for result in post(served, "/infinity/rerank", return_documents=True).json()["results"]:
        assert result["document"] == DOCUMENTS[result["index"]]
    for result in post(served, "/rerank", return_documents=True, raw_scores=False).json()["results"]:
        assert result["document"] == DOCUMENTS[result["index"]]  # infinity's are texts


def test_objects_are_read_by_their_text_or_the_named_fields(served: Served) -> None:
    objects = [{"title": "j", "text": "c", "year": 1999}, {"title": "d", "text": "e"}]
    assert scores(post(served, documents=objects)) == scores(post(served, documents=["c", "e"]))
    fields = post(served, documents=objects, rank_fields=["title", "text"], return_documents=True)
    assert scores(fields) == scores(post(served, documents=["j\nc", "d\ne"]))
    assert [result["document"] for result in fields.json()["results"]] == [
        objects[result["index"]] for result in fields.json()["results"]
    ]
    assert scores(post(served, documents="c")) == scores(post(served, documents=["c"]))


def test_top_n_keeps_the_best(served: Served) -> None:
    every = post(served).json()["results"]
    assert [result["relevance_score"] for result in every] == sorted(scores(post(served)), reverse=True)
    for number, kept in ((1, 1), (3, 3), (9, 4), (0, 4), (None, 4)):
        assert post(served, top_n=number).json()["results"] == every[:kept]


def test_top_k_brings_what_voyages_clients_read(served: Served) -> None:
    every = post(served, "/v1/rerank").json()
    assert "data" not in every
    for top_k in (None, 2):  # they send null for all
        answer = post(served, "/v1/rerank", top_k=top_k, truncation=True, return_documents=True).json()
        shown = [result | {"document": DOCUMENTS[result["index"]]} for result in every["results"][:top_k]]
        assert (answer["data"], answer["usage"]) == (shown, every["usage"])
    refused = served.http.post("/v1/rerank", json={"query": "a b", "documents": DOCUMENTS, "top_k": 0})
    assert (refused.status_code, "top_k is 0; allowed: an integer from 1" in refused.text) == (400, True)


def test_scores_are_activated_unless_told_otherwise(served: Served) -> None:
    plain = scores(post(served))
    for raw in ({"raw_scores": True}, {"use_activation": False}):
        sigmoid = 1 / (1 + np.exp(-np.array(scores(post(served, **raw)))))
        np.testing.assert_allclose(plain, sigmoid, atol=1e-12)
    assert scores(post(served, raw_scores=False, use_activation=True)) == plain


def test_long_documents_are_cut_unless_chunks_are_allowed(served: Served) -> None:
    """Of 24 tokens three are special and two the query's: 19 are left."""
    words = LONG.split()
    cut = post(served, documents=["c", LONG])
    assert scores(cut) == scores(post(served, documents=["c", " ".join(words[:19])]))
    assert cut.headers["inlay-truncated-inputs"] == "1"


@pytest.mark.parametrize("most", [1, 2, 4, 5, 9])
def test_the_best_chunk_of_a_document_counts(served: Served, most: int) -> None:
    words = LONG.split()
    chunks = [" ".join(words[start : start + 19]) for start in range(0, 80, 19)][:most]
    chunked = post(served, documents=["c", LONG, "d"], max_chunks_per_doc=most)
    short, best, last = scores(chunked)
    each = scores(post(served, documents=chunks))
    assert best == max(each)
    assert [short, last] == scores(post(served, documents=["c", "d"]))
    assert chunked.headers.get("inlay-truncated-inputs") == ("1" if most < 5 else None)
    assert chunked.json()["usage"]["prompt_tokens"] == 12 + sum(5 + len(chunk.split()) for chunk in chunks)


def test_documents_and_queries_are_read_up_to_their_limits(served: Served) -> None:
    words = LONG.split()
    limited = post(served, documents=["c", LONG], max_tokens_per_doc=7)
    assert scores(limited) == scores(post(served, documents=["c", " ".join(words[:7])]))
    assert limited.headers["inlay-truncated-inputs"] == "1"
    query = post(served, query=LONG, max_tokens_per_query=3)
    assert scores(query) == scores(post(served, query="a b c"))
    assert query.headers["inlay-truncated-inputs"] == "0,1,2,3"
    both = post(
        served, query=LONG, documents=[LONG], max_tokens_per_query=3, max_tokens_per_doc=40, max_chunks_per_doc=9
    )
    chunks = [" ".join(words[start : min(start + 18, 40)]) for start in (0, 18, 36)]
    assert scores(both) == [max(scores(post(served, query="a b c", documents=chunks)))]
    for none in (0, None):
        assert scores(post(served, max_tokens_per_doc=none, max_tokens_per_query=none)) == scores(post(served))


def test_a_pair_is_cut_to_truncate_prompt_tokens(served: Served) -> None:
    for side, kept in (("right", "a b c d e"), ("left", "f g h i j")):
        cut = post(served, documents=[LONG], truncate_prompt_tokens=10, truncation_side=side)
        assert scores(cut) == scores(post(served, documents=[kept]))
        assert cut.json()["usage"]["prompt_tokens"] == 10
    assert scores(post(served, documents=[LONG], truncate_prompt_tokens=-1)) == scores(post(served, documents=[LONG]))


def test_fields_that_are_not_used_are_named(served: Served) -> None:
    response = post(served, priority=3, user="me", **{"no identifier\r\nx: 1": 1})
    assert response.headers["inlay-ignored-fields"] == "user,?"
    assert scores(response) == scores(post(served))
    assert "inlay-ignored-fields" not in post(served, top_n=2).headers
    many = post(served, **{f"field{number}": number for number in range(50)})
    assert many.headers["inlay-ignored-fields"].split(",") == [f"field{number}" for number in range(16)]


def test_models_are_named_or_the_default(served: Served) -> None:
    for name in (RANKER, None, "", "default/not-specified"):
        assert scores(post(served, model=name)) == scores(post(served))
