"""RoPE over more than one axis as ONNX: positions → cos and sin, in either arithmetic.

- mrope: positions int64 [3, tokens] -> rope_cos, rope_sin float32 [tokens, rotary_dim/2]
- axial: positions int64 [patches, 2] (DINOv3: and grid int64 [2]) -> rope_cos, rope_sin float32 [patches, head_dim/2]
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from models.graphs.builder import GraphBuilder
from models.graphs.positions.rope import cos_sin
from models.positions.arithmetic import Arithmetic, Frequencies
from models.positions.rope.axial import AXIAL, Axial, axial_parts
from models.positions.rope.multi_axis import AxisColumns, Int64s, mrope_parts
from models.positions.table import checked_name


def mrope(freqs: Frequencies, sections: Sequence[int] | None = None, axes: str = "chunked") -> Any:
    """Return M-RoPE's table of any positions (time, height, width) as a ModelProto; parameters as in `mrope_parts`.

    Raises:
        BadEncoding: unknown axes, or sections that do not fit.
    """
    builder = GraphBuilder({})
    joined, axis = _joined(mrope_parts(freqs, sections, axes))
    by_token = builder.op("Transpose", "positions", perm=[1, 0])
    cos, sin = cos_sin(builder, joined, builder.op("Gather", by_token, builder.constant(axis), axis=1))
    return _model(builder, "mrope", {"positions": ("INT64", (3, "tokens"))}, (cos, sin), len(axis))


def axial(kind: str, head_dim: int, *, theta: float | None = None, arithmetic: Arithmetic = "exact") -> Any:
    """Return a vision tower's table of any patches (row, column) as a ModelProto; parameters as in `tabulate_axial`.

    The caller adds rows that do not rotate (Llama 4's class token): cos 1, sin 0. A kind whose angles depend on the
    grid also has the input `grid`, patches down and across.

    Raises:
        BadEncoding: an unknown kind, or a head_dim that is not a multiple of 4.
    """
    row = AXIAL[checked_name("axial rope", kind, AXIAL)]
    builder = GraphBuilder({})
    inputs: dict[str, tuple[str, Sequence[str | int]]] = {"positions": ("INT64", ("tokens", 2))}
    inputs |= {"grid": ("INT64", (2,))} if row.by_grid else {}
    values = axial_cos_sin(builder, row, axial_parts(row, head_dim, theta, arithmetic), "positions", "grid")
    return _model(builder, "axial", inputs, values, head_dim // 2)


def axial_cos_sin(
    builder: GraphBuilder, row: Axial, parts: Sequence[AxisColumns], positions: str, grid: str
) -> tuple[str, str]:
    """Emit cos and sin [N, head_dim/2] of patches.

    Args:
        builder: builder of the graph.
        row: the tower.
        parts: the columns of its table.
        positions: row and column of each patch, int64 [N, 2].
        grid: patches down and across, int64 [2]; read where angles depend on it.
    """
    joined, axis = _joined(parts)
    index = builder.op("Gather", positions, builder.constant(axis), axis=1)
    if not row.by_grid:
        return cos_sin(builder, joined, _shifted(builder, row, index))
    count = builder.op("Gather", grid, builder.constant(axis))
    angle = (_stretched_angles if row.stretched else _centred_angles)(builder, row, joined, index, count)
    cos, sin = (builder.op(function, angle) for function in ("Cos", "Sin"))
    return (cos, sin) if joined.arithmetic == "parity" else (builder.cast(cos, "FLOAT"), builder.cast(sin, "FLOAT"))


def _joined(parts: Sequence[AxisColumns]) -> tuple[Frequencies, Int64s]:
    """Return the frequency and the axis of every column."""
    columns = np.concatenate([part.columns for part in parts])
    order = np.argsort(columns)
    inverse_frequency, residue = (
        np.concatenate(values)[order]
        for values in ([part.freqs.inverse_frequency for part in parts], [part.freqs.residue for part in parts])
    )
    axis = np.repeat([part.axis for part in parts], [len(part.columns) for part in parts])[order]
    first = parts[0].freqs
    return Frequencies(inverse_frequency, residue, first.attention_factor, first.arithmetic), axis


def _shifted(builder: GraphBuilder, row: Axial, positions: str) -> str:
    return builder.op("Add", positions, builder.scalar(row.first, np.int64)) if row.first else positions


def _stretched_angles(builder: GraphBuilder, row: Axial, freqs: Frequencies, index: str, count: str) -> str:
    """Emit stretched index/count * frequency, in the steps of axial.py."""
    kind, dtype = ("FLOAT", np.float32) if freqs.arithmetic == "parity" else ("DOUBLE", np.float64)
    share = builder.op("Div", builder.cast(index, kind), builder.cast(count, kind))
    place = builder.op("Mul", share, builder.scalar(float(row.stretched), dtype))
    return builder.op("Mul", place, builder.constant(freqs.inverse_frequency.astype(dtype)))


def _centred_angles(builder: GraphBuilder, row: Axial, freqs: Frequencies, index: str, count: str) -> str:
    """Emit 2 pi ((2 index + 1)/count - 1) * frequency, in the steps of axial.py."""
    if freqs.arithmetic == "parity":
        middle = builder.op("Add", builder.cast(index, "FLOAT"), builder.scalar(0.5))
        share = builder.op("Div", middle, builder.cast(count, "FLOAT"))
        centre = builder.op("Sub", builder.op("Mul", share, builder.scalar(2.0)), builder.scalar(1.0))
        around = builder.op("Mul", centre, builder.scalar(2.0 * math.pi))
        return builder.op("Mul", around, builder.constant(freqs.inverse_frequency.astype(np.float32)))
    one, two = (builder.scalar(number, np.int64) for number in (1, 2))
    steps = builder.op("Sub", builder.op("Add", builder.op("Mul", index, two), one), count)
    centre = builder.op("Div", builder.cast(steps, "DOUBLE"), builder.cast(count, "DOUBLE"))
    return builder.op("Mul", centre, builder.constant(2.0 * math.pi * freqs.inverse_frequency))


def _model(
    builder: GraphBuilder,
    name: str,
    inputs: dict[str, tuple[str, Sequence[str | int]]],
    values: Sequence[str],
    width: int,
) -> Any:
    named = zip(("rope_cos", "rope_sin"), values, strict=True)
    return builder.model(name, inputs, {key: (value, "FLOAT", ("tokens", width)) for key, value in named})
