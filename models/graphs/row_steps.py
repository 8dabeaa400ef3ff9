"""Emits the steps of a recipe that map each row by itself, and activations."""

from typing import Any

import numpy as np

from models.graphs.builder import CONTRIB, GraphBuilder
from models.recipes.steps import LEAKY_SLOPE, Activation, LayerNorm, Linear, Multiply, RMSNorm, Round, Scale, Step

_OPERATORS: dict[Activation, tuple[str, dict[str, Any]]] = {
    "identity": ("Identity", {}),
    "tanh": ("Tanh", {}),
    "relu": ("Relu", {}),
    "leaky_relu": ("LeakyRelu", {"alpha": LEAKY_SLOPE}),
    "elu": ("Elu", {}),
    "gelu": ("Gelu", {"approximate": "none"}),
    "gelu_tanh": ("Gelu", {"approximate": "tanh"}),
    "quick_gelu": ("QuickGelu", {"domain": CONTRIB, "alpha": 1.702}),
    "sigmoid": ("Sigmoid", {}),
}


def emit_row_step(builder: GraphBuilder, step: Step, x: str) -> str:
    """Emit a step that maps each row by itself; TypeError for any other."""
    match step:
        case Scale(factor):
            return builder.op("Mul", x, builder.scalar(factor))
        case Round(dtype):
            return builder.cast(builder.cast(x, dtype.upper()), "FLOAT")
        case Linear(weight, bias):
            return builder.op("Gemm", x, *[builder.weight(name) for name in (weight, bias) if name], transB=1)
        case Multiply(weight):
            return builder.op("Mul", x, builder.weight(weight))
        case RMSNorm(None, eps, _):
            squares = builder.op("ReduceMean", builder.op("Mul", x, x), builder.constant(np.array([-1])), keepdims=1)
            return builder.op("Div", x, builder.op("Sqrt", builder.op("Add", squares, builder.scalar(eps))))
        case LayerNorm(None, None, eps):
            mean = builder.op("ReduceMean", x, builder.constant(np.array([-1])), keepdims=1)
            return emit_row_step(builder, RMSNorm(None, eps), builder.op("Sub", x, mean))
        case LayerNorm(str(weight), bias, eps, offset):
            factors = builder.weight(weight)
            if offset:
                factors = builder.op("Add", factors, builder.scalar(offset))
            parameters = [factors, builder.weight(bias)] if bias else [factors]
            return builder.op("LayerNormalization", x, *parameters, axis=-1, epsilon=eps)
        case RMSNorm(str(weight), eps, offset):
            factors = builder.weight(weight)
            if offset:
                factors = builder.op("Add", factors, builder.scalar(offset))
            return builder.op("RMSNormalization", x, factors, axis=-1, epsilon=eps)
    raise TypeError(f"no ONNX form for the step {step}")


def activate(builder: GraphBuilder, x: str, activation: Activation) -> str:
    """Emit an activation of every value."""
    if activation == "silu":
        return builder.op("Mul", x, builder.op("Sigmoid", x))
    if activation == "squared_relu":
        positive = builder.op("Relu", x)
        return builder.op("Mul", positive, positive)
    kind, attributes = _OPERATORS[activation]
    return builder.op(kind, x, **attributes)
