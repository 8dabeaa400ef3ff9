"""Haystack's embedders and rankers: OpenAI's, and those of its packages for TEI, Ollama, Cohere and Jina."""

from typing import Any

import pytest
from haystack import Document, Pipeline
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.utils import Secret
from haystack_integrations.components.embedders.cohere import CohereDocumentEmbedder, CohereTextEmbedder
from haystack_integrations.components.embedders.huggingface_api import (
    HuggingFaceAPIDocumentEmbedder,
    HuggingFaceAPITextEmbedder,
)
from haystack_integrations.components.embedders.jina import JinaDocumentEmbedder, JinaTextEmbedder
from haystack_integrations.components.embedders.ollama import OllamaDocumentEmbedder, OllamaTextEmbedder
from haystack_integrations.components.rankers.cohere import CohereRanker
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker
from haystack_integrations.components.rankers.jina import JinaRanker

from tests.clients.conftest import Server
from tests.clients.judged import INPUTS, MODEL, TEXTS, assert_vectors
from tests.clients.ranked import DOCUMENTS, QUERY, best
from tests.score_models import RANKER

CLIENT = "haystack-ai"
pytestmark = pytest.mark.clients
KEY = Secret.from_token("any")
TEI = {"api_type": "text_embeddings_inference", "normalize": True, "token": KEY}
EMBEDDERS = {
    "openai": (OpenAITextEmbedder, OpenAIDocumentEmbedder),
    "tei": (HuggingFaceAPITextEmbedder, HuggingFaceAPIDocumentEmbedder),
    "ollama": (OllamaTextEmbedder, OllamaDocumentEmbedder),
    "cohere": (CohereTextEmbedder, CohereDocumentEmbedder),
    "jina": (JinaTextEmbedder, JinaDocumentEmbedder),
}


def reached(kind: str, url: str) -> dict[str, Any]:
    """What each kind's embedders are told of the server."""
    return {
        "openai": {"api_base_url": f"{url}/v1", "model": MODEL, "api_key": KEY},
        "tei": {"api_params": {"url": url}, **TEI},
        "ollama": {"url": url, "model": MODEL},
        "cohere": {"api_base_url": url, "model": MODEL, "api_key": KEY},
        "jina": {"base_url": f"{url}/v1/embeddings", "model": MODEL, "api_key": KEY},
    }[kind]


@pytest.mark.parametrize("kind", EMBEDDERS)
def test_a_text_and_documents(server: Server, kind: str) -> None:
    of_text, of_documents = EMBEDDERS[kind]
    assert_vectors([of_text(**reached(kind, server.url)).run(INPUTS[0])["embedding"]], TEXTS[:1])
    documents = of_documents(**reached(kind, server.url)).run([Document(content=text) for text in INPUTS])["documents"]
    assert_vectors([document.embedding for document in documents])


@pytest.mark.parametrize("kind", ["tei", "cohere", "jina"])
def test_documents_are_ranked_in_a_pipeline(scorers: Server, kind: str) -> None:
    ranker = {
        "tei": lambda url: HuggingFaceTEIRanker(url=url, token=KEY, top_k=3),
        "cohere": lambda url: CohereRanker(api_base_url=url, api_key=KEY, model=RANKER, top_k=3),
        "jina": lambda url: JinaRanker(base_url=f"{url}/v1/rerank", api_key=KEY, model=RANKER, top_k=3),
    }[kind](scorers.url)
    pipeline = Pipeline()
    pipeline.add_component("ranker", ranker)
    ranked = pipeline.run({"ranker": {"query": QUERY, "documents": [Document(content=text) for text in DOCUMENTS]}})
    assert [(each.content, each.score) for each in ranked["ranker"]["documents"]] == [
        (DOCUMENTS[index], score) for index, score in best(scorers)[:3]
    ]
