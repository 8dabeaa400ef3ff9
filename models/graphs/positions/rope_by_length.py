"""RoPE as ONNX where the frequencies depend on the length of the sequence: dynamic and longrope, in parity arithmetic.

Each sequence of a batch has the frequencies of its own length, so its bits are the same alone and among others.
"""

import numpy as np

from models.graphs.builder import GraphBuilder
from models.graphs.positions.rope import filled
from models.positions.rope.frequencies import Rope, frequencies, threshold


def cos_sin_by_length(builder: GraphBuilder, rope: Rope, positions: str, columns: int) -> tuple[str, str]:
    """Add nodes for float32 cos and sin, times the attention factor, of packed rows.

    Args:
        builder: builder of a graph with the input lengths int64 [B].
        rope: a rope whose rope_type is in BY_LENGTH.
        positions: int64 [N, 1].
        columns: cos and sin have r/2 columns, and as many more as make a multiple of this.
    """
    longest = threshold(rope)
    short, long = (filled(frequencies(rope, "parity", length), columns) for length in (longest, longest + 1))
    column = builder.ints(1)
    lengths = builder.op("Unsqueeze", "lengths", column)  # (B, 1)
    beyond = builder.op("Greater", lengths, builder.scalar(longest, np.int64))
    constants = [builder.constant(freqs.inverse_frequency.astype(np.float32)) for freqs in (short, long)]
    if rope.rope_type == "dynamic":
        constants[1] = _dynamic(builder, rope, lengths, longest, columns)
    numbers = _numbers(builder, positions)
    by_row = builder.op("Gather", builder.op("Where", beyond, constants[1], constants[0]), numbers)  # (N, columns)
    angles = builder.op("Mul", builder.cast(positions, "FLOAT"), by_row)
    values = [builder.op(function, angles) for function in ("Cos", "Sin")]
    factors = [freqs.attention_factor for freqs in (long, short)]
    if factors != [1.0, 1.0]:
        scales = builder.op("Where", beyond, *(builder.scalar(factor) for factor in factors))
        scale = builder.op("Gather", scales, numbers)  # (N, 1)
        values = [builder.op("Mul", value, scale) for value in values]
    return values[0], values[1]


def _numbers(builder: GraphBuilder, positions: str) -> str:
    """Emit the number of each row's sequence, int64 [N]."""
    first = builder.ints(0)
    starts = builder.op("CumSum", "lengths", builder.scalar(0, np.int64), exclusive=1)
    rows = builder.op("Shape", positions, start=0, end=1)
    marks = builder.op("Expand", first, rows)
    ones = builder.op("Expand", builder.ints(1), builder.op("Shape", "lengths"))
    marks = builder.op("ScatterElements", marks, starts, ones, axis=0)  # 1 where a sequence begins
    return builder.op("Sub", builder.op("CumSum", marks, builder.scalar(0, np.int64)), builder.scalar(1, np.int64))


def _dynamic(builder: GraphBuilder, rope: Rope, lengths: str, trained: int, columns: int) -> str:
    """Emit the frequencies of each sequence longer than `trained`, float32 [B, columns], in the steps of scalings.py.

    Powers are computed in float64 and rounded, as the reference does.
    """
    factor, r = dict(rope.parameters)["factor"], rope.rotary_dim
    grown = builder.op("Mul", builder.scalar(factor), builder.cast(lengths, "FLOAT"))
    grown = builder.op("Div", grown, builder.scalar(trained))
    grown = builder.op("Max", builder.op("Sub", grown, builder.scalar(factor - 1)), builder.scalar(1.0))
    power = _power(builder, grown, builder.scalar(r / (r - 2), np.float64))
    theta = builder.op("Mul", builder.scalar(rope.theta), power)  # (B, 1)
    exponents = np.arange(0, r, 2, dtype=np.float32) / np.float32(r)
    exponents = np.pad(exponents.astype(np.float64), (0, -len(exponents) % columns))
    return builder.op("Div", builder.scalar(1.0), _power(builder, theta, builder.constant(exponents)))


def _power(builder: GraphBuilder, base: str, exponents: str) -> str:
    return builder.cast(builder.op("Pow", builder.cast(base, "DOUBLE"), exponents), "FLOAT")
