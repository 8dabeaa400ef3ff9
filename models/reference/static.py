"""Static embeddings: a sentence is the mean of its tokens' rows, and no token knows its neighbours. The judge in numpy.

Holds what a card says of them and computes them in float64; static_graph.py says the same in ONNX. Reads no file.

    row(id)         table[mapping[id]] * weights[id], or table[id]
    sentence(ids)   the mean of row(id) over the counted ids; zeros where none is counted
    counted         attended to, and not the `dropped` id
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StaticTable:
    """What a card says of a static embedding model; the names are those of its weights file.

    table           [rows, d], float or int8
    mapping         int64 [V], the row of each id; None: an id is its row
    weights         float32 [V], a factor for each id; None: all 1
    dropped         the id that counts as absent (Model2Vec: the unknown token); None: every token counts
    max_characters  what a text is cut to before it is tokenised (Model2Vec); None: no limit
    """

    table: str
    mapping: str | None = None
    weights: str | None = None
    dropped: int | None = None
    max_characters: int | None = None


def rows(static: StaticTable, tensors: Mapping[str, NDArray[Any]], ids: NDArray[np.int64]) -> Floats:
    """The vector of each token.

    ids      int64 [N], 0 to V-1
    returns  float64 [N, d]
    source   model2vec 0.10, StaticModel._encode_helper; sentence-transformers 6.2, StaticEmbedding
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

    ids, mask  [N], the sequences one below the other
    lengths    int64 [B], sum N; 0 is allowed
    returns    float64 [B, d]; zeros for a sequence that counts no token, as both libraries give
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
