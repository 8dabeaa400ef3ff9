"""Ranking and classifying as text-embeddings-inference does, REST and gRPC: options, errors, kinds of models."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from proto import tei_pb2 as pb
from proto import tei_pb2_grpc as stubs
from tests.score_models import CLASSIFIER, EMBEDDER, LABELS, RANKER
from tests.served import Served, serving

LONG = "a " * 60
MOST = 8  # inputs of one request
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
NO_RANKER, NO_CLASSIFIER = "Model is not a re-ranker model", "Model is not a classifier model"

ERRORS: list[tuple[str, dict[str, Any], int, str, str]] = [
    ("/rerank", {"query": "a", "texts": []}, 400, "Empty", "`texts` cannot be empty"),
    ("/rerank", {"query": "a", "texts": ["b"] * 9}, 422, "Validation", "batch size 9 > maximum allowed batch size 8"),
    ("/rerank", {"query": "a", "texts": [LONG], "truncate": False}, 422, "Validation", "texts[0] and the text paired"),
    ("/rerank", {"query": LONG, "texts": ["a"], "truncate": False}, 422, "Validation", "this model reads 24"),
    (
        "/rerank",
        {"query": "a", "texts": ["b"], "return_texts": True},
        422,
        "Validation",
        "return_texts is not known here",
    ),
    ("/rerank", {"query": "a"}, 422, "Validation", "send texts, as TEI has them, or documents, as Cohere"),
    ("/rerank", {"query": "a", "texts": ["b"], "model": CLASSIFIER}, 424, "Backend", NO_RANKER),
    ("/rerank", {"query": "a", "texts": ["b"], "model": EMBEDDER}, 424, "Backend", NO_RANKER),
    ("/rerank", {"query": "a", "texts": ["b"], "model": "nobody"}, 404, "Validation", "no model 'nobody'"),
    ("/predict", {"inputs": "a", "model": EMBEDDER}, 424, "Backend", NO_CLASSIFIER),
    ("/predict", {"inputs": [["a"]] * 9}, 422, "Validation", "batch size 9 > maximum allowed batch size 8"),
    ("/predict", {"inputs": LONG, "truncate": False}, 422, "Validation", "inputs[0] has 62 tokens"),
    ("/predict", {"inputs": "a", "parameters": {"top_k": 0}}, 422, "Validation", "parameters"),
]
RPC_ERRORS: list[tuple[str, Any, str, str]] = [
    ("Rerank/Rerank", pb.RerankRequest(query="a"), "INVALID_ARGUMENT", "`texts` cannot be empty"),
    ("Rerank/Rerank", pb.RerankRequest(query="a", texts=["b"] * 9), "INVALID_ARGUMENT", "batch size 9"),
    ("Rerank/Rerank", pb.RerankRequest(query="a", texts=[LONG]), "INVALID_ARGUMENT", "have 64 tokens"),
    ("Rerank/RerankStream", pb.RerankStreamRequest(query="a", text=LONG), "INVALID_ARGUMENT", "have 64 tokens"),
    (
        "Rerank/RerankStream",
        pb.RerankStreamRequest(query="a", text="b", truncation_direction=5),
        "INVALID_ARGUMENT",
        "truncation_direction is 5",
    ),
    ("Predict/PredictPair", pb.PredictPairRequest(), "INVALID_ARGUMENT", "must have a single or two elements"),
    ("Predict/PredictPair", pb.PredictPairRequest(inputs=["a"] * 3), "INVALID_ARGUMENT", "`inputs` has 3 elements"),
    ("Predict/Predict", pb.PredictRequest(inputs=LONG), "INVALID_ARGUMENT", "has 62 tokens"),
]


@pytest.fixture(scope="module")
def served(score_store: Path) -> Iterator[Served]:
    with serving(score_store, default_model=RANKER, max_inputs=MOST, max_request_characters=2000) as service:
        yield service


@pytest.fixture(scope="module")
def channel(served: Served) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(served.rpc_address) as channel:
        yield channel


def answer(served: Served, path: str, **body: Any) -> Any:
    response = served.http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def call(channel: grpc.Channel, method: str, request: Any) -> Any:
    service, name = method.split("/")
    stub = getattr(getattr(stubs, f"{service}Stub")(channel), name)
    return stub(iter([request]) if name.endswith("Stream") else request)


@pytest.mark.parametrize(("path", "body", "status", "kind", "message"), ERRORS)
def test_errors_have_tei_status_and_type(
    served: Served, path: str, body: dict[str, Any], status: int, kind: str, message: str
) -> None:
    response = served.http.post(path, json=body)
    document = response.json()
    assert (response.status_code, document["error_type"]) == (status, kind), document
    assert message in document["error"]


def test_a_query_is_held_once_for_all_texts(channel: grpc.Channel) -> None:
    message = pb.RerankRequest(query="a" * 2_000_000, texts=["b"] * MOST)
    tracemalloc.start()
    try:
        with pytest.raises(grpc.RpcError, match="characters"):
            call(channel, "Rerank/Rerank", message)
        assert tracemalloc.get_traced_memory()[1] < 5 * len(message.query)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("method", "request_", "status", "message"), RPC_ERRORS)
def test_rpc_errors_have_tei_statuses(
    channel: grpc.Channel, method: str, request_: Any, status: str, message: str
) -> None:
    with pytest.raises(grpc.RpcError) as refusal:
        call(channel, method, request_)
    assert refusal.value.code().name == status
    assert message in refusal.value.details()


def test_raw_scores_are_the_logits_and_texts_come_back(served: Served) -> None:
    texts = ["c", "a b", "j"]
    raw = answer(served, "/rerank", query="a", texts=texts, raw_scores=True, return_text=True)
    plain = answer(served, "/rerank", query="a", texts=texts)
    assert [set(entry) for entry in plain] == [{"index", "score"}] * 3
    assert [entry["text"] for entry in raw] == [texts[entry["index"]] for entry in raw]
    assert [entry["index"] for entry in raw] == [entry["index"] for entry in plain]
    sigmoid = 1 / (1 + np.exp(-np.array([entry["score"] for entry in raw])))
    np.testing.assert_allclose([entry["score"] for entry in plain], sigmoid, atol=1e-12)


def test_equal_texts_keep_their_order(served: Served) -> None:
    assert [entry["index"] for entry in answer(served, "/rerank", query="a", texts=["c"] * 5)] == list(range(5))


def test_the_longer_part_of_a_pair_is_cut_first(served: Served) -> None:
    """As tokenizers' longest_first: 24 tokens less three special ones; a short query stays whole."""
    for query, text, cut in (("a b", "c " * 40, ("a b", "c " * 19)), ("c " * 40, "a b", ("c " * 19, "a b"))):
        long = answer(served, "/rerank", query=query, texts=[text])
        assert long == answer(served, "/rerank", query=cut[0], texts=[cut[1]])
    both = answer(served, "/rerank", query="a " * 40, texts=["c " * 40])
    assert both == answer(served, "/rerank", query="a " * 10, texts=["c " * 11])
    text = "c " * 30 + "d " * 19
    left = answer(served, "/rerank", query="a b", texts=[text], truncation_direction="Left")
    assert left == answer(served, "/rerank", query="a b", texts=["d " * 19])


