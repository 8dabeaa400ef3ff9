"""Rotating q and k as ONNX: x, cos, sin → rotated x, forward or inverse, in every layout. Makes no angles.

rotation    x [.., head_dim], cos and sin [.., rotary_dim/2]  ->  rotated, x's shape
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from models.errors import BadEncoding
from models.graphs.builder import GraphBuilder
from models.positions.rope.rotation import Layout, Pair, check_channels, inverse_scale, layout_named, pairs
from models.positions.table import Arithmetic

Dimensions = tuple[str | int, ...]
_END = 2**63 - 1  # of an axis, however long


def rotation(
    layout: str,
    head_dim: int,
    rotary_dim: int,
    *,
    inverse: bool = False,
    skip: int = 0,
    attention_factor: float = 1.0,
    arithmetic: Arithmetic = "exact",
    axes: Sequence[str] = ("tokens", "heads"),
    table_axes: Sequence[str] = ("tokens",),
) -> Any:
    """A ModelProto that rotates float32 x by float32 cos and sin.

    skip        leading tokens that pass unrotated; cos and sin have no rows for them
    arithmetic  exact: products and sums in float64, rounded once. parity: each in float32
    axes        names of x's axes before head_dim, in order; the one to skip along is called tokens
    table_axes  which of them cos and sin have, in the same order; over the others they are repeated
    raises      BadEncoding, as rotation.rotate
    """
    if [name for name in axes if name in table_axes] != list(table_axes):
        raise BadEncoding(f"cos and sin have axes {list(table_axes)}; they must be some of x's {list(axes)}, in order")
    builder = GraphBuilder({})
    missing = [index for index, name in enumerate(axes) if name not in table_axes]
    cos, sin = (
        builder.op("Unsqueeze", name, builder.constant(np.array(missing))) if missing else name
        for name in ("cos", "sin")
    )
    along = list(axes).index("tokens") if skip else 0
    turning = _part(builder, "x", slice(skip, _END), along) if skip else "x"
    turned = rotated(
        builder,
        (turning, cos, sin),
        layout_named(layout),
        (head_dim, rotary_dim),
        inverse=inverse,
        attention_factor=attention_factor,
        arithmetic=arithmetic,
    )
    if skip:
        turned = builder.op("Concat", _part(builder, "x", slice(0, skip), along), turned, axis=along)
    rows = ("rotating" if skip and name == "tokens" else name for name in table_axes)
    table: Dimensions = (*rows, rotary_dim // 2)
    whole: Dimensions = (*axes, head_dim)
    inputs = {"x": ("FLOAT", whole), "cos": ("FLOAT", table), "sin": ("FLOAT", table)}
    return builder.model("rotation", inputs, {"rotated": (turned, "FLOAT", whole)})


def rotated(
    builder: GraphBuilder,
    values: tuple[str, str, str],
    layout: Layout,
    channels: tuple[int, int],
    *,
    inverse: bool = False,
    attention_factor: float = 1.0,
    arithmetic: Arithmetic = "exact",
) -> str:
    """Nodes that rotate float32 x.

    values    x [.., head_dim], cos and sin [.., rotary_dim/2] that broadcast against x's axes
    channels  head_dim, rotary_dim
    returns   float32, x's shape
    """
    check_channels(layout, *channels)
    if arithmetic == "exact":
        values = tuple(builder.cast(value, "DOUBLE") for value in values)  # type: ignore[assignment]
    x, cos, sin = values
    if inverse:
        scale = builder.scalar(inverse_scale(attention_factor), np.float64 if arithmetic == "exact" else np.float32)
        cos, sin = (builder.op("Mul", value, scale) for value in (cos, sin))
    if (layout.sign < 0) != inverse:
        sin = builder.op("Neg", sin)
    turned = _turned(builder, (x, cos, sin), layout, channels, inverse)
    head_dim, rotary_dim = channels
    if rotary_dim < head_dim:
        passed = slice(0, head_dim - rotary_dim) if layout.trailing else slice(rotary_dim, head_dim)
        beyond = _part(builder, x, passed)
        turned = builder.op("Concat", *((beyond, turned) if layout.trailing else (turned, beyond)), axis=-1)
    return builder.cast(turned, "FLOAT") if arithmetic == "exact" else turned


def _turned(
    builder: GraphBuilder, values: tuple[str, str, str], layout: Layout, channels: tuple[int, int], inverse: bool
) -> str:
    """The rotary channels alone, each block's pairs read, turned and written."""
    x, cos, sin = values
    read, written = (layout.written, layout.read) if inverse else (layout.read, layout.written)
    width = channels[1] // 2 // layout.blocks
    blocks = []
    for block, pair in enumerate(pairs(layout, read, *channels)):
        mine = slice(block * width, (block + 1) * width)
        angle = [_part(builder, value, mine) if layout.blocks > 1 else value for value in (cos, sin)]
        first, second = _turn(builder, x, pair, angle)
        halves = builder.op("Concat", first, second, axis=-1)
        blocks.append(halves if written == "half" else _riffled(builder, halves, width))
    return blocks[0] if len(blocks) == 1 else builder.op("Concat", *blocks, axis=-1)


def _riffled(builder: GraphBuilder, halves: str, width: int) -> str:
    """Channels first[0], second[0], first[1], ... of firsts followed by seconds."""
    order = np.arange(2 * width).reshape(2, width).T.ravel()
    return builder.op("Gather", halves, builder.constant(order), axis=-1)


def _turn(builder: GraphBuilder, x: str, pair: Pair, angle: Sequence[str]) -> tuple[str, str]:
    cos, sin = angle
    u, v = (_part(builder, x, side) for side in pair)
    first = builder.op("Sub", builder.op("Mul", u, cos), builder.op("Mul", v, sin))
    return first, builder.op("Add", builder.op("Mul", v, cos), builder.op("Mul", u, sin))


def _part(builder: GraphBuilder, value: str, part: slice, axis: int = -1) -> str:
    numbers = (part.start, part.stop, axis, part.step or 1)
    return builder.op("Slice", value, *(builder.constant(np.array([number])) for number in numbers))
