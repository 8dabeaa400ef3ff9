"""Learned positions: which row of a position table each token reads by default, and the rows themselves.

A position beyond the last row is an error, unless the caller asks to repeat that row or to stretch the table, which the
libraries do not offer.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from models.errors import BadEncoding
from models.positions.arithmetic import Arithmetic
from models.positions.table import Output, Positions, Table, checked_name, checked_positions, slice_positions

_COUNTING = np.arange(8192, dtype=np.int64)  # shared by all sequences that count their tokens from the left
_COUNTING.flags.writeable = False

Kind = Literal["arange", "cumsum_non_pad", "cumsum_mask"]
Beyond = Literal["error", "clamp", "interpolate"]
BEYOND: dict[str, str] = {
    "error": "row = table[position]",
    "clamp": "row = table[min(position, L - 1)]",
    "interpolate": "row = table at (position + 0.5) L/length - 0.5, kept within 0 and L - 1, linear between two rows",
}


@dataclass(frozen=True, slots=True)
class PositionRule:
    """How a model family numbers the tokens of one sequence.

    Attributes:
        kind: arange: i + offset; the mask is ignored (BERT, GPT-2 and every RoPE model: offset 0; BART: 2).
            cumsum_non_pad: cumsum(id != pad) * (id != pad) + offset, offset = pad, so pads read row `pad` (RoBERTa).
            cumsum_mask: cumsum(mask) * mask - 1 + offset (OPT).
        offset: see kind.
        rows: rows of the position table: positions 0 .. rows-1 exist; None: any position (RoPE).
        pad_id: the pad token's id, read by cumsum_non_pad.

    Source: transformers 5.23.
    """

    kind: Kind
    offset: int
    rows: int | None
    pad_id: int | None = None

    @property
    def shift(self) -> int:
        """The number transformers adds to position_ids that a caller sends: the offset, but not RoBERTa's pad id."""
        return 0 if self.kind == "cumsum_non_pad" else self.offset

    def sendable(self) -> int | None:
        """Return the limit below which a caller's position_ids must be; None: no limit."""
        return None if self.rows is None else self.rows - self.shift

    def longest(self) -> int | None:
        """Return the length in tokens of the longest sequence whose positions all exist; None: no limit."""
        if self.rows is None:
            return None
        return self.rows - self.offset - (1 if self.kind == "cumsum_non_pad" else 0)


