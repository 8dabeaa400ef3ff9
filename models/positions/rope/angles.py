"""Frequencies and positions → cos and sin, in either arithmetic.

- exact: whole turns are removed before anything is rounded, so a value is right to about 1e-16 at any position.
  Position m is split into a far step k and a near rest j: cos and sin of both give those of m in four multiplications
  instead of a sine. A value never depends on which other positions are requested.
- parity: float32(position) * float32 frequency, then cos and sin in float32, times attention_factor: the steps of
  transformers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from models.positions.arithmetic import DIGITS, PI, Frequencies
from models.positions.table import Positions, Rows, slice_positions

Float64s = NDArray[np.float64]
Function = Literal["cos", "sin"]
_MAX_STEPS, _NEAR_VALUES = 512, 65536  # rows, and values, of the table of near positions
_FAR_STEPS, _FAR_VALUES = 64, 65536  # steps, and values, of a block of far positions: at most 1 MiB with its twin
_EXACT_BITS = 26  # a product with a position below 2^27 has no rounding


@dataclass(frozen=True, slots=True, eq=False)
class Turns:
    """Turns per position, inverse_frequency / 2 pi, as high + middle + low: 26 bits each, then the rest.

    The products of a whole number below 2^27 with `high` and `middle` are exact in float64.
    """

    high: Float64s
    middle: Float64s
    low: Float64s


@lru_cache(maxsize=16)  # of up to 768 KiB
def turns(freqs: Frequencies) -> Turns:
    """Return the three parts of the turns per position, each float64 (r/2,)."""
    parts = []
    with localcontext(DIGITS):
        remaining = [
            (Decimal(float(rounded)) + Decimal(float(rest))) / (2 * PI)
            for rounded, rest in zip(freqs.inverse_frequency, freqs.residue, strict=True)
        ]
        for _ in range(2):
            part = _leading_bits(np.array([float(value) for value in remaining]))
            remaining = [value - Decimal(float(removed)) for value, removed in zip(remaining, part, strict=True)]
            parts.append(part)
    return Turns(parts[0], parts[1], np.array([float(value) for value in remaining]))


def _leading_bits(values: Float64s) -> Float64s:
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.trunc(np.ldexp(mantissa, _EXACT_BITS)), exponent - _EXACT_BITS))


def reduced(freqs: Frequencies, positions: NDArray[np.int64]) -> Float64s:
    """Return the angle of each position without whole turns: float64 [..., r/2] in radians, about -pi to pi."""
    parts = turns(freqs)
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


def cos_sin(freqs: Frequencies, positions: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return cos and sin of each position's angle, times attention_factor.

    Args:
        freqs: the frequencies; their arithmetic is that of the result.
        positions: int64 [...], 0 or more.

    Returns:
        [..., r/2] each: float64 (exact), right to about 1e-16 * attention_factor; float32 (parity).

    Source: parity: transformers 5.23 LlamaRotaryEmbedding.forward.
    """
    if freqs.arithmetic == "parity":
        return _single(freqs, positions, np.cos), _single(freqs, positions, np.sin)
    near_cos, near_sin = _near_table(freqs)
    far, near = np.divmod(positions, len(near_cos))
    steps, place = np.unique(far, return_inverse=True)
    far_cos, far_sin = (values[place.reshape(far.shape)] for values in _far_values(freqs, steps))
    near_cos, near_sin = near_cos[near], near_sin[near]
    return far_cos * near_cos - far_sin * near_sin, far_cos * near_sin + far_sin * near_cos


def rows(freqs: Frequencies, positions: Positions, function: Function) -> Rows:
    """Return a function (start, stop) -> rows of the cos or the sin table, with the same bits as `cos_sin`.

    Args:
        freqs: the frequencies.
        positions: positions of the table's rows.
        function: cos or sin.
    """
    consecutive = isinstance(positions, range) and positions.step == 1

    def block(start: int, stop: int) -> NDArray[Any]:
        if freqs.arithmetic == "parity":
            return _single(freqs, slice_positions(positions, start, stop), np.cos if function == "cos" else np.sin)
        if consecutive:
            return _consecutive(freqs, positions[start], stop - start, function)
        return cos_sin(freqs, slice_positions(positions, start, stop))[("cos", "sin").index(function)]

    return block


def _single(freqs: Frequencies, positions: NDArray[np.int64], function: Callable[..., Any]) -> NDArray[np.float32]:
    angles = positions[..., None].astype(np.float32) * freqs.inverse_frequency.astype(np.float32)
    values: NDArray[np.float32] = function(angles, out=angles)
    if freqs.attention_factor != 1.0:
        values *= np.float32(freqs.attention_factor)
    return values


@lru_cache(maxsize=8)
def _near_table(freqs: Frequencies) -> tuple[Float64s, Float64s]:
    step = min(_MAX_STEPS, max(1, _NEAR_VALUES // len(freqs.inverse_frequency)))
    angles = reduced(freqs, np.arange(step))
    return np.cos(angles), np.sin(angles)


def _far_values(freqs: Frequencies, steps: NDArray[np.int64]) -> tuple[Float64s, Float64s]:
    angles = reduced(freqs, steps * len(_near_table(freqs)[0]))
    return np.cos(angles) * freqs.attention_factor, np.sin(angles) * freqs.attention_factor


@lru_cache(maxsize=32)
def _far_block(freqs: Frequencies, block_index: int, steps: int) -> tuple[Float64s, Float64s]:
    """Return `_far_values` of consecutive steps, cached because neighbouring blocks of rows share them."""
    return _far_values(freqs, np.arange(block_index * steps, (block_index + 1) * steps))


def _consecutive(freqs: Frequencies, first: int, count: int, function: Function) -> Float64s:
    near_cos, near_sin = _near_table(freqs)
    near = len(near_cos)
    table = np.empty((count, near_cos.shape[1]))
    scratch = np.empty_like(near_cos)
    steps = min(_FAR_STEPS, max(1, _FAR_VALUES // near_cos.shape[1]))
    for step in range(first // near, (first + count - 1) // near + 1):
        far_cos, far_sin = (values[step % steps] for values in _far_block(freqs, step // steps, steps))
        start, stop = max(first, step * near), min(first + count, (step + 1) * near)
        part = slice(start - step * near, stop - step * near)
        out, product = table[start - first : stop - first], scratch[: stop - start]
        if function == "cos":
            np.multiply(near_sin[part], far_sin, out=product)
            np.subtract(np.multiply(near_cos[part], far_cos, out=out), product, out=out)
        else:
            np.multiply(near_cos[part], far_sin, out=product)
            np.add(np.multiply(near_sin[part], far_cos, out=out), product, out=out)
    return table
