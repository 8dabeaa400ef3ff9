"""Convolutions within each sequence of packed rows, in numpy float64."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.recipes.steps import Convolution

Rows = NDArray[np.float64]


def convolved(step: Convolution, weights: Mapping[str, NDArray[Any]], x: Rows, lengths: NDArray[np.int64]) -> Rows:
    """Return the convolution of rows x [N, d] of sequences of these lengths; rows of others count as 0."""
    weight = np.asarray(weights[step.weight][:], np.float64)
    result = np.zeros_like(x) + (0.0 if step.bias is None else weights[step.bias].astype(np.float64))
    for part, rows in zip(np.split(result, np.cumsum(lengths)[:-1]), np.split(x, np.cumsum(lengths)[:-1]), strict=True):
        padded = np.pad(rows, ((step.left, step.size - 1 - step.left), (0, 0)))
        for place in range(step.size):
            moved, own = padded[place : place + len(rows)], weight[:, :, place]
            part += moved * own[:, 0] if step.by_channel else moved @ own.T
    return result
