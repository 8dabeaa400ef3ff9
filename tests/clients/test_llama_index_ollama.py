"""LlamaIndex's OllamaEmbedding."""

import pytest
from llama_index.embeddings.ollama import OllamaEmbedding

from tests.clients.conftest import Server
from tests.clients.judged import INPUTS, MODEL, TEXTS, assert_vectors

CLIENT = "llama-index-embeddings-ollama"
pytestmark = pytest.mark.clients


def test_texts_and_a_query(server: Server) -> None:
    embedding = OllamaEmbedding(model_name=MODEL, base_url=server.url)
    assert_vectors(embedding.get_text_embedding_batch(INPUTS))
    assert_vectors([embedding.get_query_embedding(INPUTS[0])], TEXTS[:1])
