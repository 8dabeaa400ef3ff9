"""Every protocol that has types of vectors gives the same integers, and every input_type the same prompt."""

import base64
import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from models.artifacts.export import export
from proto import embed_pb2 as pb
from proto import open_inference_pb2 as oip
from proto.open_inference_pb2_grpc import GRPCInferenceServiceStub
from service.embedding.quantization import NUMPY_DTYPES, PRECISIONS, quantized
from tests.golden_cases import write_json, write_tiny_bert
from tests.served import Served, serving
from tests.service.embedding.test_output_types import RANGES, WIDTH, calibrate

TEXTS = ["a b c", "hello world"]
LONG, SIDES = "a b c d e " * 8, ("left", "right")
NPY, SAFETENSORS, OCTETS = "application/x-npy", "application/vnd.safetensors", "application/octet-stream"
Road = Callable[[Served, str], NDArray[Any]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("roads")
    checkpoint = write_tiny_bert(folder / "tiny", pooling="mean")
    prompts = {"query": "hello ", "passage": "a b ", "classification": "c "}
    write_json(checkpoint / "config_sentence_transformers.json", {"prompts": prompts})
    export(checkpoint, folder / "store/tiny")
    calibrate(folder / "store/tiny")
    with serving(folder / "store") as running:
        yield running


def embed(served: Served, accept: str = "application/json", **fields: Any) -> Any:
    return served.post({"inputs": TEXTS} | fields, accept).raise_for_status()


def openai(served: Served, **fields: Any) -> list[Any]:
    answer = served.http.post("/v1/embeddings", json={"model": "tiny", "input": TEXTS} | fields).raise_for_status()
    return [item["embedding"] for item in answer.json()["data"]]


def raw(data: str | bytes, precision: str) -> NDArray[Any]:
    decoded = base64.b64decode(data) if isinstance(data, str) else data
    return np.frombuffer(decoded, NUMPY_DTYPES[precision])


def of_safetensors(served: Served, precision: str) -> NDArray[Any]:
    tensors = safetensors.numpy.load(embed(served, SAFETENSORS, dtype=precision).content)
    return np.stack([tensors[f"{index}/sentence_embedding"] for index in range(2)])


def infer(served: Served, **parameters: Any) -> dict[str, Any]:
    tensor = {"name": "text", "datatype": "BYTES", "shape": [2], "data": TEXTS}
    body = {"inputs": [tensor], "parameters": parameters}
    [output] = served.http.post("/v2/models/tiny/infer", json=body).raise_for_status().json()["outputs"]
    return output


def of_oip(served: Served, precision: str) -> NDArray[Any]:
    output = infer(served, dtype=precision)
    assert output["datatype"] == NUMPY_DTYPES[precision].__name__.upper()
    return np.array(output["data"], NUMPY_DTYPES[precision]).reshape(output["shape"])


def of_oip_rpc(served: Served, precision: str) -> NDArray[Any]:
    tensor = oip.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[2])
    texts = b"".join(len(text).to_bytes(4, "little") + text.encode() for text in TEXTS)
    dtype = oip.InferParameter(string_param=precision)
    request = oip.ModelInferRequest(
        model_name="tiny", inputs=[tensor], raw_input_contents=[texts], parameters={"dtype": dtype}
    )
    with grpc.insecure_channel(served.rpc_address) as channel:
        answer = GRPCInferenceServiceStub(channel).ModelInfer(request)
    assert answer.outputs[0].datatype == NUMPY_DTYPES[precision].__name__.upper()
    return raw(answer.raw_output_contents[0], precision).reshape(answer.outputs[0].shape)


def own(served: Served, **fields: Any) -> pb.EmbedResponse:
    return served.stub.Embed(pb.EmbedRequest(inputs=[pb.Input(text=text) for text in TEXTS], **fields))


def of_own_rpc(served: Served, precision: str) -> NDArray[Any]:
    tensor = own(served, dtype=pb.DType.Value(precision.upper())).outputs[0].tensor
    assert pb.DType.Name(tensor.dtype) == NUMPY_DTYPES[precision].__name__.upper()
    return raw(tensor.data, precision).reshape(list(tensor.shape))