def test_headers_name_what_was_cut_and_count_characters(served: Served) -> None:
    headers = served.http.post("/rerank", json={"query": "a b", "texts": ["c", "c " * 40, "d"]}).headers
    assert (headers["inlay-truncated-inputs"], headers["inlay-truncated-count"]) == ("1", "1")
    assert headers["x-compute-characters"] == str(3 * 3 + 1 + 80 + 1)
    assert headers["x-compute-tokens"] == str(6 + 24 + 6)


def test_a_query_counts_its_characters_once(served: Served) -> None:
    query = "a " * 200
    assert len(answer(served, "/rerank", query=query, texts=["c"] * MOST)) == MOST
    response = served.http.post("/rerank", json={"query": query, "texts": ["c" * 300] * MOST})
    assert response.status_code == 422
    assert "this server takes 2000 a request" in response.json()["error"]


def test_predict_reads_texts_pairs_and_lists(served: Served) -> None:
    one = answer(served, "/predict", inputs="a", model=CLASSIFIER)
    pair = answer(served, "/predict", inputs=["a", "b"], model=CLASSIFIER)
    assert {entry["label"] for entry in one} == set(LABELS)
    assert answer(served, "/predict", inputs=["a"], model=CLASSIFIER) == one
    assert answer(served, "/predict", inputs=[["a"], ["a", "b"]], model=CLASSIFIER) == [one, pair]
    assert one != pair


def test_predict_applies_raw_scores_and_inference_parameters(served: Served) -> None:
    raw = answer(served, "/predict", inputs="a", model=CLASSIFIER, raw_scores=True)
    logits = np.array([entry["score"] for entry in raw])
    for function, expected in (
        ("none", logits),
        ("sigmoid", 1 / (1 + np.exp(-logits))),
        ("softmax", np.exp(logits) / np.exp(logits).sum()),
    ):
        parameters = {"function_to_apply": function, "top_k": 2}
        [entries] = answer(served, "/", inputs="a", model=CLASSIFIER, parameters=parameters)
        np.testing.assert_allclose([entry["score"] for entry in entries], expected[:2], atol=1e-12)
        assert [entry["label"] for entry in entries] == [entry["label"] for entry in raw[:2]]


def test_predict_of_a_ranker_is_the_sigmoid_of_its_label(served: Served) -> None:
    [ranked] = answer(served, "/rerank", query="a", texts=["b"])
    assert answer(served, "/predict", inputs=["a", "b"]) == [{"label": "relevance", "score": ranked["score"]}]


