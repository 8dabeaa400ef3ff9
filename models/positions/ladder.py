"""Distances counted in logarithmic steps, for bucket numbers. Knows no scheme: T5 rounds the steps down, DeBERTa up.

exact    float64, and whole numbers where a distance lies exactly on a step
parity   the float32 steps of transformers 5.23. Its float32 logarithm is torch's, which differs by an ulp between
         machines; here it is rounded correctly, which can move a distance within 1e-6 of a step, and no other
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.positions.table import Arithmetic

Int64s = NDArray[np.int64]

_MAX_TIE = 64  # see Ladder._settled


@dataclass(frozen=True, slots=True)
class Ladder:
    """Where distances are counted in logarithms: `steps` even steps of ln(distance) lead from `start` to `end`."""

    start: int
    end: int
    steps: int

    def climbed(self, distance: Int64s, rounding: Callable[[Any], Any], arithmetic: Arithmetic) -> Int64s:
        """steps * ln(distance / start) / ln(end / start), by np.floor or np.ceil; distances of start or more."""
        if arithmetic == "parity":
            span = _log(np.float32(self.end / self.start))
            ratio = distance.astype(np.float32) / np.float32(self.start)
            return np.asarray(rounding(_log(ratio) / span * np.float32(self.steps)).astype(np.int64))
        span = math.log1p((self.end - self.start) / self.start)
        position = np.log1p((distance - self.start) / self.start) / span * self.steps
        return self._settled(distance, position, rounding)

    def _settled(self, distance: Int64s, position: NDArray[np.float64], rounding: Callable[[Any], Any]) -> Int64s:
        """`position` rounded, ties decided without it.

        A tie at step c means (distance/start)^steps = (end/start)^c. With common factors taken from steps and c, both
        ratios are powers of one fraction with just these exponents; as numbers stay below 2^63, so do the exponents
        below 64. Where they are higher there is no tie, and float64 knows the side.
        """
        nearest = np.rint(position)
        found = np.asarray(rounding(position).astype(np.int64))
        close = np.abs(position - nearest) <= 1e-13 * np.maximum(position, 1.0)
        for value, step in {(int(d), int(c)) for d, c in zip(distance[close], nearest[close], strict=True)}:
            shared = math.gcd(self.steps, step)
            steps, whole = self.steps // shared, step // shared
            if max(steps, whole) < _MAX_TIE:
                here, edge = value**steps * self.start**whole, self.end**whole * self.start**steps
                found[close & (distance == value)] = rounding(step + ((here > edge) - (here < edge)) / 2)
        return found


def _log(value: NDArray[np.float32] | np.float32) -> Any:
    """float32 logarithm, rounded correctly."""
    return np.log(value, dtype=np.float64).astype(np.float32)
