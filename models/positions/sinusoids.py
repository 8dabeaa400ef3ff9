"""Layouts and frequencies of sinusoidal positions: a layout is a row of SINUSOIDS. Makes no table (sinusoidal.py)."""

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from models.errors import BadEncoding
from models.positions.arithmetic import DIGITS
from models.positions.rope.frequencies import Frequencies
from models.positions.table import Arithmetic

THETA = 10000.0
MAX_DIM = 65536
Steps = Literal["float64_quotient", "float64_product", "float32_power", "float32_exponential"]


@dataclass(frozen=True, slots=True)
class Sinusoid:
    """Where sines and cosines stand, what their frequencies are, and how transformers rounds.

    layout    interleaved [first, second, first, second ...] or half [first ... | second ...]
    first     which function comes first
    spread    d: w_k = theta^(-2k/d);  d/2-1: w_k = theta^(-k/(d/2 - 1)), the slowest is 1/theta exactly
    odd       an odd dim has one sine more than cosines, or a zero column at its end, or is refused
    steps     of parity: float64 position / theta^x or position * theta^-x, cast last; or float32 throughout, with the
              frequencies 1 / pow or exp
    """

    layout: Literal["interleaved", "half"]
    first: Literal["sin", "cos"]
    spread: Literal["d", "d/2-1"]
    odd: Literal["extra_sin", "zero_column", "refused"]
    steps: Steps
    users: str

    @property
    def formula(self) -> str:
        """For people."""
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
    """The columns of a row that hold sines and cosines; what is left is zero. There are as many angles as sines."""

    sin: slice
    cos: slice
    sines: int
    cosines: int


def columns(row: Sinusoid, dim: int) -> Columns:
    """Where the functions of `dim` channels stand."""
    cosines = dim // 2
    sines = dim - cosines if row.odd == "extra_sin" else cosines
    if row.layout == "interleaved":
        return Columns(slice(0, None, 2), slice(1, None, 2), sines, cosines)
    before, after = (0, sines) if row.first == "sin" else (cosines, 0)
    return Columns(slice(before, before + sines), slice(after, after + cosines), sines, cosines)


def checked(kind: str, dim: int, theta: float) -> Sinusoid:
    """The row of SINUSOIDS; raises BadEncoding where the kind has no table of `dim` channels."""
    if kind not in SINUSOIDS:
        raise BadEncoding(f"sinusoidal kind {kind!r} is not one of {', '.join(SINUSOIDS)}")
    row = SINUSOIDS[kind]
    check_sizes(row, kind, dim, theta)
    return row


def check_sizes(row: Sinusoid, kind: str, dim: int, theta: float) -> None:
    """Raises BadEncoding unless the row has tables of `dim` channels; `kind` is its name for people."""
    least = 1 if row.spread == "d" else 4
    if not isinstance(dim, int) or isinstance(dim, bool) or not least <= dim <= MAX_DIM:
        why = "" if least == 1 else ": its exponent -k/(floor(dim/2) - 1) would divide by zero or have no pair"
        raise BadEncoding(f"dim is {dim!r}; {kind} sinusoids have {least} to {MAX_DIM} channels{why}")
    if dim % 2 and row.odd == "refused":
        raise BadEncoding(f"dim is {dim}; {kind} sinusoids have an even number of channels")
    if not isinstance(theta, int | float) or not (math.isfinite(theta) and theta > 1):
        raise BadEncoding(f"theta is {theta!r}; it must be a number above 1, usually 10000")


@lru_cache(maxsize=64)
def frequencies(row: Sinusoid, dim: int, theta: float, arithmetic: Arithmetic) -> Frequencies:
    """Radians per position of each sine, fastest first: exact, or the bits of the parity steps.

    source   transformers 5.23: ctrl (float32_power), m2m_100 and whisper (float32_exponential), vit_mae (float64)
    """
    count = columns(row, dim).sines
    if arithmetic == "exact":
        return _exact(theta, Fraction(2, dim) if row.spread == "d" else Fraction(1, dim // 2 - 1), count)
    found: NDArray[Any] = 1.0 / powers(row, dim, theta)
    if row.steps == "float32_power":
        exponents = np.arange(0, 2 * count, 2, dtype=np.float32) / np.float32(dim)
        found = np.float32(1) / (float(np.float32(theta)) ** exponents.astype(np.float64)).astype(np.float32)
    elif row.steps == "float32_exponential":
        steps = np.arange(count, dtype=np.float32) * np.float32(-(math.log(theta) / (dim // 2 - 1)))
        found = np.exp(steps.astype(np.float64)).astype(np.float32)
    return _frozen(found.astype(np.float64), np.zeros(count), "parity")


def powers(row: Sinusoid, dim: int, theta: float) -> NDArray[np.float64]:
    """What a position is divided by to get the angle of each sine, in float64."""
    count = columns(row, dim).sines
    exponents = 2 * np.arange(count) / dim if row.spread == "d" else np.arange(count) / (dim // 2 - 1)
    return np.asarray(np.power(theta, exponents))


def _exact(theta: float, spread: Fraction, count: int) -> Frequencies:
    """theta^(-k spread) for k < count, by repeated multiplication in 50 digits."""
    nearest, residue = np.empty(count), np.empty(count)
    with localcontext(DIGITS):
        ratio = Decimal(theta) ** (Decimal(-spread.numerator) / spread.denominator)
        value = Decimal(1)
        for index in range(count):
            nearest[index] = float(value)
            residue[index] = float(value - Decimal(float(nearest[index])))
            value *= ratio
    return _frozen(nearest, residue, "exact")


def _frozen(nearest: NDArray[np.float64], residue: NDArray[np.float64], arithmetic: Arithmetic) -> Frequencies:
    nearest.flags.writeable = residue.flags.writeable = False  # lent to every caller
    return Frequencies(nearest, residue, 1.0, arithmetic)
