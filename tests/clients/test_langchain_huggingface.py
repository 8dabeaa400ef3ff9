"""LangChain's HuggingFaceEndpointEmbeddings, over InferenceClient: it refuses an address as `model`, not as one of its
client's arguments.
"""

import pytest
from langchain_huggingface import HuggingFaceEndpointEmbeddings

from tests.clients.conftest import Server
from tests.clients.judged import INPUTS, MODEL, TEXTS, assert_vectors

CLIENT = "langchain-huggingface"
pytestmark = pytest.mark.clients


@pytest.fixture
def client(server: Server) -> HuggingFaceEndpointEmbeddings:
    return HuggingFaceEndpointEmbeddings(
        model=MODEL, huggingfacehub_api_token="any", model_kwargs={"model": server.url}
    )


def test_documents_and_a_query(client: HuggingFaceEndpointEmbeddings) -> None:
    assert_vectors(client.embed_documents(INPUTS))
    assert_vectors([client.embed_query(INPUTS[0])], TEXTS[:1])


async def test_documents_and_a_query_asynchronously(client: HuggingFaceEndpointEmbeddings) -> None:
    assert_vectors(await client.aembed_documents(INPUTS))
    assert_vectors([await client.aembed_query(INPUTS[0])], TEXTS[:1])
