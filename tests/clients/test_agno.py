"""Agno's embedders of OpenAI, Ollama and Jina, and its reranker of infinity."""

from typing import Any

import pytest
from agno.knowledge.document import Document
from agno.knowledge.embedder.jina import JinaEmbedder
from agno.knowledge.embedder.ollama import OllamaEmbedder
from agno.knowledge.embedder.openai_like import OpenAILikeEmbedder
from agno.knowledge.reranker.infinity import InfinityReranker

from tests.clients.conftest import Server
from tests.clients.judged import INPUTS, MODEL, WIDTH, assert_vectors
from tests.clients.ranked import DOCUMENTS, QUERY, best
from tests.score_models import RANKER

CLIENT = "agno"
pytestmark = pytest.mark.clients


@pytest.fixture(params=["openai", "ollama", "jina"])
def embedder(request: pytest.FixtureRequest, server: Server) -> Any:
    url, shared = server.url, {"id": MODEL, "dimensions": WIDTH}
    return {
        "openai": lambda: OpenAILikeEmbedder(base_url=f"{url}/v1", api_key="any", **shared),
        "ollama": lambda: OllamaEmbedder(host=url, **shared),
        "jina": lambda: JinaEmbedder(base_url=f"{url}/v1/embeddings", api_key="any", **shared),
    }[request.param]()


def test_texts_of_every_embedder(embedder: Any) -> None:
    assert_vectors([embedder.get_embedding(text) for text in INPUTS])


async def test_texts_asynchronously(embedder: Any) -> None:
    assert_vectors([await embedder.async_get_embedding(text) for text in INPUTS])


def test_documents_are_ranked(scorers: Server) -> None:
    reranker = InfinityReranker(model=RANKER, url=scorers.url, top_n=3)
    ranked = reranker.rerank(QUERY, [Document(content=text) for text in DOCUMENTS])
    assert [(each.content, each.reranking_score) for each in ranked] == [
        (DOCUMENTS[index], score) for index, score in best(scorers)[:3]
    ]
