"""Graphiti's OpenAIEmbedder."""

import pytest
from graphiti_core.embedder.openai import OpenAIEmbedder, OpenAIEmbedderConfig

from tests.clients.conftest import Server
from tests.clients.judged import INPUTS, MODEL, TEXTS, WIDTH, assert_vectors

CLIENT = "graphiti-core"
pytestmark = pytest.mark.clients


async def test_a_text_and_a_batch(server: Server) -> None:
    config = OpenAIEmbedderConfig(
        base_url=f"{server.url}/v1", api_key="any", embedding_model=MODEL, embedding_dim=WIDTH
    )
    embedder = OpenAIEmbedder(config)
    assert_vectors(await embedder.create_batch(INPUTS))
    assert_vectors([await embedder.create(INPUTS[0])], TEXTS[:1])
