"""Emits the modules behind Pooling as an ONNX graph: pooled float32 [texts, inner] -> vectors float32 [texts, width].

A row gets the same bits alone and among others: ONNX Runtime's Gemm sums every element in one order
(tests/models/graphs/test_sentence_modules.py), which numpy's product of matrices does not.
"""

from typing import Any

from models.graphs.builder import GraphBuilder
from models.graphs.row_steps import activate, emit_row_step
from models.recipes.sentence_modules import LEAST_LENGTH, Dense, SentenceModules
from models.recipes.steps import LayerNorm

INPUT, OUTPUT = "pooled", "vectors"


def sentence_modules(
    builder: GraphBuilder, modules: SentenceModules, name: str = "modules", output: str = OUTPUT
) -> Any:
    """Return the ModelProto of the modules of a model, or of its classification head."""
    x = INPUT
    for step in modules.steps:
        match step:
            case Dense():
                x = dense(builder, step, x)
            case LayerNorm():
                x = emit_row_step(builder, step, x)
            case _:
                length = builder.op("ReduceL2", x, builder.ints(-1), keepdims=1)
                x = builder.op("Div", x, builder.op("Max", length, builder.scalar(LEAST_LENGTH)))
    rows = {INPUT: ("FLOAT", ("texts", modules.inner))}
    return builder.model(name, rows, {output: (x, "FLOAT", ("texts", modules.width))})


def dense(builder: GraphBuilder, step: Dense, x: str) -> str:
    """Emit a Dense over rows x [N, inner]."""
    y = emit_row_step(builder, step.linear, x)
    y = y if step.activation == "identity" else activate(builder, y, step.activation)
    if step.residual is None:
        return y
    return builder.op("Add", y, x if step.residual == "input" else emit_row_step(builder, step.residual, x))
