"""LlamaIndex's CohereRerank."""

import pytest
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.postprocessor.cohere_rerank import CohereRerank

from tests.clients.conftest import Server
from tests.clients.ranked import DOCUMENTS, QUERY, best
from tests.score_models import RANKER

CLIENT = "llama-index-postprocessor-cohere-rerank"
pytestmark = pytest.mark.clients


def test_nodes_are_ranked(scorers: Server) -> None:
    nodes = [NodeWithScore(node=TextNode(text=text), score=0.0) for text in DOCUMENTS]
    ranked = CohereRerank(base_url=scorers.url, api_key="a key", model=RANKER, top_n=3).postprocess_nodes(
        nodes, QueryBundle(QUERY)
    )
    assert [(each.node.get_content(), each.score) for each in ranked] == [
        (DOCUMENTS[index], score) for index, score in best(scorers)[:3]
    ]
