"""Every protocol and form by which pairs of texts get scores, and texts labels."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import numpy as np
from numpy.typing import NDArray

from proto import open_inference_pb2 as oip
from proto import tei_pb2 as tei
from proto.open_inference_pb2_grpc import GRPCInferenceServiceStub
from proto.tei_pb2_grpc import PredictStub, RerankStub
from tests.served import Served

Scores = NDArray[np.float32]


@dataclass(frozen=True)
class ScoreRoads:
    """A client of each protocol; the service's default model is the one that is asked."""

    model: str
    http: httpx.Client
    oip: GRPCInferenceServiceStub
    rerank: RerankStub
    predict: PredictStub

    def post(self, path: str, document: Any) -> Any:
        answer = self.http.post(path, json=document)
        assert answer.status_code == 200, answer.text
        return answer.json()


@contextmanager
def score_roads_to(served: Served, model: str) -> Iterator[ScoreRoads]:
    """A client of each protocol of a running service."""
    with grpc.insecure_channel(served.rpc_address) as channel:
        yield ScoreRoads(
            model, served.http, GRPCInferenceServiceStub(channel), RerankStub(channel), PredictStub(channel)
        )


def ranked(entries: Sequence[Any], name: str = "score") -> Scores:
    """The scores of a ranking in the order of the texts, once it is found to be in order."""
    scores = [entry[name] for entry in entries]
    assert scores == sorted(scores, reverse=True)
    return np.array([entry[name] for entry in sorted(entries, key=lambda entry: entry["index"])], np.float32)


def of_message(response: tei.RerankResponse) -> Scores:
    return ranked([{"index": rank.index, "score": rank.score} for rank in response.ranks])


def strings(name: str, texts: Sequence[str]) -> dict[str, Any]:
    return {"name": name, "datatype": "BYTES", "shape": [len(texts)], "data": list(texts)}


def oip_json(roads: ScoreRoads, *tensors: dict[str, Any]) -> Scores:
    document = {"inputs": tensors, "outputs": [{"name": "scores"}]}
    [output] = roads.post(f"/v2/models/{roads.model}/infer", document)["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"])


def oip_rpc(roads: ScoreRoads, *tensors: dict[str, Any]) -> Scores:
    request = oip.ModelInferRequest(model_name=roads.model)
    for tensor in tensors:
        message = request.inputs.add(name=tensor["name"], datatype="BYTES", shape=tensor["shape"])
        message.contents.bytes_contents.extend([text.encode() for text in tensor["data"]])
    request.outputs.add(name="scores")
    response = roads.oip.ModelInfer(request)
    return np.frombuffer(response.raw_output_contents[0], "<f4").reshape(tuple(response.outputs[0].shape))


def stream(query: str, texts: Sequence[str]) -> Iterator[tei.RerankStreamRequest]:
    for text in texts:
        yield tei.RerankStreamRequest(query=query, text=text, truncate=True)


def documents(path: str) -> "Ranking":
    def road(roads: ScoreRoads, query: str, texts: Sequence[str]) -> Scores:
        body = {"model": roads.model, "query": query, "documents": texts}
        return ranked(roads.post(path, body)["results"], "relevance_score")

    return road


def scored(path: str, first: str, second: str) -> "Ranking":
    def road(roads: ScoreRoads, query: str, texts: Sequence[str]) -> Scores:
        data = roads.post(path, {"model": roads.model, first: query, second: texts})["data"]
        assert [entry["index"] for entry in data] == list(range(len(texts)))
        return np.array([entry["score"] for entry in data], np.float32)

    return road


