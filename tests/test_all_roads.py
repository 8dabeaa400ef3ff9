"""One sentence through every protocol and format: each gives the same float32 values, bit for bit.

The values themselves are judged by sentence-transformers (golden/minilm.*).
"""

import base64
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import orjson
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from proto import embed_pb2 as own
from proto import open_inference_pb2 as oip
from proto import tei_pb2 as tei
from proto.embed_pb2_grpc import EmbedderStub
from proto.open_inference_pb2_grpc import GRPCInferenceServiceStub
from proto.tei_pb2_grpc import EmbedStub
from tests.minilm_golden import cases
from tests.served import Served, array_of, serving

MODEL = "minilm"
CASE = next(case for case in cases() if case.name == "fox")
TEXT, IDS = CASE.input, CASE.input_ids
WIDTH = 384
UNIT = 1e-6
HIDDEN = 5e-6
Vector = NDArray[np.float32]


@dataclass(frozen=True)
class Roads:
    """A client of each protocol."""

    http: httpx.Client
    own: EmbedderStub
    oip: GRPCInferenceServiceStub
    tei: EmbedStub

    def post(self, path: str, document: Any, **fields: str) -> httpx.Response:
        headers = {"content-type": "application/json"} | {name.replace("_", "-"): fields[name] for name in fields}
        body = document if isinstance(document, bytes) else orjson.dumps(document)
        answer = self.http.post(path, content=body, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer


@pytest.fixture(scope="module")
def served(minilm_store: Path) -> Iterator[Served]:
    with serving(minilm_store) as running:
        yield running


@pytest.fixture(scope="module")
def roads(served: Served) -> Iterator[Roads]:
    with grpc.insecure_channel(served.rpc_address) as channel:
        yield Roads(served.http, served.stub, GRPCInferenceServiceStub(channel), EmbedStub(channel))


def exactly(values: Any) -> Vector:
    """JSON numbers as float32; they are the shortest that read back as the same."""
    return np.array(values, np.float32)


def raw(data: bytes) -> Vector:
    return np.frombuffer(data, "<f4")


def decoded(data: str) -> Vector:
    return raw(base64.b64decode(data, validate=True))


# ---- text-embeddings-inference's routes, and the formats of /embed


def embed(roads: Roads, inputs: Any, accept: str = "application/json", **members: Any) -> httpx.Response:
    return roads.post("/embed", {"inputs": inputs} | members, accept=accept)


def safetensors_of(answer: httpx.Response) -> Vector:
    [vector] = safetensors.numpy.load(answer.content).values()
    return exactly(vector)


# ---- OpenAI's


def openai(roads: Roads, path: str, inputs: Any, encoding: str) -> httpx.Response:
    return roads.post(path, {"model": MODEL, "input": inputs, "encoding_format": encoding})


def first(answer: httpx.Response) -> Any:
    [item] = answer.json()["data"]
    return item.get("embedding", item.get("data"))


# ---- the Open Inference Protocol's

POOLED = "sentence_embedding"
INFER = f"/v2/models/{MODEL}/infer"


def tensor(inputs: Any) -> tuple[dict[str, Any], bytes]:
    """What a request says of its one input, and the raw bytes of it."""
    if isinstance(inputs, str):
        text = inputs.encode()
        return {"name": "text", "datatype": "BYTES", "shape": [1]}, len(text).to_bytes(4, "little") + text
    return {"name": "input_ids", "datatype": "INT64", "shape": [1, len(inputs)]}, np.array(inputs, "<i8").tobytes()


def oip_json(roads: Roads, inputs: Any) -> Vector:
    answer = roads.post(INFER, {"inputs": [tensor(inputs)[0] | {"data": [inputs]}]})
    [output] = answer.json()["outputs"]
    assert (output["name"], output["shape"]) == (POOLED, [1, WIDTH])
    return exactly(output["data"]).reshape(-1)


def oip_binary(roads: Roads, inputs: Any) -> Vector:
    described, data = tensor(inputs)
    described["parameters"] = {"binary_data_size": len(data)}
    part = orjson.dumps({"inputs": [described], "parameters": {"binary_data_output": True}})
    answer = roads.post(INFER, part + data, inference_header_content_length=str(len(part)))
    return raw(answer.content[int(answer.headers["inference-header-content-length"]) :])


def oip_rpc(roads: Roads, inputs: Any) -> Vector:
    described, data = tensor(inputs)
    message = oip.ModelInferRequest.InferInputTensor(**described)
    request = oip.ModelInferRequest(model_name=MODEL, inputs=[message], raw_input_contents=[data])
    [contents] = roads.oip.ModelInfer(request).raw_output_contents
    return raw(contents)


# ---- gRPC of tei.v1 and of inlay.v1


def tei_request() -> tei.EmbedRequest:
    return tei.EmbedRequest(inputs=TEXT)


def own_request(inputs: Any) -> own.EmbedRequest:
    input_field = {"text": inputs} if isinstance(inputs, str) else {"ids": own.TokenIds(input_ids=inputs)}
    return own.EmbedRequest(model=MODEL, inputs=[own.Input(**input_field)])


def own_vector(response: own.EmbedResponse) -> Vector:
    return exactly(array_of(response.outputs[0].tensor)[0])


Road = Callable[[Roads, Any], Vector]
NPY, SAFETENSORS = "application/x-npy", "application/vnd.safetensors"
EITHER: dict[str, Road] = {
    "/embed, JSON": lambda roads, text: exactly(embed(roads, [text]).json()[0]),
    "/embed, base64": lambda roads, text: decoded(embed(roads, [text], encoding_format="base64").json()[0]),
    "/embed, npy": lambda roads, text: np.load(io.BytesIO(embed(roads, [text], NPY).content))[0],
    "/embed, safetensors": lambda roads, text: safetensors_of(embed(roads, [text], SAFETENSORS)),
    "/embed, bytes": lambda roads, text: raw(embed(roads, [text], "*/*", encoding_format="bytes").content),
    "/embed, bytes_only": lambda roads, text: raw(embed(roads, [text], "*/*", encoding_format="bytes_only").content),
    "/": lambda roads, text: exactly(roads.post("/", {"inputs": [text]}).json()[0]),
    "/invocations": lambda roads, text: exactly(roads.post("/invocations", {"inputs": text}).json()[0]),
    "/v1/embeddings, float": lambda roads, text: exactly(first(openai(roads, "/v1/embeddings", text, "float"))),
    "/v1/embeddings, base64": lambda roads, text: decoded(first(openai(roads, "/v1/embeddings", text, "base64"))),
    "/v1/embeddings, bytes": lambda roads, text: raw(openai(roads, "/v1/embeddings", [text], "bytes").content),
    "/embeddings, float": lambda roads, text: exactly(first(openai(roads, "/embeddings", text, "float"))),
    "/pooling, float": lambda roads, text: exactly(first(openai(roads, "/pooling", text, "float"))),
    "OIP, JSON": oip_json,
    "OIP, binary": oip_binary,
    "OIP gRPC, raw": oip_rpc,
    "inlay.v1 Embed": lambda roads, text: own_vector(roads.own.Embed(own_request(text))),
    "inlay.v1 EmbedStream": lambda roads, text: own_vector(
        next(roads.own.EmbedStream(iter([own_request(text)]))).response
    ),
}
"""Road → the vector it gives for a text or for token ids."""
TEXT_ALONE: dict[str, Road] = {
    "tei.v1 Embed": lambda roads, text: exactly(roads.tei.Embed(tei_request()).embeddings),
    "tei.v1 EmbedStream": lambda roads, text: exactly(next(roads.tei.EmbedStream(iter([tei_request()]))).embeddings),
}
ALL = [(name, road, kind) for name, road in EITHER.items() for kind in ("text", "ids")]
ALL += [(name, road, "text") for name, road in TEXT_ALONE.items()]


@pytest.fixture(scope="module")
def vector(roads: Roads) -> Vector:
    """The raw bytes of /embed for the text."""
    return raw(embed(roads, [TEXT], "application/octet-stream").content)


def test_embed_gives_what_sentence_transformers_gives(vector: Vector) -> None:
    assert np.abs(vector - CASE.unit).max() <= UNIT


@pytest.mark.parametrize(("name", "road", "kind"), ALL, ids=[f"{name}, {kind}" for name, _, kind in ALL])
def test_every_road_gives_the_same_float32_values(
    roads: Roads, vector: Vector, name: str, road: Road, kind: str
) -> None:
    got = road(roads, TEXT if kind == "text" else IDS)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, vector)


def test_mean_of_embed_all_is_the_unnormalized_vector(roads: Roads) -> None:
    [rows] = roads.post("/embed_all", {"inputs": TEXT}).json()
    [streamed] = roads.tei.EmbedAllStream(iter([tei.EmbedAllRequest(inputs=TEXT)]))
    np.testing.assert_array_equal(exactly([row.embeddings for row in streamed.token_embeddings]), exactly(rows))
    [pooled] = embed(roads, [TEXT], normalize=False).json()
    mean = exactly(rows).astype(np.float64).mean(axis=0)
    assert np.abs(mean - pooled).max() <= UNIT
    assert np.abs(mean - CASE.arrays["pooled"]).max() <= HIDDEN


def test_similarity_is_the_product_of_the_vectors(roads: Roads, vector: Vector) -> None:
    others = [TEXT, "Der schnelle braune Fuchs", "interest rates"]
    body = {"inputs": {"source_sentence": TEXT, "sentences": others}}
    expected = np.array(embed(roads, others).json()) @ vector.astype(np.float64)
    for path in ("/similarity", "/"):
        assert np.abs(np.array(roads.post(path, body).json()) - expected).max() <= UNIT
