"""Voyage AI's own client: input_type, types of vectors and dimensions over /v1/embeddings."""

import numpy as np
import pytest
import voyageai

from tests.clients.conftest import Server
from tests.clients.judged import INPUTS, MODEL, TEXTS, TOKENS, UNIT, assert_vectors, furthest
from tests.clients.ranked import DOCUMENTS, QUERY, best
from tests.score_models import RANKER

CLIENT = "voyageai"
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # the library's own


@pytest.fixture
def client(server: Server) -> voyageai.Client:
    return voyageai.Client(api_key="any", base_url=f"{server.url}/v1")


def test_texts_of_both_uses(client: voyageai.Client) -> None:
    for use in ("query", "document", None):
        answer = client.embed(INPUTS, model=MODEL, input_type=use)
        assert_vectors(answer.embeddings)
        assert answer.total_tokens == TOKENS


def test_signs_and_short_vectors(client: voyageai.Client) -> None:
    packed = np.packbits(np.stack([case.unit for case in TEXTS]) > 0, axis=1)
    assert client.embed(INPUTS, model=MODEL, output_dtype="ubinary").embeddings == packed.tolist()
    signed = client.embed(INPUTS, model=MODEL, output_dtype="binary").embeddings
    assert signed == (packed.astype(int) - 128).tolist()
    [short] = client.embed(INPUTS[1:], model=MODEL, output_dimension=128).embeddings
    assert furthest(np.array(short), TEXTS[1].arrays["dimensions_128"]) <= UNIT


def test_documents_are_ranked(scorers: Server) -> None:
    client = voyageai.Client(api_key="any", base_url=f"{scorers.url}/v1")
    for top_k in (None, 2):
        answer = client.rerank(QUERY, DOCUMENTS, RANKER, top_k=top_k)
        assert [(result.index, result.relevance_score) for result in answer.results] == best(scorers)[:top_k]


def test_errors_arrive_with_their_message(client: voyageai.Client) -> None:
    with pytest.raises(voyageai.error.APIError, match="inlay calibrate"):
        client.embed(INPUTS, model=MODEL, output_dtype="int8")
    with pytest.raises(voyageai.error.APIError, match="tokens"):
        client.embed(["word " * 600], model=MODEL, truncation=False)
