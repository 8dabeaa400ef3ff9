"""LiteLLM: its providers openai, hosted_vllm, ollama, huggingface, infinity, cohere and jina_ai."""

from typing import Any

import litellm
import pytest

from tests.clients.conftest import Server
from tests.clients.judged import INPUTS, MODEL, assert_vectors
from tests.score_models import RANKER

CLIENT = "litellm"
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore::UserWarning")]  # LiteLLM's own
EMBEDDERS = {
    "openai": "/v1",
    "hosted_vllm": "/v1",
    "ollama": "",
    "huggingface": "/embed",
    "infinity": "",
    "cohere": "/v2/embed",
    "jina_ai": "/v1",
}
"""Where each provider's `api_base` points."""
RANKERS = {"cohere": "", "jina_ai": "", "hosted_vllm": "", "infinity": "/infinity"}
QUERY, DOCUMENTS = "What is a panda?", ["A city.", "A bear that eats bamboo."]


@pytest.mark.parametrize("provider", EMBEDDERS)
def test_texts_of_every_provider(server: Server, provider: str) -> None:
    answer = litellm.embedding(
        model=f"{provider}/{MODEL}",
        input=INPUTS,
        api_base=server.url + EMBEDDERS[provider],
        api_key="any",
        **({"input_type": "feature-extraction"} if provider == "huggingface" else {}),  # else it asks the hub
    )
    assert_vectors([item["embedding"] for item in answer.data])


async def test_texts_asynchronously(server: Server) -> None:
    answer = await litellm.aembedding(model=f"ollama/{MODEL}", input=INPUTS, api_base=server.url)
    assert_vectors([item["embedding"] for item in answer.data])


@pytest.mark.parametrize("provider", RANKERS)
def test_documents_ranked_by_every_provider(scorers: Server, provider: str) -> None:
    answer: Any = litellm.rerank(
        model=f"{provider}/{RANKER}",
        query=QUERY,
        documents=DOCUMENTS,
        api_base=scorers.url + RANKERS[provider],
        api_key="any",
        return_documents=True,
    )
    scores = [result["relevance_score"] for result in answer.results]
    assert scores == sorted(scores, reverse=True)
    assert sorted(result["index"] for result in answer.results) == [0, 1]
    for result in answer.results if provider != "cohere" else ():
        assert result["document"] == {"text": DOCUMENTS[result["index"]]}
