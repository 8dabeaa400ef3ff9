"""inlay.v1 over gRPC, as a client uses it."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from proto import embed_pb2 as pb
from service.errors import Unavailable
from service.grpc.methods import Service
from service.grpc.server import RpcServer
from service.settings import Settings
from tests.served import Served, array_of

# request, status, code, index, what the message says
REFUSALS: list[tuple[dict[str, Any], str, str, str | None, str]] = [
    ({}, "INVALID_ARGUMENT", "empty", None, "send one text"),
    ({"inputs": [pb.Input()]}, "INVALID_ARGUMENT", "missing_field", "0", "inputs[0] is empty: set text, pair or ids"),
    ({"inputs": [pb.Input(ids=pb.TokenIds())]}, "INVALID_ARGUMENT", "empty_input", "0", "inputs[0] has no token ids"),
    (
        {"inputs": [pb.Input(text="a"), pb.Input(ids=pb.TokenIds(input_ids=[99]))]},
        "INVALID_ARGUMENT",
        "out_of_range",
        "1",
        "inputs[1].input_ids[0] is 99",
    ),
    ({"inputs": [pb.Input(text="a")], "model": "x"}, "NOT_FOUND", "unknown_model", None, "no model 'x'"),
    ({"inputs": [pb.Input(text="a")], "dtype": 99}, "INVALID_ARGUMENT", "unknown_value", None, "dtype is 99; allowed"),
    (
        {"inputs": [pb.Input(text="a")], "input_type": "x"},
        "INVALID_ARGUMENT",
        "unknown_value",
        None,
        "input_type is 'x'",
    ),
    (
        {"inputs": [pb.Input(text="a")], "pooling": 9},
        "INVALID_ARGUMENT",
        "unknown_value",
        None,
        "pooling is 9; allowed",
    ),
    (
        {"inputs": [pb.Input(text="a")], "truncation_direction": 7},
        "INVALID_ARGUMENT",
        "unknown_value",
        None,
        "truncation_direction is 7; allowed: RIGHT, LEFT",
    ),
    (
        {"inputs": [pb.Input(text="a")], "dtype": pb.INT64},
        "INVALID_ARGUMENT",
        "unknown_value",
        None,
        "dtype is INT64; allowed: FLOAT32, FLOAT16, BFLOAT16, INT8, UINT8, DTYPE_UNSPECIFIED, BINARY, UBINARY",
    ),
    ({"inputs": [pb.Input(text="a")], "dimensions": 0}, "INVALID_ARGUMENT", "out_of_range", None, "dimensions is 0"),
]


def ids(*values: int, **lists: list[int]) -> pb.Input:
    return pb.Input(ids=pb.TokenIds(input_ids=values, **lists))


@pytest.mark.parametrize(("fields", "status", "code", "index", "message"), REFUSALS)
def test_errors_have_a_status_a_code_and_an_index(
    served: Served, fields: dict[str, Any], status: str, code: str, index: str | None, message: str
) -> None:
    with pytest.raises(grpc.RpcError) as refusal:
        served.stub.Embed(pb.EmbedRequest(**fields))
    metadata = {each.key: each.value for each in refusal.value.trailing_metadata()}
    assert refusal.value.code().name == status
    assert message in refusal.value.details()
    assert (metadata["inlay-code"], metadata.get("inlay-index")) == (code, index)


def test_every_request_means_what_it_means_over_rest(served: Served) -> None:
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"inputs": [pb.Input(text="a b")]}, {"inputs": "a b"}),
        ({"inputs": [pb.Input(pair=pb.TextPair(first="a", second="b"))]}, {"inputs": [["a", "b"]]}),
        ({"inputs": [ids(5, 6)], "normalize": False}, {"inputs": [5, 6], "normalize": False}),
        ({"inputs": [ids(5, 6)], "dimensions": 8}, {"inputs": [5, 6], "dimensions": 8}),
        ({"inputs": [ids(5, 6)], "pooling": pb.CLS}, {"inputs": [5, 6], "pooling": "cls"}),
        ({"inputs": [ids(5, 6)], "pooling": pb.LAST_TOKEN}, {"inputs": [5, 6], "pooling": "last-token"}),
        (
            {"inputs": [ids(5, 6, attention_mask=[1, 0], token_type_ids=[0, 1], position_ids=[3, 4])]},
            {
                "inputs": {
                    "input_ids": [5, 6],
                    "attention_mask": [1, 0],
                    "token_type_ids": [0, 1],
                    "position_ids": [3, 4],
                }
            },
        ),
        (
            {
                "inputs": [ids(*range(5, 13), *range(5, 13), *range(5, 13), *range(5, 25))],
                "truncation_direction": pb.LEFT,
            },
            {"inputs": [*range(5, 13), *range(5, 13), *range(5, 13), *range(5, 25)], "truncation_direction": "Left"},
        ),
    ]
    for message, body in pairs:
        (output,) = served.stub.Embed(pb.EmbedRequest(outputs=["sentence_embedding"], **message)).outputs
        rest = served.post(body | {"outputs": ["sentence_embedding"]}).json()["outputs"]["sentence_embedding"]
        np.testing.assert_allclose(array_of(output.tensor), np.array(rest, np.float32), atol=1e-6)


def test_rows_of_all_inputs_lie_below_one_another(served: Served) -> None:
    request = pb.EmbedRequest(inputs=[ids(5, 6), ids(7)], outputs=["input_embeddings"], dtype=pb.BFLOAT16)
    answer = served.stub.Embed(request)
    assert (answer.model, answer.tokens) == ("bert", 3)
    (output,) = answer.outputs
    assert (output.name, list(output.lengths), list(output.tensor.shape)) == ("input_embeddings", [2, 1], [3, 32])
    assert output.tensor.dtype == pb.BFLOAT16
    assert len(output.tensor.data) == 3 * 32 * 2


def test_a_stream_goes_on_in_order_after_a_bad_request(served: Served) -> None:
    def requests() -> Iterator[pb.EmbedRequest]:
        for number in range(300):
            bad = number % 7 == 3
            yield pb.EmbedRequest(
                inputs=[ids(99) if bad else ids(*[5] * (1 + number % 5))], outputs=["input_embeddings"]
            )

    answers = list(served.stub.EmbedStream(requests()))
    assert len(answers) == 300
    for number, answer in enumerate(answers):
        if number % 7 == 3:
            assert (answer.error.code, answer.error.index) == ("out_of_range", 0)
        else:
            assert answer.response.tokens == 1 + number % 5


def test_an_empty_stream_ends(served: Served) -> None:
    assert list(served.stub.EmbedStream(iter(()))) == []


def test_a_stream_may_be_left_half_way(served: Served) -> None:
    def endless() -> Iterator[pb.EmbedRequest]:
        while True:
            yield pb.EmbedRequest(inputs=[ids(5)], outputs=["input_embeddings"])

    answers = served.stub.EmbedStream(endless())
    assert next(answers).response.tokens == 1
    answers.cancel()
    with pytest.raises(grpc.RpcError, match="CANCELLED"):
        list(answers)
    assert served.stub.Embed(pb.EmbedRequest(inputs=[ids(5)])).tokens == 1


def test_models_are_described_as_over_rest(served: Served) -> None:
    for model in served.stub.ListModels(pb.ListModelsRequest()).models:
        rest = served.http.get(f"/models/{model.name}")
        one = served.stub.GetModel(pb.GetModelRequest(name=model.name))
        cards = [json.loads(each) for each in (model.card_json, one.card_json, rest.text)]
        assert all(each["memory"].pop("resident") <= each["memory"]["mapped"] for each in cards)  # it may have changed
        assert cards[0] == cards[1] == cards[2]
        assert list(model.outputs) == rest.json()["outputs"]
        assert model.flops_per_token in rest.json()["flops_per_token"].values()
    assert served.stub.GetModel(pb.GetModelRequest()).name == "bert"
    with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
        served.stub.GetModel(pb.GetModelRequest(name="x"))


def test_a_message_over_the_limit_is_refused(served: Served) -> None:
    with pytest.raises(grpc.RpcError, match="RESOURCE_EXHAUSTED"):
        served.stub.Embed(pb.EmbedRequest(inputs=[pb.Input(text="a" * 100_001)]))


def test_health_and_reflection_are_the_standard_ones(served: Served) -> None:
    with grpc.insecure_channel(served.rpc_address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "inlay.v1.Embedder"):
            answer = health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflected = ProtoReflectionDescriptorDatabase(channel)
        assert {"inlay.v1.Embedder", "grpc.health.v1.Health"} <= set(reflected.get_services())
        described = reflected.FindFileContainingSymbol("inlay.v1.Embedder").service[0]
        assert [method.name for method in described.method] == [
            "Embed",
            "EmbedStream",
            "Positions",
            "ListPresets",
            "ListModels",
            "GetModel",
            "Images",
            "Logits",
            "Similar",
            "Analysis",
        ]


async def test_health_follows_whether_the_models_answer(tmp_path: Path) -> None:
    fault: list[Exception | None] = [None]

    async def check() -> None:
        if fault[0]:
            raise fault[0]

    server = RpcServer(Settings(store=tmp_path, grpc_port=0), [Service(name="some.Service", methods=())])
    await server.start()
    states = health_pb2.HealthCheckResponse
    for error, status in (
        (Unavailable("a model is gone"), states.NOT_SERVING),
        (None, states.SERVING),
        (ZeroDivisionError("what no one foresaw"), states.NOT_SERVING),
        (None, states.SERVING),
    ):
        fault[0] = error
        with suppress(ZeroDivisionError):  # which the background task logs
            await server.report(check)
        answer = await server.health.check(health_pb2.HealthCheckRequest(service="some.Service"), None)
        assert answer.status == status
    await server.stop()
