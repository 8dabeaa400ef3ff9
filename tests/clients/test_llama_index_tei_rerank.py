"""LlamaIndex's reranker of text-embeddings-inference."""

import pytest
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

from tests.clients.conftest import Server
from tests.clients.ranked import DOCUMENTS, QUERY, best

CLIENT = "llama-index-postprocessor-tei-rerank"
pytestmark = pytest.mark.clients


def test_nodes_are_ranked(scorers: Server) -> None:
    nodes = [NodeWithScore(node=TextNode(text=text), score=0.0) for text in DOCUMENTS]
    ranked = TextEmbeddingInference(base_url=scorers.url, top_n=3).postprocess_nodes(nodes, QueryBundle(QUERY))
    assert [(each.node.get_content(), each.score) for each in ranked] == [
        (DOCUMENTS[index], score) for index, score in best(scorers)[:3]
    ]
