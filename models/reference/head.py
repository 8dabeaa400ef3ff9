"""Computes an output head in numpy float64, a block of the vocabulary at a time: the reference for head.onnx."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.recipes.heads import OutputHead
from models.reference.interpreter import ACTIVATIONS, rowwise

BLOCK_VALUES = 1 << 22  # of the matrix held in float64 at a time: 32 MB

Rows = NDArray[np.float64]
Weights = Mapping[str, Any]


def logits(head: OutputHead, weights: Weights, hidden: NDArray[Any]) -> Rows:
    """Return the logits of hidden states.

    Args:
        head: the head.
        weights: tensors by name, of any float dtype.
        hidden: [N, width].

    Returns:
        float64 [N, V].
    """
    return np.concatenate(list(blocks(head, weights, hidden)), axis=1)


def blocks(head: OutputHead, weights: Weights, hidden: NDArray[Any]) -> Iterator[Rows]:
    """Yield the logits by columns, [N, some of the vocabulary], in order; arguments as for `logits`."""
    x = before_the_matrix(head, weights, hidden)  # (N, inner)
    matrix = weights[head.matrix]
    bias = None if head.bias is None else np.asarray(weights[head.bias]).astype(np.float64).reshape(-1)
    step = max(1, BLOCK_VALUES // head.inner)
    for start in range(0, head.vocab_size, step):
        part = np.asarray(matrix[start : start + step]).astype(np.float64)
        values = (part @ x.T).T  # (N, step); the other way round, two threads of OpenBLAS get in each other's way
        if bias is not None:
            values += bias[start : start + step]
        values *= head.after
        yield values if head.cap is None else head.cap * np.tanh(values / head.cap)


def before_the_matrix(head: OutputHead, weights: Weights, hidden: NDArray[Any]) -> Rows:
    """Return the rows that the matrix is multiplied with, float64 [N, inner]."""
    x = hidden.astype(np.float64)
    if transform := head.transform:
        x = ACTIVATIONS[transform.activation](rowwise(transform.dense, weights, x))  # (N, inner)
        x = rowwise(transform.norm, weights, x)
    return x * head.before
