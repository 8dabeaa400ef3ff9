"""LangChain's OllamaEmbeddings."""

import pytest
from langchain_ollama import OllamaEmbeddings

from tests.clients.conftest import Server
from tests.clients.judged import INPUTS, MODEL, TEXTS, assert_vectors

CLIENT = "langchain-ollama"
pytestmark = pytest.mark.clients


@pytest.fixture
def embeddings(server: Server) -> OllamaEmbeddings:
    return OllamaEmbeddings(base_url=server.url, model=MODEL, validate_model_on_init=True, num_ctx=256)


def test_documents_and_a_query(embeddings: OllamaEmbeddings) -> None:
    assert_vectors(embeddings.embed_documents(INPUTS))
    assert_vectors([embeddings.embed_query(INPUTS[0])], TEXTS[:1])


async def test_documents_and_a_query_asynchronously(embeddings: OllamaEmbeddings) -> None:
    assert_vectors(await embeddings.aembed_documents(INPUTS))
    assert_vectors([await embeddings.aembed_query(INPUTS[0])], TEXTS[:1])
