"""Sinusoidal position tables in every layout the libraries use, 1-D and over a grid.

A layout is a row of SINUSOIDS. Any block of rows is computed alone, so a table of any length costs the memory of one
block. A table that a checkpoint stores (Pegasus, FSMT, DistilBERT, ViT-MAE) was trained with and is preferred to these
formulas.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from models.errors import BadEncoding
from models.positions.arithmetic import DIGITS, Arithmetic, Frequencies
from models.positions.rope import angles
from models.positions.table import (
    MAX_POSITION,
    Output,
    Positions,
    Rows,
    Table,
    checked_name,
    checked_positions,
    slice_positions,
)

THETA = 10000.0
MAX_DIM = 65536
Steps = Literal["float64_quotient", "float64_product", "float32_power", "float32_exponential"]
CHUNK = 512  # rows whose sines and cosines stay in the cache until they are laid out

Floats = NDArray[Any]
Waves = Callable[[int, int], tuple[Floats, Floats]]
ORDERS = {"hw": "[sin_h | cos_h | sin_w | cos_w]", "wh": "[sin_w | cos_w | sin_h | cos_h]"}


@dataclass(frozen=True, slots=True)
class Sinusoid:
    """One kind of sinusoidal position: its layout, its frequencies and how transformers rounds them.

    Attributes:
        layout: interleaved [first, second, first, second ...] or half [first ... | second ...].
        first: which function comes first.
        spread: d: w_k = theta^(-2k/d);  d/2-1: w_k = theta^(-k/(d/2 - 1)), the slowest is 1/theta exactly.
        odd: an odd dim has one more sine than cosines (extra_sin), a zero column at its end, or is an error (refused).
        steps: of parity: float64 position / theta^x or position * theta^-x, cast last; or float32 throughout, with the
            frequencies 1 / pow or exp.
        users: models that use it.
    """

    layout: Literal["interleaved", "half"]
    first: Literal["sin", "cos"]
    spread: Literal["d", "d/2-1"]
    odd: Literal["extra_sin", "zero_column", "refused"]
    steps: Steps
    users: str

    @property
    def formula(self) -> str:
        """The formula as text."""
        exponent = "2k/d" if self.spread == "d" else "k/(floor(d/2) - 1)"
        order = ("sin", "cos") if self.first == "sin" else ("cos", "sin")
        joint = ", " if self.layout == "interleaved" else " ... | "
        return f"w_k = theta^(-{exponent}); row p = [{order[0]}(p w_k){joint}{order[1]}(p w_k) ...]"


SINUSOIDS: dict[str, Sinusoid] = {
    "vaswani": Sinusoid(
        "interleaved", "sin", "d", "extra_sin", "float64_quotient", "Vaswani et al. 2017, XLM, DistilBERT's start"
    ),
    "marian": Sinusoid("half", "sin", "d", "extra_sin", "float64_quotient", "Marian, Pegasus, RoFormer"),
    "ctrl": Sinusoid("half", "sin", "d", "extra_sin", "float32_power", "CTRL, XLNet: Marian's rows, made in float32"),
    "tensor2tensor": Sinusoid(
        "half", "sin", "d/2-1", "zero_column", "float32_exponential", "M2M100, NLLB, XGLM, FSMT, Speech2Text"
    ),
    "whisper": Sinusoid("half", "sin", "d/2-1", "refused", "float32_exponential", "Whisper's audio encoder"),
    "musicgen": Sinusoid("half", "cos", "d/2-1", "zero_column", "float32_exponential", "MusicGen's decoder"),
}
GRID_AXIS = Sinusoid("half", "sin", "d", "refused", "float64_product", "AIMv2, RT-DETR, ViT-MAE")


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that hold sines and cosines; other columns are zero. There are as many angles as sines.

    Attributes:
        sin: columns of the sines.
        cos: columns of the cosines.
        sines: number of sines.
        cosines: number of cosines.
    """

    sin: slice
    cos: slice
    sines: int
    cosines: int


def columns(row: Sinusoid, dim: int) -> Columns:
    """Return which of `dim` channels are sines and which are cosines."""
    cosines = dim // 2
    sines = dim - cosines if row.odd == "extra_sin" else cosines
    if row.layout == "interleaved":
        return Columns(slice(0, None, 2), slice(1, None, 2), sines, cosines)
    before, after = (0, sines) if row.first == "sin" else (cosines, 0)
    return Columns(slice(before, before + sines), slice(after, after + cosines), sines, cosines)


