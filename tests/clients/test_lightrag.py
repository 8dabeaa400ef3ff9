"""LightRAG's embedding functions of OpenAI and Ollama, and its rankings by Jina's and Cohere's APIs."""

from functools import partial

import pytest
from lightrag.llm.ollama import ollama_embed
from lightrag.llm.openai import openai_embed
from lightrag.rerank import cohere_rerank, jina_rerank
from lightrag.utils import EmbeddingFunc

from tests.clients.conftest import Server
from tests.clients.judged import INPUTS, MODEL, WIDTH, assert_vectors
from tests.clients.ranked import DOCUMENTS, QUERY, best
from tests.score_models import RANKER

CLIENT = "lightrag-hku"
pytestmark = pytest.mark.clients


async def test_texts_of_both_functions(server: Server) -> None:
    for call in (
        partial(openai_embed.func, model=MODEL, base_url=f"{server.url}/v1", api_key="any"),
        partial(ollama_embed.func, embed_model=MODEL, host=server.url),
    ):
        assert_vectors(await EmbeddingFunc(embedding_dim=WIDTH, max_token_size=256, func=call)(INPUTS))


async def test_documents_are_ranked_by_both_apis(scorers: Server) -> None:
    for call, path in ((jina_rerank, "/v1/rerank"), (cohere_rerank, "/v2/rerank")):
        ranked = await call(QUERY, DOCUMENTS, top_n=3, model=RANKER, base_url=scorers.url + path, api_key="any")
        assert [(each["index"], each["relevance_score"]) for each in ranked] == best(scorers)[:3]
