"""Every protocol says which inputs were cut; the metric counts them; limits of 1 and 2 tokens hold."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from proto import embed_pb2 as own
from proto import open_inference_pb2 as oip
from proto import tei_pb2 as tei
from proto.open_inference_pb2_grpc import GRPCInferenceServiceStub
from proto.tei_pb2_grpc import EmbedStub
from service.embedding.truncation import MOST_SHOWN, metadata
from tests.served import Served, serving

LONG = "hello " * 40  # 42 tokens; the model reads 24
TEXTS = ["hello", LONG, "world", LONG]
IDS = [[5] * 50, [5, 6]]
HEADERS = {"inlay-truncated-inputs": "1,3", "inlay-truncated-count": "2"}


@pytest.fixture(scope="module")
def served(tiny_store: Path) -> Iterator[Served]:
    with serving(tiny_store, default_model="bert") as service:
        yield service


def said(headers: Any) -> dict[str, str]:
    return {name: value for name, value in dict(headers).items() if name.startswith("inlay-truncated")}


def oip_body(texts: list[str], binary: bool = False) -> dict[str, Any]:
    tensor = {"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": texts}
    return {"inputs": [tensor], "parameters": {"binary_data_output": binary}}


ROADS: dict[str, tuple[str, dict[str, Any]]] = {
    "/embed": ("/embed", {"inputs": TEXTS}),
    "/embed, outputs": ("/embed", {"inputs": TEXTS, "outputs": ["sentence_embedding"]}),
    "/embed_all": ("/embed_all", {"inputs": TEXTS}),
    "/": ("/", {"inputs": TEXTS}),
    "/similarity": ("/similarity", {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}}),
    "/v1/embeddings": ("/v1/embeddings", {"input": TEXTS}),
    "/v1/embeddings, bytes": ("/v1/embeddings", {"input": TEXTS, "encoding_format": "bytes_only"}),
    "/pooling": ("/pooling", {"input": TEXTS}),
    "/v2": ("/v2/models/bert/infer", oip_body(TEXTS)),
    "/v2, binary": ("/v2/models/bert/infer", oip_body(TEXTS, binary=True)),
}


@pytest.mark.parametrize("road", ROADS)
def test_header_names_the_inputs_that_were_cut(served: Served, road: str) -> None:
    path, body = ROADS[road]
    answer = served.http.post(path, json=body).raise_for_status()
    assert said(answer.headers) == HEADERS


@pytest.mark.parametrize("accept", ["application/octet-stream", "application/x-npy", "application/vnd.safetensors"])
def test_binary_answers_have_the_header_too(served: Served, accept: str) -> None:
    assert said(served.post({"inputs": TEXTS}, accept).raise_for_status().headers) == HEADERS


WHOLE = [{"inputs": ["hello", "world"]}, {"inputs": [[5, 6]], "outputs": ["input_embeddings"]}]


@pytest.mark.parametrize("body", WHOLE)
def test_nothing_is_said_where_nothing_was_cut(served: Served, body: dict[str, Any]) -> None:
    answer = served.post(body).raise_for_status()
    assert said(answer.headers) == {}
    assert b"truncated" not in answer.content


def test_documents_hold_the_numbers_of_cut_inputs(served: Served) -> None:
    named = served.post({"inputs": IDS, "outputs": ["input_embeddings"]})
    assert named.json()["truncated"] == [0]
    assert said(named.headers)["inlay-truncated-inputs"] == "0"
    assert served.http.post("/v1/embeddings", json={"input": TEXTS}).json()["truncated"] == [1, 3]
    inferred = served.http.post("/v2/models/bert/infer", json=oip_body(TEXTS)).json()
    assert inferred["parameters"] == {"truncated_inputs": "1,3"}
    file = served.post({"inputs": TEXTS}, "application/vnd.safetensors").content
    header = json.loads(file[8 : 8 + int.from_bytes(file[:8], "little")])
    assert header["__metadata__"]["truncated"] == "1,3"


def test_rows_for_other_servers_name_cut_inputs(served: Served) -> None:
    answer = served.http.post("/embed", json={"inputs": IDS, "model": "bert", "encoding_format": "input_embeds"})
    assert answer.raise_for_status().json()["truncated"] == [0]


def test_grpc_answers_name_the_inputs_that_were_cut(served: Served) -> None:
    request = own.EmbedRequest(inputs=[own.Input(text=text) for text in TEXTS])
    answer, call = served.stub.Embed.with_call(request)
    assert list(answer.truncated) == [1, 3]
    assert said(call.trailing_metadata()) == HEADERS
    plain, call = served.stub.Embed.with_call(own.EmbedRequest(inputs=[own.Input(ids=own.TokenIds(input_ids=[5]))]))
    assert (list(plain.truncated), said(call.trailing_metadata())) == ([], {})
    files = served.stub.Embed(own.EmbedRequest(inputs=request.inputs, encoding=own.PROMPT_EMBEDS))
    assert list(files.truncated) == [1, 3]


def test_other_grpc_protocols_name_the_inputs_that_were_cut(served: Served) -> None:
    with grpc.insecure_channel(served.rpc_address) as channel:
        _, call = EmbedStub(channel).Embed.with_call(tei.EmbedRequest(inputs=LONG, truncate=True))
        assert said(call.trailing_metadata()) == {"inlay-truncated-inputs": "0", "inlay-truncated-count": "1"}
        contents = {"bytes_contents": [text.encode() for text in TEXTS]}
        tensor = {"name": "text", "datatype": "BYTES", "shape": [len(TEXTS)], "contents": contents}
        request = oip.ModelInferRequest(model_name="bert", inputs=[tensor])
        answer, call = GRPCInferenceServiceStub(channel).ModelInfer.with_call(request)
        assert answer.parameters["truncated_inputs"].string_param == "1,3"
        assert said(call.trailing_metadata()) == HEADERS


def test_stream_ends_with_the_numbers_of_cut_requests(served: Served) -> None:
    with grpc.insecure_channel(served.rpc_address) as channel:
        stream = EmbedStub(channel).EmbedStream(iter([tei.EmbedRequest(inputs=text, truncate=True) for text in TEXTS]))
        assert len(list(stream)) == len(TEXTS)
        assert said(stream.trailing_metadata()) == HEADERS


def test_long_lists_of_cut_inputs_are_bounded() -> None:
    (_, numbers), (_, count) = metadata(tuple(range(1000)))
    assert (numbers.split(","), count) == ([str(number) for number in range(MOST_SHOWN)], "1000")


def test_metric_counts_cut_inputs(served: Served) -> None:
    def counted() -> float:
        lines = served.http.get("/metrics").text.splitlines()
        sample = 'inlay_truncated_inputs_total{model="bert"'
        return next(float(line.split()[-1]) for line in lines if line.startswith(sample))

    before = counted()
    served.post({"inputs": TEXTS}).raise_for_status()
    assert counted() == before + 2


# ---- small limits: vLLM 0.33 cuts special tokens too (renderers/params.py, _token_truncation)

CLS, SEP, HELLO = 2, 3, 25
SMALL = [
    (1, "right", [CLS]),
    (1, "left", [SEP]),
    (2, "right", [CLS, SEP]),
    (2, "left", [CLS, SEP]),
    (3, "right", [CLS, HELLO, SEP]),
    (3, "left", [CLS, HELLO, SEP]),
]


def openai(served: Served, **fields: Any) -> httpx.Response:
    return served.http.post("/v1/embeddings", json={"encoding_format": "bytes_only", **fields})


def ids_of(served: Served, text: str) -> list[int]:
    return [token["id"] for token in served.http.post("/tokenize", json={"inputs": text}).json()[0]]


@pytest.mark.parametrize(("most", "side", "kept"), SMALL)
def test_truncation_to_few_tokens_counts_special_ones(served: Served, most: int, side: str, kept: list[int]) -> None:
    assert ids_of(served, "hello") == [CLS, HELLO, SEP]
    cut = openai(served, input=LONG, truncate_prompt_tokens=most, truncation_side=side).raise_for_status()
    assert cut.content == openai(served, input=kept).content
    np.testing.assert_allclose(np.linalg.norm(np.frombuffer(cut.content, np.float32)), 1, atol=1e-6)


@pytest.mark.parametrize("most", [1, 2])
def test_truncation_without_special_tokens_keeps_as_many_words(served: Served, most: int) -> None:
    cut = openai(served, input=LONG, truncate_prompt_tokens=most, add_special_tokens=False).raise_for_status()
    assert cut.content == openai(served, input=[HELLO] * most).content


@pytest.mark.parametrize("most", [1, 2])
def test_small_limit_of_the_server_holds_on_every_road(tiny_store: Path, most: int) -> None:
    with serving(tiny_store, default_model="bert", max_input_tokens=most) as service:
        for path, body in ROADS.values():
            service.http.post(path, json=body).raise_for_status()
        answer = service.post({"inputs": ["hello", [5, 6, 7]], "outputs": ["last_hidden_state"]}).json()
        assert [len(rows) for rows in answer["outputs"]["last_hidden_state"]] == [most, most]
        assert answer["truncated"] == [0, 1]