def checked_kind(kind: str, dim: int, theta: float) -> Sinusoid:
    """Return the row of SINUSOIDS named `kind`.

    Raises:
        BadEncoding: an unknown kind, or one that has no table of `dim` channels or with this theta.
    """
    row = SINUSOIDS[checked_name("sinusoidal kind", kind, SINUSOIDS)]
    check_sizes(row, kind, dim, theta)
    return row


def check_sizes(row: Sinusoid, kind: str, dim: int, theta: float) -> None:
    """Check that a kind has tables of `dim` channels with this theta; `kind` is its name in the error.

    Raises:
        BadEncoding: dim or theta is out of range.
    """
    minimum = 1 if row.spread == "d" else 4
    if not isinstance(dim, int) or isinstance(dim, bool) or not minimum <= dim <= MAX_DIM:
        reason = "" if minimum == 1 else ": its exponent -k/(floor(dim/2) - 1) would divide by zero or have no pair"
        raise BadEncoding(f"dim is {dim!r}; {kind} sinusoids have {minimum} to {MAX_DIM} channels{reason}")
    if dim % 2 and row.odd == "refused":
        raise BadEncoding(f"dim is {dim}; {kind} sinusoids have an even number of channels")
    if not isinstance(theta, int | float) or not (math.isfinite(theta) and theta > 1):
        raise BadEncoding(f"theta is {theta!r}; it must be a number above 1, usually 10000")


