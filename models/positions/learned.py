"""Learned positions: which row of a table each token reads when the caller does not say, and the rows themselves.

Holds no table. Beyond the last row it refuses, unless told to repeat that row or to stretch the table: no library does.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from models.errors import BadEncoding
from models.positions.table import Arithmetic, Output, Positions, Table, checked_positions, taken

_COUNT = np.arange(8192, dtype=np.int64)  # lent to every sequence that counts its tokens from the left
_COUNT.flags.writeable = False

Kind = Literal["arange", "cumsum_non_pad", "cumsum_mask"]
Beyond = Literal["error", "clamp", "interpolate"]
BEYOND: dict[str, str] = {
    "error": "row = table[position]",
    "clamp": "row = table[min(position, L - 1)]",
    "interpolate": "row = table at (position + 0.5) L/length - 0.5, kept within 0 and L - 1, linear between two rows",
}


@dataclass(frozen=True, slots=True)
class PositionRule:
    """How a family numbers the tokens of one sequence (spec: transformers 5.23).

    kind       arange: i + offset (BERT, GPT-2, and every RoPE model: 0; BART: 2); the mask is ignored
               cumsum_non_pad: cumsum(id != pad) * (id != pad) + offset, offset = pad (RoBERTa); pads sit on row `pad`
               cumsum_mask: cumsum(mask) * mask - 1 + offset (OPT)
    rows       rows of the position table: positions 0 .. rows-1 exist; None: any position (RoPE)
    """

    kind: Kind
    offset: int
    rows: int | None
    pad_id: int | None = None

    @property
    def shift(self) -> int:
        """What transformers adds to position_ids that a caller sends: the offset, but not RoBERTa's pad id."""
        return 0 if self.kind == "cumsum_non_pad" else self.offset

    def sendable(self) -> int | None:
        """position_ids that a caller may send are below this; None: any."""
        return None if self.rows is None else self.rows - self.shift

    def longest(self) -> int | None:
        """Tokens of the longest sequence whose positions all exist; None: no limit."""
        if self.rows is None:
            return None
        return self.rows - self.offset - (1 if self.kind == "cumsum_non_pad" else 0)


def positions(rule: PositionRule, ids: NDArray[np.int64], mask: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """The position of each token of one sequence.

    ids        int64 [n]
    mask       int64 [n] of 0 and 1, read by cumsum_mask alone; None: all ones
    returns    int64 [n], rows of the position table; possibly a read-only view
    source     transformers 5.23: BertEmbeddings, RobertaEmbeddings, OPTLearnedPositionalEmbedding
    """
    if rule.kind == "arange":
        end = rule.offset + len(ids)
        return _COUNT[rule.offset : end] if end <= len(_COUNT) else np.arange(rule.offset, end, dtype=np.int64)
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
    """Rows of a learned table, also beyond its last one.

    table       [L, d] of floats
    positions   int64 [N], 0 or more
    beyond      error: refused. clamp: the last row again. interpolate: the table stretched to `length` rows, as torch's
                interpolate(mode="linear", align_corners=False) does, which moves the rows within it too
    length      rows wanted of the stretched table; None: as many as the last position needs, L at least
    arithmetic  of interpolate: float64 (exact), or torch's float32 steps (parity)
    returns     [N, d]: the table's own values as float32 (float64 where it is float64); interpolated and exact: float64
    raises      BadEncoding
    """
    found = tabulate(table, positions, beyond=beyond, length=length, arithmetic=arithmetic)
    return found.outputs["table"].whole()


def tabulate(
    table: NDArray[Any],
    positions: Positions,
    *,
    beyond: Beyond = "error",
    length: int | None = None,
    arithmetic: Arithmetic = "exact",
) -> Table:
    """The same rows as `rows`, as a Table with one output `table` [N, d]."""
    stretched = _checked(table, positions, beyond, length)
    last = len(table) - 1

    def block(start: int, stop: int) -> NDArray[Any]:
        wanted = taken(positions, start, stop)
        if stretched is not None:
            return _between(table, wanted, stretched, arithmetic)
        picked = table[np.minimum(wanted, last)]
        return picked if picked.dtype == np.float64 else picked.astype(np.float32)

    facts = {"formula": BEYOND[beyond], "beyond": beyond, "rows": len(table), "dim": table.shape[1]}
    facts |= {"length": stretched}
    output = Output((len(positions), table.shape[1]), block)
    return Table("learned", arithmetic, {"table": output}, facts, _notes(beyond, len(table), stretched))


def _between(
    table: NDArray[Any], positions: NDArray[np.int64], length: int, arithmetic: Arithmetic
) -> NDArray[np.floating[Any]]:
    """Rows of the table stretched to `length`, each step in the arithmetic's floats."""
    real: Any = np.float64 if arithmetic == "exact" else np.float32
    last = len(table) - 1
    centre, scale = positions.astype(real) + real(0.5), real(len(table)) / real(length)
    source = (centre.astype(np.float64) * scale - 0.5).astype(real)  # torch multiplies and subtracts in one rounding
    source = np.clip(source, real(0), real(last))
    low = np.floor(source).astype(np.int64)
    share = (source - low.astype(real))[:, None]  # [N, 1]
    before, after = table[low].astype(real), table[np.minimum(low + 1, last)].astype(real)
    return np.asarray((1 - share) * before + share * after)


def _checked(table: NDArray[Any], positions: Positions, beyond: str, length: int | None) -> int | None:
    """The length to stretch to, or None where rows are read as they are."""
    if table.ndim != 2 or 0 in table.shape:
        raise BadEncoding(f"a position table has rows and channels; this one has shape {list(table.shape)}")
    if beyond not in BEYOND:
        raise BadEncoding(f"beyond {beyond!r} is not one of {', '.join(BEYOND)}")
    checked_positions(positions)
    most = max(positions[0], positions[-1]) if isinstance(positions, range) else int(positions.max())
    if beyond == "error" and most >= len(table):
        raise BadEncoding(
            f"position {most} is beyond the table's last row, {len(table) - 1}: send positions up to that, "
            'or "beyond": "clamp" or "interpolate"'
        )
    if beyond != "interpolate":
        if length is not None:
            raise BadEncoding(f"length is {length!r}, but beyond is {beyond}: only interpolate reads a length")
        return None
    wanted = max(len(table), most + 1) if length is None else length
    if not isinstance(wanted, int) or wanted <= most:
        raise BadEncoding(
            f"length is {length!r}, but position {most} needs at least {most + 1} rows: send a longer one"
        )
    return wanted


def _notes(beyond: str, count: int, length: int | None) -> tuple[str, ...]:
    if length is not None and length != count:
        return (f"the table of {count} rows is stretched to {length}: positions below {count} read other values too",)
    if beyond == "clamp":
        return (f"positions from {count} on all read row {count - 1}: attention cannot tell them apart",)
    return ()
