"""Late interaction over every protocol: vectors, their lengths, scores, and the scores of vectors in a request."""

import io
from collections.abc import Iterator
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
from tests.late_interaction import TEXTS, write_bert, write_bge, write_pylate
from tests.served import Served, array_of, serving

OUTPUT = "multi_vector_embedding"
Rows = NDArray[np.float32]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("late")
    export(write_pylate(write_bert(folder / "colbert")), folder / "store/colbert")
    write_bge(write_bert(folder / "bge"))
    export(folder / "bge", folder / "store/bge")
    with serving(folder / "store", default_model="colbert") as running:
        yield running


def post(served: Served, path: str, body: Any, **headers: str) -> Any:
    answer = served.http.post(path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


def vectors(served: Served, texts: Any = TEXTS, **fields: Any) -> list[Rows]:
    """The vectors of each text in JSON."""
    body = {"inputs": texts, "outputs": [OUTPUT], "truncate": True} | fields
    return [np.array(own, np.float32) for own in post(served, "/embed", body).json()["outputs"][OUTPUT]]


def maxsim(query: Rows, document: Rows) -> float:
    return float((query.astype(np.float64) @ document.T).max(axis=1).sum())


def test_binary_formats_say_how_many_vectors_a_text_has(served: Served) -> None:
    expected = vectors(served)
    body = {"inputs": TEXTS, "outputs": [OUTPUT], "truncate": True}
    lengths = ",".join(str(len(own)) for own in expected)
    raw = post(served, "/embed", body, accept="application/octet-stream")
    assert raw.headers["inlay-lengths"] == lengths
    assert raw.content == np.concatenate(expected).tobytes()
    npy = post(served, "/embed", body, accept="application/x-npy")
    assert npy.headers["inlay-lengths"] == lengths
    assert np.array_equal(np.load(io.BytesIO(npy.content)), np.concatenate(expected))
    named = safetensors.numpy.load(post(served, "/embed", body, accept="application/vnd.safetensors").content)
    for index, own in enumerate(expected):
        assert np.array_equal(named[f"{index}/{OUTPUT}"], own)


def test_it_is_the_default_output(served: Served) -> None:
    bare = post(served, "/embed", {"inputs": ["hello, world"]}).json()
    assert np.array_equal(np.array(bare[0], np.float32), vectors(served, ["hello, world"])[0])


def test_queries_are_told_by_their_input_type(served: Served) -> None:
    (query,) = vectors(served, ["hello, world"], input_type="query")
    (document,) = vectors(served, ["hello, world"], input_type="document")
    assert (len(query), len(document)) == (12, 5)


def test_an_unknown_input_type_is_refused(served: Served) -> None:
    answer = served.post({"inputs": "a", "input_type": "question"})
    assert answer.status_code == 422
    assert "input_type" in answer.json()["error"]


def test_dense_and_several_vectors_come_in_one_answer(served: Served) -> None:
    body = {"inputs": ["hello world"], "model": "bge", "outputs": ["sentence_embedding", OUTPUT]}
    outputs = post(served, "/embed", body).json()["outputs"]
    assert np.array(outputs["sentence_embedding"]).shape == (1, 32)
    assert np.array(outputs[OUTPUT]).shape == (1, 3, 32)


def test_inlay_v1_gives_the_same_bits(served: Served) -> None:
    request = pb.EmbedRequest(outputs=[OUTPUT], truncate=True)
    for text in TEXTS:
        request.inputs.add(text=text)
    (output,) = served.stub.Embed(request).outputs
    expected = vectors(served)
    assert list(output.lengths) == [len(own) for own in expected]
    assert array_of(output.tensor).tobytes() == np.concatenate(expected).tobytes()


def test_inlay_v1_tells_queries(served: Served) -> None:
    request = pb.EmbedRequest(input_type="query")
    request.inputs.add(text="hello, world")
    (output,) = served.stub.Embed(request).outputs
    (expected,) = vectors(served, ["hello, world"], input_type="query")
    assert array_of(output.tensor).tobytes() == expected.tobytes()


def test_spans_are_of_sentence_vectors(served: Served) -> None:
    body = {"inputs": "hello, world", "spans": [[0, 5]], "outputs": [OUTPUT], "model": "bge"}
    answer = served.http.post("/embed", json=body)
    assert answer.status_code == 422
    assert "spans" in answer.json()["error"]


def test_open_inference_pads_the_vectors_of_texts(served: Served) -> None:
    expected = vectors(served)
    request = oip.ModelInferRequest(model_name="colbert")
    tensor = request.inputs.add(name="text", datatype="BYTES", shape=[len(TEXTS)])
    tensor.contents.bytes_contents.extend(text.encode() for text in TEXTS)
    request.parameters["truncate"].bool_param = True
    with grpc.insecure_channel(served.rpc_address) as channel:
        answer = GRPCInferenceServiceStub(channel).ModelInfer(request)
    by_name = {output.name: index for index, output in enumerate(answer.outputs)}
    rows = answer.outputs[by_name[OUTPUT]]
    padded = np.frombuffer(answer.raw_output_contents[by_name[OUTPUT]], "<f4").reshape(list(rows.shape))
    lengths = np.frombuffer(answer.raw_output_contents[by_name["lengths"]], "<i8")
    assert lengths.tolist() == [len(own) for own in expected]
    for own, row in zip(expected, padded, strict=True):
        assert np.array_equal(row[: len(own)], own)
        assert not row[len(own) :].any()


def test_open_inference_pads_those_of_token_ids_too(served: Served) -> None:
    """Skipped tokens have no row, so the rows do not lie where the tokens lay."""
    ids = [[2, 6, 12, 8, 13, 3], [2, 6, 12, 3, 0, 0]]
    inputs = [
        {"name": "input_ids", "datatype": "INT64", "shape": [2, 6], "data": ids},
        {"name": "attention_mask", "datatype": "INT64", "shape": [2, 6], "data": [[1] * 6, [1] * 4 + [0] * 2]},
    ]
    body = {"inputs": inputs, "outputs": [{"name": OUTPUT}, {"name": "lengths"}]}
    outputs = {each["name"]: each for each in post(served, "/v2/models/colbert/infer", body).json()["outputs"]}
    assert outputs["lengths"]["data"] == [5, 4]
    assert outputs[OUTPUT]["shape"] == [2, 5, 16]
    expected = vectors(served, [ids[0], ids[1][:4]])
    got = np.array(outputs[OUTPUT]["data"], np.float32).reshape(2, 5, 16)
    assert np.array_equal(got[0], expected[0])
    assert np.array_equal(got[1, :4], expected[1])


@pytest.mark.parametrize("raw_scores", [False, True])
def test_rerank_answers_with_maxsim(served: Served, raw_scores: bool) -> None:
    (query,) = vectors(served, ["hello world"], input_type="query")
    scores = [maxsim(query, own) for own in vectors(served)]
    body = {"query": "hello world", "texts": TEXTS, "truncate": True, "raw_scores": raw_scores}
    ranks = post(served, "/rerank", body).json()
    assert [rank["index"] for rank in ranks] == sorted(range(len(TEXTS)), key=lambda index: -scores[index])
    np.testing.assert_allclose([rank["score"] for rank in ranks], sorted(scores, reverse=True), rtol=1e-6, atol=1e-6)


def test_similarity_of_texts_is_maxsim(served: Served) -> None:
    (query,) = vectors(served, ["hello world"], input_type="query")
    body = {"inputs": {"source_sentence": "hello world", "sentences": TEXTS}, "parameters": {"truncate": True}}
    np.testing.assert_allclose(
        post(served, "/similarity", body).json(), [maxsim(query, own) for own in vectors(served)], rtol=1e-6, atol=1e-6
    )


def test_similarity_of_sentence_vectors_is_their_cosine(served: Served) -> None:
    body = {"inputs": {"source_sentence": "hello", "sentences": ["hello", "a b"]}, "model": "bge"}
    scores = post(served, "/similarity", body).json()
    assert scores[0] == pytest.approx(1)
    assert abs(scores[1]) < 1


def test_the_model_says_what_its_vectors_are(served: Served) -> None:
    shown = {name: served.http.get(f"/models/{name}").json()["multi_vector"] for name in ("colbert", "bge")}
    own = {"dimensions": 16, "query_tokens": 12, "document_tokens": 24, "expanded_tokens": 12, "function": "maxsim"}
    assert shown["colbert"] == own
    assert shown["bge"] == dict.fromkeys(own) | {"dimensions": 32, "function": "meanmaxsim"}


def test_embed_all_scales_rows_where_the_caller_says_so(served: Served) -> None:
    plain, scaled, unscaled = (
        np.array(post(served, "/embed_all", {"inputs": ["hello, world"]} | more).json()[0])
        for more in ({}, {"normalize_tokens": True}, {"normalize": True})  # tei-client sends normalize
    )
    assert plain.shape == (5, 32)  # every token, of the encoder
    np.testing.assert_array_equal(plain, unscaled)
    np.testing.assert_allclose(scaled, plain / np.linalg.norm(plain, axis=1, keepdims=True), atol=1e-6)
