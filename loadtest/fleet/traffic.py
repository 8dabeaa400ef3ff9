"""Requests of a simulated fleet: their lengths from the users' mix, their times from a Poisson or a bursty process."""

import random

import numpy as np
from numpy.typing import NDArray

from loadtest import user_mix

POOL = 20_000  # requests drawn once, from which a simulation draws
QUIET_SECONDS, BURST_SECONDS = 2.0, 0.5  # mean lengths of the two states of bursty traffic
BURST = 3.0  # times as many requests a second as in the quiet state


def pool(seed: int = 1) -> list[tuple[int, ...]]:
    """Return the tokens of each text of POOL requests; tables, which no encoder computes, are left out."""
    rng = random.Random(seed)
    drawn = (user_mix.draw(rng).costs for _ in range(POOL * 2))
    return [costs for costs in drawn if costs][:POOL]


def poisson(rng: np.random.Generator, rate: float, seconds: float) -> NDArray[np.float64]:
    """Return the times of a Poisson process of `rate` a second, in order."""
    return np.sort(rng.uniform(0, seconds, rng.poisson(rate * seconds)))


def bursty(rng: np.random.Generator, rate: float, seconds: float) -> NDArray[np.float64]:
    """Return the times of a Markov-modulated Poisson process of two states, in order.

    The rates of the states are such that the run has `rate` a second on average, whatever share of it bursts took.
    """
    ends, in_burst = [0.0], bool(rng.random() < BURST_SECONDS / (QUIET_SECONDS + BURST_SECONDS))
    factors = []
    while ends[-1] < seconds:
        length = rng.exponential(BURST_SECONDS if in_burst else QUIET_SECONDS)
        ends.append(min(seconds, ends[-1] + length))
        factors.append(BURST if in_burst else 1.0)
        in_burst = not in_burst
    quiet = rate * seconds / float(np.dot(np.diff(ends), factors))
    states = zip(ends, ends[1:], factors, strict=False)
    return np.concatenate([begun + poisson(rng, quiet * factor, end - begun) for begun, end, factor in states])
