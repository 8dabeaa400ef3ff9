"""Infinity's client: OpenAI's embeddings without /v1."""

import pytest
from infinity_client import Client
from infinity_client.api.default import embeddings
from infinity_client.models import EmbeddingEncodingFormat, OpenAIEmbeddingInputText, OpenAIEmbeddingResult

from tests.clients.conftest import Server
from tests.clients.judged import INPUTS, MODEL, TOKENS, assert_vectors

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
