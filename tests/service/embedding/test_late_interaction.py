"""MaxSim against its definition."""

import numpy as np
import pytest

from service.embedding import scores
from service.embedding.scores import EMPTY_DOCUMENT, maxsim

RANDOM = np.random.default_rng(3)
QUERIES = [RANDOM.normal(size=(n, 8)).astype(np.float32) for n in (1, 5, 32)]
DOCUMENTS = [RANDOM.normal(size=(n, 8)).astype(np.float32) for n in (3, 1, 200, 40)]


def defined(query: np.ndarray, document: np.ndarray) -> float:
    """The sum of each query vector's largest product, one by one in float64."""
    return sum(max(float(np.dot(np.float64(one), np.float64(other))) for other in document) for one in query)


@pytest.mark.parametrize("mean", [False, True])
def test_maxsim_is_the_sum_of_largest_products(mean: bool) -> None:
    for query in QUERIES:
        expected = [defined(query, document) / (len(query) if mean else 1) for document in DOCUMENTS]
        np.testing.assert_allclose(maxsim(query, DOCUMENTS, mean), expected, rtol=1e-5, atol=1e-5)


def test_a_score_does_not_depend_on_other_documents() -> None:
    for query in QUERIES:
        together = maxsim(query, DOCUMENTS)
        assert [maxsim(query, [document])[0] for document in DOCUMENTS] == together.tolist()
        assert maxsim(query, DOCUMENTS[::-1])[::-1].tolist() == together.tolist()


def test_blocks_give_the_score_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = maxsim(QUERIES[2], DOCUMENTS)
    monkeypatch.setattr(scores, "BLOCK_PRODUCTS", 300)
    monkeypatch.setattr(scores, "BLOCK_ROWS", 5)
    np.testing.assert_allclose(maxsim(QUERIES[2], DOCUMENTS), whole, rtol=1e-6, atol=1e-6)


def test_a_document_without_vectors_is_last() -> None:
    scores = maxsim(QUERIES[0], [DOCUMENTS[0], np.empty((0, 8), np.float32)])
    assert scores[1] == EMPTY_DOCUMENT < scores[0]
