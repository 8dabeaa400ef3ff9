"""DSPy's Embedder, which asks through LiteLLM, and its retriever over it."""

import dspy
import pytest

from tests.clients.conftest import Server
from tests.clients.judged import INPUTS, MODEL, TEXTS, assert_vectors

CLIENT = "dspy"
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore::UserWarning")]  # LiteLLM's own


@pytest.mark.parametrize(("provider", "path"), [("openai", "/v1"), ("ollama", "")])
def test_texts_of_both_providers(server: Server, provider: str, path: str) -> None:
    embedder = dspy.Embedder(f"{provider}/{MODEL}", api_base=server.url + path, api_key="any", caching=False)
    assert_vectors(embedder(INPUTS))
    assert_vectors([embedder(INPUTS[0])], TEXTS[:1])


def test_its_retriever_finds_a_text(server: Server) -> None:
    embedder = dspy.Embedder(f"openai/{MODEL}", api_base=f"{server.url}/v1", api_key="any", caching=False)
    retriever = dspy.retrievers.Embeddings(corpus=INPUTS, embedder=embedder, k=1)
    assert retriever(INPUTS[1]).passages == INPUTS[1:]
