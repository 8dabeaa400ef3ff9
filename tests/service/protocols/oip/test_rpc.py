"""inference.GRPCInferenceService as a client meets it, on real sockets; vectors are judged by inlay.v1's."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import ml_dtypes
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from numpy.typing import NDArray

from proto import embed_pb2
from proto import open_inference_pb2 as pb
from proto.open_inference_pb2_grpc import GRPCInferenceServiceStub
from service.errors import Overloaded
from tests.served import Served, array_of, serving_here

IDS = np.array([[5, 6, 7, 8], [9, 10, 0, 0]], np.int64)
MASK = np.array([[1, 1, 1, 1], [1, 1, 0, 0]], np.int64)
NUMPY: dict[str, Any] = {
    "FP32": np.float32,
    "FP16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "INT64": np.int64,
}


@pytest.fixture(scope="module")
def stub(served: Served) -> Iterator[GRPCInferenceServiceStub]:
    with grpc.insecure_channel(served.rpc_address) as channel:
        yield GRPCInferenceServiceStub(channel)


def raw(model: str = "bert", *outputs: str, id: str = "", **tensors: NDArray[np.int64]) -> pb.ModelInferRequest:
    """A request with raw INT64 tensors."""
    return pb.ModelInferRequest(
        model_name=model,
        id=id,
        inputs=[{"name": name, "datatype": "INT64", "shape": array.shape} for name, array in tensors.items()],
        outputs=[{"name": name} for name in outputs],
        raw_input_contents=[array.tobytes() for array in tensors.values()],
    )


def texts(*sent: bytes, **fields: Any) -> pb.ModelInferRequest:
    contents = {"bytes_contents": sent}
    named = {"name": "text", "datatype": "BYTES", "shape": [len(sent)], "contents": contents}
    return pb.ModelInferRequest(model_name="bert", inputs=[named], **fields)


def arrays(answer: pb.ModelInferResponse) -> dict[str, NDArray[Any]]:
    """The outputs by name, read from the raw contents as tritonclient reads them."""
    assert len(answer.outputs) == len(answer.raw_output_contents)
    assert not any(output.HasField("contents") for output in answer.outputs)
    return {
        output.name: np.frombuffer(data, NUMPY[output.datatype]).reshape(tuple(output.shape))
        for output, data in zip(answer.outputs, answer.raw_output_contents, strict=True)
    }


def rows(served: Served, *outputs: str) -> list[NDArray[Any]]:
    """What inlay.v1 gives for the same ids."""
    inputs = [
        embed_pb2.Input(ids=embed_pb2.TokenIds(input_ids=ids[: mask.sum()]))
        for ids, mask in zip(IDS, MASK, strict=True)
    ]
    answer = served.stub.Embed(embed_pb2.EmbedRequest(model="bert", inputs=inputs, outputs=outputs))
    return [array_of(output.tensor) for output in answer.outputs]


def test_ids_give_the_vectors_of_inlay_v1(served: Served, stub: GRPCInferenceServiceStub) -> None:
    message = raw(id="seven", input_ids=IDS, attention_mask=MASK)
    answer = stub.ModelInfer(message)
    assert (answer.model_name, answer.model_version, answer.id) == ("bert", "1", "seven")
    (vectors,) = rows(served)
    np.testing.assert_array_equal(arrays(answer)["sentence_embedding"], vectors)


def test_token_rows_are_padded_like_the_ids(served: Served, stub: GRPCInferenceServiceStub) -> None:
    outputs = ("last_hidden_state", "input_embeddings")
    outputs_by_name = arrays(stub.ModelInfer(raw("bert", *outputs, input_ids=IDS, attention_mask=MASK)))
    for name, expected in zip(outputs, rows(served, *outputs), strict=True):
        np.testing.assert_array_equal(outputs_by_name[name][MASK.astype(bool)], expected)
        assert not outputs_by_name[name][~MASK.astype(bool)].any()
        assert outputs_by_name[name].shape[:2] == IDS.shape


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_precision_outputs_are_raw(datatype: str, served: Served, stub: GRPCInferenceServiceStub) -> None:
    message = raw(input_ids=IDS, attention_mask=MASK)
    message.parameters["dtype"].string_param = datatype
    answer = stub.ModelInfer(message)
    assert answer.outputs[0].datatype == datatype
    expected = rows(served)[0].astype(NUMPY[datatype])
    np.testing.assert_array_equal(arrays(answer)["sentence_embedding"], expected)


def test_texts_give_the_vectors_of_rest(served: Served, stub: GRPCInferenceServiceStub) -> None:
    vectors = arrays(stub.ModelInfer(texts(b"hello world", b"a b")))["sentence_embedding"]
    rest = served.post({"inputs": ["hello world", "a b"]}).json()
    np.testing.assert_allclose(vectors, np.array(rest, np.float32), atol=1e-6)


def test_the_default_model_answers_where_none_is_named(stub: GRPCInferenceServiceStub) -> None:
    assert stub.ModelInfer(raw("", input_ids=IDS, attention_mask=MASK)).model_name == "bert"


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_messages_are_read(
    compression: grpc.Compression, served: Served, stub: GRPCInferenceServiceStub
) -> None:
    answer = stub.ModelInfer(raw(input_ids=IDS, attention_mask=MASK), compression=compression)
    np.testing.assert_array_equal(arrays(answer)["sentence_embedding"], rows(served)[0])


# request, status, code, what the message says
REFUSALS: list[tuple[pb.ModelInferRequest, str, str, str]] = [
    (raw("nobody", input_ids=IDS), "NOT_FOUND", "unknown_model", "no model 'nobody' here; loaded: 'bert', 'llama'"),
    (texts(b"a", model_version="2"), "NOT_FOUND", "not_found", "bert has no version '2'; it has '1'"),
    (raw(tokens=IDS), "INVALID_ARGUMENT", "unknown_field", "bert has no input 'tokens'; allowed: text, input_ids"),
    (raw("bert", "logits", input_ids=IDS), "INVALID_ARGUMENT", "unknown_value", "bert has no output 'logits'; it has"),
    (raw(input_ids=IDS + 1000), "INVALID_ARGUMENT", "out_of_range", "inputs[0].input_ids[0] is 1005; the vocabulary"),
    (pb.ModelInferRequest(model_name="bert"), "INVALID_ARGUMENT", "missing_field", "is missing"),
    (texts(b"\xff"), "INVALID_ARGUMENT", "wrong_type", "is not UTF-8"),
    (
        pb.ModelInferRequest(
            model_name="bert", inputs=[{"name": "input_ids", "datatype": "FP16", "shape": [1], "contents": {}}]
        ),
        "INVALID_ARGUMENT",
        "wrong_type",
        "has datatype 'FP16'; allowed: BOOL",
    ),
]


@pytest.mark.parametrize(("sent", "status", "code", "message"), REFUSALS)
def test_errors_have_tritons_status_and_inlays_code(
    sent: pb.ModelInferRequest, status: str, code: str, message: str, stub: GRPCInferenceServiceStub
) -> None:
    with pytest.raises(grpc.RpcError) as refusal:
        stub.ModelInfer(sent)
    assert refusal.value.code().name == status
    assert message in refusal.value.details()
    assert dict(refusal.value.trailing_metadata())["inlay-code"] == code


def test_rejects_message_over_limit_but_sends_long_answers(stub: GRPCInferenceServiceStub) -> None:
    with pytest.raises(grpc.RpcError, match="RESOURCE_EXHAUSTED"):
        stub.ModelInfer(texts(b"a" * 100_001))
    outputs = arrays(stub.ModelInfer(raw("llama", "input_embeddings", input_ids=np.full((64, 100), 5, np.int64))))
    assert outputs["input_embeddings"].nbytes > 100_000


async def test_full_queue_is_unavailable_as_in_triton(tiny_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise Overloaded("the queue is full")

    async with serving_here(tiny_store, default_model="bert") as here:
        for batcher in here.context.registry.get("bert").batchers.values():  # not of the servers of other tests
            monkeypatch.setattr(batcher, "submit", full)
        async with grpc.aio.insecure_channel(here.rpc_address) as channel:
            with pytest.raises(grpc.RpcError) as refusal:
                await GRPCInferenceServiceStub(channel).ModelInfer(raw(input_ids=IDS, attention_mask=MASK))
    assert refusal.value.code().name == "UNAVAILABLE"
    assert dict(refusal.value.trailing_metadata())["inlay-code"] == "overloaded"


# ---- streams


def test_a_stream_answers_in_order_and_goes_on_after_an_error(served: Served, stub: GRPCInferenceServiceStub) -> None:
    messages = [
        raw("nobody" if number == 2 else "bert", id=str(number), input_ids=IDS, attention_mask=MASK)
        for number in range(5)
    ]
    answers = list(stub.ModelStreamInfer(iter(messages)))
    assert [each.infer_response.id for each in answers] == [str(number) for number in range(5)]
    assert [bool(each.error_message) for each in answers] == [False, False, True, False, False]
    assert answers[2].error_message == "no model 'nobody' here; loaded: 'bert', 'llama'"
    expected = rows(served)[0]
    for each in (0, 1, 3, 4):
        np.testing.assert_array_equal(arrays(answers[each].infer_response)["sentence_embedding"], expected)


def test_a_stream_marks_its_final_response_on_request(stub: GRPCInferenceServiceStub) -> None:
    messages = [raw(input_ids=IDS), raw(input_ids=IDS)]
    messages[1].parameters["triton_enable_empty_final_response"].bool_param = True
    plain, marked = [each.infer_response for each in stub.ModelStreamInfer(iter(messages))]
    assert not plain.parameters
    assert marked.parameters["triton_final_response"].bool_param


async def test_a_stream_works_on_many_requests_at_a_time(tiny_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, most = 0, 0

    async with serving_here(tiny_store, default_model="bert") as here:
        embed = here.context.embedder.embed
        together = asyncio.Barrier(8)

        async def watched(request: Any, call: Any) -> Any:
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            await together.wait()
            inside -= 1
            return await embed(request, call)

        monkeypatch.setattr(here.context.embedder, "embed", watched)
        async with grpc.aio.insecure_channel(here.rpc_address) as channel:
            stream = GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([raw(input_ids=IDS) for _ in range(8)]))
            answers = [each async for each in stream]
    assert (len(answers), most) == (8, 8)


# ---- descriptions of the server and its models


def test_health_reports_models_and_versions(stub: GRPCInferenceServiceStub) -> None:
    assert stub.ServerLive(pb.ServerLiveRequest()).live
    assert stub.ServerReady(pb.ServerReadyRequest()).ready
    cases = [("bert", "", True), ("bert", "1", True), ("bert", "2", False), ("nobody", "", False)]
    for name, version, ready in cases:
        assert stub.ModelReady(pb.ModelReadyRequest(name=name, version=version)).ready == ready


async def test_a_stopping_server_is_live_and_not_ready(tiny_store: Path) -> None:
    async with serving_here(tiny_store, default_model="bert") as here:
        here.context.lifecycle.stopping = True
        async with grpc.aio.insecure_channel(here.rpc_address) as channel:
            stub = GRPCInferenceServiceStub(channel)
            assert (await stub.ServerLive(pb.ServerLiveRequest())).live
            assert not (await stub.ServerReady(pb.ServerReadyRequest())).ready
            assert not (await stub.ModelReady(pb.ModelReadyRequest(name="bert"))).ready


def test_metadata_and_configuration_equal_rest(served: Served, stub: GRPCInferenceServiceStub) -> None:
    metadata = stub.ServerMetadata(pb.ServerMetadataRequest())
    rest = served.http.get("/v2").json()
    assert (metadata.name, metadata.version, list(metadata.extensions)) == (
        rest["name"],
        rest["version"],
        rest["extensions"],
    )
    model = stub.ModelMetadata(pb.ModelMetadataRequest(name="bert"))
    rest = served.http.get("/v2/models/bert").json()
    for own, other in ((model.inputs, rest["inputs"]), (model.outputs, rest["outputs"])):
        assert [(each.name, each.datatype, list(each.shape)) for each in own] == [
            (each["name"], each["datatype"], each["shape"]) for each in other
        ]
    config = stub.ModelConfig(pb.ModelConfigRequest(name="bert")).config
    rest = served.http.get("/v2/models/bert/config").json()
    assert [(each.name, pb.DataType.Name(each.data_type), list(each.dims)) for each in config.input] == [
        (each["name"], each["data_type"], each["dims"]) for each in rest["input"]
    ]
    assert (config.name, config.backend, config.max_batch_size) == ("bert", "inlay", 0)
    for method in (stub.ModelMetadata, stub.ModelConfig, stub.ModelStatistics):
        with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
            method(pb.ModelMetadataRequest(name="nobody"))


def test_statistics_count_answers_of_this_protocol(stub: GRPCInferenceServiceStub) -> None:
    def counted() -> pb.ModelStatistics:
        (statistics,) = stub.ModelStatistics(pb.ModelStatisticsRequest(name="bert")).model_stats
        return statistics

    before = counted()
    stub.ModelInfer(raw(input_ids=IDS, attention_mask=MASK))
    with pytest.raises(grpc.RpcError):
        stub.ModelInfer(raw(input_ids=IDS + 1000))
    after = counted()
    assert after.inference_stats.success.count == before.inference_stats.success.count + 1
    assert after.inference_stats.fail.count == before.inference_stats.fail.count + 1
    assert after.inference_stats.success.ns > before.inference_stats.success.ns
    assert after.last_inference >= before.last_inference
    every = stub.ModelStatistics(pb.ModelStatisticsRequest()).model_stats
    assert [each.name for each in every] == ["bert", "llama"]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("SystemSharedMemoryRegister", "Method not found"),
        ("RepositoryModelLoad", "INLAY_MODEL_CONTROL=explicit"),
        ("RepositoryModelUnload", "INLAY_MODEL_CONTROL=explicit"),
    ],
)
def test_unsupported_methods_are_unimplemented(method: str, message: str, stub: GRPCInferenceServiceStub) -> None:
    request_message = getattr(pb, f"{method}Request")(
        **({"model_name": "bert"} if method.startswith("Repository") else {})
    )
    with pytest.raises(grpc.RpcError) as refusal:
        getattr(stub, method)(request_message)
    assert refusal.value.code().name == "UNIMPLEMENTED"
    assert message in refusal.value.details()
    assert "\n" not in refusal.value.details()


def test_every_method_is_reflected_and_most_are_served(served: Served) -> None:
    service = "inference.GRPCInferenceService"
    with grpc.insecure_channel(served.rpc_address) as channel:
        reflected = ProtoReflectionDescriptorDatabase(channel).FindFileContainingSymbol(service).service[0]
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        for method in reflected.method:
            if method.client_streaming:
                assert list(channel.stream_stream(f"/{service}/{method.name}")(iter(()))) == []
                continue
            future = channel.unary_unary(f"/{service}/{method.name}").future(b"")
            unserved = "SharedMemory" in method.name or method.name in ("TraceSetting", "LogSettings")
            assert ("Method not found" in (future.details() or "")) is unserved
