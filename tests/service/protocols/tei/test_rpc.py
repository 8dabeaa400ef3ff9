"""tei.v1 over gRPC: defaults, order of answers, statuses and health."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from proto import tei_pb2 as pb
from proto import tei_pb2_grpc as stubs
from tests.served import Served, serving

LONG = "a " * 40 + "b"
SPARSE = "Model is not an embedding model with SPLADE pooling"
CLASSIFIER = "Model is not a classifier model"
RANKER = "Model is not a re-ranker model"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING

# message numbers of the contract, in the order of their fields
NUMBERS = {
    "EmbedRequest": "inputs truncate normalize truncation_direction prompt_name dimensions",
    "EmbedResponse": "embeddings metadata",
    "Metadata": "compute_chars compute_tokens total_time_ns tokenization_time_ns queue_time_ns inference_time_ns",
    "EmbedSparseRequest": "inputs truncate truncation_direction prompt_name",
    "EmbedAllRequest": "inputs truncate truncation_direction prompt_name",
    "EmbedSparseResponse": "sparse_embeddings metadata",
    "SparseValue": "index value",
    "EmbedAllResponse": "token_embeddings metadata",
    "TokenEmbedding": "embeddings",
    "PredictRequest": "inputs truncate raw_scores truncation_direction",
    "PredictPairRequest": "inputs truncate raw_scores truncation_direction",
    "PredictResponse": "predictions metadata",
    "Prediction": "score label",
    "RerankRequest": "query texts truncate raw_scores return_text truncation_direction",
    "RerankStreamRequest": "query text truncate raw_scores return_text truncation_direction",
    "RerankResponse": "ranks metadata",
    "Rank": "index text score",
    "EncodeRequest": "inputs add_special_tokens prompt_name",
    "EncodeResponse": "tokens",
    "SimpleToken": "id text special start stop",
    "DecodeRequest": "ids skip_special_tokens",
    "DecodeResponse": "text",
    "InfoResponse": "version sha docker_label model_id model_sha model_dtype model_type max_concurrent_requests "
    "max_input_length max_batch_tokens max_batch_requests max_client_batch_size tokenization_workers",
}
# method, request (None: a stream's), status, code, what the message says
ERRORS: list[tuple[str, Any, str, str, str]] = [
    ("Embed/Embed", pb.EmbedRequest(), "INVALID_ARGUMENT", "empty", "`inputs` cannot be empty"),
    ("Embed/Embed", pb.EmbedRequest(inputs=LONG), "INVALID_ARGUMENT", "too_long", "inputs[0] has 43 tokens"),
    ("Embed/Embed", pb.EmbedRequest(inputs="a", dimensions=0), "INVALID_ARGUMENT", "out_of_range", "dimensions is 0"),
    ("Embed/Embed", pb.EmbedRequest(inputs="a", dimensions=33), "INVALID_ARGUMENT", "out_of_range", "send 1 to 32"),
    (
        "Embed/Embed",
        pb.EmbedRequest(inputs="a", prompt_name="x"),
        "INVALID_ARGUMENT",
        "unknown_value",
        "prompt_name is 'x'",
    ),
    (
        "Embed/Embed",
        pb.EmbedRequest(inputs="a", truncation_direction=7),
        "INVALID_ARGUMENT",
        "unknown_value",
        "truncation_direction is 7; allowed: TRUNCATION_DIRECTION_RIGHT, TRUNCATION_DIRECTION_LEFT",
    ),
    ("Embed/EmbedAll", pb.EmbedAllRequest(inputs=LONG), "INVALID_ARGUMENT", "too_long", "inputs[0] has 43 tokens"),
    ("Embed/EmbedSparse", pb.EmbedSparseRequest(inputs="a"), "FAILED_PRECONDITION", "wrong_model_kind", SPARSE),
    ("Embed/EmbedSparseStream", pb.EmbedSparseRequest(inputs="a"), "FAILED_PRECONDITION", "wrong_model_kind", SPARSE),
    ("Predict/Predict", pb.PredictRequest(inputs="a"), "FAILED_PRECONDITION", "wrong_model_kind", CLASSIFIER),
    ("Predict/PredictPair", pb.PredictPairRequest(), "FAILED_PRECONDITION", "wrong_model_kind", CLASSIFIER),
    ("Predict/PredictStream", pb.PredictRequest(), "FAILED_PRECONDITION", "wrong_model_kind", CLASSIFIER),
    ("Predict/PredictPairStream", pb.PredictPairRequest(), "FAILED_PRECONDITION", "wrong_model_kind", CLASSIFIER),
    ("Rerank/Rerank", pb.RerankRequest(), "FAILED_PRECONDITION", "wrong_model_kind", RANKER),
    ("Rerank/RerankStream", pb.RerankStreamRequest(), "FAILED_PRECONDITION", "wrong_model_kind", RANKER),
    ("Tokenize/Tokenize", pb.EncodeRequest(), "INVALID_ARGUMENT", "empty", "`inputs` cannot be empty"),
    ("Tokenize/Tokenize", pb.EncodeRequest(inputs="a", prompt_name="x"), "INVALID_ARGUMENT", "unknown_value", "prompt"),
    ("Tokenize/Decode", pb.DecodeRequest(), "INVALID_ARGUMENT", "empty", "`ids` cannot be empty"),
    ("Tokenize/Decode", pb.DecodeRequest(ids=[27]), "INVALID_ARGUMENT", "out_of_range", "ids[0] holds 27"),
    ("Tokenize/DecodeStream", pb.DecodeRequest(ids=[27]), "INVALID_ARGUMENT", "out_of_range", "ids[0] holds 27"),
]


@pytest.fixture(scope="module")
def channel(served: Served) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(served.rpc_address) as channel:
        yield channel


@pytest.fixture(scope="module")
def embed(channel: grpc.Channel) -> stubs.EmbedStub:
    return stubs.EmbedStub(channel)


@pytest.fixture(scope="module")
def tokenize(channel: grpc.Channel) -> stubs.TokenizeStub:
    return stubs.TokenizeStub(channel)


def rest(served: Served, path: str, **body: Any) -> Any:
    answer = served.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def near(vector: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.array(vector), np.array(expected), atol=1e-6)


def call(channel: grpc.Channel, method: str, request: Any) -> list[Any]:
    service, name = method.split("/")
    stub = getattr(stubs, f"{service}Stub")(channel)
    sent = iter([request]) if name.endswith("Stream") else request
    answer = getattr(stub, name)(sent)
    return list(answer) if name.endswith("Stream") and name != "RerankStream" else [answer]


@pytest.mark.parametrize("message", NUMBERS)
def test_fields_have_the_numbers_of_the_contract(message: str) -> None:
    fields = pb.DESCRIPTOR.message_types_by_name[message].fields
    assert [field.name for field in sorted(fields, key=lambda each: each.number)] == NUMBERS[message].split()
    assert sorted(field.number for field in fields) == list(range(1, len(fields) + 1))


@pytest.mark.parametrize(("method", "request_", "status", "code", "message"), ERRORS)
def test_errors_have_tei_statuses(
    channel: grpc.Channel, method: str, request_: Any, status: str, code: str, message: str
) -> None:
    with pytest.raises(grpc.RpcError) as refusal:
        call(channel, method, request_)
    assert refusal.value.code().name == status
    assert message in refusal.value.details()
    assert ("inlay-code", code) in [(each.key, each.value) for each in refusal.value.trailing_metadata()]


def test_vectors_match_rest_and_are_normalised_by_default(served: Served, embed: stubs.EmbedStub) -> None:
    unit = embed.Embed(pb.EmbedRequest(inputs="a b"))
    near(unit.embeddings, rest(served, "/embed", inputs="a b", normalize=True)[0])
    assert np.linalg.norm(unit.embeddings) == pytest.approx(1, abs=1e-6)
    raw = embed.Embed(pb.EmbedRequest(inputs="a b", normalize=False))
    near(raw.embeddings, rest(served, "/embed", inputs="a b", normalize=False)[0])
    assert np.linalg.norm(raw.embeddings) != pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    "fields",
    [
        {"dimensions": 8},
        {"prompt_name": "query"},
        {"inputs": LONG, "truncate": True},
        {"inputs": LONG, "truncate": True, "truncation_direction": "Left"},
    ],
)
def test_fields_mean_what_they_mean_over_rest(served: Served, embed: stubs.EmbedStub, fields: dict[str, Any]) -> None:
    body = {"inputs": "a b"} | fields
    sides = {"Left": pb.TRUNCATION_DIRECTION_LEFT}
    message = body | {key: sides[value] for key, value in fields.items() if key == "truncation_direction"}
    near(embed.Embed(pb.EmbedRequest(**message)).embeddings, rest(served, "/embed", **body)[0])
    if "dimensions" not in fields:
        rows = embed.EmbedAll(pb.EmbedAllRequest(**message)).token_embeddings
        near([each.embeddings for each in rows], rest(served, "/embed_all", **body)[0])


def test_timings_are_in_response_and_initial_metadata(embed: stubs.EmbedStub) -> None:
    for method, request in ((embed.Embed, pb.EmbedRequest), (embed.EmbedAll, pb.EmbedAllRequest)):
        answer, done = method.with_call(request(inputs="a b"))
        took, sent = answer.metadata, {each.key: each.value for each in done.initial_metadata()}
        assert (took.compute_chars, took.compute_tokens) == (3, 4)
        assert took.total_time_ns >= took.inference_time_ns > 0
        assert sent["x-compute-type"] == "cpu+optimized"
        assert (sent["x-compute-characters"], sent["x-compute-tokens"]) == ("3", "4")
        assert 0 <= int(sent["x-total-time"]) - took.total_time_ns // 10**6 <= 1


def test_stream_answers_in_request_order(served: Served, embed: stubs.EmbedStub) -> None:
    texts = ["a " * (1 + number * 7 % 20) for number in range(150)]
    answers = list(embed.EmbedAllStream(pb.EmbedAllRequest(inputs=text) for text in texts))
    assert [len(each.token_embeddings) for each in answers] == [text.count("a") + 2 for text in texts]
    vectors = list(embed.EmbedStream(pb.EmbedRequest(inputs=text) for text in texts[:8]))
    near([each.embeddings for each in vectors], rest(served, "/embed", inputs=texts[:8]))


def test_first_failure_ends_a_stream_after_earlier_answers(embed: stubs.EmbedStub) -> None:
    def requests() -> Iterator[pb.EmbedRequest]:
        for number in count():
            yield pb.EmbedRequest(inputs=LONG if number == 5 else "a b")

    answers = embed.EmbedStream(requests())
    assert [len(next(answers).embeddings) for _ in range(5)] == [32] * 5
    with pytest.raises(grpc.RpcError, match="INVALID_ARGUMENT") as refusal:
        next(answers)
    assert "has 43 tokens" in refusal.value.details()


def test_empty_stream_ends(embed: stubs.EmbedStub, tokenize: stubs.TokenizeStub) -> None:
    assert list(embed.EmbedStream(iter(()))) == []
    assert list(tokenize.DecodeStream(iter(()))) == []


def test_special_tokens_are_added_only_on_request(served: Served, tokenize: stubs.TokenizeStub) -> None:
    for special in (False, True):
        request = pb.EncodeRequest(inputs="a é b", add_special_tokens=special, prompt_name="query")
        body = {"inputs": "a é b", "add_special_tokens": special, "prompt_name": "query"}
        (expected,) = rest(served, "/tokenize", **body)
        for response in (tokenize.Tokenize(request), *tokenize.TokenizeStream(iter([request]))):
            assert [
                {
                    "id": each.id,
                    "text": each.text,
                    "special": each.special,
                    "start": each.start if each.HasField("start") else None,
                    "stop": each.stop if each.HasField("stop") else None,
                }
                for each in response.tokens
            ] == expected
    assert [each.text for each in tokenize.Tokenize(pb.EncodeRequest(inputs="a")).tokens] == ["a"]


def test_decode_keeps_special_tokens_by_default(tokenize: stubs.TokenizeStub) -> None:
    assert tokenize.Decode(pb.DecodeRequest(ids=[2, 25, 3])).text == "[CLS] hello [SEP]"
    requests = [pb.DecodeRequest(ids=[2, number, 3], skip_special_tokens=True) for number in (25, 26, 5)]
    assert [each.text for each in tokenize.DecodeStream(iter(requests))] == ["hello", "world", "a"]


def test_rejects_more_ids_than_a_request_may_have(tokenize: stubs.TokenizeStub) -> None:
    with pytest.raises(grpc.RpcError, match="ids has 401 tokens; this server takes 400"):
        tokenize.Decode(pb.DecodeRequest(ids=[5] * 401))


def test_info_matches_rest(served: Served, channel: grpc.Channel) -> None:
    response = stubs.InfoStub(channel).Info(pb.InfoRequest())
    info = served.http.get("/info").json()
    for field in pb.InfoResponse.DESCRIPTOR.fields:
        if field.name != "model_type":
            value = getattr(response, field.name) if not field.has_presence or response.HasField(field.name) else None
            assert value == info[field.name], field.name
    assert response.model_type == pb.MODEL_TYPE_EMBEDDING


def test_health_is_serving_for_services_with_a_model(channel: grpc.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    states = {"Info": SERVING, "Embed": SERVING, "Tokenize": SERVING, "Predict": NOT_SERVING, "Rerank": NOT_SERVING}
    for name, status in states.items():
        assert health.Check(health_pb2.HealthCheckRequest(service=f"tei.v1.{name}")).status == status
    reflected = ProtoReflectionDescriptorDatabase(channel)
    assert {f"tei.v1.{name}" for name in states} <= set(reflected.get_services())


def test_calls_without_default_model_name_a_remedy(store: Any) -> None:
    with serving(store) as running, grpc.insecure_channel(running.rpc_address) as channel:
        with pytest.raises(grpc.RpcError, match="INVALID_ARGUMENT") as refusal:
            stubs.InfoStub(channel).Info(pb.InfoRequest())
        assert "set INLAY_DEFAULT_MODEL" in refusal.value.details()
        for name in ("Info", "Embed", "Tokenize"):
            request = health_pb2.HealthCheckRequest(service=f"tei.v1.{name}")
            assert health_pb2_grpc.HealthStub(channel).Check(request).status == NOT_SERVING


def test_rejects_models_without_vectors_or_tokenizer(store: Any) -> None:
    with serving(store, default_model="llama") as running, grpc.insecure_channel(running.rpc_address) as channel:
        for method, request in (
            ("Embed/Embed", pb.EmbedRequest(inputs="a")),
            ("Tokenize/Tokenize", pb.EncodeRequest(inputs="a")),
        ):
            with pytest.raises(grpc.RpcError, match="FAILED_PRECONDITION"):
                call(channel, method, request)
