"""Sinusoidal position tables in every layout the libraries use, 1-D and over a grid. Stores none, numbers no tokens.

Any block of rows is computed alone. A table that a checkpoint stores (Pegasus, FSMT, DistilBERT, ViT-MAE) was trained
with and is trusted over these formulas. Layouts and frequencies: sinusoids.py.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.errors import BadEncoding
from models.positions.rope import angles
from models.positions.sinusoids import (
    GRID_AXIS,
    MAX_DIM,
    SINUSOIDS,
    THETA,
    Sinusoid,
    check_sizes,
    checked,
    columns,
    frequencies,
    powers,
)
from models.positions.table import MAX_POSITION, Arithmetic, Output, Positions, Rows, Table, checked_positions, taken

__all__ = ["ORDERS", "SINUSOIDS", "THETA", "checked_axis", "tabulate", "tabulate_grid"]

CHUNK = 512  # rows whose sines and cosines stay in the cache until they are laid out

Floats = NDArray[Any]
Waves = Callable[[int, int], tuple[Floats, Floats]]
ORDERS = {"hw": "[sin_h | cos_h | sin_w | cos_w]", "wh": "[sin_w | cos_w | sin_h | cos_h]"}


def tabulate(
    kind: str,
    dim: int,
    positions: Positions,
    *,
    arithmetic: Arithmetic = "exact",
    theta: float = THETA,
    offset: int = 0,
    zero_row: int | None = None,
) -> Table:
    """Rows of one kind of sinusoid.

    dim        channels, 1 to 65536; 4 or more for tensor2tensor and musicgen, even ones for whisper
    positions  0 or more; row n is that of positions[n] + offset (XGLM and M2M100 count from 2)
    zero_row   the position, offset counted in, whose row is all zero: padding_idx of M2M100, FSMT and Speech2Text
    returns    output `table` [N, dim]
    raises     BadEncoding
    source     Vaswani et al. 2017, arXiv:1706.03762; parity: transformers 5.23
    """
    row = checked(kind, dim, theta)
    if zero_row is not None and not (isinstance(zero_row, int) and zero_row >= 0):
        raise BadEncoding(f"zero_row is {zero_row!r}; it must be a position, 0 or more, or left out")
    shifted = _shifted(positions, offset)
    block = _block(row, dim, float(theta), arithmetic, shifted)

    def rows(start: int, stop: int) -> Floats:
        found = block(start, stop)
        if zero_row is not None:
            found[taken(shifted, start, stop) == zero_row] = 0
        return found

    facts = _facts(row, dim, float(theta), arithmetic) | {"kind": kind, "offset": offset, "zero_row": zero_row}
    return Table("sinusoidal", arithmetic, {"table": Output((len(shifted), dim), rows)}, facts, _notes(kind, zero_row))


def _shifted(positions: Positions, offset: int) -> Positions:
    if not isinstance(offset, int) or isinstance(offset, bool) or abs(offset) >= MAX_POSITION:
        raise BadEncoding(f"offset is {offset!r}; it must be a whole number below 2^53")
    checked_positions(positions)
    if not offset:
        return positions
    moved = (
        range(positions.start + offset, positions.stop + offset, positions.step)
        if isinstance(positions, range)
        else positions + offset
    )
    return checked_positions(moved)


def _block(row: Sinusoid, dim: int, theta: float, arithmetic: Arithmetic, positions: Positions) -> Rows:
    """Blocks of whole rows, writable."""
    place = columns(row, dim)
    waves = _waves(row, dim, theta, arithmetic, positions)

    def rows(start: int, stop: int) -> Floats:
        found = np.empty((stop - start, dim), np.float64 if arithmetic == "exact" else np.float32)
        for first in range(start, stop, CHUNK):
            part = found[first - start : first - start + CHUNK]
            sine, cosine = waves(first, first + len(part))
            part[:, place.sin] = sine
            part[:, place.cos] = cosine[:, : place.cosines]
            part[:, place.sines + place.cosines :] = 0
        return found

    return rows


def _waves(row: Sinusoid, dim: int, theta: float, arithmetic: Arithmetic, positions: Positions) -> Waves:
    """Blocks of the sine and the cosine of every angle: float64 (exact) or float32."""
    found = frequencies(row, dim, theta, arithmetic)
    if arithmetic == "parity" and row.steps in ("float64_quotient", "float64_product"):
        return _double_waves(row, dim, theta, positions)
    if isinstance(positions, range):
        sine, cosine = angles.rows(found, positions, "sin"), angles.rows(found, positions, "cos")
        return lambda start, stop: (sine(start, stop), cosine(start, stop))
    return lambda start, stop: angles.cos_sin(found, positions[start:stop])[::-1]


def _double_waves(row: Sinusoid, dim: int, theta: float, positions: Positions) -> Waves:
    divisors = powers(row, dim, theta)

    def waves(start: int, stop: int) -> tuple[Floats, Floats]:
        column = taken(positions, start, stop)[:, None]
        angle = column / divisors if row.steps == "float64_quotient" else column * (1.0 / divisors)
        return np.sin(angle).astype(np.float32), np.cos(angle).astype(np.float32)

    return waves


def _facts(row: Sinusoid, dim: int, theta: float, arithmetic: Arithmetic) -> dict[str, Any]:
    return {
        "dim": dim,
        "theta": theta,
        "formula": row.formula,
        "layout": row.layout,
        "first": row.first,
        "odd": row.odd,
        "users": row.users,
        "parity_steps": row.steps if arithmetic == "parity" else None,
        "inverse_frequency": frequencies(row, dim, theta, arithmetic).inverse_frequency.tolist(),
    }


def _notes(kind: str, zero_row: int | None) -> tuple[str, ...]:
    if kind == "tensor2tensor" and zero_row is None:
        return (
            "M2M100, FSMT and Speech2Text keep the row padding_idx all zero (zero_row) and start at padding_idx + 1; "
            "XGLM starts at 2 (offset)",
        )
    return ()


def tabulate_grid(
    dim: int,
    grid: tuple[int, int],
    *,
    order: str = "hw",
    cls_rows: int = 0,
    theta: float = THETA,
    arithmetic: Arithmetic = "exact",
) -> Table:
    """Rows of the patches of an image, top left first, each half of the channels for one axis.

    dim       a multiple of 4
    grid      patches down, patches across
    order     hw: [sin_h | cos_h | sin_w | cos_w];  wh: halves swapped, as ViT-MAE and AIMv2 were trained
    cls_rows  rows of zeros before the patches
    returns   output `table` [cls_rows + h * w, dim]
    raises    BadEncoding
    source    w_k = theta^(-k/(dim/4)); parity: transformers 5.23 vit_mae build_2d_sinusoidal_position_embedding
    """
    axis_dim = checked_axis(dim, order, theta)
    _check_grid(grid, cls_rows)
    height, width = grid
    down, across = (_block(GRID_AXIS, axis_dim, float(theta), arithmetic, range(size)) for size in (height, width))
    halves = (slice(0, axis_dim), slice(axis_dim, dim))
    down_half, across_half = halves if order == "hw" else halves[::-1]

    def rows(start: int, stop: int) -> Floats:
        cells = np.arange(max(start - cls_rows, 0), max(stop - cls_rows, 0))
        lead = stop - start - len(cells)
        found = np.zeros((stop - start, dim), np.float64 if arithmetic == "exact" else np.float32)
        if len(cells):
            found[lead:, down_half] = _gathered(down, cells // width)
            found[lead:, across_half] = _gathered(across, cells % width)
        return found

    facts = _facts(GRID_AXIS, axis_dim, float(theta), arithmetic)
    facts |= {"dim": dim, "grid": list(grid), "order": order, "layout": ORDERS[order], "cls_rows": cls_rows}
    facts["formula"] = f"w_k = theta^(-k/(dim/4)); row (h, w) = {ORDERS[order]}"
    shape = (cls_rows + height * width, dim)
    return Table("sinusoidal_grid", arithmetic, {"table": Output(shape, rows)}, facts)


def _gathered(axis: Rows, wanted: NDArray[np.int64]) -> Floats:
    """Rows of one axis, each between the smallest and the largest wanted made once."""
    least, most = int(wanted.min()), int(wanted.max())
    return axis(least, most + 1)[wanted - least]


def checked_axis(dim: Any, order: str, theta: float) -> int:
    """Channels for one axis of a grid; raises BadEncoding."""
    if order not in ORDERS:
        raise BadEncoding(f"order {order!r} is not one of {', '.join(ORDERS)}")
    if not isinstance(dim, int) or dim < 4 or dim % 4 or dim > MAX_DIM:
        raise BadEncoding(f"dim is {dim!r}; a grid has a multiple of 4 channels, up to {MAX_DIM}")
    check_sizes(GRID_AXIS, "grid", dim // 2, theta)
    return dim // 2


def _check_grid(grid: Any, cls_rows: Any) -> None:
    if len(grid) != 2 or not all(isinstance(size, int) and 1 <= size <= MAX_POSITION for size in grid):
        raise BadEncoding(f"grid is {grid!r}; it must be two whole numbers, patches down and patches across")
    if not isinstance(cls_rows, int) or not 0 <= cls_rows <= MAX_POSITION:
        raise BadEncoding(f"cls_rows is {cls_rows!r}; it must be a whole number, 0 or more")
    if cls_rows + math.prod(grid) > MAX_POSITION:
        raise BadEncoding(f"grid {list(grid)} with {cls_rows} cls_rows has more than 2^53 rows: ask for a smaller one")
