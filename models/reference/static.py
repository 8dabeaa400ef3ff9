"""Static embeddings in numpy float64: the reference for the graphs of `models/graphs/static.py`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.families.static import StaticTable

Floats = NDArray[np.float64]


def rows(static: StaticTable, tensors: Mapping[str, NDArray[Any]], ids: NDArray[np.int64]) -> Floats:
    """The vector of each token.

    Args:
        ids: int64 [N], 0 to V-1.

    Returns:
        float64 [N, d].

    Source: model2vec 0.10, StaticModel._encode_helper; sentence-transformers 6.2, StaticEmbedding.
    """
    places = ids if static.mapping is None else tensors[static.mapping][ids]
    found = tensors[static.table][places].astype(np.float64)
    if static.weights is not None:
        found *= tensors[static.weights][ids].astype(np.float64)[:, None]
    return found


def sentences(
    static: StaticTable,
    tensors: Mapping[str, NDArray[Any]],
    ids: NDArray[np.int64],
    mask: NDArray[np.bool_],
    lengths: NDArray[np.int64],
) -> Floats:
    """The mean of each sequence's counted tokens, not normalised.

    Args:
        ids, mask: [N], the sequences one below the other.
        lengths: int64 [B], sum N; 0 is allowed.

    Returns:
        float64 [B, d]; zeros for a sequence that counts no token, as both libraries give.
    """
    counted = mask if static.dropped is None else mask & (ids != static.dropped)
    found = rows(static, tensors, ids)
    ends = np.cumsum(lengths)
    means = np.zeros((len(lengths), found.shape[1]))
    for sequence, (end, length) in enumerate(zip(ends, lengths, strict=True)):
        span = slice(end - length, end)
        if counted[span].any():
            means[sequence] = found[span][counted[span]].mean(axis=0)
    return means


def outputs(static: StaticTable, tensors: Mapping[str, NDArray[Any]], feeds: Mapping[str, Any]) -> dict[str, Floats]:
    """What the two graphs of static_graph.py give for their inputs, by output name."""
    if "lengths" not in feeds:
        return {"input_embeddings": rows(static, tensors, feeds["ids"])}
    return {"sentence_embedding": sentences(static, tensors, feeds["ids"], feeds["mask"], feeds["lengths"])}
