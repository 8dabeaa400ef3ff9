"""Frequencies and positions → cos and sin, in either arithmetic. Knows no scaling and no layout.

exact    Whole turns are taken off before anything is rounded, so a value is right to about 1e-16 at any position.
         Position m is step k + j: cos and sin of step k and of j make those of m, four multiplications instead of a
         sine. A value never depends on which others are asked for.
parity   float32(position) * float32 frequency, then cos and sin in float32, times attention_factor: transformers'
         steps.
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from models.positions.arithmetic import DIGITS, PI
from models.positions.rope.frequencies import Frequencies
from models.positions.table import Positions, Rows, taken

Float64s = NDArray[np.float64]
Function = Literal["cos", "sin"]
_MOST_STEPS, _NEAR_VALUES = 512, 65536  # rows, and values, of the table of near positions
_STRETCH = 64
_EXACT_BITS = 26  # a product with a position below 2^27 has no rounding


@dataclass(frozen=True, slots=True, eq=False)
class Turns:
    """Turns per position, inverse_frequency / 2 pi, as high + middle + low: 26 bits each, then what is left.

    The products of a whole number below 2^27 with `high` and `middle` are exact in float64.
    """

    high: Float64s
    middle: Float64s
    low: Float64s


@lru_cache(maxsize=64)
def turns(found: Frequencies) -> Turns:
    """The three parts of turns per position, each float64 (r/2,)."""
    parts = []
    with localcontext(DIGITS):
        left = [
            (Decimal(float(near)) + Decimal(float(rest))) / (2 * PI)
            for near, rest in zip(found.inverse_frequency, found.residue, strict=True)
        ]
        for _ in range(2):
            part = _leading_bits(np.array([float(value) for value in left]))
            left = [value - Decimal(float(taken_off)) for value, taken_off in zip(left, part, strict=True)]
            parts.append(part)
    return Turns(parts[0], parts[1], np.array([float(value) for value in left]))


def _leading_bits(values: Float64s) -> Float64s:
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.trunc(np.ldexp(mantissa, _EXACT_BITS)), exponent - _EXACT_BITS))


def reduced(found: Frequencies, positions: NDArray[np.int64]) -> Float64s:
    """The angle of each position, whole turns taken off: float64 [..., r/2] in radians, about -pi to pi."""
    parts = turns(found)
    near = positions & ((1 << 53 - _EXACT_BITS) - 1)
    part = _fraction(near, parts)
    if (far := positions - near).any():
        part = part + _fraction(far, parts)
        part -= np.rint(part)
    return np.asarray(part * (2.0 * np.pi))


def _fraction(positions: NDArray[np.int64], parts: Turns) -> Float64s:
    column = positions[..., None].astype(np.float64)
    whole = column * parts.high
    part = whole - np.rint(whole)
    whole = column * parts.middle
    part += whole - np.rint(whole)
    part += column * parts.low
    return np.asarray(part - np.rint(part))


def cos_sin(found: Frequencies, positions: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
    """cos and sin of each position's angle, times attention_factor.

    positions  int64 [...], 0 or more
    returns    [..., r/2] each: float64 (exact), right to about 1e-16 * attention_factor; float32 (parity)
    source     parity: transformers 5.23 LlamaRotaryEmbedding.forward
    """
    if found.arithmetic == "parity":
        return _single(found, positions, np.cos), _single(found, positions, np.sin)
    near_cos, near_sin = _near(found)
    far, near = np.divmod(positions, len(near_cos))
    steps, place = np.unique(far, return_inverse=True)
    far_cos, far_sin = (values[place.reshape(far.shape)] for values in _far(found, steps))
    near_cos, near_sin = near_cos[near], near_sin[near]
    return far_cos * near_cos - far_sin * near_sin, far_cos * near_sin + far_sin * near_cos


def rows(found: Frequencies, positions: Positions, function: Function) -> Rows:
    """Blocks of the cos or the sin table of many positions, the same bits as `cos_sin` gives."""
    consecutive = isinstance(positions, range) and positions.step == 1

    def block(start: int, stop: int) -> NDArray[Any]:
        if found.arithmetic == "parity":
            return _single(found, taken(positions, start, stop), np.cos if function == "cos" else np.sin)
        if consecutive:
            return _consecutive(found, positions[start], stop - start, function)
        return cos_sin(found, taken(positions, start, stop))[("cos", "sin").index(function)]

    return block


def _single(found: Frequencies, positions: NDArray[np.int64], function: Callable[..., Any]) -> NDArray[np.float32]:
    angles = positions[..., None].astype(np.float32) * found.inverse_frequency.astype(np.float32)
    values: NDArray[np.float32] = function(angles, out=angles)
    if found.attention_factor != 1.0:
        values *= np.float32(found.attention_factor)
    return values


@lru_cache(maxsize=8)
def _near(found: Frequencies) -> tuple[Float64s, Float64s]:
    step = min(_MOST_STEPS, max(1, _NEAR_VALUES // len(found.inverse_frequency)))
    angles = reduced(found, np.arange(step))
    return np.cos(angles), np.sin(angles)


def _far(found: Frequencies, steps: NDArray[np.int64]) -> tuple[Float64s, Float64s]:
    angles = reduced(found, steps * len(_near(found)[0]))
    return np.cos(angles) * found.attention_factor, np.sin(angles) * found.attention_factor


@lru_cache(maxsize=32)
def _far_stretch(found: Frequencies, stretch: int) -> tuple[Float64s, Float64s]:
    """`_far` of _STRETCH steps on end: a block asks for a few, and its neighbours for the next ones."""
    return _far(found, np.arange(stretch * _STRETCH, (stretch + 1) * _STRETCH))


def _consecutive(found: Frequencies, first: int, count: int, function: Function) -> Float64s:
    near_cos, near_sin = _near(found)
    near = len(near_cos)
    values = np.empty((count, near_cos.shape[1]))
    spare = np.empty_like(near_cos)
    for step in range(first // near, (first + count - 1) // near + 1):
        far_cos, far_sin = (stretch[step % _STRETCH] for stretch in _far_stretch(found, step // _STRETCH))
        start, stop = max(first, step * near), min(first + count, (step + 1) * near)
        part = slice(start - step * near, stop - step * near)
        out, other = values[start - first : stop - first], spare[: stop - start]
        if function == "cos":
            np.multiply(near_sin[part], far_sin, out=other)
            np.subtract(np.multiply(near_cos[part], far_cos, out=out), other, out=out)
        else:
            np.multiply(near_cos[part], far_sin, out=other)
            np.add(np.multiply(near_sin[part], far_cos, out=out), other, out=out)
    return values