def positions(rule: PositionRule, ids: NDArray[np.int64], mask: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """Return the position of each token of one sequence.

    Args:
        rule: how the family counts.
        ids: int64 [n].
        mask: int64 [n] of 0 and 1, read only by cumsum_mask; None: all ones.

    Returns:
        int64 [n], rows of the position table; possibly a read-only view.

    Source: transformers 5.23: BertEmbeddings, RobertaEmbeddings, OPTLearnedPositionalEmbedding.
    """
    if rule.kind == "arange":
        end = rule.offset + len(ids)
        return _COUNTING[rule.offset : end] if end <= len(_COUNTING) else np.arange(rule.offset, end, dtype=np.int64)
    if rule.kind == "cumsum_non_pad":
        counted = (ids != rule.pad_id).astype(np.int64)
        return np.asarray(np.cumsum(counted) * counted + rule.offset)
    counted = np.ones(len(ids), np.int64) if mask is None else mask
    return np.asarray(np.cumsum(counted) * counted - 1 + rule.offset)


def rows(
    table: NDArray[Any],
    positions: NDArray[np.int64],
    beyond: Beyond = "error",
    length: int | None = None,
    arithmetic: Arithmetic = "exact",
) -> NDArray[Any]:
    """Return rows of a learned table, also beyond its last one.

    Args:
        table: [L, d] of floats.
        positions: int64 [N], 0 or more.
        beyond: what a position beyond the last row gives. error: BadEncoding. clamp: the last row. interpolate: the
            table stretched to `length` rows, as torch's interpolate(mode="linear", align_corners=False) does, which
            also moves the rows within it.
        length: rows of the stretched table; None: as many as the last position needs, at least L.
        arithmetic: arithmetic of interpolate: float64 (exact), or torch's float32 steps (parity).

    Returns:
        [N, d]: the table's own values as float32 (float64 where it is float64); interpolated and exact: float64.

    Raises:
        BadEncoding: no such row, an unknown `beyond`, or a length that is too small or not read.
    """
    return tabulate(table, positions, beyond=beyond, length=length, arithmetic=arithmetic).outputs["table"].whole()


def tabulate(
    table: NDArray[Any],
    positions: Positions,
    *,
    beyond: Beyond = "error",
    length: int | None = None,
    arithmetic: Arithmetic = "exact",
) -> Table:
    """Return the result of `rows` as a Table with one output `table` [N, d]; the parameters are the same."""
    stretched_length = _stretched_length(table, positions, beyond, length)
    last = len(table) - 1

    def block(start: int, stop: int) -> NDArray[Any]:
        part = slice_positions(positions, start, stop)
        if stretched_length is not None:
            return _interpolated(table, part, stretched_length, arithmetic)
        selected = table[np.minimum(part, last)]
        return selected if selected.dtype == np.float64 else selected.astype(np.float32)

    facts = {"formula": BEYOND[beyond], "beyond": beyond, "rows": len(table), "dim": table.shape[1]}
    facts |= {"length": stretched_length}
    output = Output((len(positions), table.shape[1]), block)
    return Table("learned", arithmetic, {"table": output}, facts, _notes(beyond, len(table), stretched_length))


def _interpolated(
    table: NDArray[Any], positions: NDArray[np.int64], length: int, arithmetic: Arithmetic
) -> NDArray[np.floating[Any]]:
    """Return the table stretched to `length`, each step in the arithmetic's floats."""
    dtype: Any = np.float64 if arithmetic == "exact" else np.float32
    last = len(table) - 1
    centre, scale = positions.astype(dtype) + dtype(0.5), dtype(len(table)) / dtype(length)
    source = (centre.astype(np.float64) * scale - 0.5).astype(dtype)  # torch multiplies and subtracts in one rounding
    source = np.clip(source, dtype(0), dtype(last))
    low = np.floor(source).astype(np.int64)
    fraction = (source - low.astype(dtype))[:, None]  # [N, 1]
    before, after = table[low].astype(dtype), table[np.minimum(low + 1, last)].astype(dtype)
    return np.asarray((1 - fraction) * before + fraction * after)


def _stretched_length(table: NDArray[Any], positions: Positions, beyond: str, length: int | None) -> int | None:
    """Return the length to stretch the table to; None: rows are read as they are."""
    if table.ndim != 2 or 0 in table.shape:
        raise BadEncoding(
            f"the position table has shape {list(table.shape)}; it must be [rows, channels], both above 0"
        )
    checked_name("beyond", beyond, BEYOND)
    checked_positions(positions)
    last_position = max(positions[0], positions[-1]) if isinstance(positions, range) else int(positions.max())
    if beyond == "error" and last_position >= len(table):
        raise BadEncoding(
            f"position {last_position} is beyond the table's last row, {len(table) - 1}: send positions up to that, "
            'or "beyond": "clamp" or "interpolate"'
        )
    if beyond != "interpolate":
        if length is not None:
            raise BadEncoding(
                f"length is {length!r}, but beyond is {beyond}: leave it out, only interpolate reads a length"
            )
        return None
    new_length = max(len(table), last_position + 1) if length is None else length
    if not isinstance(new_length, int) or new_length <= last_position:
        needed = last_position + 1
        raise BadEncoding(f"length is {length!r}, but position {last_position} needs at least {needed} rows: send more")
    return new_length


def _notes(beyond: str, count: int, length: int | None) -> tuple[str, ...]:
    if length is not None and length != count:
        return (f"the table of {count} rows is stretched to {length}: positions below {count} read other values too",)
    if beyond == "clamp":
        return (f"positions from {count} on all read row {count - 1}: attention cannot tell them apart",)
    return ()
