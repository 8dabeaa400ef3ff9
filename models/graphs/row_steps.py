"""Emits the steps of a recipe that map each row by itself, and activations."""

from collections.abc import Callable
from typing import Any

from models.graphs.builder import CONTRIB, GraphBuilder
from models.recipes.steps import (
    GELU_BOUND,
    LAPLACE_MEAN,
    LAPLACE_WIDTH,
    LEAKY_SLOPE,
    Activation,
    LayerNorm,
    Linear,
    Multiply,
    RMSNorm,
    Round,
    Scale,
    Step,
)

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
    "hardswish": ("HardSwish", {}),
}
_COMPOSED: dict[Activation, Callable[[GraphBuilder, str], str]] = {
    "silu": lambda builder, x: builder.op("Mul", x, builder.op("Sigmoid", x)),
    "squared_relu": lambda builder, x: _squared(builder, builder.op("Relu", x)),
    "gelu_clipped": lambda builder, x: _clipped(builder, activate(builder, x, "gelu"), -GELU_BOUND, GELU_BOUND),
    "relu6": lambda builder, x: _clipped(builder, x, 0.0, 6.0),
    "mish": lambda builder, x: builder.op("Mul", x, builder.op("Tanh", builder.op("Softplus", x))),
    "sqrtsoftplus": lambda builder, x: builder.op("Sqrt", builder.op("Softplus", x)),
    "laplace": lambda builder, x: _laplace(builder, x),
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
            squares = builder.op("ReduceMean", builder.op("Mul", x, x), builder.ints(-1), keepdims=1)
            return builder.op("Div", x, builder.op("Sqrt", builder.op("Add", squares, builder.scalar(eps))))
        case LayerNorm(None, None, eps):
            mean = builder.op("ReduceMean", x, builder.ints(-1), keepdims=1)
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
    if activation in _COMPOSED:
        return _COMPOSED[activation](builder, x)
    kind, attributes = _OPERATORS[activation]
    return builder.op(kind, x, **attributes)


def _squared(builder: GraphBuilder, x: str) -> str:
    return builder.op("Mul", x, x)


def _clipped(builder: GraphBuilder, x: str, least: float, most: float) -> str:
    return builder.op("Clip", x, builder.scalar(least), builder.scalar(most))


def _laplace(builder: GraphBuilder, x: str) -> str:
    """Emit the cumulative distribution of a normal variable."""
    centred = builder.op("Sub", x, builder.scalar(LAPLACE_MEAN))
    share = builder.op("Erf", builder.op("Div", centred, builder.scalar(LAPLACE_WIDTH)))
    return builder.op("Mul", builder.op("Add", share, builder.scalar(1.0)), builder.scalar(0.5))
