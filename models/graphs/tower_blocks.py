"""Emits the blocks of a vision tower, and the vector of an image, over rows [batch, rows, d] of images of one size."""

import numpy as np

from models.graphs.builder import CONTRIB, GraphBuilder
from models.graphs.encoder import Blocks
from models.graphs.positions.multi_axis import axial_cos_sin
from models.graphs.projections import Float32
from models.graphs.row_layout import layout_of_images
from models.graphs.row_steps import emit_row_step
from models.graphs.sentence_modules import dense
from models.positions.rope.axial import AXIAL, axial_parts
from models.recipes.positional_encodings import EVERY_LAYER
from models.recipes.sentence_modules import Dense
from models.recipes.steps import FeedForward, Recipe
from models.vision.image_spec import AxialRope
from models.vision.steps import AddToRow, AttentionPool, TakeRow, VectorSteps


def emit(
    builder: GraphBuilder,
    x: str,
    blocks: Recipe,
    vector: VectorSteps,
    width: int,
    flat: bool,
    axial: AxialRope | None,
    grid: str,
) -> dict[str, str]:
    """Emit the blocks of a tower.

    Args:
        builder: builder of the graph.
        x: the rows before the first block, float32 [batch, rows, d].
        blocks: the steps of all blocks.
        vector: steps from their rows to an image's vector; empty: there is none.
        width: d.
        flat: whether last_hidden_state is [rows, d], of the one image.
        axial: how the attention rotates; None: it does not.
        grid: patches down and across, int64 [2], which only this reads.

    Returns:
        last_hidden_state and, where there is a vector, image_embedding [batch, width of the vector].
    """
    whole = builder.op("Shape", x)
    batch, rows = (builder.cut(whole, place, place + 1) for place in (0, 1))  # (1,) each
    count = builder.op("Squeeze", rows)
    layout = layout_of_images(builder, builder.op("Expand", rows, batch), count)
    scope = Blocks(builder, Float32(), layout, width, {EVERY_LAYER: axial.table} if axial else {})
    if axial:
        scope.turns[EVERY_LAYER] = _turns(builder, axial, grid, rows, batch)
    packed = scope.emit(blocks, builder.op("Reshape", x, builder.ints(-1, width)))
    by_image = builder.op("Reshape", packed, whole)  # (B, R, d)
    outputs = {"last_hidden_state": builder.op("Identity", packed) if flat else by_image}
    if vector:
        outputs["image_embedding"] = _vector(scope, vector, by_image)
    return outputs


def _turns(builder: GraphBuilder, axial: AxialRope, grid: str, rows: str, batch: str) -> tuple[str, str]:
    """Emit cos and sin [batch * rows, head_dim/2] of every row; those before the patches do not rotate."""
    row = AXIAL[axial.kind]
    patches = builder.op("NonZero", builder.op("Expand", builder.scalar(1, np.int64), grid))  # (2, n), row by row
    parts = axial_parts(row, axial.head_dim, axial.theta, "parity")
    values = axial_cos_sin(builder, row, parts, builder.op("Transpose", patches, perm=[1, 0]), grid)
    count = builder.cut(builder.op("Shape", patches), 1, 2)
    before = builder.op("Concat", builder.op("Sub", rows, count), builder.ints(0, 0, 0), axis=0)
    of_batch = builder.op("Concat", batch, rows, builder.ints(axial.head_dim // 2), axis=0)
    cos, sin = (
        builder.op("Expand", builder.op("Pad", value, before, builder.scalar(fill)), of_batch)
        for value, fill in zip(values, (1.0, 0.0), strict=True)
    )
    flat = builder.ints(-1, axial.head_dim // 2)
    return builder.op("Reshape", cos, flat), builder.op("Reshape", sin, flat)


def _vector(scope: Blocks, steps: VectorSteps, x: str) -> str:
    """Emit the steps from rows [batch, rows, d] to vectors [batch, width]."""
    builder, rows = scope.builder, x
    for step in steps:
        match step:
            case TakeRow(row):
                x = _row(builder, rows, row)
            case AddToRow(row, feed_forward):
                x = builder.op("Add", scope.feed_forward(feed_forward, x), _row(builder, rows, row))
            case AttentionPool():
                x = _pooled(builder, step, x, scope.width)
            case FeedForward():
                x = builder.op("Add", scope.feed_forward(step, x), x)
            case Dense():
                x = dense(builder, step, x)
            case _:
                x = emit_row_step(builder, step, x)
    return x


def _row(builder: GraphBuilder, rows: str, row: int) -> str:
    """Emit one row of each image, [batch, d]."""
    taken = builder.op("Gather", rows, builder.ints(row), axis=1)  # (B, 1, d)
    return builder.op("Squeeze", taken, builder.ints(1))


def _pooled(builder: GraphBuilder, step: AttentionPool, x: str, width: int) -> str:
    """Emit the attention of one learned query over the rows of each image: [batch, width]."""
    batch = builder.cut(builder.op("Shape", x), 0, 1)
    packed = builder.op("Reshape", x, builder.ints(-1, width))
    probe = builder.op("Reshape", builder.weight(step.probe), builder.ints(1, width))
    read = [packed, packed] if step.query else [probe, packed, packed]
    *own, key, value = (_part(builder, step, rows, part, width) for part, rows in enumerate(read))
    query = emit_row_step(builder, step.query, probe) if step.query else own[0]
    shape = builder.op("Concat", batch, builder.ints(-1, width), axis=0)
    one = builder.op("Concat", batch, builder.ints(1, width), axis=0)
    query = builder.op("Expand", query, one)  # (B, 1, d)
    key, value = (builder.op("Reshape", rows, shape) for rows in (key, value))  # (B, R, d)
    mixed = builder.op("MultiHeadAttention", query, key, value, domain=CONTRIB, num_heads=step.heads)
    return emit_row_step(builder, step.output, builder.op("Reshape", mixed, builder.ints(-1, width)))


def _part(builder: GraphBuilder, step: AttentionPool, rows: str, part: int, width: int) -> str:
    """Emit rows times one of the three matrices that lie one under the other, and its bias."""
    bounds = part * width, (part + 1) * width
    weight, bias = (builder.cut(builder.weight(name), *bounds) for name in (step.weight, step.bias))
    return builder.op("Gemm", rows, weight, bias, transB=1)
