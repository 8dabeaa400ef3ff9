"""Emits an image tower in front of a decoder: the patches of one image become the rows of its tokens.

pixel_values [rows, f], places [rows, 2], mask [rows], lengths [windows], order [tokens], and grid [2] where positions
are resized, or pixel_values [1, channels, height, width] alone  ->  image_rows [tokens, parts * d];
models/vision/image_tokens.py says what they are.
"""

from typing import Any

from models.graphs.builder import GraphBuilder
from models.graphs.encoder import Blocks
from models.graphs.positions.multi_axis import axial_cos_sin
from models.graphs.projections import Float32
from models.graphs.row_layout import layout, layout_of_images
from models.graphs.row_steps import activate, emit_row_step
from models.graphs.vision import Inputs, input_rows, inputs_of
from models.positions.rope.axial import AXIAL, axial_parts
from models.recipes.extra_inputs import IMAGE_ROWS
from models.recipes.positional_encodings import EVERY_LAYER
from models.vision.image_spec import ImageTokens
from models.vision.steps import Activate, Join, RowStep

_BY_WINDOWS: Inputs = {
    "places": ("INT64", ("rows", 2)),
    "mask": ("BOOL", ("rows",)),
    "lengths": ("INT64", ("windows",)),
    "order": ("INT64", ("tokens",)),
}


def image_rows(builder: GraphBuilder, spec: ImageTokens, width: int) -> Any:
    """Return the ModelProto of a tower; `width` is that of its rows."""
    x = builder.op("Reshape", input_rows(builder, spec.image.steps), builder.ints(-1, width))
    count = builder.op("Shape", x, start=0, end=1)
    whole = layout_of_images(builder, count, builder.op("Squeeze", count))
    inputs = inputs_of(spec.image.steps, spec.image.width)
    scope = Blocks(builder, Float32(), whole, width, {})
    if axial := spec.image.axial:
        inputs |= _BY_WINDOWS
        scope = Blocks(builder, Float32(), whole, width, {EVERY_LAYER: axial.table}, layout(builder))
        parts = axial_parts(AXIAL[axial.kind], axial.head_dim, axial.theta, "parity")
        scope.turns[EVERY_LAYER] = axial_cos_sin(builder, AXIAL[axial.kind], parts, "places", "")
    made, done = {}, 0
    for part in sorted(spec.parts, key=lambda part: part.behind):
        x, done = scope.emit(spec.blocks[done : part.behind], x), part.behind
        made[part] = _made(builder, part.steps, x)
    rows = builder.op("Concat", *[made[part] for part in spec.parts], axis=1)
    if axial:
        rows = builder.op("Gather", rows, "order")
    return builder.model(IMAGE_ROWS, inputs, {IMAGE_ROWS: (rows, "FLOAT", ("tokens", spec.width * len(spec.parts)))})


def _made(builder: GraphBuilder, steps: tuple[RowStep, ...], x: str) -> str:
    """Emit the steps from the rows of patches to those of tokens."""
    for step in steps:
        match step:
            case Join(count):
                columns = builder.op("Shape", x, start=1, end=2)
                wide = builder.op("Mul", columns, builder.ints(count))
                x = builder.op("Reshape", x, builder.op("Concat", builder.ints(-1), wide, axis=0))
            case Activate(activation):
                x = activate(builder, x, activation)
            case _:
                x = emit_row_step(builder, step, x)
    return x
