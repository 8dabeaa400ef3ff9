"""The OpenAIEmbeddingClient of Microsoft's Agent Framework, which follows AutoGen and Semantic Kernel."""

import pytest
from agent_framework.openai import OpenAIEmbeddingClient

from tests.clients.conftest import Server
from tests.clients.judged import INPUTS, MODEL, TOKENS, assert_vectors

CLIENT = "agent-framework-openai"
pytestmark = pytest.mark.clients


async def test_texts(server: Server) -> None:
    client = OpenAIEmbeddingClient(model=MODEL, base_url=f"{server.url}/v1", api_key="any")
    answer = await client.get_embeddings(INPUTS)
    assert_vectors([embedding.vector for embedding in answer])
    assert answer.usage["input_token_count"] == TOKENS
