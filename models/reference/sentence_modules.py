"""Computes the modules behind Pooling in numpy float64: the reference for modules.onnx."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.recipes.sentence_modules import LEAKY_SLOPE, LEAST_LENGTH, Activation, Dense, Module, SentenceModules
from models.recipes.steps import LayerNorm, Linear
from models.reference.interpreter import ACTIVATIONS as COMMON

Rows = NDArray[np.float64]
Weights = Mapping[str, Any]

ACTIVATIONS: dict[Activation, Callable[[Rows], Rows]] = {
    "identity": lambda x: x,
    "tanh": np.tanh,
    "relu": COMMON["relu"],
    "leaky_relu": lambda x: np.where(x < 0, LEAKY_SLOPE * x, x),
    "elu": lambda x: np.where(x < 0, np.expm1(np.minimum(x, 0.0)), x),
    "gelu": COMMON["gelu"],
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "silu": COMMON["silu"],
    "gelu_tanh": COMMON["gelu_tanh"],
    "quick_gelu": COMMON["quick_gelu"],
    "squared_relu": COMMON["squared_relu"],
}


def vectors(modules: SentenceModules, weights: Weights, pooled: NDArray[Any]) -> Rows:
    """Return the sentence vectors of pooled ones.

    Args:
        modules: of the model.
        weights: their tensors by name, of any float dtype.
        pooled: [N, inner].

    Returns:
        float64 [N, width].

    Source: torch 2.13: nn.Linear, nn.LayerNorm, nn.functional.normalize and the activations of their names.
    """
    x = pooled.astype(np.float64)
    for step in modules.steps:
        x = _apply(step, weights, x)
    return x


def _apply(step: Module, weights: Weights, x: Rows) -> Rows:
    match step:
        case Dense(linear, activation, residual):
            y = ACTIVATIONS[activation](_linear(linear, weights, x))
            if residual is None:
                return y
            return y + (x if residual == "input" else _linear(residual, weights, x))
        case LayerNorm(str(weight), bias, eps):
            x = x - x.mean(axis=-1, keepdims=True)
            x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * _array(weights, weight)
            return x + _array(weights, bias) if bias else x
        case _:
            return np.asarray(x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), LEAST_LENGTH))


def _linear(linear: Linear, weights: Weights, x: Rows) -> Rows:
    y = x @ _array(weights, linear.weight).T
    return y + _array(weights, linear.bias) if linear.bias else y


def _array(weights: Weights, name: str) -> Rows:
    return np.asarray(weights[name]).astype(np.float64)