def test_root_serves_each_kind_of_model(served: Served) -> None:
    assert answer(served, "/", inputs="a") == answer(served, "/predict", inputs="a")
    assert answer(served, "/", inputs="a", model=CLASSIFIER) == answer(served, "/predict", inputs="a", model=CLASSIFIER)
    assert answer(served, "/", inputs="a", model=EMBEDDER) == answer(served, "/embed", inputs="a", model=EMBEDDER)
    compared = {"source_sentence": "a", "sentences": ["b"]}
    assert answer(served, "/", inputs=compared, model=EMBEDDER) == answer(
        served, "/similarity", inputs=compared, model=EMBEDDER
    )
    assert served.http.post("/", json={"inputs": "a", "model": "nobody"}).status_code == 404
    assert served.http.post("/", content=b"[1]", headers={"content-type": "application/json"}).status_code == 422


@pytest.mark.parametrize("default", [RANKER, CLASSIFIER, EMBEDDER])
def test_info_and_health_say_the_kind_of_model(score_store: Path, default: str) -> None:
    kinds = {RANKER: pb.MODEL_TYPE_RERANKER, CLASSIFIER: pb.MODEL_TYPE_CLASSIFIER, EMBEDDER: pb.MODEL_TYPE_EMBEDDING}
    described = {
        RANKER: {"reranker": {"id2label": {"0": "relevance"}, "label2id": {"relevance": 0}}},
        CLASSIFIER: {
            "classifier": {
                "id2label": {str(number): label for number, label in enumerate(LABELS)},
                "label2id": {label: number for number, label in enumerate(LABELS)},
            }
        },
        EMBEDDER: {"embedding": {"pooling": "mean"}},
    }
    others = ("Predict", "Rerank")  # by the only other model of their kind
    serves = {RANKER: others, CLASSIFIER: others, EMBEDDER: ("Embed", *others)}
    with serving(score_store, default_model=default) as running, grpc.insecure_channel(running.rpc_address) as channel:
        assert running.http.get("/info").json()["model_type"] == described[default]
        assert stubs.InfoStub(channel).Info(pb.InfoRequest()).model_type == kinds[default]
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("Embed", "Predict", "Rerank"):
            status = health.Check(health_pb2.HealthCheckRequest(service=f"tei.v1.{name}")).status
            assert status == (SERVING if name in serves[default] else NOT_SERVING), name


def test_stream_of_pairs_is_ranked_by_the_first_messages_flags(served: Served, channel: grpc.Channel) -> None:
    pairs = [("a b", "c"), ("a", "d e"), ("a b", "j"), ("a", "b " * 40)]
    messages = [
        pb.RerankStreamRequest(query=query, text=text, truncate=True, raw_scores=first, return_text=first)
        for (query, text), first in zip(pairs, (True, False, False, False), strict=True)
    ]
    response, done = stubs.RerankStub(channel).RerankStream.with_call(iter(messages))
    expected = [answer(served, "/rerank", query=query, texts=[text], raw_scores=True)[0] for query, text in pairs]
    best = sorted(range(len(pairs)), key=lambda index: -expected[index]["score"])
    assert [rank.index for rank in response.ranks] == best
    assert [rank.text for rank in response.ranks] == [pairs[index][1] for index in best]
    np.testing.assert_allclose(
        [rank.score for rank in response.ranks], [expected[index]["score"] for index in best], atol=1e-6
    )
    assert response.metadata.compute_tokens == 6 + 6 + 6 + 24
    trailing = {each.key: each.value for each in done.trailing_metadata()}
    assert trailing["inlay-truncated-inputs"] == "3"


def test_stream_of_no_pairs_or_too_many_is_refused(channel: grpc.Channel) -> None:
    rerank = stubs.RerankStub(channel).RerankStream
    for count, message in ((0, "cannot be empty"), (MOST + 1, "batch size 9")):
        with pytest.raises(grpc.RpcError, match="INVALID_ARGUMENT") as refusal:
            rerank(iter([pb.RerankStreamRequest(query="a", text="b")] * count))
        assert message in refusal.value.details()


def test_messages_tell_what_they_took(channel: grpc.Channel) -> None:
    for method, request in (
        ("Rerank/Rerank", pb.RerankRequest(query="a b", texts=["c", "d"])),
        ("Predict/Predict", pb.PredictRequest(inputs="a b")),
    ):
        service, name = method.split("/")
        stub = getattr(getattr(stubs, f"{service}Stub")(channel), name)
        response, done = stub.with_call(request)
        sent = {each.key: each.value for each in done.initial_metadata()}
        assert sent["x-compute-tokens"] == str(response.metadata.compute_tokens)
        assert response.metadata.total_time_ns >= response.metadata.inference_time_ns > 0
