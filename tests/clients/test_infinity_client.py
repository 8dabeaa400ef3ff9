"""Infinity's client: OpenAI's embeddings without /v1, rankings and labels."""

import pytest
from infinity_client import Client
from infinity_client.api.default import classify, embeddings, rerank
from infinity_client.models import (
    ClassifyInput,
    ClassifyResult,
    EmbeddingEncodingFormat,
    OpenAIEmbeddingInputText,
    OpenAIEmbeddingResult,
    RerankInput,
    ReRankResult,
)

from tests.clients.conftest import Server
from tests.clients.judged import INPUTS, MODEL, TOKENS, assert_vectors
from tests.clients.ranked import DOCUMENTS, QUERY, best, post
from tests.score_models import CLASSIFIER

CLIENT = "infinity-client"
pytestmark = pytest.mark.clients

BODY = OpenAIEmbeddingInputText(input_=INPUTS, model=MODEL, encoding_format=EmbeddingEncodingFormat.FLOAT)


@pytest.fixture
def client(server: Server) -> Client:
    return Client(base_url=server.url, raise_on_unexpected_status=True)


def assert_answer(answer: object) -> None:
    assert isinstance(answer, OpenAIEmbeddingResult)
    assert_vectors([item.embedding for item in answer.data])
    assert (answer.model, answer.usage.prompt_tokens) == (MODEL, TOKENS)


def test_embeddings(client: Client) -> None:
    with client:
        assert_answer(embeddings.sync(client=client, body=BODY))


async def test_embeddings_asynchronously(client: Client) -> None:
    async with client:
        assert_answer(await embeddings.asyncio(client=client, body=BODY))


def test_documents_are_ranked(scorers: Server) -> None:
    with Client(base_url=scorers.url, raise_on_unexpected_status=True) as client:
        for shown in (False, True):
            body = RerankInput(query=QUERY, documents=DOCUMENTS, return_documents=shown, top_n=3)
            answer = rerank.sync(client=client, body=body)
            assert isinstance(answer, ReRankResult)
            assert [(each.index, each.relevance_score) for each in answer.results] == best(scorers)[:3]
            for each in answer.results:
                assert (each.document == DOCUMENTS[each.index]) is shown
            assert answer.usage.total_tokens > 0


def test_texts_are_classified(scorers: Server) -> None:
    with Client(base_url=scorers.url, raise_on_unexpected_status=True) as client:
        for raw in (False, True):
            body = ClassifyInput(input_=DOCUMENTS, model=CLASSIFIER, raw_scores=raw)
            answer = classify.sync(client=client, body=body)
            assert isinstance(answer, ClassifyResult)
            texts = [[text] for text in DOCUMENTS]
            expected = post(scorers, "/predict", inputs=texts, model=CLASSIFIER, raw_scores=raw)
            assert [[each.to_dict() for each in labels] for labels in answer.data] == expected
