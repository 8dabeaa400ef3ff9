"""Cohere's own client, v1 and v2, which ranks at /v1/rerank and /v2/rerank."""

import cohere
import pytest
from cohere.core.api_error import ApiError

from tests.clients.conftest import Server
from tests.clients.ranked import DOCUMENTS, QUERY, best, post
from tests.score_models import CLASSIFIER, RANKER

CLIENT = "cohere"
pytestmark = pytest.mark.clients


@pytest.fixture
def v1(scorers: Server) -> cohere.Client:
    return cohere.Client("a key", base_url=scorers.url)


@pytest.fixture
def v2(scorers: Server) -> cohere.ClientV2:
    return cohere.ClientV2("a key", base_url=scorers.url)


def test_rerank_of_the_first_version(v1: cohere.Client, scorers: Server) -> None:
    response = v1.rerank(query=QUERY, documents=DOCUMENTS, model=RANKER)
    assert [(result.index, result.relevance_score) for result in response.results] == best(scorers)
    assert response.id
    assert response.meta is not None
    assert response.meta.api_version is not None
    assert response.meta.api_version.version == "1"
    assert [result.document for result in response.results] == [None] * len(DOCUMENTS)


def test_documents_fields_and_the_best_of_the_first_version(v1: cohere.Client, scorers: Server) -> None:
    documents = [{"title": "j", "text": text} for text in DOCUMENTS]
    response = v1.rerank(query=QUERY, documents=documents, top_n=2, rank_fields=["text"], return_documents=True)
    assert [(result.index, result.relevance_score) for result in response.results] == best(scorers)[:2]
    texts = [result.document.text for result in response.results if result.document]
    assert texts == [DOCUMENTS[index] for index, _ in best(scorers)[:2]]


def test_chunks_of_the_first_version(v1: cohere.Client, scorers: Server) -> None:
    long = "a b c d e f g h i j " * 8
    [result] = v1.rerank(query=QUERY, documents=[long], model=RANKER, max_chunks_per_doc=3).results
    chunks = [" ".join(long.split()[start : start + 19]) for start in (0, 19, 38)]
    assert result.relevance_score == best(scorers, chunks)[0][1]


def test_rerank_of_the_second_version(v2: cohere.ClientV2, scorers: Server) -> None:
    response = v2.rerank(query=QUERY, documents=DOCUMENTS, model=RANKER, top_n=3, max_tokens_per_doc=512)
    assert [(result.index, result.relevance_score) for result in response.results] == best(scorers)[:3]
    assert response.meta is not None
    assert response.meta.tokens is not None
    tokens = post(scorers, "/v2/rerank", query=QUERY, documents=DOCUMENTS)["usage"]["total_tokens"]
    assert response.meta.tokens.input_tokens == tokens


def test_errors_are_the_clients_errors(v1: cohere.Client, v2: cohere.ClientV2) -> None:
    with pytest.raises(cohere.NotFoundError) as unknown:
        v2.rerank(query=QUERY, documents=DOCUMENTS, model="nobody")
    assert "no model 'nobody'" in unknown.value.body["message"]
    with pytest.raises(cohere.BadRequestError) as empty:
        v1.rerank(query=QUERY, documents=[], model=RANKER)
    assert "documents is empty" in empty.value.body["message"]
    with pytest.raises(ApiError):
        v2.rerank(query=QUERY, documents=DOCUMENTS, model=CLASSIFIER)


async def test_rerank_asynchronously(scorers: Server) -> None:
    async with cohere.AsyncClientV2("a key", base_url=scorers.url) as client:
        response = await client.rerank(query=QUERY, documents=DOCUMENTS, model=RANKER)
    assert [(result.index, result.relevance_score) for result in response.results] == best(scorers)
