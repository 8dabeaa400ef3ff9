"""LanceDB's embedding function of Ollama, called by a table that is filled and searched through it."""

from pathlib import Path
from typing import Any

import lancedb
import pytest
from lancedb.embeddings import get_registry
from lancedb.pydantic import LanceModel, Vector

from tests.clients.conftest import Server
from tests.clients.judged import INPUTS, MODEL, TEXTS, UNIT, assert_vectors, similarities

CLIENT = "lancedb"
pytestmark = pytest.mark.clients


def test_a_table_is_filled_and_searched(server: Server, tmp_path: Path) -> None:
    function: Any = get_registry().get("ollama").create(name=MODEL, host=server.url)
    assert_vectors(function.generate_embeddings(INPUTS))

    class Row(LanceModel):
        text: str = function.SourceField()
        vector: Vector(function.ndims()) = function.VectorField()  # type: ignore[valid-type]

    table = lancedb.connect(tmp_path).create_table("texts", schema=Row)
    table.add([{"text": text} for text in INPUTS])
    found = table.search(INPUTS[0]).distance_type("cosine").to_list()
    assert [row["text"] for row in found] == INPUTS
    near = [1 - similarity for similarity in similarities(TEXTS[0], TEXTS)]
    assert [row["_distance"] for row in found] == pytest.approx(near, abs=4 * UNIT)
