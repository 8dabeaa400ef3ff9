"""LangChain's OpenAIEmbeddings: texts with check_embedding_ctx_length=False, else ids of cl100k_base."""

import openai
import pytest
from langchain_openai import OpenAIEmbeddings

from tests.clients.conftest import Server, Start
from tests.clients.ingestion import assert_nothing_is_refused
from tests.clients.judged import INPUTS, MODEL, TEXTS, assert_vectors

CLIENT = "langchain-openai"
pytestmark = pytest.mark.clients


def embeddings(server: Server, **options: object) -> OpenAIEmbeddings:
    return OpenAIEmbeddings(base_url=f"{server.url}/v1", api_key="any", model=MODEL, **options)  # type: ignore[arg-type]


def test_documents_and_a_query_as_strings(server: Server) -> None:
    client = embeddings(server, check_embedding_ctx_length=False)
    assert_vectors(client.embed_documents(INPUTS))
    assert_vectors([client.embed_query(INPUTS[0])], TEXTS[:1])


async def test_documents_and_a_query_asynchronously(server: Server) -> None:
    client = embeddings(server, check_embedding_ctx_length=False)
    assert_vectors(await client.aembed_documents(INPUTS))
    assert_vectors([await client.aembed_query(INPUTS[0])], TEXTS[:1])


def test_ingestion_from_many_threads_is_served(patient: Server) -> None:
    client = embeddings(patient, check_embedding_ctx_length=False)
    assert_nothing_is_refused(patient, lambda texts: client.embed_documents(list(texts)))


def test_ids_beyond_the_models_vocabulary_are_refused(server: Server) -> None:
    # its default: ids of cl100k_base, which a server cannot tell from its own but for those it does not have
    with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False"):
        embeddings(server).embed_documents(["zeitgeist"])


def test_ids_of_openais_encoding_are_their_text(start: Start) -> None:
    with start(openai_token_ids="cl100k_base") as server:
        client = embeddings(server)
        assert_vectors(client.embed_documents(INPUTS))
        assert_vectors([client.embed_query(INPUTS[0])], TEXTS[:1])
