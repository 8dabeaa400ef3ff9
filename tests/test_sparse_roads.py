"""One text's sparse vector through every protocol and format: the same indices, and the same values bit for bit."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from models.artifacts.export import export
from proto import embed_pb2 as own
from proto import open_inference_pb2 as oip
from proto import tei_pb2 as tei
from tests.roads import NPY, SAFETENSORS, Roads, embed, own_request, raw, roads_to, tensor
from tests.served import serving
from tests.sparse_models import expected, weights_of_ids, write_lexical, write_router, write_splade, write_static

NAME, OUTPUT = "splade", "sparse_embedding"
TEXT, IDS = "a b c a", [2, 5, 6, 7, 5, 3]
Sparse = tuple[NDArray[np.int64], NDArray[np.float32]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sparse")
    writers = {NAME: write_splade, "router": write_router, "static": write_static, "lexical": write_lexical}
    for name, write in writers.items():
        export(write(folder / name), folder / "store" / name)
    return folder / "store"


@pytest.fixture(scope="module")
def roads(store: Path) -> Iterator[Roads]:
    with serving(store, default_model=NAME, max_inputs=64) as running, roads_to(running, NAME) as clients:
        yield clients


def pairs(vector: dict[str, list[Any]]) -> Sparse:
    return np.array(vector["indices"], np.int64), np.array(vector["values"], np.float32)


def entries(vector: list[dict[str, Any]]) -> Sparse:
    return pairs({part: [each[name] for each in vector] for part, name in (("indices", "index"), ("values", "value"))})


def of_safetensors(content: bytes) -> Sparse:
    tensors = safetensors.numpy.load(content)
    assert set(tensors) == {f"0/{OUTPUT}/indices", f"0/{OUTPUT}/values"}
    return tensors[f"0/{OUTPUT}/indices"].astype(np.int64), tensors[f"0/{OUTPUT}/values"]


def of_message(response: own.EmbedResponse) -> Sparse:
    (output,) = response.outputs
    assert (output.name, output.indices.dtype, list(output.tensor.shape)) == (OUTPUT, own.INT32, [*output.lengths, 1])
    assert list(output.indices.shape) == list(output.lengths)
    return np.frombuffer(output.indices.data, "<i4").astype(np.int64), raw(output.tensor.data)


def of_tei(response: tei.EmbedSparseResponse) -> Sparse:
    values = response.sparse_embeddings
    return np.array([each.index for each in values]), np.array([each.value for each in values], np.float32)


def oip_json(roads: Roads, inputs: Any, *names: str) -> Sparse:
    named = {"outputs": [{"name": name} for name in names]} if names else {}
    body = {"inputs": [tensor(inputs)[0] | {"data": [inputs]}]} | named
    outputs = roads.post(f"/v2/models/{roads.model}/infer", body).json()["outputs"]
    data = {output["name"]: output["data"] for output in outputs}
    assert set(data) == {OUTPUT, f"{OUTPUT}_indices", f"{OUTPUT}_lengths"}
    assert data[f"{OUTPUT}_lengths"] == [len(data[OUTPUT])]
    return pairs({"indices": data[f"{OUTPUT}_indices"], "values": data[OUTPUT]})


def oip_rpc(roads: Roads, inputs: Any) -> Sparse:
    described, data = tensor(inputs)
    message = oip.ModelInferRequest.InferInputTensor(**described)
    response = roads.oip.ModelInfer(oip.ModelInferRequest(model_name=NAME, inputs=[message], raw_input_contents=[data]))
    assert [output.name for output in response.outputs] == [OUTPUT, f"{OUTPUT}_indices", f"{OUTPUT}_lengths"]
    assert [output.datatype for output in response.outputs] == ["FP32", "INT32", "INT64"]
    values, indices, _ = response.raw_output_contents
    return np.frombuffer(indices, "<i4").astype(np.int64), raw(values)


def tei_request(text: str) -> tei.EmbedSparseRequest:
    return tei.EmbedSparseRequest(inputs=text, truncate=True)


Road = Callable[[Roads, Any], Sparse]
EITHER: dict[str, Road] = {
    "/embed, default": lambda roads, inputs: pairs(embed(roads, [inputs]).json()[0]),
    "/embed, outputs": lambda roads, inputs: pairs(
        embed(roads, [inputs], outputs=[OUTPUT]).json()["outputs"][OUTPUT][0]
    ),
    "/embed, safetensors": lambda roads, inputs: of_safetensors(embed(roads, [inputs], SAFETENSORS).content),
    "/embed_sparse": lambda roads, inputs: entries(roads.post("/embed_sparse", {"inputs": [inputs]}).json()[0]),
    "OIP, JSON": oip_json,
    "OIP, named": lambda roads, inputs: oip_json(roads, inputs, f"{OUTPUT}_lengths", OUTPUT, f"{OUTPUT}_indices"),
    "OIP gRPC": oip_rpc,
    "inlay.v1 Embed": lambda roads, inputs: of_message(roads.own.Embed(own_request(roads, inputs))),
    "inlay.v1 EmbedStream": lambda roads, inputs: of_message(
        next(roads.own.EmbedStream(iter([own_request(roads, inputs)]))).response
    ),
}
TEXT_ALONE: dict[str, Road] = {
    "tei.v1 EmbedSparse": lambda roads, text: of_tei(roads.tei.EmbedSparse(tei_request(text))),
    "tei.v1 EmbedSparseStream": lambda roads, text: of_tei(
        next(roads.tei.EmbedSparseStream(iter([tei_request(text)])))
    ),
}
ALL = [(name, kind) for name in EITHER for kind in ("text", "ids")] + [(name, "text") for name in TEXT_ALONE]


@pytest.mark.parametrize(("name", "kind"), ALL)
def test_every_road_gives_the_same_sparse_vector(name: str, kind: str, roads: Roads, store: Path) -> None:
    indices, values = (EITHER | TEXT_ALONE)[name](roads, TEXT if kind == "text" else IDS)
    (wanted,) = expected(store / NAME, [IDS])
    np.testing.assert_array_equal(indices, np.flatnonzero(wanted))
    assert np.abs(values - wanted[indices]).max() <= 1e-5
    np.testing.assert_array_equal(values, EITHER["/embed, default"](roads, IDS)[1])


def test_a_message_is_protobufs_own_bytes(roads: Roads) -> None:
    response = roads.tei.EmbedSparse(tei_request(TEXT))
    assert response.metadata.compute_tokens == len(IDS)
    again = tei.EmbedSparseResponse.FromString(response.SerializeToString())
    assert len(again.sparse_embeddings) == len(response.sparse_embeddings) > 3


def test_several_texts_and_headers_of_embed_sparse(roads: Roads) -> None:
    answer = roads.post("/embed_sparse", {"inputs": ["a", TEXT, "b c"], "max_active_dims": 2})
    assert [len(vector) for vector in answer.json()] == [2, 2, 2]
    assert {"x-compute-tokens", "x-total-time", "x-inference-time"} <= set(answer.headers)
    cut = roads.post("/embed_sparse", {"inputs": "a " * 60, "truncate": True})
    assert cut.headers["inlay-truncated-inputs"] == "0"


def test_dense_and_sparse_come_in_one_answer(roads: Roads, store: Path) -> None:
    names = ["sentence_embedding", OUTPUT]
    answer = embed(roads, [TEXT, "b"], outputs=names, model="lexical").json()["outputs"]
    assert list(answer) == names
    (wanted,) = expected(store / "lexical", [IDS])
    indices, values = pairs(answer[OUTPUT][0])
    assert np.abs(values - wanted[indices]).max() <= 1e-5
    np.testing.assert_allclose(
        answer["sentence_embedding"], embed(roads, [TEXT, "b"], model="lexical").json(), atol=1e-6
    )
    tensors = safetensors.numpy.load(embed(roads, [TEXT, "b"], SAFETENSORS, outputs=names, model="lexical").content)
    np.testing.assert_array_equal(tensors[f"0/{OUTPUT}/values"], values)
    assert tensors["1/sentence_embedding"].shape == (32,)
    message = roads.own.Embed(own.EmbedRequest(model="lexical", inputs=[own.Input(text=TEXT)], outputs=names))
    assert raw(message.outputs[1].tensor.data).tolist() == values.tolist()
    assert not message.outputs[0].HasField("indices")


@pytest.mark.parametrize("model", ["router", "static"])
def test_queries_are_looked_up_on_every_road(model: str, roads: Roads) -> None:
    table = weights_of_ids()
    wanted = {id_: table[id_] for id_ in {5, 7} if table[id_]}
    fields = {"model": model, "input_type": "query"}
    oip_body = {
        "inputs": [tensor("a c a")[0] | {"data": ["a c a"]}],
        "parameters": {"input_type": "query"},
        "outputs": [{"name": OUTPUT}, {"name": f"{OUTPUT}_indices"}],
    }
    outputs = roads.post(f"/v2/models/{model}/infer", oip_body).json()["outputs"]
    request = own.EmbedRequest(model=model, inputs=[own.Input(text="a c a")], input_type="query")
    answers = [
        pairs(embed(roads, ["a c a"], **fields).json()[0]),
        entries(roads.post("/embed_sparse", {"inputs": "a c a"} | fields).json()[0]),
        pairs({"values": outputs[0]["data"], "indices": outputs[1]["data"]}),
        of_message(roads.own.Embed(request)),
    ]
    for indices, values in answers:
        assert dict(zip(indices.tolist(), values.tolist(), strict=True)) == wanted


def test_models_and_info_name_the_output(roads: Roads) -> None:
    summary = roads.http.get(f"/models/{NAME}").json()
    assert summary["default_output"] == OUTPUT
    assert OUTPUT in roads.http.get("/models/lexical").json()["outputs"]
    assert roads.http.get("/models/static").json()["outputs"] == [OUTPUT]
    assert roads.http.get("/info").json()["model_type"] == {"embedding": {"pooling": "splade"}}
    assert roads.http.get("/info?model=lexical").json()["model_type"] == {"embedding": {"pooling": "cls"}}
    described = roads.http.get(f"/v2/models/{NAME}").json()["outputs"]
    assert {"name": f"{OUTPUT}_indices", "datatype": "INT32", "shape": [-1]} in described
    listed = roads.http.get("/models").json()
    assert [each["id"] for each in listed["data"]] == ["lexical", "router", NAME, "static"]


REFUSED: dict[str, tuple[str, dict[str, Any], str, int, str]] = {
    "npy": ("/embed", {"inputs": "a"}, NPY, 406, "carries dense rows"),
    "octets": ("/embed", {"inputs": "a"}, "application/octet-stream", 406, "carries dense rows"),
    "base64": ("/embed", {"inputs": "a", "encoding_format": "base64"}, "*/*", 422, "base64 carries dense vectors"),
    "base64, named": (
        "/embed", {"inputs": "a", "outputs": OUTPUT, "encoding_format": "base64"}, "*/*", 422, "is sparse"
    ),
    "bytes": ("/embed", {"inputs": "a", "encoding_format": "bytes"}, "*/*", 422, "bytes carries dense vectors"),
    "max_active_dims of 0": ("/embed", {"inputs": "a", "max_active_dims": 0}, "*/*", 422, "max_active_dims is 0"),
    "max_active_dims of rows": (
        "/embed", {"inputs": [[5]], "outputs": "input_embeddings", "max_active_dims": 3}, "*/*", 422, "applies to"
    ),
    "input_type": ("/embed_sparse", {"inputs": "a", "input_type": "poem"}, "*/*", 422, "input_type"),
    "no text": ("/embed_sparse", {"inputs": []}, "*/*", 400, "cannot be empty"),
    "dense on /v1/embeddings": ("/v1/embeddings", {"input": "a", "model": NAME}, "*/*", 400, "gives sparse vectors"),
    "sparse on /pooling": ("/pooling", {"input": "a", "model": NAME}, "*/*", 400, "gives sparse vectors"),
    "too many": ("/embed_sparse", {"inputs": ["a"] * 65}, "*/*", 422, "65"),
    "a part of nothing": ("/embed", {"inputs": "a", "outputs": "sparse_indices"}, "*/*", 422, "has no output"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_answered_is_refused(case: str, roads: Roads) -> None:
    path, body, accept, status, message = REFUSED[case]
    answer = roads.http.post(path, json=body, headers={"accept": accept})
    assert (answer.status_code, message in answer.text) == (status, True), (answer.status_code, answer.text)


def test_tei_refuses_a_text_that_is_not_there(roads: Roads) -> None:
    with pytest.raises(grpc.RpcError) as error:
        roads.tei.EmbedSparse(tei.EmbedSparseRequest())
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_large_answers_come_in_pieces_of_json() -> None:
    from service.embedding.requests import EmbedResult, Output
    from service.protocols.tei import answers

    lengths = (50_000, 0, 3)
    indices = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
    values = np.linspace(0.1, 3, len(indices), dtype=np.float32)[:, None]
    result = EmbedResult("m", (Output(OUTPUT, values, lengths, False, indices),), 3, True)
    pieces = answers.sparse_json(result).stream
    assert pieces is not None
    vectors = json.loads(b"".join([piece async for piece in pieces]))
    assert [len(vector) for vector in vectors] == list(lengths)
    assert np.float32(vectors[0][49_999]["value"]) == values[49_999, 0]
    assert [entry["index"] for entry in vectors[2]] == [0, 1, 2]
