"""LlamaIndex's OpenAIEmbedding, and OpenAILikeEmbedding, its form for servers that are not OpenAI's."""

import pytest
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.embeddings.openai_like import OpenAILikeEmbedding

from tests.clients.conftest import Server
from tests.clients.judged import INPUTS, MODEL, TEXTS, assert_vectors

CLIENT = "llama-index-embeddings-openai"
pytestmark = pytest.mark.clients


@pytest.fixture(params=[OpenAIEmbedding, OpenAILikeEmbedding])
def client(request: pytest.FixtureRequest, server: Server) -> OpenAIEmbedding:
    # model_name beside the default `model`: the latter must be one of OpenAI's own
    made: OpenAIEmbedding = request.param(model_name=MODEL, api_base=f"{server.url}/v1", api_key="any")
    return made


def test_texts_and_a_query(client: OpenAIEmbedding) -> None:
    assert_vectors(client.get_text_embedding_batch(INPUTS))
    assert_vectors([client.get_query_embedding(INPUTS[0])], TEXTS[:1])


async def test_texts_and_a_query_asynchronously(client: OpenAIEmbedding) -> None:
    assert_vectors(await client.aget_text_embedding_batch(INPUTS))
    assert_vectors([await client.aget_query_embedding(INPUTS[0])], TEXTS[:1])
