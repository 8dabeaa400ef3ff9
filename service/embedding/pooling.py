"""Pooling: one vector of the rows of a sequence's tokens, as in sentence-transformers 6.2.

Source: sentence-transformers 6.2, Pooling._forward_padded.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.checkpoints.sentence_transformers import EOS, JOIN

NORMALIZED_ROWS = 2048  # at a time: the quotients are float64
Rows = NDArray[np.float32]
Flags = NDArray[np.bool_]


def _mean(rows: Rows, counted: Flags, first: int) -> NDArray[Any]:
    mean: NDArray[Any] = rows[counted].mean(axis=0, dtype=np.float64)
    return mean


def _mean_sqrt_len(rows: Rows, counted: Flags, first: int) -> NDArray[Any]:
    total: NDArray[Any] = rows[counted].sum(axis=0, dtype=np.float64)
    return total / float(np.sqrt(counted.sum()))


def _weighted_mean(rows: Rows, counted: Flags, first: int) -> NDArray[Any]:
    """Return the mean weighted by each token's position in the sequence, from 1, the prompt included."""
    weights = (np.arange(1, len(rows) + 1) - first) * counted
    total: NDArray[Any] = weights.astype(np.float64) @ rows
    return total / float(weights.sum())


POOLINGS: dict[str, Callable[[Rows, Flags, int], NDArray[Any]]] = {
    "cls": lambda rows, counted, first: rows[int(counted.argmax())],
    "mean": _mean,
    "max": lambda rows, counted, first: rows[counted].max(axis=0),
    "lasttoken": lambda rows, counted, first: rows[len(rows) - 1 - int(counted[::-1].argmax())],
    "mean_sqrt_len_tokens": _mean_sqrt_len,
    "weightedmean": _weighted_mean,
}

SPAN_POOLINGS = ("mean", "max", "mean_sqrt_len_tokens", "weightedmean")
"""Modes that read all rows of a span; the others take one row, which in a whole text alone is trained for that."""


def end_row(ids: NDArray[np.int64], end_id: int | None) -> int:
    """Return the row of the token that ends a text; row 0 if no token is `end_id`.

    Args:
        ids: ids of the text, [n].
        end_id: id of the end token, whose first occurrence counts; None: the largest of `ids`.

    Source: transformers 5.23, CLIPTextModel, which reads no mask here.
    """
    return int((ids if end_id is None else ids == end_id).argmax())


def pool(mode: str, rows: Rows, mask: NDArray[Any] | None, prompt_tokens: int = 0, end: int = 0) -> Rows:
    """Return the pooled vector of a sequence, float32 [d]; several modes give their vectors one after the other.

    Args:
        mode: one of POOLINGS, or EOS, or several joined as in Pooling.mode.
        rows: rows of the sequence's tokens, float32 [n, d].
        mask: 1 for each token that is attended to, [n]; None: all are.
        prompt_tokens: how many of the first attended tokens are left out; at least one is left.
        end: for the mode EOS, the result of `end_row`.
    """
    if mode == EOS:
        return np.asarray(rows[end], np.float32)
    attended = np.ones(len(rows), np.bool_) if mask is None else mask.astype(bool, copy=False)
    first = int(attended.argmax())
    counted = attended & (np.arange(len(rows)) >= first + prompt_tokens) if prompt_tokens else attended
    vectors = [POOLINGS[each](rows, counted, first).astype(np.float32) for each in mode.split(JOIN)]
    return vectors[0] if len(vectors) == 1 else np.concatenate(vectors)


def normalize(vectors: Rows) -> Rows:
    """Return rows scaled to unit length; a row of zeros stays (torch.nn.functional.normalize, eps 1e-12)."""
    scaled = np.empty(vectors.shape, np.float32)
    for start in range(0, len(vectors), NORMALIZED_ROWS):
        rows = vectors[start : start + NORMALIZED_ROWS]
        length = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
        scaled[start : start + NORMALIZED_ROWS] = rows / np.maximum(length, 1e-12)[:, None]
    return scaled
