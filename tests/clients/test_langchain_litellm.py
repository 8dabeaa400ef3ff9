"""LangChain's LiteLLMEmbeddings."""

import pytest
from langchain_litellm import LiteLLMEmbeddings

from tests.clients.conftest import Server
from tests.clients.judged import INPUTS, MODEL, TEXTS, assert_vectors

CLIENT = "langchain-litellm"
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore::UserWarning")]  # LiteLLM's own


def test_documents_and_a_query(server: Server) -> None:
    embeddings = LiteLLMEmbeddings(model=f"openai/{MODEL}", api_base=f"{server.url}/v1", api_key="any")
    assert_vectors(embeddings.embed_documents(INPUTS))
    assert_vectors([embeddings.embed_query(INPUTS[0])], TEXTS[:1])
