"""Emits a whole encoder as one packed ONNX graph: rows [N, d], and a padded rectangle in attention only.

Measured on one CPU core (ONNX Runtime 1.31, MiniLM, 8 to 256 tokens), this form is at the FLOP or memory limit: merging
query, key and value, transposing weights beforehand, other Gelu or mask forms and Attention-23 are within 3 % of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.families.recipe import (
    Activation,
    Attention,
    FeedForward,
    Linear,
    Recipe,
)
from models.graphs.builder import CONTRIB, GraphBuilder
from models.graphs.input_layer import (
    INPUTS,
    emit_input_layer,
    emit_row_step,
    inputs_of,
    packed_output,
)


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Values that carry packed rows into [B, S] and back.

    Attributes:
        take: int64 [B, S], the packed row of each slot (slots past a sequence's end repeat a row; `keys` hides them).
        keys: int32 [B, S], 1 where a slot may be attended to.
        back: int64 [N], the slot of each packed row in [B*S].
    """

    take: str
    keys: str
    back: str


def encoder(builder: GraphBuilder, recipe: Recipe, blocks: Recipe, width: int) -> Any:
    """Return the ModelProto of the input layer and all blocks.

    Its inputs are those of the input layer, mask bool [N] and lengths int64 [B] (sum N, each at least 1). Its output is
    last_hidden_state float32 [N, d]. No row attends to a row whose mask is False, but it has an output. A sequence
    whose rows are all False attends to all of them, as if its mask were all True.

    Args:
        builder: of the graph.
        recipe, blocks: the steps of the input layer and of all blocks.
        width: d.
    """
    x = emit_input_layer(builder, recipe)
    rectangle = _rectangle(builder)
    for step in blocks:
        match step:
            case Attention():
                x = builder.op("Add", _attention(builder, step, x, rectangle, width), x)
            case FeedForward(up, down, activation):
                inner = activate(builder, _project(builder, up, x), activation)
                x = builder.op("Add", _project(builder, down, inner), x)
            case _:
                x = emit_row_step(builder, step, x)
    names = (*inputs_of(recipe), "mask", "lengths")
    return builder.model(
        "encoder", {name: INPUTS[name] for name in names}, {"last_hidden_state": packed_output(x, width)}
    )


def _rectangle(builder: GraphBuilder) -> Rectangle:
    zero, one = builder.scalar(0, np.int64), builder.scalar(1, np.int64)
    columns = builder.op("Range", zero, builder.op("ReduceMax", "lengths", keepdims=0), one)  # (S,)
    starts = builder.op("CumSum", "lengths", zero, exclusive=1)  # (B,)
    column = builder.constant(np.array([1]))
    lengths, starts = (builder.op("Unsqueeze", value, column) for value in ("lengths", starts))  # (B, 1)
    inside = builder.op("Less", columns, lengths)  # (B, S)
    take = builder.op("Where", inside, builder.op("Add", columns, starts), starts)
    attended = builder.op("And", inside, builder.op("Gather", "mask", take))
    counts = builder.op("ReduceSum", builder.cast(attended, "INT32"), column, keepdims=1)  # (B, 1)
    all_masked = builder.op("Not", builder.cast(counts, "BOOL"))  # (B, 1)
    keys = builder.op("Or", attended, builder.op("And", inside, all_masked))
    flat = builder.op("Reshape", inside, builder.constant(np.array([-1])))
    back = builder.op("Squeeze", builder.op("NonZero", flat), builder.constant(np.array([0])))
    return Rectangle(take, builder.cast(keys, "INT32"), back)


def _attention(builder: GraphBuilder, step: Attention, x: str, rectangle: Rectangle, width: int) -> str:
    query, key, value = (
        builder.op("Gather", _project(builder, linear, x), rectangle.take)
        for linear in (step.query, step.key, step.value)
    )  # (B, S, d)
    mixed = builder.op(
        "MultiHeadAttention", query, key, value, "", rectangle.keys, domain=CONTRIB, num_heads=step.heads
    )  # (B, S, d)
    flat = builder.op("Reshape", mixed, builder.constant(np.array([-1, width])))  # (B*S, d)
    return _project(builder, step.output, builder.op("Gather", flat, rectangle.back))  # (N, d)


def _project(builder: GraphBuilder, linear: Linear, x: str) -> str:
    parameters = [builder.weight(name) for name in (linear.weight, linear.bias) if name]
    return builder.op("Gemm", x, *parameters, transB=1)


def activate(builder: GraphBuilder, x: str, activation: Activation) -> str:
    """Add an activation of recipe.py."""
    forms: Mapping[Activation, tuple[str, dict[str, Any]]] = {
        "gelu": ("Gelu", {"approximate": "none"}),
        "gelu_tanh": ("Gelu", {"approximate": "tanh"}),
        "relu": ("Relu", {}),
    }
    if activation == "silu":
        return builder.op("Mul", x, builder.op("Sigmoid", x))
    kind, attributes = forms[activation]
    return builder.op(kind, x, **attributes)