Ranking = Callable[[ScoreRoads, str, Sequence[str]], Scores]
RANKINGS: dict[str, Ranking] = {
    "/rerank, texts": lambda roads, query, texts: ranked(roads.post("/rerank", {"query": query, "texts": texts})),
    "/": lambda roads, query, texts: ranked(roads.post("/", {"query": query, "texts": texts})),
    "/invocations": lambda roads, query, texts: ranked(roads.post("/invocations", {"query": query, "texts": texts})),
    "/predict, pairs": lambda roads, query, texts: np.array(
        [row[0]["score"] for row in roads.post("/predict", {"inputs": [[query, text] for text in texts]})], np.float32
    ),
    "/rerank, documents": documents("/rerank"),
    "/v1/rerank": documents("/v1/rerank"),
    "/v2/rerank": documents("/v2/rerank"),
    "/score": scored("/score", "text_1", "text_2"),
    "/v1/score": scored("/v1/score", "queries", "documents"),
    "tei.v1 Rerank": lambda roads, query, texts: of_message(
        roads.rerank.Rerank(tei.RerankRequest(query=query, texts=texts, truncate=True))
    ),
    "tei.v1 RerankStream": lambda roads, query, texts: of_message(roads.rerank.RerankStream(stream(query, texts))),
    "tei.v1 PredictPair": lambda roads, query, texts: np.array(
        [
            roads.predict.PredictPair(tei.PredictPairRequest(inputs=[query, text], truncate=True)).predictions[0].score
            for text in texts
        ],
        np.float32,
    ),
    "OIP, one text and many": lambda roads, query, texts: oip_json(
        roads, strings("text", [query]), strings("text_pair", texts)
    )[:, 0],
    "OIP gRPC, one text and many": lambda roads, query, texts: oip_rpc(
        roads, strings("text", [query]), strings("text_pair", texts)
    )[:, 0],
    "OIP, pairs": lambda roads, query, texts: oip_json(
        roads, strings("text", [query] * len(texts)), strings("text_pair", texts)
    )[:, 0],
}
"""Road → the scores it gives texts with a query, in the order of the texts."""

Labels = dict[str, float]


def labels_of(entries: Sequence[Any]) -> Labels:
    assert [entry["score"] for entry in entries] == sorted([entry["score"] for entry in entries], reverse=True)
    return {entry["label"]: float(np.float32(entry["score"])) for entry in entries}


def of_prediction(response: tei.PredictResponse) -> Labels:
    return labels_of([{"label": each.label, "score": each.score} for each in response.predictions])


def vllm(entry: Any, names: Sequence[str]) -> Labels:
    assert entry["num_classes"] == len(names)
    assert entry["label"] == names[int(np.argmax(entry["probs"]))]
    return dict(zip(names, np.array(entry["probs"], np.float32).tolist(), strict=True))


Classing = Callable[[ScoreRoads, str, Sequence[str]], Labels]
LABELS: dict[str, Classing] = {
    "/predict": lambda roads, text, names: labels_of(roads.post("/predict", {"inputs": text})),
    "/predict, a list": lambda roads, text, names: labels_of(roads.post("/predict", {"inputs": [[text]]})[0]),
    "/": lambda roads, text, names: labels_of(roads.post("/", {"inputs": text})),
    "/, as huggingface_hub": lambda roads, text, names: labels_of(
        roads.post("/", {"inputs": text, "parameters": {}})[0]
    ),
    "/invocations": lambda roads, text, names: labels_of(roads.post("/invocations", {"inputs": text})),
    "/classify, vLLM": lambda roads, text, names: vllm(roads.post("/classify", {"input": text})["data"][0], names),
    "/classify, infinity": lambda roads, text, names: labels_of(
        roads.post("/classify", {"input": [text], "raw_scores": False})["data"][0]
    ),
    "tei.v1 Predict": lambda roads, text, names: of_prediction(
        roads.predict.Predict(tei.PredictRequest(inputs=text, truncate=True))
    ),
    "tei.v1 PredictStream": lambda roads, text, names: of_prediction(
        next(roads.predict.PredictStream(iter([tei.PredictRequest(inputs=text, truncate=True)])))
    ),
    "OIP": lambda roads, text, names: dict(
        zip(names, oip_json(roads, strings("text", [text]))[0].tolist(), strict=True)
    ),
    "OIP gRPC": lambda roads, text, names: dict(
        zip(names, oip_rpc(roads, strings("text", [text]))[0].tolist(), strict=True)
    ),
}
"""Road → the scores it gives a text's labels, by name."""
