"""The cos and sin table of one rope, as a Table."""

from typing import Any

from numpy.typing import NDArray

from models.errors import BadEncoding
from models.positions.arithmetic import Arithmetic, Frequencies
from models.positions.rope import angles
from models.positions.rope.angles import Function
from models.positions.rope.frequencies import Rope, facts_of, frequencies, remarks
from models.positions.rope.rotation import WIDTHS, Width, duplicate, layout_named
from models.positions.table import Output, Positions, Rows, Table, checked_positions


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
    layout_named(layout)
    if table not in WIDTHS:
        raise BadEncoding(f"table {table!r} is not one of {', '.join(WIDTHS)}")
    checked_positions(positions)
    pairs = len(freqs.inverse_frequency)
    shape = (len(positions), pairs if table == "single" else 2 * pairs)
    outputs = {
        "cos": Output(shape, _rows(freqs, positions, "cos", table, layout)),
        "sin": Output(shape, _rows(freqs, positions, "sin", table, layout)),
    }
    facts = facts_of(rope, freqs) | {"seq_len": seq_len, "table": table, "layout": layout}
    return Table("rope", arithmetic, outputs, facts, notes + remarks(rope))


def _rows(freqs: Frequencies, positions: Positions, function: Function, table: Width, layout: str) -> Rows:
    single = angles.rows(freqs, positions, function)
    if table == "single":
        return single

    def block(start: int, stop: int) -> NDArray[Any]:
        return duplicate(single(start, stop), layout)

    return block
