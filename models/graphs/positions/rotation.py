"""Rotation of q and k as ONNX: x, cos, sin → rotated x, forward or inverse, in every layout.

x [.., head_dim], cos and sin [.., rotary_dim/2] -> rotated, x's shape
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from models.errors import BadEncoding
from models.graphs.builder import GraphBuilder
from models.positions.rope.rotation import Layout, Pair, check_channels, inverse_scale, layout_named, pairs
from models.positions.table import Arithmetic

Dimensions = tuple[str | int, ...]
_END = 2**63 - 1  # the end of an axis of any length


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
    """Return a ModelProto that rotates float32 x by float32 cos and sin.

    Args:
        layout: a row of LAYOUTS.
        head_dim: channels of a head.
        rotary_dim: channels of a head that rotate.
        inverse: whether to undo a rotation by the same cos and sin.
        skip: leading tokens that are not rotated; cos and sin have no rows for them.
        attention_factor: factor included in cos and sin; only the inverse reads it and divides by its square.
        arithmetic: exact: products and sums in float64, rounded once. parity: each in float32.
        axes: names of x's axes before head_dim, in order; `skip` counts along the one named tokens.
        table_axes: which of them cos and sin have, in the same order; along the others they are repeated.

    Raises:
        BadEncoding: an unknown layout, or sizes or axes that do not fit.
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
    rotating = _slice(builder, "x", slice(skip, _END), along) if skip else "x"
    rotated_x = rotated(
        builder,
        (rotating, cos, sin),
        layout_named(layout),
        (head_dim, rotary_dim),
        inverse=inverse,
        attention_factor=attention_factor,
        arithmetic=arithmetic,
    )
    if skip:
        rotated_x = builder.op("Concat", _slice(builder, "x", slice(0, skip), along), rotated_x, axis=along)
    rows = ("rotating" if skip and name == "tokens" else name for name in table_axes)
    table: Dimensions = (*rows, rotary_dim // 2)
    whole: Dimensions = (*axes, head_dim)
    inputs = {"x": ("FLOAT", whole), "cos": ("FLOAT", table), "sin": ("FLOAT", table)}
    return builder.model("rotation", inputs, {"rotated": (rotated_x, "FLOAT", whole)})


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
    """Add nodes that rotate float32 x.

    Args:
        builder: the graph.
        values: names of x [.., head_dim], cos and sin [.., rotary_dim/2] that broadcast against x's axes.
        layout: the arrangement of pairs.
        channels: head_dim, rotary_dim.
        inverse: as in `rotation`, as are attention_factor and arithmetic.

    Returns:
        float32, x's shape.
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
    rotated_x = _rotate_channels(builder, (x, cos, sin), layout, channels, inverse)
    head_dim, rotary_dim = channels
    if rotary_dim < head_dim:
        unrotated_slice = slice(0, head_dim - rotary_dim) if layout.trailing else slice(rotary_dim, head_dim)
        unrotated = _slice(builder, x, unrotated_slice)
        rotated_x = builder.op(
            "Concat", *((unrotated, rotated_x) if layout.trailing else (rotated_x, unrotated)), axis=-1
        )
    return builder.cast(rotated_x, "FLOAT") if arithmetic == "exact" else rotated_x


def _rotate_channels(
    builder: GraphBuilder, values: tuple[str, str, str], layout: Layout, channels: tuple[int, int], inverse: bool
) -> str:
    """The rotary channels only: each block's pairs are read, turned and written."""
    x, cos, sin = values
    read, written = (layout.written, layout.read) if inverse else (layout.read, layout.written)
    width = channels[1] // 2 // layout.blocks
    blocks = []
    for block, pair in enumerate(pairs(layout, read, *channels)):
        columns = slice(block * width, (block + 1) * width)
        angle = [_slice(builder, value, columns) if layout.blocks > 1 else value for value in (cos, sin)]
        first, second = _rotate_pair(builder, x, pair, angle)
        halves = builder.op("Concat", first, second, axis=-1)
        blocks.append(halves if written == "half" else _interleaved(builder, halves, width))
    return blocks[0] if len(blocks) == 1 else builder.op("Concat", *blocks, axis=-1)


def _interleaved(builder: GraphBuilder, halves: str, width: int) -> str:
    """Channels first[0], second[0], first[1], ... of firsts followed by seconds."""
    order = np.arange(2 * width).reshape(2, width).T.ravel()
    return builder.op("Gather", halves, builder.constant(order), axis=-1)


def _rotate_pair(builder: GraphBuilder, x: str, pair: Pair, angle: Sequence[str]) -> tuple[str, str]:
    cos, sin = angle
    u, v = (_slice(builder, x, side) for side in pair)
    first = builder.op("Sub", builder.op("Mul", u, cos), builder.op("Mul", v, sin))
    return first, builder.op("Add", builder.op("Mul", v, cos), builder.op("Mul", u, sin))


def _slice(builder: GraphBuilder, value: str, part: slice, axis: int = -1) -> str:
    numbers = (part.start, part.stop, axis, part.step or 1)
    return builder.op("Slice", value, *(builder.constant(np.array([number])) for number in numbers))
