"""Pydantic AI's Embedder, by its providers of OpenAI and Ollama."""

import pytest
from pydantic_ai import Embedder
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.providers.ollama import OllamaProvider
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.conftest import Server
from tests.clients.judged import INPUTS, MODEL, TEXTS, TOKENS, assert_vectors

CLIENT = "pydantic-ai-slim"
pytestmark = pytest.mark.clients


@pytest.mark.parametrize("provider", [OpenAIProvider, OllamaProvider])
async def test_documents_and_a_query(server: Server, provider: type[OpenAIProvider] | type[OllamaProvider]) -> None:
    reached = provider(base_url=f"{server.url}/v1", api_key="any")
    embedder = Embedder(OpenAIEmbeddingModel(MODEL, provider=reached))
    documents = await embedder.embed_documents(INPUTS)
    assert_vectors(documents.embeddings)
    assert documents.usage.input_tokens == TOKENS
    assert_vectors((await embedder.embed_query(INPUTS[0])).embeddings, TEXTS[:1])


async def test_an_error_arrives_as_its_error(server: Server) -> None:
    provider = OpenAIProvider(base_url=f"{server.url}/v1", api_key="any")
    with pytest.raises(ModelHTTPError, match="no model 'nobody'") as caught:
        await Embedder(OpenAIEmbeddingModel("nobody", provider=provider)).embed_query("a")
    assert caught.value.status_code == 404
