"""Qdrant's client: its local mode holds the several vectors that the service gives, and ranks by MaxSim."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from qdrant_client import QdrantClient, models

from tests.clients.conftest import PYTHON, ROOT, SECONDS, Server, serving
from tests.late_interaction import DIMENSIONS, write_bert, write_pylate

CLIENT = "qdrant-client"
pytestmark = pytest.mark.clients

DOCUMENTS = ["hello world", "a b c d", "hello, query: b!", "x y z"]
QUERY = "hello b"
OUTPUT = "multi_vector_embedding"


@pytest.fixture(scope="module")
def colbert(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A tiny ColBERT in PyLate's layout."""
    folder: Path = tmp_path_factory.mktemp("colbert")
    source = write_pylate(write_bert(folder / "checkpoint"))
    export = [PYTHON.with_name("inlay"), "export", str(source), str(folder / "store/colbert")]
    subprocess.run(export, cwd=ROOT, check=True, capture_output=True, timeout=SECONDS)
    with serving(folder / "store") as running:
        yield running


def post(server: Server, path: str, body: Any) -> Any:
    return httpx.post(f"{server.url}{path}", json=body).raise_for_status().json()


def vectors(server: Server, texts: list[str], input_type: str) -> list[list[list[float]]]:
    body = {"inputs": texts, "outputs": [OUTPUT], "input_type": input_type}
    several: list[list[list[float]]] = post(server, "/embed", body)["outputs"][OUTPUT]
    return several


def test_a_collection_ranks_as_rerank_does(colbert: Server) -> None:
    database = QdrantClient(":memory:")
    several = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
    config = models.VectorParams(size=DIMENSIONS, distance=models.Distance.DOT, multivector_config=several)
    database.create_collection("texts", vectors_config=config)
    points = [
        models.PointStruct(id=number, vector=own, payload={"text": text})
        for number, (text, own) in enumerate(zip(DOCUMENTS, vectors(colbert, DOCUMENTS, "document"), strict=True))
    ]
    database.upsert("texts", points)
    (query,) = vectors(colbert, [QUERY], "query")
    found = database.query_points("texts", query=query, limit=len(DOCUMENTS)).points
    ranks = post(colbert, "/rerank", {"query": QUERY, "texts": DOCUMENTS})
    assert [point.id for point in found] == [rank["index"] for rank in ranks]
    np.testing.assert_allclose([point.score for point in found], [rank["score"] for rank in ranks], rtol=1e-5)
