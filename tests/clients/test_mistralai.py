"""Mistral's own client."""

import pytest
from mistralai.client import Mistral

from tests.clients.conftest import Server
from tests.clients.judged import INPUTS, MODEL, TOKENS, assert_vectors

CLIENT = "mistralai"
pytestmark = pytest.mark.clients


def test_texts(server: Server) -> None:
    answer = Mistral(api_key="any", server_url=server.url).embeddings.create(model=MODEL, inputs=INPUTS)
    assert_vectors([item.embedding for item in answer.data])
    assert answer.usage.prompt_tokens == TOKENS


async def test_texts_asynchronously(server: Server) -> None:
    client = Mistral(api_key="any", server_url=server.url)
    answer = await client.embeddings.create_async(model=MODEL, inputs=INPUTS)
    assert_vectors([item.embedding for item in answer.data])
