"""LlamaIndex's CohereEmbedding, which takes the names of Cohere's own models alone: the demo model is served as one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from llama_index.embeddings.cohere import CohereEmbedding

from tests.clients.conftest import Server, serving
from tests.clients.judged import INPUTS, MODEL, TEXTS, assert_vectors

CLIENT = "llama-index-embeddings-cohere"
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # the library's own
NAME = "embed-english-v3.0"


@pytest.fixture(scope="module")
def named(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    store = tmp_path_factory.mktemp("named")
    (store / NAME).symlink_to((demo / MODEL).resolve())
    with serving(store) as running:
        yield running


@pytest.fixture
def client(named: Server) -> CohereEmbedding:
    return CohereEmbedding(model_name=NAME, api_key="any", base_url=named.url, max_retries=1)


def test_texts_and_a_query(client: CohereEmbedding) -> None:
    assert_vectors(client.get_text_embedding_batch(INPUTS))
    assert_vectors([client.get_query_embedding(INPUTS[0])], TEXTS[:1])


async def test_texts_and_a_query_asynchronously(client: CohereEmbedding) -> None:
    assert_vectors(await client.aget_text_embedding_batch(INPUTS))
    assert_vectors([await client.aget_query_embedding(INPUTS[0])], TEXTS[:1])
