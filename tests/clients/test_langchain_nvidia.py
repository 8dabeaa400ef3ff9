"""LangChain's NVIDIAEmbeddings, which sends input_type query and passage."""

import pytest
from langchain_nvidia_ai_endpoints import NVIDIAEmbeddings

from tests.clients.conftest import Server
from tests.clients.judged import INPUTS, MODEL, TEXTS, assert_vectors

CLIENT = "langchain-nvidia-ai-endpoints"
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]  # that it does not know the model


@pytest.fixture
def client(server: Server) -> NVIDIAEmbeddings:
    return NVIDIAEmbeddings(model=MODEL, base_url=f"{server.url}/v1", nvidia_api_key="any", truncate="END")


def test_documents_and_a_query(client: NVIDIAEmbeddings) -> None:
    assert_vectors(client.embed_documents(INPUTS))
    assert_vectors([client.embed_query(INPUTS[0])], TEXTS[:1])


def test_a_long_text_is_refused_unless_it_may_be_cut(client: NVIDIAEmbeddings) -> None:
    assert len(client.embed_query("word " * 600)) == 384
    client.truncate = "NONE"
    with pytest.raises(Exception, match="400"):
        client.embed_query("word " * 600)
