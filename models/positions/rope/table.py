"""The cos and sin table of one rope, as a Table."""

from collections.abc import Mapping, Sequence

from models.positions.arithmetic import Arithmetic
from models.positions.rope import angles
from models.positions.rope.frequencies import Rope, facts_of, frequencies, remarks
from models.positions.rope.rotation import LAYOUTS, WIDTHS, Width, duplicate
from models.positions.table import Output, Positions, Rows, Table, checked_name, checked_positions


def tabulate(
    rope: Rope,
    positions: Positions,
    *,
    arithmetic: Arithmetic = "exact",
    seq_len: int | None = None,
    table: Width = "single",
    layout: str = "half",
    notes: tuple[str, ...] = (),
) -> Table:
    """Return cos and sin of each position, both times the attention factor, as a Table.

    Args:
        rope: the encoding, scaled or not.
        positions: [N], 0 to 2^53 - 1.
        arithmetic: exact or parity.
        seq_len: length of the sequence in tokens; dynamic and longrope scale by it.
        table: single: [N, r/2], one value per pair. duplicated: [N, r], one per channel, as `layout` pairs channels.
        layout: a row of rotation.LAYOUTS; a single table is the same in all of them.
        notes: sentences to put before the scaling's own notes.

    Returns:
        a Table with outputs `cos` and `sin`.

    Raises:
        BadScaling: an unknown rope_type, or a parameter that is missing, unknown or out of range.
        BadEncoding: an unknown layout or width, or positions out of range.
    """
    freqs = frequencies(rope, arithmetic, seq_len)
    checked_name("layout", layout, LAYOUTS)
    checked_positions(positions)
    rows = {"cos": angles.rows(freqs, positions, "cos"), "sin": angles.rows(freqs, positions, "sin")}
    outputs = cos_sin_outputs(rows, (len(positions), len(freqs.inverse_frequency)), table, layout)
    facts = facts_of(rope, freqs) | {"seq_len": seq_len, "table": table, "layout": layout}
    return Table("rope", arithmetic, outputs, facts, notes + remarks(rope))


def cos_sin_outputs(rows: Mapping[str, Rows], shape: Sequence[int], table: Width, layout: str) -> dict[str, Output]:
    """Return the outputs `cos` and `sin` of a table.

    Args:
        rows: the rows of each, one value per pair.
        shape: of one of them, single.
        table: single or duplicated.
        layout: how a duplicated table pairs channels.

    Raises:
        BadEncoding: an unknown `table`.
    """
    checked_name("table", table, WIDTHS)
    if table == "single":
        return {name: Output(tuple(shape), single) for name, single in rows.items()}
    doubled = (*shape[:-1], 2 * shape[-1])
    return {name: Output(doubled, _duplicated(single, layout)) for name, single in rows.items()}


def _duplicated(single: Rows, layout: str) -> Rows:
    return lambda start, stop: duplicate(single(start, stop), layout)
