"""LangChain's OpenAIEmbeddings: right with check_embedding_ctx_length=False, wrong without, whoever serves."""

from collections.abc import Sequence

import openai
import pytest
import tiktoken
from langchain_openai import OpenAIEmbeddings

from tests.clients.conftest import Server
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


def test_ingestion_from_many_threads_is_served(server: Server) -> None:
    client = embeddings(server, check_embedding_ctx_length=False)
    assert_nothing_is_refused(server, lambda texts: client.embed_documents(list(texts)))


class OfOpenAI:
    """Ids of an OpenAI vocabulary, which has 100256 of them; tiktoken itself fetches the vocabulary it uses."""

    def encode(self, text: str, **options: object) -> list[int]:
        return [100255] * len(text.split())

    def encode_ordinary(self, text: str) -> list[int]:
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join("x" for _ in ids)


def test_ids_beyond_the_models_vocabulary_are_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    # its default: ids of another vocabulary, which a server cannot tell from its own but for those it does not have
    monkeypatch.setattr(tiktoken, "encoding_for_model", lambda name: OfOpenAI())
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: OfOpenAI())
    with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False"):
        embeddings(server, check_embedding_ctx_length=True).embed_documents(INPUTS)
