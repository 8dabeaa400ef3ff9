"""How a balancer chooses a replica: random, round robin, two choices, least connections, least tokens."""

import numpy as np
from numpy.typing import NDArray

from loadtest.fleet.replica import Clock

RANDOM, ROUND_ROBIN, TWO_CHOICES = "random", "round robin", "two choices"
LEAST_CONNECTIONS, STALE, LEAST_TOKENS = "least connections", "least connections, 1 s old", "least tokens"
POLICIES = (RANDOM, ROUND_ROBIN, TWO_CHOICES, LEAST_CONNECTIONS, STALE, LEAST_TOKENS)
STALE_SECONDS = 1.0  # how often the figures are read anew where they are old


class Balancer:
    """Chooses a replica for each request, and counts what it has sent where.

    Args:
        policy: one of POLICIES.
        replicas: their number.
        rng: of its random choices.
        clock: of the simulation.
    """

    def __init__(self, policy: str, replicas: int, rng: np.random.Generator, clock: Clock) -> None:
        self._rng, self._clock = rng, clock
        self.loads = np.zeros(replicas)  # of each replica: requests, or tokens, sent and not answered
        self._up = np.arange(replicas)  # those that pass the health checks
        self._old, self._old_until = self.loads.copy(), 0.0
        self._next = int(rng.integers(replicas))
        self._drawn: list[float] = []
        self.counts_tokens = policy == LEAST_TOKENS
        self._choose = {
            RANDOM: self._random,
            ROUND_ROBIN: self._round_robin,
            TWO_CHOICES: self._two_choices,
            STALE: self._least_of_old,
        }.get(policy, self._least)

    def choose(self) -> int:
        """Return the number of the replica that gets the next request."""
        return int(self._choose())

    def mark_down(self, index: int) -> None:
        """Leave a replica out from now on: a health check failed."""
        self._up = self._up[self._up != index]

    def _uniform(self) -> float:
        if not self._drawn:
            self._drawn = self._rng.random(10_000).tolist()
        return self._drawn.pop()

    def _random(self) -> int:
        return int(self._up[int(self._uniform() * len(self._up))])

    def _round_robin(self) -> int:
        self._next = (self._next + 1) % len(self._up)
        return int(self._up[self._next])

    def _two_choices(self) -> int:
        one, other = self._random(), self._random()
        return one if self.loads[one] <= self.loads[other] else other

    def _least(self) -> int:
        return self._one_of_least(self.loads)

    def _least_of_old(self) -> int:
        if self._clock.now >= self._old_until:
            self._old, self._old_until = self.loads.copy(), self._clock.now + STALE_SECONDS
        return self._one_of_least(self._old)

    def _one_of_least(self, loads: NDArray[np.float64]) -> int:
        """Return one of those with the least load, drawn evenly: the first would get all of a quiet time."""
        up_loads = loads[self._up]
        least = np.flatnonzero(up_loads == up_loads.min())
        return int(self._up[least[int(self._uniform() * len(least))]])
