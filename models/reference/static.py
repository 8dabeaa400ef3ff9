"""Computes static embeddings in numpy float64: the reference for the graphs of models/graphs/static.py."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.recipes.static import StaticTable

Floats = NDArray[np.float64]


def rows(static: StaticTable, tensors: Mapping[str, NDArray[Any]], ids: NDArray[np.int64]) -> Floats:
    """Return the vector of each token.

    Args:
        static: the model.
        tensors: tensors of the model's weights file, by name.
        ids: int64 [N], 0 to V-1.

    Returns:
        float64 [N, d].

    Source: model2vec 0.10, StaticModel._encode_helper; sentence-transformers 6.2, StaticEmbedding.
    """
    row_numbers = ids if static.mapping is None else tensors[static.mapping][ids]
    vectors = tensors[static.table][row_numbers].astype(np.float64)
    if static.weights is not None:
        vectors *= tensors[static.weights][ids].astype(np.float64)[:, None]
    return vectors


def sentences(
    static: StaticTable,
    tensors: Mapping[str, NDArray[Any]],
    ids: NDArray[np.int64],
    mask: NDArray[np.bool_],
    lengths: NDArray[np.int64],
) -> Floats:
    """Return the mean of each sequence's counted tokens, not normalized.

    Args:
        static: the model.
        tensors: tensors of the model's weights file, by name.
        ids, mask: [N], the sequences one after the other.
        lengths: int64 [B], sum N; 0 is allowed.

    Returns:
        float64 [B, d]; zeros for a sequence that counts no token, as both libraries give.
    """
    counted = mask if static.dropped is None else mask & (ids != static.dropped)
    vectors = rows(static, tensors, ids)
    ends = np.cumsum(lengths)
    means = np.zeros((len(lengths), vectors.shape[1]))
    for sequence, (end, length) in enumerate(zip(ends, lengths, strict=True)):
        span = slice(end - length, end)
        if counted[span].any():
            means[sequence] = vectors[span][counted[span]].mean(axis=0)
    return means


def outputs(static: StaticTable, tensors: Mapping[str, NDArray[Any]], feeds: Mapping[str, Any]) -> dict[str, Floats]:
    """Return the outputs of the two graphs of models/graphs/static.py for their inputs, by name."""
    if "lengths" not in feeds:
        return {"input_embeddings": rows(static, tensors, feeds["ids"])}
    return {"sentence_embedding": sentences(static, tensors, feeds["ids"], feeds["mask"], feeds["lengths"])}
