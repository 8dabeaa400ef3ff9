"""LlamaIndex's client of text-embeddings-inference, which does not look at the status code."""

import pytest
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

from tests.clients.conftest import Server
from tests.clients.judged import GOLDEN, INPUTS, MODEL, TEXTS, assert_vectors

CLIENT = "llama-index-embeddings-text-embeddings-inference"
pytestmark = pytest.mark.clients


@pytest.fixture
def client(server: Server) -> TextEmbeddingsInference:
    return TextEmbeddingsInference(model_name=MODEL, base_url=server.url)


def test_texts_and_a_query(client: TextEmbeddingsInference) -> None:
    assert_vectors(client.get_text_embedding_batch(INPUTS))
    # it strips the text
    assert_vectors([client.get_query_embedding(INPUTS[0])], TEXTS[:1])


def test_a_text_that_is_too_long_is_cut(client: TextEmbeddingsInference) -> None:
    assert_vectors([client.get_text_embedding(GOLDEN["long_chinese"].input)], [GOLDEN["long_chinese"]])


async def test_texts_and_a_query_asynchronously(client: TextEmbeddingsInference) -> None:
    assert_vectors(await client.aget_text_embedding_batch(INPUTS))
    assert_vectors([await client.aget_query_embedding(INPUTS[0])], TEXTS[:1])
