"""Late interaction: scores of queries with documents of several vectors each (MaxSim).

MaxSim is the sum, over the vectors of a query, of the largest product with a vector of the document. A query is
multiplied with one document at a time, in blocks that follow from their own shapes, so that a score does not depend on
the other documents. The blocks are so small that OpenBLAS computes each on the calling thread: of 32 vectors with 200
of 128 columns a whole product takes 6.6 ms on two busy cores, where its threads wait for one another, and 65 µs of
processor time in blocks.

Source: sentence-transformers 6.2, util.similarity.
"""

import asyncio
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import MULTI_VECTOR
from models.recipes.heads import MultiVector
from service.embedding.model import Model
from service.embedding.requests import Direction, Embedder, EmbedOptions, EmbedRequest, EmbedResult, Text
from service.embedding.tokenize.packing import split
from service.request_context import RequestContext

Function = Literal["maxsim", "meanmaxsim"]
Vectors = NDArray[np.float32]  # [n, width]
BLOCK_ROWS = 32  # of a query
BLOCK_PRODUCTS = 1 << 18  # of two numbers: OpenBLAS divides larger ones among threads (0.3)
EMPTY_DOCUMENT = -1e9  # the score of a document without a vector (sentence-transformers 6.2)


async def rank(
    embedder: Embedder,
    model: Model,
    query: str,
    texts: Sequence[str],
    context: RequestContext,
    truncate: bool | None = None,
    direction: Direction = "right",
    prompt_name: str | None = None,
    max_tokens: int | None = None,
) -> tuple[NDArray[np.float64], EmbedResult]:
    """Return the score of each text with a query, [texts], and the facts about both runs.

    Args:
        prompt_name: of both; None: that of their kind.
        max_tokens: of a document, special ones included; None: as many as the model reads.

    Raises:
        InlayError: as of EmbeddingPipeline.embed.
    """
    multi_vector = model.card.multi_vector
    assert multi_vector is not None
    name, outputs = model.card.name, (MULTI_VECTOR,)
    of_query = EmbedOptions(outputs, truncate, direction, prompt_name=prompt_name, input_type="query")
    of_documents = of_query._replace(input_type="document", max_tokens=max_tokens)
    asked = await embedder.embed(EmbedRequest([Text(query)], name, of_query), context)
    result = await embedder.embed(EmbedRequest([*map(Text, texts)], name, of_documents), context)
    own, documents = asked.outputs[0].rows, result.outputs[0]
    scores = await asyncio.to_thread(maxsim, own, split(documents.rows, documents.lengths), multi_vector.mean)
    whole = result._replace(tokens=asked.tokens + result.tokens, characters=asked.characters + result.characters)
    return scores, whole


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
        part, own = query[first : first + rows], largest[first : first + rows]
        for start in range(0, len(document), columns):
            np.maximum(own, (part @ turned[:, start : start + columns]).max(axis=1), out=own)
    return largest


def function_of(multi_vector: MultiVector) -> Function:
    """Return the function that a model's files compare its texts by."""
    return "meanmaxsim" if multi_vector.mean else "maxsim"
