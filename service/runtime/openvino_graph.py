"""Builds the blocks of an encoder as an OpenVINO model, from the recipe that models/graphs/encoder.py makes ONNX of.

Made so because OpenVINO runs the packed ONNX graph slowly: it has no MultiHeadAttention of ONNX Runtime's, and its
gathers and scatters through the padded rectangle are not fused.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray
from openvino import opset13 as ops

from models.recipes.steps import Activation, Attention, FeedForward, LayerNorm, Linear, Norm, Recipe, Step, has_adapters

ACTIVATIONS: Mapping[Activation, Callable[[Any], Any]] = {
    "gelu": lambda x: ops.gelu(x, "erf"),
    "gelu_tanh": lambda x: ops.gelu(x, "tanh"),
    "relu": ops.relu,
    "silu": ops.swish,
}

Weights = Mapping[str, NDArray[Any]]


def is_known(step: Step) -> bool:
    """Return whether a step has an OpenVINO form."""
    match step:
        case Attention():
            known = step == Attention(step.heads, step.query, step.key, step.value, step.output, step.norm)
            return known and _is_known_norm(step.norm) and not has_adapters((step,))
        case FeedForward():
            known = step == FeedForward(step.up, step.down, step.activation, step.norm) and not has_adapters((step,))
            return known and step.activation in ACTIVATIONS and _is_known_norm(step.norm)
    return isinstance(step, LayerNorm) and _is_known_norm(step)


def _is_known_norm(norm: Norm | None) -> bool:
    return norm is None or (isinstance(norm, LayerNorm) and norm.weight is not None and not norm.offset)


def blocks(encoder: Recipe, weights: Weights, width: int) -> openvino.Model:
    """Return the model of all blocks over a padded rectangle.

    Its inputs are rows float32 [B, S, d], and keys float32 [B, S], which is added to the scores: 0 where a row may be
    attended to, else -inf. Its output is float32 [B, S, d].

    Args:
        encoder: the steps of all blocks, all of them known.
        weights: writable float32 tensors by the names in the steps; the model reads them where they are.
        width: d.

    Raises:
        TypeError: a step is of another kind.
    """
    x = rows = ops.parameter([-1, -1, width], np.float32, name="rows")
    keys = ops.parameter([-1, -1], np.float32, name="keys")
    hidden = ops.unsqueeze(keys, _constant(np.array([1, 2])))  # (B, 1, 1, S)
    for step in encoder:
        x = _step(step, weights, x, hidden)
    return openvino.Model([ops.result(x)], [rows, keys], "encoder")


def _step(step: Step, weights: Weights, x: Any, hidden: Any) -> Any:
    match step:
        case Attention(norm=norm):
            return ops.add(x, _attention(step, weights, _step(norm, weights, x, hidden) if norm else x, hidden))
        case FeedForward(up, down, activation, norm):
            inner = _project(up, weights, _step(norm, weights, x, hidden) if norm else x)
            return ops.add(x, _project(down, weights, ACTIVATIONS[activation](inner)))
        case LayerNorm(str(weight), bias, eps):
            normed = ops.mvn(x, _constant(np.array([-1])), True, eps, "inside_sqrt")
            scaled = ops.multiply(normed, _constant(weights[weight]))
            return ops.add(scaled, _constant(weights[bias])) if bias else scaled
    raise TypeError(f"no OpenVINO form for the step {step}")


def _attention(step: Attention, weights: Weights, x: Any, hidden: Any) -> Any:
    width = weights[step.query.weight].shape[0]
    split = _constant(np.array([0, 0, step.heads, width // step.heads]))
    turn = _constant(np.array([0, 2, 1, 3]))
    query, key, value = (
        ops.transpose(ops.reshape(_project(linear, weights, x), split, True), turn)
        for linear in (step.query, step.key, step.value)
    )  # (B, H, S, d/H)
    scale = _constant(np.array((width // step.heads) ** -0.5, np.float32))
    mixed = ops.scaled_dot_product_attention(query, key, value, hidden, scale)
    joined = ops.reshape(ops.transpose(mixed, turn), _constant(np.array([0, 0, width])), True)  # (B, S, d)
    return _project(step.output, weights, joined)


def _project(linear: Linear, weights: Weights, x: Any) -> Any:
    product = ops.matmul(x, _constant(weights[linear.weight]), False, True)
    return ops.add(product, _constant(weights[linear.bias])) if linear.bias else product


def _constant(array: NDArray[Any]) -> Any:
    return ops.constant(array, shared_memory=True)
