"""Triton's gRPC client: raw tensors, compression, streams, metadata, the model repository, asyncio."""

import queue
from collections.abc import Iterator
from contextlib import closing

import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException

from tests.clients.conftest import SECONDS, Server, Start
from tests.clients.judged import MODEL, TEXTS, WIDTH, assert_half, assert_rows, assert_vectors
from tests.clients.triton_cases import POOLED, ROWS, inputs, padded, texts

CLIENT = "tritonclient"
pytestmark = pytest.mark.clients


@pytest.fixture
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with closing(triton.InferenceServerClient(server.rpc)) as made:
        yield made


def test_grpc_server_and_model_are_described(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(MODEL)
    assert client.get_server_metadata().name
    described = client.get_model_metadata(MODEL)
    assert described.name == MODEL
    assert {"input_ids", "attention_mask", "text"} <= {tensor.name for tensor in described.inputs}
    [pooled] = [tensor for tensor in described.outputs if tensor.name == POOLED]
    assert (pooled.datatype, list(pooled.shape)) == ("FP32", [-1, WIDTH])
    assert client.get_model_config(MODEL).config.name == MODEL


def test_grpc_padded_ids(client: triton.InferenceServerClient) -> None:
    outputs = [triton.InferRequestedOutput(POOLED)]
    answer = client.infer(MODEL, inputs(triton, padded()), outputs=outputs, request_id="seven")
    assert_vectors(answer.as_numpy(POOLED))
    assert answer.get_response().id == "seven"


def test_grpc_texts_and_the_output_nobody_named(client: triton.InferenceServerClient) -> None:
    assert_vectors(client.infer(MODEL, texts(triton)).as_numpy(POOLED))


def test_grpc_rows_of_every_token(client: triton.InferenceServerClient) -> None:
    outputs = [triton.InferRequestedOutput(ROWS), triton.InferRequestedOutput(POOLED)]
    answer = client.infer(MODEL, inputs(triton, padded()), outputs=outputs)
    for rows, case in zip(answer.as_numpy(ROWS), TEXTS, strict=True):
        assert_rows(rows[: len(case.input_ids)], case)
    assert_vectors(answer.as_numpy(POOLED))


def test_grpc_half_precision(client: triton.InferenceServerClient) -> None:
    answer = client.infer(MODEL, inputs(triton, padded()), parameters={"dtype": "float16"})
    assert_half(answer.as_numpy(POOLED))


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_grpc_compression(client: triton.InferenceServerClient, algorithm: str) -> None:
    answer = client.infer(MODEL, inputs(triton, padded()), compression_algorithm=algorithm)
    assert_vectors(answer.as_numpy(POOLED))


def test_grpc_calls_made_together(client: triton.InferenceServerClient) -> None:
    answers: queue.Queue[tuple[object, object]] = queue.Queue()
    for _ in range(8):
        client.async_infer(MODEL, inputs(triton, padded()), lambda result, error: answers.put((result, error)))
    for _ in range(8):
        result, error = answers.get(timeout=SECONDS)
        assert error is None
        assert_vectors(result.as_numpy(POOLED))  # type: ignore[attr-defined]


def test_grpc_a_stream_answers_and_goes_on_behind_a_bad_request(client: triton.InferenceServerClient) -> None:
    answers: queue.Queue[tuple[object, object]] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    client.async_stream_infer(MODEL, inputs(triton, padded()))
    client.async_stream_infer("no such model", inputs(triton, padded()))
    client.async_stream_infer(MODEL, texts(triton))
    got = [answers.get(timeout=SECONDS) for _ in range(3)]
    client.stop_stream()
    assert "no such model" in str(got[1][1])
    for result, error in (got[0], got[2]):
        assert error is None
        assert_vectors(result.as_numpy(POOLED))  # type: ignore[attr-defined]


async def test_grpc_asyncio(server: Server) -> None:
    async with triton_aio.InferenceServerClient(server.rpc) as client:
        assert await client.is_model_ready(MODEL)
        answer = await client.infer(MODEL, inputs(triton_aio, padded()))
        assert_vectors(answer.as_numpy(POOLED))


@pytest.mark.parametrize(
    ("model", "version", "said"),
    [("no such model", "", "no such model"), (MODEL, "2", "version")],
)
def test_grpc_refusals_are_the_clients_exception(
    client: triton.InferenceServerClient, model: str, version: str, said: str
) -> None:
    with pytest.raises(InferenceServerException, match=said) as caught:
        client.infer(model, inputs(triton, padded()), model_version=version)
    assert caught.value.status() in ("StatusCode.NOT_FOUND", "StatusCode.INVALID_ARGUMENT")


def test_grpc_statistics_count_what_was_asked(client: triton.InferenceServerClient) -> None:
    def counted() -> int:
        [of_model] = client.get_inference_statistics(MODEL).model_stats
        return int(of_model.inference_stats.success.count)

    before = counted()
    client.infer(MODEL, inputs(triton, padded()))
    assert counted() == before + 1


def test_grpc_models_are_listed_unloaded_and_loaded_again(start: Start) -> None:
    with start(model_control="explicit") as server, closing(triton.InferenceServerClient(server.rpc)) as client:
        client.load_model(MODEL)
        index = client.get_model_repository_index().models
        assert (MODEL, "READY") in [(entry.name, entry.state) for entry in index]
        client.unload_model(MODEL)
        assert not client.is_model_ready(MODEL)
        with pytest.raises(InferenceServerException):
            client.infer(MODEL, inputs(triton, padded()))
        client.load_model(MODEL)
        assert_vectors(client.infer(MODEL, inputs(triton, padded())).as_numpy(POOLED))


def test_grpc_models_stay_unless_set(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException):
        client.unload_model(MODEL)
    assert client.is_model_ready(MODEL)
