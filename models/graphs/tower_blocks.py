"""Emits the blocks of a vision tower, and the vector of an image, over rows [batch, rows, d] of images of one size."""

import numpy as np

from models.graphs.builder import CONTRIB, GraphBuilder
from models.graphs.encoder import Blocks
from models.graphs.projections import Float32
from models.graphs.row_layout import layout_of_images
from models.graphs.row_steps import emit_row_step
from models.recipes.steps import FeedForward, Recipe
from models.vision.steps import AttentionPool, TakeRow, VectorSteps


def emit(builder: GraphBuilder, x: str, blocks: Recipe, vector: VectorSteps, width: int, flat: bool) -> dict[str, str]:
    """Emit the blocks of a tower.

    Args:
        builder: builder of the graph.
        x: the rows before the first block, float32 [batch, rows, d].
        blocks: the steps of all blocks.
        vector: steps from their rows to an image's vector; empty: there is none.
        width: d.
        flat: whether last_hidden_state is [rows, d], of the one image.

    Returns:
        last_hidden_state and, where there is a vector, image_embedding [batch, width of the vector].
    """
    whole = builder.op("Shape", x)
    batch, rows = (builder.op("Slice", whole, *_ints(builder, place, place + 1)) for place in (0, 1))  # (1,) each
    count = builder.op("Squeeze", rows)
    layout = layout_of_images(builder, builder.op("Expand", rows, batch), count)
    scope = Blocks(builder, Float32(), layout, width, {})
    packed = scope.emit(blocks, builder.op("Reshape", x, builder.constant(np.array([-1, width]))))
    by_image = builder.op("Reshape", packed, whole)  # (B, R, d)
    outputs = {"last_hidden_state": builder.op("Identity", packed) if flat else by_image}
    if vector:
        outputs["image_embedding"] = _vector(scope, vector, by_image)
    return outputs


def _vector(scope: Blocks, steps: VectorSteps, x: str) -> str:
    """Emit the steps from rows [batch, rows, d] to vectors [batch, width]."""
    builder = scope.builder
    for step in steps:
        match step:
            case TakeRow(row):
                taken = builder.op("Gather", x, *_ints(builder, row), axis=1)  # (B, 1, d)
                x = builder.op("Squeeze", taken, *_ints(builder, 1))
            case AttentionPool():
                x = _pooled(builder, step, x, scope.width)
            case FeedForward():
                x = builder.op("Add", scope.feed_forward(step, x), x)
            case _:
                x = emit_row_step(builder, step, x)
    return x


def _pooled(builder: GraphBuilder, step: AttentionPool, x: str, width: int) -> str:
    """Emit the attention of one learned query over the rows of each image: [batch, width]."""
    batch = builder.op("Slice", builder.op("Shape", x), *_ints(builder, 0, 1))
    packed = builder.op("Reshape", x, builder.constant(np.array([-1, width])))
    probe = builder.op("Reshape", builder.weight(step.probe), builder.constant(np.array([1, width])))
    query, key, value = (_part(builder, step, rows, part, width) for part, rows in enumerate((probe, packed, packed)))
    shape = builder.op("Concat", batch, builder.constant(np.array([-1, width])), axis=0)
    one = builder.op("Concat", batch, builder.constant(np.array([1, width])), axis=0)
    query = builder.op("Expand", query, one)  # (B, 1, d)
    key, value = (builder.op("Reshape", rows, shape) for rows in (key, value))  # (B, R, d)
    mixed = builder.op("MultiHeadAttention", query, key, value, domain=CONTRIB, num_heads=step.heads)
    return emit_row_step(builder, step.output, builder.op("Reshape", mixed, builder.constant(np.array([-1, width]))))


def _part(builder: GraphBuilder, step: AttentionPool, rows: str, part: int, width: int) -> str:
    """Emit rows times one of the three matrices that lie one under the other, and its bias."""
    bounds = _ints(builder, part * width, (part + 1) * width)
    weight, bias = (builder.op("Slice", builder.weight(name), *bounds) for name in (step.weight, step.bias))
    return builder.op("Gemm", rows, weight, bias, transB=1)


def _ints(builder: GraphBuilder, *values: int) -> list[str]:
    return [builder.constant(np.array([value])) for value in values]
