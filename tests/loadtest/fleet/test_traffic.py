"""Arrivals: rates, and that bursts are burstier than a Poisson process."""

import numpy as np
import pytest

from loadtest.fleet import traffic
from loadtest.user_mix import MOST_TOKENS

SECONDS, RATE = 200.0, 100.0


def dispersion(times: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> float:
    """Return the variance over the mean of the counts by tenth of a second; 1 for a Poisson process."""
    counts = np.histogram(times, bins=int(SECONDS * 10), range=(0, SECONDS))[0]
    return float(counts.var() / counts.mean())


@pytest.mark.parametrize("process", [traffic.poisson, traffic.bursty])
def test_arrivals_are_ordered_and_have_the_rate(process: "type[object]") -> None:
    times = process(np.random.default_rng(2), RATE, SECONDS)  # type: ignore[call-arg]
    assert len(times) == pytest.approx(RATE * SECONDS, abs=5 * (RATE * SECONDS) ** 0.5)
    assert (np.diff(times) >= 0).all()
    assert times[0] >= 0
    assert times[-1] < SECONDS


def test_bursts_are_burstier_than_poisson() -> None:
    assert dispersion(traffic.poisson(np.random.default_rng(3), RATE, SECONDS)) == pytest.approx(1, abs=0.2)
    # the rate of a tenth of a second is q or 3 q: var of the rate x 0.1 s / mean, above 1
    share = traffic.BURST_SECONDS / (traffic.BURST_SECONDS + traffic.QUIET_SECONDS)
    quiet = RATE / (1 + 2 * share)
    excess = (2 * quiet) ** 2 * share * (1 - share) * 0.1 / RATE
    assert dispersion(traffic.bursty(np.random.default_rng(3), RATE, SECONDS)) == pytest.approx(1 + excess, rel=0.25)


def test_pool_holds_texts_alone() -> None:
    pool = traffic.pool()
    assert len(pool) == traffic.POOL
    assert all(pool)
    assert max(map(max, pool)) == MOST_TOKENS
