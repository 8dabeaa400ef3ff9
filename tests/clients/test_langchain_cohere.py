"""LangChain's CohereRerank."""

import pytest
from langchain_cohere import CohereRerank
from langchain_core.documents import Document

from tests.clients.conftest import Server
from tests.clients.ranked import DOCUMENTS, QUERY, best
from tests.score_models import RANKER

CLIENT = "langchain-cohere"
pytestmark = pytest.mark.clients


@pytest.fixture
def client(scorers: Server) -> CohereRerank:
    return CohereRerank(base_url=scorers.url, cohere_api_key="a key", model=RANKER, top_n=3)


def test_documents_are_ranked(client: CohereRerank, scorers: Server) -> None:
    ranked = client.rerank(DOCUMENTS, QUERY, top_n=None)
    assert [(each["index"], each["relevance_score"]) for each in ranked] == best(scorers)


def test_documents_are_compressed(client: CohereRerank, scorers: Server) -> None:
    compressed = client.compress_documents([Document(text) for text in DOCUMENTS], QUERY)
    assert [(each.page_content, each.metadata["relevance_score"]) for each in compressed] == [
        (DOCUMENTS[index], score) for index, score in best(scorers)[:3]
    ]
