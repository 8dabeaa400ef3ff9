"""qdrant-client in its local mode: it stores sparse vectors that the service answered, and finds texts by them."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from qdrant_client import QdrantClient, models

from tests.clients.conftest import PYTHON, ROOT, SECONDS, Server, serving
from tests.golden_cases import WORDS
from tests.sparse_models import expected, weights_of_ids, write_router, write_splade

CLIENT = "qdrant-client"
pytestmark = pytest.mark.clients

TEXTS = ["a b c", "d e f a", "g h", "i j a b", "c c d"]
QUERY = "a d"
IDS = {word: number for number, word in enumerate(WORDS)}
NAME = "text"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sparse")
    for name, write in (("splade", write_splade), ("router", write_router)):
        export = [PYTHON.with_name("inlay"), "export", str(write(folder / name)), str(folder / "store" / name)]
        subprocess.run(export, cwd=ROOT, check=True, capture_output=True, timeout=SECONDS)
    return folder / "store"


@pytest.fixture(scope="module")
def sparse(store: Path) -> Iterator[Server]:
    with serving(store, default_model="splade") as running:
        yield running


def embed(server: Server, texts: list[str], **fields: Any) -> list[models.SparseVector]:
    """/embed's sparse vectors have the fields of Qdrant's."""
    answer = httpx.post(f"{server.url}/embed", json={"inputs": texts} | fields).raise_for_status()
    return [models.SparseVector(**vector) for vector in answer.json()]


def filled(vectors: list[models.SparseVector]) -> QdrantClient:
    client = QdrantClient(":memory:")
    client.create_collection("texts", sparse_vectors_config={NAME: models.SparseVectorParams()})
    points = [
        models.PointStruct(id=number, vector={NAME: vector}, payload={"text": text})
        for number, (text, vector) in enumerate(zip(TEXTS, vectors, strict=True))
    ]
    client.upsert("texts", points)
    return client


def ids_of(text: str) -> list[int]:
    return [2, *[IDS[word] for word in text.split()], 3]


def assert_found(client: QdrantClient, query: models.SparseVector, scores: NDArray[np.float64]) -> None:
    """All texts that share an index with the query come back, the best first, with these scores."""
    points = client.query_points("texts", query=query, using=NAME, limit=len(TEXTS), with_payload=True).points
    order = [number for number in np.argsort(-scores) if scores[number] > 0]
    assert [point.id for point in points] == order
    assert [(point.payload or {})["text"] for point in points] == [TEXTS[number] for number in order]
    np.testing.assert_allclose([point.score for point in points], scores[order], rtol=1e-5)


def test_texts_are_found_by_their_sparse_vectors(sparse: Server, store: Path) -> None:
    client = filled(embed(sparse, TEXTS))
    documents = np.array(expected(store / "splade", [ids_of(text) for text in TEXTS]))
    (query,) = expected(store / "splade", [ids_of(QUERY)])
    assert_found(client, embed(sparse, [QUERY])[0], documents @ query)


def test_vectors_of_embed_sparse_are_stored(sparse: Server) -> None:
    answer = httpx.post(f"{sparse.url}/embed_sparse", json={"inputs": TEXTS}).raise_for_status().json()
    vectors = [
        models.SparseVector(indices=[each["index"] for each in vector], values=[each["value"] for each in vector])
        for vector in answer
    ]
    assert vectors == embed(sparse, TEXTS)
    assert filled(vectors).count("texts").count == len(TEXTS)


def test_queries_that_are_looked_up_find_encoded_documents(sparse: Server, store: Path) -> None:
    client = filled(embed(sparse, TEXTS, model="router", input_type="document"))
    documents = np.array(expected(store / "router", [ids_of(text) for text in TEXTS]))
    query = np.zeros(len(WORDS))
    for word in QUERY.split():
        query[IDS[word]] = weights_of_ids()[IDS[word]]
    (vector,) = embed(sparse, [QUERY], model="router", input_type="query")
    assert_found(client, vector, documents @ query)
