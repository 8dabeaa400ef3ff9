"""Chroma's embedding functions, called by a collection that is filled and queried through them."""

from typing import Any

import chromadb
import pytest
from chromadb.utils.embedding_functions import OpenAIEmbeddingFunction
from chromadb.utils.embedding_functions.huggingface_embedding_function import HuggingFaceEmbeddingServer

from tests.clients.conftest import Server
from tests.clients.judged import INPUTS, MODEL, TEXTS, UNIT, assert_vectors, similarities

CLIENT = "chromadb"
pytestmark = pytest.mark.clients


def functions(server: Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("CHROMA_OPENAI_API_KEY", "any")
    return {
        "tei": HuggingFaceEmbeddingServer(url=f"{server.url}/embed"),
        "openai": OpenAIEmbeddingFunction(model_name=MODEL, api_base=f"{server.url}/v1"),
    }


@pytest.mark.parametrize("kind", ["tei", "openai"])
def test_an_embedding_function_gives_the_vectors(server: Server, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    assert_vectors(functions(server, monkeypatch)[kind](INPUTS))


@pytest.mark.parametrize("kind", ["tei", "openai"])
def test_a_collection_is_filled_and_queried(server: Server, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    database = chromadb.EphemeralClient(chromadb.Settings(anonymized_telemetry=False))
    collection = database.create_collection(
        f"of-{kind}", embedding_function=functions(server, monkeypatch)[kind], metadata={"hnsw:space": "cosine"}
    )
    collection.add(ids=[case.name for case in TEXTS], documents=INPUTS)
    matches = collection.query(query_texts=INPUTS[:1], n_results=2)
    assert matches["ids"] == [[case.name for case in TEXTS]]
    assert matches["distances"] is not None
    assert matches["distances"][0] == pytest.approx([1 - near for near in similarities(TEXTS[0], TEXTS)], abs=4 * UNIT)
