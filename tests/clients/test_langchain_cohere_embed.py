"""LangChain's CohereEmbeddings."""

import numpy as np
import pytest
from langchain_cohere import CohereEmbeddings

from tests.clients.conftest import Server
from tests.clients.judged import INPUTS, MODEL, TEXTS, assert_vectors

CLIENT = "langchain-cohere"
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # the library's own


@pytest.fixture
def client(server: Server) -> CohereEmbeddings:
    return CohereEmbeddings(model=MODEL, cohere_api_key="any", base_url=server.url)


def test_documents_and_a_query(client: CohereEmbeddings) -> None:
    assert_vectors(client.embed_documents(INPUTS))
    assert_vectors([client.embed_query(INPUTS[0])], TEXTS[:1])


async def test_documents_and_a_query_asynchronously(client: CohereEmbeddings) -> None:
    assert_vectors(await client.aembed_documents(INPUTS))
    assert_vectors([await client.aembed_query(INPUTS[0])], TEXTS[:1])


def test_signs_of_documents(client: CohereEmbeddings) -> None:
    client.embedding_types = ["ubinary"]
    expected = np.packbits(np.stack([case.unit for case in TEXTS]) > 0, axis=1)
    assert client.embed_documents(INPUTS) == expected.tolist()
