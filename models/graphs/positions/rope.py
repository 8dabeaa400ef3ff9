"""RoPE as ONNX: positions → cos and sin, in either arithmetic; and the angle nodes that other graphs use.

positions int64 [tokens] -> rope_cos, rope_sin float32 [tokens, rotary_dim/2]
"""

from dataclasses import replace
from typing import Any

import numpy as np

from models.graphs.builder import GraphBuilder
from models.positions.arithmetic import Frequencies
from models.positions.rope.angles import turns

POSITIONS = ("INT64", ("tokens",))


def rope(freqs: Frequencies, suffix: str = "") -> Any:
    """Return the table of any positions as a ModelProto; parity keeps the frequencies' float32 bits in the graph.

    Args:
        freqs: the frequencies.
        suffix: suffix of the outputs' names, if a model has several tables.
    """
    builder = GraphBuilder({})
    column = builder.op("Unsqueeze", "positions", builder.ints(-1))
    cos, sin = cos_sin(builder, freqs, column)
    width = len(freqs.inverse_frequency)
    named = ((f"rope_cos{suffix}", cos), (f"rope_sin{suffix}", sin))
    outputs = {name: (value, "FLOAT", ("tokens", width)) for name, value in named}
    return builder.model("rope", {"positions": POSITIONS}, outputs)


def cos_sin(builder: GraphBuilder, freqs: Frequencies, positions: str) -> tuple[str, str]:
    """Add nodes for float32 cos and sin, times the attention factor, of int64 positions [..., 1] or [..., r/2].

    Exact: whole turns are removed from the angle, which is float64 and rounded last; below position 2^26 the values are
    as good as those of angles.py.
    """
    angle = angles(builder, freqs, positions)
    cos, sin = (_scaled(builder, freqs, builder.op(function, angle)) for function in ("Cos", "Sin"))
    return cos, sin


def filled(freqs: Frequencies, columns: int) -> Frequencies:
    """Return the frequencies (parity) with zeros behind the last, up to a multiple of `columns`."""
    missing = -len(freqs.inverse_frequency) % columns
    return replace(freqs, inverse_frequency=np.pad(freqs.inverse_frequency, (0, missing)))


def angles(builder: GraphBuilder, freqs: Frequencies, positions: str) -> str:
    """Add nodes for the angles [..., r/2] of int64 positions [..., 1].

    Returns:
        the name of the value: float64 without whole turns (exact), float32 (parity).
    """
    if freqs.arithmetic == "parity":
        frequencies = builder.constant(freqs.inverse_frequency.astype(np.float32))
        return builder.op("Mul", builder.cast(positions, "FLOAT"), frequencies)
    parts = turns(freqs)
    column = builder.cast(positions, "DOUBLE")
    turned = [
        _fraction(builder, builder.op("Mul", column, builder.constant(part))) for part in (parts.high, parts.middle)
    ]
    turned.append(builder.op("Mul", column, builder.constant(parts.low)))
    part = _fraction(builder, builder.op("Add", builder.op("Add", turned[0], turned[1]), turned[2]))
    return builder.op("Mul", part, builder.scalar(2.0 * np.pi, np.float64))


def _fraction(builder: GraphBuilder, turned: str) -> str:
    return builder.op("Sub", turned, builder.op("Round", turned))


def _scaled(builder: GraphBuilder, freqs: Frequencies, value: str) -> str:
    if freqs.attention_factor != 1.0:
        dtype = np.float32 if freqs.arithmetic == "parity" else np.float64
        value = builder.op("Mul", value, builder.scalar(freqs.attention_factor, dtype))
    return value if freqs.arithmetic == "parity" else builder.cast(value, "FLOAT")
