"""Triton's HTTP client: binary tensors, JSON, compression, metadata, the model repository, asyncio."""

from collections.abc import Iterator
from contextlib import closing

import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

from tests.clients.conftest import Server, Start
from tests.clients.judged import MODEL, TEXTS, WIDTH, assert_half, assert_rows, assert_vectors
from tests.clients.triton_cases import POOLED, ROWS, inputs, padded, texts

CLIENT = "tritonclient"
pytestmark = pytest.mark.clients


@pytest.fixture
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with closing(triton.InferenceServerClient(server.host)) as made:
        yield made


def test_http_server_and_model_are_described(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(MODEL)
    assert not client.is_model_ready("no such model")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    described = client.get_model_metadata(MODEL)
    assert described["name"] == MODEL
    assert {"input_ids", "attention_mask", "text"} <= {tensor["name"] for tensor in described["inputs"]}
    [pooled] = [tensor for tensor in described["outputs"] if tensor["name"] == POOLED]
    assert (pooled["datatype"], pooled["shape"]) == ("FP32", [-1, WIDTH])
    assert client.get_model_config(MODEL)["name"] == MODEL


@pytest.mark.parametrize("sent", [True, False], ids=["binary in", "JSON in"])
@pytest.mark.parametrize("binary", [True, False], ids=["binary out", "JSON out"])
def test_http_padded_ids(client: triton.InferenceServerClient, sent: bool, binary: bool) -> None:
    outputs = [triton.InferRequestedOutput(POOLED, binary_data=binary)]
    answer = client.infer(MODEL, inputs(triton, padded(), binary_data=sent), outputs=outputs, request_id="seven")
    assert_vectors(answer.as_numpy(POOLED))
    assert answer.get_response()["id"] == "seven"


@pytest.mark.parametrize("sent", [True, False], ids=["binary in", "JSON in"])
def test_http_texts_and_the_output_nobody_named(client: triton.InferenceServerClient, sent: bool) -> None:
    assert_vectors(client.infer(MODEL, texts(triton, binary_data=sent)).as_numpy(POOLED))


def test_http_rows_of_every_token(client: triton.InferenceServerClient) -> None:
    outputs = [triton.InferRequestedOutput(ROWS), triton.InferRequestedOutput(POOLED)]
    answer = client.infer(MODEL, inputs(triton, padded()), outputs=outputs)
    for rows, case in zip(answer.as_numpy(ROWS), TEXTS, strict=True):
        assert_rows(rows[: len(case.input_ids)], case)
    assert_vectors(answer.as_numpy(POOLED))


def test_http_half_precision(client: triton.InferenceServerClient) -> None:
    answer = client.infer(MODEL, inputs(triton, padded()), parameters={"dtype": "float16"})
    assert_half(answer.as_numpy(POOLED))


@pytest.mark.parametrize("request_algorithm", ["gzip", "deflate", None])
@pytest.mark.parametrize("response_algorithm", ["gzip", "deflate", None])
def test_http_compression_of_request_and_answer(
    client: triton.InferenceServerClient, request_algorithm: str | None, response_algorithm: str | None
) -> None:
    answer = client.infer(
        MODEL,
        inputs(triton, padded()),
        request_compression_algorithm=request_algorithm,
        response_compression_algorithm=response_algorithm,
    )
    assert_vectors(answer.as_numpy(POOLED))


def test_http_calls_made_together(client: triton.InferenceServerClient) -> None:
    with closing(triton.InferenceServerClient(client._parsed_url.netloc, concurrency=4)) as many:
        waiting = [many.async_infer(MODEL, inputs(triton, padded())) for _ in range(8)]
        for call in waiting:
            assert_vectors(call.get_result().as_numpy(POOLED))


async def test_http_asyncio(server: Server) -> None:
    async with triton_aio.InferenceServerClient(server.host) as client:
        assert await client.is_model_ready(MODEL)
        answer = await client.infer(MODEL, inputs(triton_aio, padded()))
        assert_vectors(answer.as_numpy(POOLED))


@pytest.mark.parametrize(
    ("model", "version", "said"),
    [("no such model", "", "no such model"), (MODEL, "2", "version")],
)
def test_http_refusals_are_the_clients_exception(
    client: triton.InferenceServerClient, model: str, version: str, said: str
) -> None:
    with pytest.raises(InferenceServerException, match=said) as caught:
        client.infer(model, inputs(triton, padded()), model_version=version)
    assert caught.value.status() in ("400", "404")


def test_http_the_first_version_is_the_one_there_is(client: triton.InferenceServerClient) -> None:
    assert_vectors(client.infer(MODEL, inputs(triton, padded()), model_version="1").as_numpy(POOLED))


def test_http_statistics_count_what_was_asked(client: triton.InferenceServerClient) -> None:
    def counted() -> int:
        [of_model] = client.get_inference_statistics(MODEL)["model_stats"]
        return int(of_model["inference_stats"]["success"]["count"])

    before = counted()
    client.infer(MODEL, inputs(triton, padded()))
    assert counted() == before + 1


def test_http_shared_memory_is_refused(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException):
        client.register_system_shared_memory("asked", "/inlay_h_asked", 8)


def test_http_models_are_listed_unloaded_and_loaded_again(start: Start) -> None:
    with start(model_control="explicit") as server, closing(triton.InferenceServerClient(server.host)) as client:
        client.load_model(MODEL)
        assert (MODEL, "READY") in [(entry["name"], entry["state"]) for entry in client.get_model_repository_index()]
        client.unload_model(MODEL)
        assert not client.is_model_ready(MODEL)
        with pytest.raises(InferenceServerException):
            client.infer(MODEL, inputs(triton, padded()))
        client.load_model(MODEL)
        assert_vectors(client.infer(MODEL, inputs(triton, padded())).as_numpy(POOLED))


def test_http_models_stay_unless_set(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException):
        client.unload_model(MODEL)
    assert client.is_model_ready(MODEL)