@lru_cache(maxsize=16)  # of up to 512 KiB
def frequencies(row: Sinusoid, dim: int, theta: float, arithmetic: Arithmetic) -> Frequencies:
    """Return the radians per position of each sine, fastest first: exact, or the bits of the parity steps.

    Args:
        row: the kind.
        dim: channels, already checked.
        theta: base of the frequencies.
        arithmetic: exact or parity.

    Source: transformers 5.23: ctrl (float32_power), m2m_100 and whisper (float32_exponential), vit_mae (float64).
    """
    count = columns(row, dim).sines
    if arithmetic == "exact":
        return _exact(theta, Fraction(2, dim) if row.spread == "d" else Fraction(1, dim // 2 - 1), count)
    inverse_frequency: NDArray[Any] = 1.0 / powers(row, dim, theta)
    if row.steps == "float32_power":
        exponents = np.arange(0, 2 * count, 2, dtype=np.float32) / np.float32(dim)
        inverse_frequency = np.float32(1) / (float(np.float32(theta)) ** exponents.astype(np.float64)).astype(
            np.float32
        )
    elif row.steps == "float32_exponential":
        steps = np.arange(count, dtype=np.float32) * np.float32(-(math.log(theta) / (dim // 2 - 1)))
        inverse_frequency = np.exp(steps.astype(np.float64)).astype(np.float32)
    return _frozen(inverse_frequency.astype(np.float64), np.zeros(count), "parity")


def powers(row: Sinusoid, dim: int, theta: float) -> NDArray[np.float64]:
    """Return the number that a position is divided by to get the angle of each sine, float64 [sines]."""
    count = columns(row, dim).sines
    exponents = 2 * np.arange(count) / dim if row.spread == "d" else np.arange(count) / (dim // 2 - 1)
    return np.asarray(np.power(theta, exponents))


def _exact(theta: float, spread: Fraction, count: int) -> Frequencies:
    """Return theta^(-k spread) for k < count, by repeated multiplication in 50 digits."""
    rounded, residue = np.empty(count), np.empty(count)
    with localcontext(DIGITS):
        ratio = Decimal(theta) ** (Decimal(-spread.numerator) / spread.denominator)
        value = Decimal(1)
        for index in range(count):
            rounded[index] = float(value)
            residue[index] = float(value - Decimal(float(rounded[index])))
            value *= ratio
    return _frozen(rounded, residue, "exact")


def _frozen(rounded: NDArray[np.float64], residue: NDArray[np.float64], arithmetic: Arithmetic) -> Frequencies:
    rounded.flags.writeable = residue.flags.writeable = False  # shared through the cache
    return Frequencies(rounded, residue, 1.0, arithmetic)


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
    """Return rows of one kind of sinusoid as a Table.

    Args:
        kind: a row of SINUSOIDS.
        dim: channels, 1 to 65536; 4 or more for tensor2tensor, whisper and musicgen, and even for whisper.
        positions: int [N], 0 or more; row n is that of positions[n] + offset.
        arithmetic: exact or parity.
        theta: base of the frequencies, above 1.
        offset: added to every position (XGLM and M2M100 count from 2).
        zero_row: the position, offset included, whose row is all zero: padding_idx of M2M100, FSMT and Speech2Text.

    Returns:
        a Table with output `table` [N, dim].

    Raises:
        BadEncoding: an unknown kind, or a parameter out of range.

    Source: Vaswani et al. 2017, arXiv:1706.03762; parity: transformers 5.23.
    """
    row = checked_kind(kind, dim, theta)
    if zero_row is not None and not (isinstance(zero_row, int) and zero_row >= 0):
        raise BadEncoding(f"zero_row is {zero_row!r}; it must be a position, 0 or more, or left out")
    shifted = _shifted(positions, offset)
    block = _block(row, dim, float(theta), arithmetic, shifted)

    def rows(start: int, stop: int) -> Floats:
        values = block(start, stop)
        if zero_row is not None:
            values[slice_positions(shifted, start, stop) == zero_row] = 0
        return values

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
    """Return rows of the layout, each block a new writable array."""
    place = columns(row, dim)
    waves = _waves(row, dim, theta, arithmetic, positions)

    def rows(start: int, stop: int) -> Floats:
        values = np.empty((stop - start, dim), np.float64 if arithmetic == "exact" else np.float32)
        for first in range(start, stop, CHUNK):
            part = values[first - start : first - start + CHUNK]
            sine, cosine = waves(first, first + len(part))
            part[:, place.sin] = sine
            part[:, place.cos] = cosine[:, : place.cosines]
            part[:, place.sines + place.cosines :] = 0
        return values

    return rows


def _waves(row: Sinusoid, dim: int, theta: float, arithmetic: Arithmetic, positions: Positions) -> Waves:
    """Return blocks of the sine and the cosine of every angle: float64 (exact) or float32."""
    freqs = frequencies(row, dim, theta, arithmetic)
    if arithmetic == "parity" and row.steps in ("float64_quotient", "float64_product"):
        return _double_waves(row, dim, theta, positions)
    if isinstance(positions, range):
        sine, cosine = angles.rows(freqs, positions, "sin"), angles.rows(freqs, positions, "cos")
        return lambda start, stop: (sine(start, stop), cosine(start, stop))
    return lambda start, stop: angles.cos_sin(freqs, positions[start:stop])[::-1]


def _double_waves(row: Sinusoid, dim: int, theta: float, positions: Positions) -> Waves:
    divisors = powers(row, dim, theta)

    def waves(start: int, stop: int) -> tuple[Floats, Floats]:
        column = slice_positions(positions, start, stop)[:, None]
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
    """Return rows for the patches of an image, top left first, with half of the channels for each axis.

    Args:
        dim: channels, a multiple of 4.
        grid: patches down, patches across.
        order: hw: [sin_h | cos_h | sin_w | cos_w];  wh: halves swapped, as ViT-MAE and AIMv2 were trained.
        cls_rows: rows of zeros before the patches.
        theta: base of the frequencies, above 1.
        arithmetic: exact or parity.

    Returns:
        a Table with output `table` [cls_rows + h * w, dim].

    Raises:
        BadEncoding: a parameter is unknown or out of range.

    Source: w_k = theta^(-k/(dim/4)); parity: transformers 5.23 vit_mae build_2d_sinusoidal_position_embedding.
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
        values = np.zeros((stop - start, dim), np.float64 if arithmetic == "exact" else np.float32)
        if len(cells):
            values[lead:, down_half] = _axis_rows(down, cells // width)
            values[lead:, across_half] = _axis_rows(across, cells % width)
        return values

    facts = _facts(GRID_AXIS, axis_dim, float(theta), arithmetic)
    facts |= {"dim": dim, "grid": list(grid), "order": order, "layout": ORDERS[order], "cls_rows": cls_rows}
    facts["formula"] = f"w_k = theta^(-k/(dim/4)); row (h, w) = {ORDERS[order]}"
    shape = (cls_rows + height * width, dim)
    return Table("sinusoidal_grid", arithmetic, {"table": Output(shape, rows)}, facts)


def _axis_rows(axis: Rows, index: NDArray[np.int64]) -> Floats:
    """Return rows of one axis by index; each row from the smallest to the largest index is computed once."""
    first, last = int(index.min()), int(index.max())
    return axis(first, last + 1)[index - first]


def checked_axis(dim: Any, order: str, theta: float) -> int:
    """Return the number of channels for one axis of a grid.

    Raises:
        BadEncoding: order, dim or theta is not allowed.
    """
    checked_name("order", order, ORDERS)
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
