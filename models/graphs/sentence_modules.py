"""Emits the modules behind Pooling as an ONNX graph: pooled float32 [texts, inner] -> vectors float32 [texts, width].

A row gets the same bits alone and among others: ONNX Runtime's Gemm sums every element in one order
(tests/models/graphs/test_sentence_modules.py), which numpy's product of matrices does not.
"""

from typing import Any

import numpy as np

from models.graphs.builder import GraphBuilder
from models.recipes.sentence_modules import LEAKY_SLOPE, LEAST_LENGTH, Activation, Dense, SentenceModules
from models.recipes.steps import LayerNorm, Linear

INPUT, OUTPUT = "pooled", "vectors"
_OPERATORS: dict[Activation, tuple[str, dict[str, Any]]] = {
    "tanh": ("Tanh", {}),
    "relu": ("Relu", {}),
    "leaky_relu": ("LeakyRelu", {"alpha": LEAKY_SLOPE}),
    "elu": ("Elu", {}),
    "gelu": ("Gelu", {"approximate": "none"}),
    "gelu_tanh": ("Gelu", {"approximate": "tanh"}),
    "sigmoid": ("Sigmoid", {}),
}


def sentence_modules(
    builder: GraphBuilder, modules: SentenceModules, name: str = "modules", output: str = OUTPUT
) -> Any:
    """Return the ModelProto of the modules of a model, or of its classification head."""
    x = INPUT
    for step in modules.steps:
        match step:
            case Dense():
                x = _dense(builder, step, x)
            case LayerNorm(weight, bias, eps):
                parameters = [builder.weight(name) for name in (weight, bias) if name]
                x = builder.op("LayerNormalization", x, *parameters, axis=-1, epsilon=eps)
            case _:
                length = builder.op("ReduceL2", x, builder.constant(np.array([-1])), keepdims=1)
                x = builder.op("Div", x, builder.op("Max", length, builder.scalar(LEAST_LENGTH)))
    rows = {INPUT: ("FLOAT", ("texts", modules.inner))}
    return builder.model(name, rows, {output: (x, "FLOAT", ("texts", modules.width))})


def _dense(builder: GraphBuilder, dense: Dense, x: str) -> str:
    y = _activated(builder, _linear(builder, dense.linear, x), dense.activation)
    if dense.residual is None:
        return y
    return builder.op("Add", y, x if dense.residual == "input" else _linear(builder, dense.residual, x))


def _linear(builder: GraphBuilder, linear: Linear, x: str) -> str:
    bias = [builder.weight(linear.bias)] if linear.bias else []
    return builder.op("Gemm", x, builder.weight(linear.weight), *bias, transB=1)


def _activated(builder: GraphBuilder, x: str, activation: Activation) -> str:
    if activation == "identity":
        return x
    if activation == "silu":
        return builder.op("Mul", x, builder.op("Sigmoid", x))
    if activation == "quick_gelu":
        return builder.op("Mul", x, builder.op("Sigmoid", builder.op("Mul", x, builder.scalar(1.702))))
    if activation == "squared_relu":
        positive = builder.op("Relu", x)
        return builder.op("Mul", positive, positive)
    kind, attributes = _OPERATORS[activation]
    return builder.op(kind, x, **attributes)
