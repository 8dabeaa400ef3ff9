"""Semantic Kernel's services of embeddings: OpenAI's, Ollama's and NVIDIA's."""

import pytest
from openai import AsyncOpenAI
from semantic_kernel.connectors.ai.nvidia import NvidiaTextEmbedding
from semantic_kernel.connectors.ai.ollama import OllamaTextEmbedding
from semantic_kernel.connectors.ai.open_ai import OpenAITextEmbedding

from tests.clients.conftest import Server
from tests.clients.judged import INPUTS, MODEL, assert_vectors

CLIENT = "semantic-kernel"
pytestmark = pytest.mark.clients


@pytest.mark.parametrize("kind", ["openai", "ollama", "nvidia"])
async def test_texts_of_every_service(server: Server, kind: str) -> None:
    base = f"{server.url}/v1"
    service = {
        "openai": lambda: OpenAITextEmbedding(MODEL, async_client=AsyncOpenAI(base_url=base, api_key="any")),
        "ollama": lambda: OllamaTextEmbedding(ai_model_id=MODEL, host=server.url),
        "nvidia": lambda: NvidiaTextEmbedding(MODEL, base_url=base, api_key="any"),
    }[kind]()
    assert_vectors(await service.generate_embeddings(INPUTS))
