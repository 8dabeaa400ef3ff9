"""Computes the modules behind Pooling in numpy float64: the reference for modules.onnx."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.recipes.sentence_modules import LEAST_LENGTH, Dense, Module, SentenceModules
from models.recipes.steps import LayerNorm
from models.reference.interpreter import ACTIVATIONS, rowwise

Rows = NDArray[np.float64]
Weights = Mapping[str, Any]


def vectors(modules: SentenceModules, weights: Weights, pooled: NDArray[Any]) -> Rows:
    """Return the sentence vectors of pooled ones.

    Args:
        modules: modules of the model.
        weights: tensors of the modules by name, of any float dtype.
        pooled: [N, inner].

    Returns:
        float64 [N, width].

    Source: torch 2.13: nn.Linear, nn.LayerNorm, nn.functional.normalize and the activations of their names.
    """
    x = pooled.astype(np.float64)
    for step in modules.steps:
        x = apply(step, weights, x)
    return x


def apply(step: Module, weights: Weights, x: Rows) -> Rows:
    """Return the result of one module for rows x [N, inner]."""
    match step:
        case Dense(linear, activation, residual):
            y = ACTIVATIONS[activation](rowwise(linear, weights, x))
            if residual is None:
                return y
            return y + (x if residual == "input" else rowwise(residual, weights, x))
        case LayerNorm():
            return rowwise(step, weights, x)
        case _:
            return np.asarray(x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), LEAST_LENGTH))
