"""The cos and sin table of one rope, as a Table. Decides no frequency (frequencies.py) and no angle (angles.py)."""

from typing import Any, Literal

from numpy.typing import NDArray

from models.errors import BadEncoding
from models.positions.rope import angles
from models.positions.rope.angles import Function
from models.positions.rope.frequencies import Frequencies, Rope, frequencies, remarks
from models.positions.rope.rotation import duplicate, layout_named
from models.positions.rope.scalings import SCALINGS
from models.positions.table import Arithmetic, Output, Positions, Rows, Table, checked_positions

Width = Literal["single", "duplicated"]
WIDTHS = ("single", "duplicated")


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
    """cos and sin of each position, both times the attention factor.

    positions  [N], 0 to 2^53 - 1
    seq_len    tokens of the sequence at hand; dynamic and longrope scale by it
    table      single: [N, r/2], a value a pair. duplicated: [N, r], a value a channel, as `layout` pairs them
    layout     a row of rotation.LAYOUTS; a single table is the same in all of them
    notes      what is known besides, put before the scaling's own
    raises     BadScaling, BadEncoding
    """
    found = frequencies(rope, arithmetic, seq_len)
    layout_named(layout)
    if table not in WIDTHS:
        raise BadEncoding(f"table {table!r} is not one of {', '.join(WIDTHS)}")
    checked_positions(positions)
    pairs = len(found.inverse_frequency)
    shape = (len(positions), pairs if table == "single" else 2 * pairs)
    outputs = {
        "cos": Output(shape, _rows(found, positions, "cos", table, layout)),
        "sin": Output(shape, _rows(found, positions, "sin", table, layout)),
    }
    facts = facts_of(rope, found) | {"seq_len": seq_len, "table": table, "layout": layout}
    return Table("rope", arithmetic, outputs, facts, notes + remarks(rope))


def facts_of(rope: Rope, found: Frequencies) -> dict[str, Any]:
    """What the frequencies are and how they came about, JSON-ready."""
    return {
        "rope_type": rope.rope_type,
        "formula": SCALINGS[rope.rope_type].formula,
        "theta": rope.theta,
        "rotary_dim": rope.rotary_dim,
        "head_dim": rope.head_dim or rope.rotary_dim,
        "max_position_embeddings": rope.max_position_embeddings,
        "parameters": dict(rope.parameters),
        "attention_factor": found.attention_factor,
        "inverse_frequency": found.inverse_frequency.tolist(),
    }


def _rows(found: Frequencies, positions: Positions, function: Function, table: Width, layout: str) -> Rows:
    single = angles.rows(found, positions, function)
    if table == "single":
        return single

    def block(start: int, stop: int) -> NDArray[Any]:
        return duplicate(single(start, stop), layout)

    return block
