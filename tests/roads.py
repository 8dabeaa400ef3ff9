"""Every protocol and format by which a text, or its token ids, becomes a vector."""

import base64
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import numpy as np
import orjson
import safetensors.numpy
from numpy.typing import NDArray

from proto import embed_pb2 as own
from proto import open_inference_pb2 as oip
from proto import tei_pb2 as tei
from proto.embed_pb2_grpc import EmbedderStub
from proto.open_inference_pb2_grpc import GRPCInferenceServiceStub
from proto.tei_pb2_grpc import EmbedStub
from tests.served import Served, array_of

Vector = NDArray[np.float32]


@dataclass(frozen=True)
class Roads:
    """A client of each protocol, and the model that it asks."""

    model: str
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


@contextmanager
def roads_to(served: Served, model: str) -> Iterator[Roads]:
    """A client of each protocol of a running service."""
    with grpc.insecure_channel(served.rpc_address) as channel:
        yield Roads(model, served.http, served.stub, GRPCInferenceServiceStub(channel), EmbedStub(channel))


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
    return roads.post(path, {"model": roads.model, "input": inputs, "encoding_format": encoding})


def first(answer: httpx.Response) -> Any:
    [item] = answer.json()["data"]
    return item.get("embedding", item.get("data"))


# ---- Cohere's


def cohere(roads: Roads, path: str, text: str, **members: Any) -> Any:
    return roads.post(path, {"model": roads.model, "texts": [text], "input_type": "clustering"} | members).json()


# ---- the Open Inference Protocol's

POOLED = "sentence_embedding"


def tensor(inputs: Any) -> tuple[dict[str, Any], bytes]:
    """What a request says of its one input, and the raw bytes of it."""
    if isinstance(inputs, str):
        text = inputs.encode()
        return {"name": "text", "datatype": "BYTES", "shape": [1]}, len(text).to_bytes(4, "little") + text
    return {"name": "input_ids", "datatype": "INT64", "shape": [1, len(inputs)]}, np.array(inputs, "<i8").tobytes()


def oip_json(roads: Roads, inputs: Any) -> Vector:
    answer = roads.post(f"/v2/models/{roads.model}/infer", {"inputs": [tensor(inputs)[0] | {"data": [inputs]}]})
    [output] = answer.json()["outputs"]
    assert (output["name"], output["shape"][0]) == (POOLED, 1)
    return exactly(output["data"]).reshape(-1)


def oip_binary(roads: Roads, inputs: Any) -> Vector:
    described, data = tensor(inputs)
    described["parameters"] = {"binary_data_size": len(data)}
    part = orjson.dumps({"inputs": [described], "parameters": {"binary_data_output": True}})
    answer = roads.post(f"/v2/models/{roads.model}/infer", part + data, inference_header_content_length=str(len(part)))
    return raw(answer.content[int(answer.headers["inference-header-content-length"]) :])


def oip_rpc(roads: Roads, inputs: Any) -> Vector:
    described, data = tensor(inputs)
    message = oip.ModelInferRequest.InferInputTensor(**described)
    request = oip.ModelInferRequest(model_name=roads.model, inputs=[message], raw_input_contents=[data])
    [contents] = roads.oip.ModelInfer(request).raw_output_contents
    return raw(contents)


# ---- gRPC of tei.v1 and of inlay.v1


def own_request(roads: Roads, inputs: Any, **fields: Any) -> own.EmbedRequest:
    """A request of inlay.v1 for one text or one list of ids."""
    input_field = {"text": inputs} if isinstance(inputs, str) else {"ids": own.TokenIds(input_ids=inputs)}
    return own.EmbedRequest(model=roads.model, inputs=[own.Input(**input_field)], **fields)


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
    "inlay.v1 Embed": lambda roads, text: own_vector(roads.own.Embed(own_request(roads, text))),
    "inlay.v1 EmbedStream": lambda roads, text: own_vector(
        next(roads.own.EmbedStream(iter([own_request(roads, text)]))).response
    ),
}
"""Road → the vector it gives for a text or for token ids."""
TEXT_ALONE: dict[str, Road] = {
    "/v1/embed": lambda roads, text: exactly(cohere(roads, "/v1/embed", text)["embeddings"][0]),
    "/v2/embed, float": lambda roads, text: exactly(cohere(roads, "/v2/embed", text)["embeddings"]["float"][0]),
    "/v2/embed, base64": lambda roads, text: decoded(
        cohere(roads, "/v2/embed", text, embedding_types=["base64"])["embeddings"]["base64"][0]
    ),
    "/api/embed": lambda roads, text: exactly(
        roads.post("/api/embed", {"model": roads.model, "input": text}).json()["embeddings"][0]
    ),
    "/api/embeddings": lambda roads, text: exactly(
        roads.post("/api/embeddings", {"model": roads.model, "prompt": text}).json()["embedding"]
    ),
    "tei.v1 Embed": lambda roads, text: exactly(
        roads.tei.Embed(tei.EmbedRequest(inputs=text, truncate=True)).embeddings
    ),
    "tei.v1 EmbedStream": lambda roads, text: exactly(
        next(roads.tei.EmbedStream(iter([tei.EmbedRequest(inputs=text, truncate=True)]))).embeddings
    ),
}
MEAN_ALONE: dict[str, Road] = {
    "/v1/embeddings, late_chunking": lambda roads, text: exactly(
        first(roads.post("/v1/embeddings", {"model": roads.model, "input": text, "late_chunking": True}))
    ),
}
"""Roads for texts of models that pool all tokens."""
