"""RoPE over more than one axis, and M-RoPE: text models whose channels turn with time, height or width.

Each column of such a table is one frequency that turns with one axis; a row of AXES (or of axial.AXIAL) says which.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.errors import BadEncoding
from models.positions.arithmetic import Arithmetic, Frequencies
from models.positions.rope.angles import cos_sin
from models.positions.rope.frequencies import Rope, facts_of, frequencies, remarks
from models.positions.rope.rotation import Width
from models.positions.rope.table import cos_sin_outputs
from models.positions.table import Rows, Table, checked_positions

Array = NDArray[Any]
Int64s = NDArray[np.int64]
Columns = Callable[[int, int], tuple[Array, Array]]
TIME, HEIGHT, WIDTH = range(3)
NAMES = ("time", "height", "width")


@dataclass(frozen=True, slots=True)
class Axes:
    """One way to share the frequencies of M-RoPE among the axes (0 time, 1 height, 2 width).

    Attributes:
        owners: sections -> the axis of each frequency, (r/2,); a frequency keeps its own index.
        order: the axis of each of the three sections.
        sections: the sections that the models were trained with.
        layout: how the rotation pairs channels, a row of rotation.LAYOUTS.
        users: model types that use it.
    """

    owners: Callable[[Sequence[int]], Int64s]
    order: tuple[int, int, int]
    sections: tuple[int, int, int]
    layout: str
    users: str


def _chunked(sections: Sequence[int]) -> Int64s:
    return np.repeat(np.arange(3), sections)


def _interleaved(sections: Sequence[int]) -> Int64s:
    owners = np.full(sum(sections), TIME, np.int64)
    for axis in (HEIGHT, WIDTH):
        owners[axis : 3 * sections[axis] : 3] = axis
    return owners


def _ernie(sections: Sequence[int]) -> Int64s:
    height, width, time = sections
    if height != width:
        raise BadEncoding(
            f"ernie sections are height, width, time and the first two alternate: {height} is not {width}"
        )
    return np.concatenate([np.tile([HEIGHT, WIDTH], height), np.full(time, TIME)])


AXES: dict[str, Axes] = {
    "chunked": Axes(_chunked, (TIME, HEIGHT, WIDTH), (16, 24, 24), "half", "qwen2_vl, qwen2_5_vl"),
    "interleaved": Axes(_interleaved, (TIME, HEIGHT, WIDTH), (24, 20, 20), "half", "qwen3_vl, qwen3_5"),
    "ernie": Axes(_ernie, (HEIGHT, WIDTH, TIME), (22, 22, 20), "interleaved", "ernie4_5_vl_moe"),
}


@dataclass(frozen=True, slots=True, eq=False)
class AxisColumns:
    """The columns of a table that turn with one axis.

    Attributes:
        axis: index of the axis.
        columns: the numbers of the columns.
        freqs: frequencies, in the order of `columns`.
    """

    axis: int
    columns: Int64s
    freqs: Frequencies


def mrope_parts(freqs: Frequencies, sections: Sequence[int] | None, axes: str) -> tuple[AxisColumns, ...]:
    """Return the columns of an M-RoPE table by axis.

    Args:
        freqs: frequencies of all columns.
        sections: how many frequencies each axis gets, in the order of Axes.order; None: Axes.sections.
        axes: a row of AXES.

    Raises:
        BadEncoding: unknown axes, or sections that are not three numbers with the sum rotary_dim/2.
    """
    row = axes_named(axes)
    pairs = len(freqs.inverse_frequency)
    sections = row.sections if sections is None else tuple(sections)
    if len(sections) != 3 or min(sections) < 0 or sum(sections) != pairs:
        order = ", ".join(NAMES[axis] for axis in row.order)
        raise BadEncoding(
            f"sections are {list(sections)}; {axes} M-RoPE needs three ({order}) that sum to rotary_dim/2 = {pairs}"
        )
    owners = row.owners(sections)
    return tuple(
        AxisColumns(axis, columns, subset(freqs, columns))
        for axis in range(3)
        if len(columns := np.flatnonzero(owners == axis))
    )


def axes_named(name: str) -> Axes:
    """Return a row of AXES.

    Raises:
        BadEncoding: an unknown name.
    """
    if name not in AXES:
        raise BadEncoding(f"M-RoPE axes {name!r} are not one of {', '.join(AXES)}")
    return AXES[name]


def owners(axes: str, sections: Sequence[int] | None) -> Int64s:
    """Return the axis by which each frequency turns, int64 (r/2,); arguments as in `mrope_parts`."""
    row = axes_named(axes)
    return row.owners(row.sections if sections is None else sections)


def subset(freqs: Frequencies, columns: Int64s) -> Frequencies:
    """Return some of the frequencies, in the order of `columns`."""
    return Frequencies(
        freqs.inverse_frequency[columns], freqs.residue[columns], freqs.attention_factor, freqs.arithmetic
    )


def multi_axis_cos_sin(parts: Sequence[AxisColumns], positions: Int64s) -> tuple[Array, Array]:
    """Return cos and sin of positions with several axes.

    Args:
        parts: the columns by axis; together they cover the table.
        positions: int64 [axes, ...], 0 or more.

    Returns:
        [..., r/2] each: float64 (exact) or float32 (parity).
    """
    width = sum(len(part.columns) for part in parts)
    dtype = np.float64 if parts[0].freqs.arithmetic == "exact" else np.float32
    cos, sin = (np.empty((*positions.shape[1:], width), dtype) for _ in range(2))
    for part in parts:
        cos[..., part.columns], sin[..., part.columns] = cos_sin(part.freqs, positions[part.axis])
    return cos, sin


def tabulate_mrope(
    rope: Rope,
    positions: Int64s,
    *,
    sections: Sequence[int] | None = None,
    axes: str = "chunked",
    arithmetic: Arithmetic = "exact",
    seq_len: int | None = None,
    table: Width = "single",
) -> Table:
    """Return M-RoPE's cos and sin, both times the attention factor, as a Table.

    Args:
        rope: the encoding, scaled or not.
        positions: int64 [3, N] or [3, B, S]: time, height, width.
        sections: how many frequencies each axis gets, in the order of Axes.order; None: Axes.sections.
        axes: a row of AXES.
        arithmetic: exact or parity.
        seq_len: length of the sequence in tokens; dynamic and longrope scale by it.
        table: single: [..., r/2], one value per pair. duplicated: [..., r], as the row's layout pairs channels.

    Returns:
        a Table with outputs `cos` and `sin`.

    Raises:
        BadEncoding: unknown axes or width, or sections or positions that do not fit.
        BadScaling: an unknown rope_type, or a parameter that is missing, unknown or out of range.

    Source: transformers 5.23 Qwen2VL-, Qwen3VLText- and Ernie4_5_VLMoeTextRotaryEmbedding.
    """
    freqs = frequencies(rope, arithmetic, seq_len)
    parts = mrope_parts(freqs, sections, axes)
    row = axes_named(axes)
    if positions.ndim < 2 or positions.shape[0] != 3:
        raise BadEncoding(f"positions are {list(positions.shape)}; M-RoPE needs [3, tokens]: time, height, width")
    flat = positions.reshape(3, -1)
    checked_positions(flat.ravel())
    facts = facts_of(rope, freqs) | column_facts(parts, NAMES) | {"axes": axes, "layout": row.layout, "table": table}
    facts |= {"sections": list(row.sections if sections is None else sections), "seq_len": seq_len}

    def block(start: int, stop: int) -> tuple[Array, Array]:
        return multi_axis_cos_sin(parts, flat[:, start:stop])

    shape = (*positions.shape[1:], len(freqs.inverse_frequency))
    outputs = cos_sin_outputs(each_of(block), shape, table, row.layout)
    return Table("mrope", arithmetic, outputs, facts, (*_shortfalls(parts, facts["sections"], row), *remarks(rope)))


def _shortfalls(parts: Sequence[AxisColumns], sections: Sequence[int], row: Axes) -> tuple[str, ...]:
    columns = {part.axis: len(part.columns) for part in parts}
    return tuple(
        f"sections name {count} frequencies for {NAMES[axis]}; the pattern gives it {columns.get(axis, 0)}, as in "
        "transformers 5.23, which does not check"
        for axis, count in zip(row.order, sections, strict=True)
        if columns.get(axis, 0) != count
    )


def column_facts(parts: Sequence[AxisColumns], names: Sequence[str]) -> dict[str, Any]:
    """Return, JSON-ready, the frequency and the axis of each column of a single-width table."""
    width = sum(len(part.columns) for part in parts)
    inverse_frequency, axis = np.empty(width), np.empty(width, np.int64)
    for part in parts:
        inverse_frequency[part.columns], axis[part.columns] = part.freqs.inverse_frequency, part.axis
    return {
        "inverse_frequency": inverse_frequency.tolist(),
        "axis": [names[index] for index in axis.tolist()],
        "attention_factor": parts[0].freqs.attention_factor,
    }


def each_of(block: Columns) -> dict[str, Rows]:
    """Return the rows of cos and those of sin, from a function that gives both."""
    return {"cos": lambda start, stop: block(start, stop)[0], "sin": lambda start, stop: block(start, stop)[1]}
