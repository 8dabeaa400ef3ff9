"""An output head as an ONNX graph: hidden float32 [N, width] -> logits float32 [N, V]. Copies no table.

The matrix is the tensor of the weights file, the same one the input layer reads where they are tied.
"""

from typing import Any

import numpy as np

from models.families.head_fitting import Head, Transform
from models.graphs.builder import GraphBuilder
from models.graphs.encoder import activate

INPUT, OUTPUT = "hidden", "logits"


def head(builder: GraphBuilder, row: Head) -> Any:
    """The graph of a head, as a ModelProto."""
    x = _transformed(builder, row.transform, INPUT) if row.transform else INPUT
    x = _times(builder, x, row.before)
    x = builder.product(x, row.matrix)  # (N, V)
    if row.bias:
        flat = builder.op("Reshape", builder.weight(row.bias), builder.constant(np.array([-1])))
        x = builder.op("Add", x, flat)
    x = _times(builder, x, row.after)
    if row.cap is not None:
        x = _times(builder, builder.op("Tanh", _times(builder, x, 1.0 / row.cap)), row.cap)
    if x == INPUT:
        x = builder.op("Identity", x)
    rows = {INPUT: ("FLOAT", ("rows", row.width))}
    return builder.model("head", rows, {OUTPUT: (x, "FLOAT", ("rows", row.vocab_size))})


def _transformed(builder: GraphBuilder, transform: Transform, x: str) -> str:
    dense, norm = transform.dense, transform.norm
    bias = [builder.weight(dense.bias)] if dense.bias else []
    x = builder.op("Gemm", x, builder.weight(dense.weight), *bias, transB=1)
    x = activate(builder, x, transform.activation)
    parameters = [builder.weight(name) for name in (norm.weight, norm.bias) if name]
    return builder.op("LayerNormalization", x, *parameters, axis=-1, epsilon=norm.eps)


def _times(builder: GraphBuilder, x: str, factor: float) -> str:
    return x if factor == 1.0 else builder.op("Mul", x, builder.scalar(factor))
