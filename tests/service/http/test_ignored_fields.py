"""Fields of bodies that are null, unknown or misspelt, of Inlay's protocol and of other people's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from service.http.validation_errors import MOST_IGNORED, validated
from service.protocols.cohere.embed import CohereEmbedBody, CohereV2EmbedBody
from service.protocols.cohere.rerank import CohereRerankBody
from service.protocols.inlay.embed import ChunkingBody, EmbedBody
from service.protocols.oip.bodies import InferInput, InferRequest
from service.protocols.openai.schemas import EmbeddingsBody, PoolingBody
from service.protocols.openai.scoring import ClassifyBody, ScoreBody
from service.protocols.tei import schemas as tei
from tests.served import Served, serving

OPENAI: dict[str, Any] = {"input": "a"}
BODIES: list[tuple[type[BaseModel], dict[str, Any]]] = [
    (EmbedBody, {"inputs": "a"}),
    (ChunkingBody, {"size": 3}),
    (EmbeddingsBody, OPENAI),
    (PoolingBody, OPENAI),
    (ClassifyBody, OPENAI),
    (ScoreBody, {}),
    (CohereEmbedBody, {}),
    (CohereV2EmbedBody, {"model": "m", "input_type": "clustering"}),
    (CohereRerankBody, {"query": "a", "documents": []}),
    (tei.AllVectorsBody, {"inputs": "a"}),
    (tei.SparseBody, {"inputs": "a"}),
    (tei.TokenizeBody, {"inputs": "a"}),
    (tei.DecodeBody, {"ids": [1]}),
    (tei.PredictBody, {"inputs": "a"}),
    (tei.RerankBody, {"query": "a", "texts": []}),
    (InferRequest, {"inputs": []}),
    (InferInput, {"name": "a", "datatype": "BYTES", "shape": [1]}),
]
HEADER = "inlay-ignored-fields"
EXTRAS = {"options": {"x": 1}, "parameters": {}, "keep_alive": "5m"}
ROADS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/embeddings", {"input": "a", "model": "bert"}),
    ("/v1/embeddings", {"input": "a", "model": "bert"}),  # whose options are cached by now
    ("/pooling", {"input": "a", "model": "bert"}),
    ("/", {"inputs": "a", "model": "bert"}),
    ("/embed_all", {"inputs": "a", "model": "bert"}),
    ("/tokenize", {"inputs": "a", "model": "bert"}),
    ("/v1/embed", {"texts": ["a"], "model": "bert"}),
]


@pytest.fixture(scope="module")
def strict(tiny_store: Path) -> Iterator[Served]:
    with serving(tiny_store, default_model="bert", strict_fields=True) as running:
        yield running


def post(served: Served, path: str, body: dict[str, Any]) -> httpx.Response:
    return served.http.post(path, json=body)


@pytest.mark.parametrize(("model", "required"), BODIES)
def test_null_leaves_an_optional_field_out(model: type[BaseModel], required: dict[str, Any]) -> None:
    optional = [name for name, field in model.model_fields.items() if not field.is_required()]
    assert validated(model, required | dict.fromkeys(optional)) == validated(model, required)


def test_null_is_no_value_of_a_required_field(served: Served) -> None:
    answer = post(served, "/v1/embeddings", {"input": None, "encoding_format": None})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")


@pytest.mark.parametrize(("path", "body"), ROADS)
def test_unknown_fields_of_others_are_named(served: Served, path: str, body: dict[str, Any]) -> None:
    before = ignored(served)
    plain, extended = post(served, path, body), post(served, path, body | EXTRAS)
    assert plain.status_code == extended.status_code == 200, extended.text
    assert HEADER not in plain.headers
    assert extended.headers[HEADER] == ",".join(EXTRAS)
    assert ignored(served) == before + len(EXTRAS)


def ignored(served: Served) -> float:
    [line] = [line for line in served.http.get("/metrics").text.splitlines() if line.startswith("inlay_ignored_fi")]
    return float(line.split()[-1])


def test_unknown_fields_of_a_large_body_are_named(served: Served) -> None:
    body = {"inputs": "a " * 40000, "model": "bert", "truncate": True}
    assert post(served, "/embed_all", body | EXTRAS).headers[HEADER] == ",".join(EXTRAS)


def test_more_unknown_fields_than_are_compared_are_refused(served: Served) -> None:
    body, extras = {"input": "a", "model": "bert"}, {f"zz{number}": 1 for number in range(MOST_IGNORED + 1)}
    assert post(served, "/v1/embeddings", body | extras).status_code == 400
    extras.popitem()
    assert post(served, "/v1/embeddings", body | extras).status_code == 200


@pytest.mark.parametrize(
    ("sent", "meant"),
    [("dimension", "dimensions"), ("modle", "model"), ("encodingformat", "encoding_format"), ("tasks", "task")],
)
def test_misspelt_field_is_refused(served: Served, sent: str, meant: str) -> None:
    answer = post(served, "/v1/embeddings", {"input": "a", "model": "bert", sent: None})
    assert answer.status_code == 400
    assert f'{sent} is not known here; did you mean "{meant}"?' in answer.json()["error"]["message"]


def test_unknown_field_of_embed_is_refused(served: Served) -> None:
    assert post(served, "/embed", {"inputs": "a", "keep_alive": 1}).status_code == 422


@pytest.mark.parametrize(("path", "body"), ROADS)
def test_strict_server_refuses_unknown_fields(strict: Served, path: str, body: dict[str, Any]) -> None:
    assert post(strict, path, body).status_code == 200
    refused = post(strict, path, body | EXTRAS)
    assert refused.status_code in (400, 422)
    assert "options is not known here" in refused.text
