"""Emits an output head as an ONNX graph: hidden float32 [N, width] -> logits float32 [N, V].

The matrix is the tensor of the weights file, which the input layer reads too where they are tied.
"""

from typing import Any

from models.graphs.builder import GraphBuilder
from models.graphs.row_steps import activate, emit_row_step
from models.recipes.heads import OutputHead, Transform

INPUT, OUTPUT = "hidden", "logits"


def head(builder: GraphBuilder, spec: OutputHead, packed: bool = False) -> Any:
    """Return the ModelProto of a head, its matrix `packed` as for GraphBuilder.product."""
    x = _transformed(builder, spec.transform, INPUT) if spec.transform else INPUT
    x = _times(builder, x, spec.before)
    x = builder.product(x, spec.matrix, packed)  # (N, V)
    if spec.bias:
        flat = builder.op("Reshape", builder.weight(spec.bias), builder.ints(-1))
        x = builder.op("Add", x, flat)
    x = _times(builder, x, spec.after)
    if spec.cap is not None:
        x = _times(builder, builder.op("Tanh", _times(builder, x, 1.0 / spec.cap)), spec.cap)
    if x == INPUT:
        x = builder.op("Identity", x)
    rows = {INPUT: ("FLOAT", ("rows", spec.width))}
    return builder.model("head", rows, {OUTPUT: (x, "FLOAT", ("rows", spec.vocab_size))})


def _transformed(builder: GraphBuilder, transform: Transform, x: str) -> str:
    x = activate(builder, emit_row_step(builder, transform.dense, x), transform.activation)
    return emit_row_step(builder, transform.norm, x)


def _times(builder: GraphBuilder, x: str, factor: float) -> str:
    return x if factor == 1.0 else builder.op("Mul", x, builder.scalar(factor))
