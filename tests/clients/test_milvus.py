"""Milvus Lite, filled and searched with vectors of /embed."""

from pathlib import Path

import pytest
from pymilvus import MilvusClient

from tests.clients.conftest import Server
from tests.clients.judged import INPUTS, TEXTS, UNIT, WIDTH, similarities
from tests.clients.ranked import post

CLIENT = "pymilvus"
pytestmark = pytest.mark.clients


def test_a_collection_is_filled_and_searched(server: Server, tmp_path: Path) -> None:
    vectors = post(server, "/embed", inputs=INPUTS)
    client = MilvusClient(str(tmp_path / "milvus.db"))
    client.create_collection("texts", dimension=WIDTH, metric_type="COSINE")
    rows = zip(INPUTS, vectors, strict=True)
    client.insert("texts", [{"id": n, "vector": vector, "text": text} for n, (text, vector) in enumerate(rows)])
    [found] = client.search("texts", data=vectors[:1], limit=2, output_fields=["text"])
    assert [match["entity"]["text"] for match in found] == INPUTS
    assert [match["distance"] for match in found] == pytest.approx(similarities(TEXTS[0], TEXTS), abs=4 * UNIT)
    client.close()
