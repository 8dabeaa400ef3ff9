"""LangChain's JinaRerank, whose address is a constant of its module, and InfinityRerank."""

import warnings

import pytest
from infinity_client import Client
from langchain_core.documents import Document

with warnings.catch_warnings():  # the package says that it is being sunset
    warnings.simplefilter("ignore")
    from langchain_community.document_compressors import InfinityRerank, JinaRerank, jina_rerank

from tests.clients.conftest import Server
from tests.clients.ranked import DOCUMENTS, QUERY, best
from tests.score_models import RANKER

CLIENT = "langchain-community"
pytestmark = pytest.mark.clients


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank"])
def test_jina_rerank(scorers: Server, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(jina_rerank, "JINA_API_URL", scorers.url + path)
    client = JinaRerank(jina_api_key="a key", model=RANKER, top_n=3)
    compressed = client.compress_documents([Document(text) for text in DOCUMENTS], QUERY)
    assert [(each.page_content, each.metadata["relevance_score"]) for each in compressed] == [
        (DOCUMENTS[index], score) for index, score in best(scorers)[:3]
    ]
    with pytest.raises(RuntimeError, match="no model 'nobody'"):
        client.rerank(DOCUMENTS, QUERY, model="nobody")


def test_infinity_rerank(scorers: Server) -> None:
    client = InfinityRerank(client=Client(base_url=scorers.url), model=RANKER, top_n=3)
    ranked = client.rerank(DOCUMENTS, QUERY)
    assert [(each["index"], each["relevance_score"]) for each in ranked] == best(scorers)[:3]