ROADS: dict[str, Road] = {
    "/embed, JSON": lambda served, precision: np.array(embed(served, dtype=precision).json()),
    "/embed, base64": lambda served, precision: np.stack(
        [raw(text, precision) for text in embed(served, dtype=precision, encoding_format="base64").json()]
    ),
    "/embed, npy": lambda served, precision: np.load(io.BytesIO(embed(served, NPY, dtype=precision).content)),
    "/embed, octets": lambda served, precision: raw(embed(served, OCTETS, dtype=precision).content, precision).reshape(
        2, -1
    ),
    "/embed, safetensors": of_safetensors,
    "/v1/embeddings, output_dtype": lambda served, precision: np.array(openai(served, output_dtype=precision)),
    "/v1/embeddings, embedding_type": lambda served, precision: np.array(openai(served, embedding_type=precision)),
    "/v1/embeddings, base64": lambda served, precision: np.stack(
        [raw(text, precision) for text in openai(served, output_dtype=precision, encoding_format="base64")]
    ),
    "OIP, JSON": of_oip,
    "OIP gRPC": of_oip_rpc,
    "inlay.v1 Embed": of_own_rpc,
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("road", ROADS)
def test_every_road_gives_the_integers_of_the_float_vectors(road: str, precision: str, served: Served) -> None:
    floats = np.float32(embed(served).json())
    got = ROADS[road](served, precision)
    np.testing.assert_array_equal(got, quantized(floats, precision, RANGES))


def test_base64_by_jinas_field(served: Served) -> None:
    floats = [np.frombuffer(base64.b64decode(text), "<f4") for text in openai(served, embedding_type="base64")]
    np.testing.assert_array_equal(np.stack(floats), np.float32(embed(served).json()))


def test_voyages_and_nims_fields_are_those_of_openai_and_vllm(served: Served) -> None:
    assert openai(served, output_dimension=8) == openai(served, dimensions=8)
    cut = {side: openai(served, input=LONG, truncate_prompt_tokens=-1, truncation_side=side) for side in SIDES}
    assert cut["left"] != cut["right"]
    assert openai(served, input=LONG, truncate="START") == cut["left"]
    assert openai(served, input=LONG, truncate="END") == openai(served, input=LONG, truncation=True) == cut["right"]


def of_use(served: Served, road: str, use: str) -> Any:
    match road:
        case "/embed":
            return np.float32(embed(served, input_type=use).json())
        case "/v1/embeddings":
            return np.float32(openai(served, input_type=use))
        case "OIP":
            return np.float32(infer(served, input_type=use)["data"]).reshape(2, -1)
    tensor = own(served, input_type=use).outputs[0].tensor
    return np.frombuffer(tensor.data, "<f4").reshape(2, -1)


@pytest.mark.parametrize("road", ["/embed", "/v1/embeddings", "OIP", "inlay.v1 Embed"])
def test_every_road_reads_input_type(road: str, served: Served) -> None:
    prompts = {"query": "hello ", "document": "a b ", "classification": "c ", "clustering": ""}
    prompts |= {"passage": "a b ", "search_query": "hello ", "search_document": "a b "}
    for use, prompt in prompts.items():
        expected = embed(served, inputs=[prompt + text for text in TEXTS]).json()
        np.testing.assert_array_equal(of_use(served, road, use), np.float32(expected), err_msg=use)


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/embed", {"inputs": "a", "dtype": "int8", "dimensions": 8}, "leave out pooling, normalize and dimensions"),
        ("/embed", {"inputs": "a", "dtype": "int8", "encoding_format": "bytes"}, "bytes and bytes_only carry float32"),
        ("/embed", {"inputs": "a", "dtype": "int8", "encoding_format": "prompt_embeds"}, "sentence_embedding alone"),
        ("/embed", {"inputs": "a", "dtype": "int4"}, "dtype"),
        ("/embed", {"inputs": "a", "input_type": "question"}, "input_type"),
        ("/v1/embeddings", {"input": "a", "output_dtype": "int8", "encoding_format": "bytes"}, "which has no int8"),
        ("/v1/embeddings", {"input": "a", "output_dtype": "int8", "embed_dtype": "float16"}, "which has no int8"),
        ("/v1/embeddings", {"input": "a", "output_dtype": "int8", "embedding_type": "uint8"}, "embedding_type uint8"),
        ("/v1/embeddings", {"input": "a", "output_dtype": "int8", "dimensions": 8}, "output_dtype is int8"),
        ("/v1/embeddings", {"input": "a", "input_type": "question"}, "input_type"),
        ("/v1/embeddings", {"input": "a", "dimensions": 8, "output_dimension": 9}, "output_dimension is 9"),
        ("/v1/embeddings", {"input": "a", "truncate": "END", "truncation": True}, "truncate is sent"),
        ("/v1/embeddings", {"input": "a", "truncation": True, "truncate_prompt_tokens": -1}, "truncation is sent"),
        ("/v1/embeddings", {"input": LONG, "truncation": False}, "24"),
        ("/v1/embeddings", {"input": LONG, "truncate": "NONE"}, "24"),
        ("/v1/embeddings", {"input": "data:,", "modality": "image", "output_dtype": "int8"}, "modality is image"),
    ],
)
def test_what_does_not_go_together_is_refused(path: str, body: dict[str, Any], says: str, served: Served) -> None:
    answer = served.http.post(path, json=body)
    assert (answer.status_code, says in answer.text) == (422 if path == "/embed" else 400, True), answer.text


def test_models_say_whether_they_are_calibrated(served: Served) -> None:
    [model] = served.http.get("/models").json()["models"]
    assert model["calibration"] == {"texts": 7}
    described = json.loads(served.stub.GetModel(pb.GetModelRequest(name="tiny")).card_json)
    assert described["calibration"] == {"texts": 7}


def test_the_shape_of_packed_signs_is_stated(served: Served) -> None:
    answer = embed(served, OCTETS, dtype="binary")
    assert (answer.headers["inlay-dtype"], answer.headers["inlay-shape"]) == ("int8", f"2,{WIDTH // 8}")
