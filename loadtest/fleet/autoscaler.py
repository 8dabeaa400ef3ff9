"""Kubernetes' HorizontalPodAutoscaler over a simulated day: does it follow a load, and does it flap?

Time passes in steps of a second and work is counted in tokens, as a fluid: a request simulation of hours would take
hours. What waits although the replicas are not overloaded comes from the request simulation (`Behaviour`). The rule is
that of the HPA's documentation and of its source (pkg/controller/podautoscaler): every SYNC_SECONDS, for each metric,
ceil(sum of the metric / target), unless the ratio is within TOLERANCE of 1; the largest wins; `stabilizationWindow` and
`policies` of scaling up and down then bound it. KEDA hands its queries to this rule.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, exp, sqrt
from typing import Any

import numpy as np

SYNC_SECONDS = 15
SCRAPE_SECONDS = 15  # of Prometheus, and of metrics-server
TOLERANCE = 0.1
MOST_WAITING_SECONDS = 5.0  # of work that a replica lets wait: INLAY_MAX_QUEUE_SECONDS / 6, then it refuses
NOISE, NOISE_SECONDS = 0.1, 60.0  # of the load: standard deviation and correlation time
LATE_SECONDS = 1.0  # of waiting: above it users notice


@dataclass(frozen=True)
class Behaviour:
    """What a replica's metrics are at a load, from the request simulation.

    Attributes:
        loads: parts of the capacity, ascending.
        waiting: tokens that wait in a replica at each.
        busy: the share of its cores that runs.
    """

    loads: Sequence[float]
    waiting: Sequence[float]
    busy: Sequence[float]

    def at(self, load: float) -> tuple[float, float]:
        """Return the tokens waiting and the busy share at a load."""
        return float(np.interp(load, self.loads, self.waiting)), float(np.interp(load, self.loads, self.busy))


@dataclass(frozen=True)
class Rule:
    """The settings of an autoscaler.

    Attributes:
        waiting_target: tokens waiting a replica (inlay_queue_tokens); None: the metric is not used.
        busy_target: share of the requested processor time; None: the metric is not used.
        up_window: stabilizationWindowSeconds of scaling up; down_window: of scaling down.
        up_percent: of the replicas that may be added in 15 s, or up_pods if that is more.
        down_percent: of the replicas that may be removed in a minute.
    """

    waiting_target: float | None = None
    busy_target: float | None = None
    up_window: int = 0
    down_window: int = 300
    up_percent: int = 100
    up_pods: int = 4
    down_percent: int = 100


@dataclass
class Trace:
    """What happened, second by second.

    Attributes:
        needed: replicas that the load would keep busy, as a fraction.
        replicas: asked for; ready: of these serving.
        waited: seconds of work that wait.
        refused: tokens refused; offered: tokens that came.
    """

    needed: list[float] = field(default_factory=list)
    replicas: list[int] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    refused: float = 0.0
    offered: float = 0.0


class Autoscaler:
    """The rule with its memory.

    Args:
        rule: its settings.
        least: replicas; most: replicas.
    """

    def __init__(self, rule: Rule, least: int, most: int) -> None:
        self.rule, self.least, self.most = rule, least, most
        self._recommended: deque[tuple[int, int]] = deque()  # second, replicas
        self._before: deque[tuple[int, int]] = deque()  # second, replicas that were asked for

    def desired(self, second: int, replicas: int, ready: int, waiting: float, busy: float) -> int:
        """Return the replicas to ask for.

        Args:
            second: of the simulation.
            replicas: asked for at present; ready: of these serving.
            waiting: tokens waiting in all of them.
            busy: mean share of the processor time that the ready ones use.
        """
        rule = self.rule
        proposals = []
        if rule.waiting_target:
            proposals.append(_proposal(replicas, waiting, rule.waiting_target))
        if rule.busy_target:
            proposals.append(_proposal(replicas, busy * ready, rule.busy_target))
        recommended = max(self.least, min(self.most, max(proposals)))
        self._recommended.append((second, recommended))
        while self._recommended[0][0] < second - max(rule.up_window, rule.down_window):
            self._recommended.popleft()
        up = min(value for at, value in self._recommended if at >= second - rule.up_window)
        down = max(value for at, value in self._recommended if at >= second - rule.down_window)
        stable = up if up > replicas else down if down < replicas else replicas
        self._before.append((second, replicas))
        while self._before[0][0] < second - 60:
            self._before.popleft()
        return self._bounded(second, replicas, stable)

    def _bounded(self, second: int, replicas: int, stable: int) -> int:
        """Return the recommendation within the policies of scaling up and down."""
        rule = self.rule
        if stable > replicas:
            base = min(value for at, value in self._before if at >= second - SYNC_SECONDS)
            return min(stable, max(ceil(base * (1 + rule.up_percent / 100)), base + rule.up_pods))
        base = max(value for _, value in self._before)
        return max(stable, ceil(base * (1 - rule.down_percent / 100)))


def _proposal(replicas: int, total: float, target: float) -> int:
    """Return what one metric asks for."""
    if abs(1 - total / (target * replicas)) <= TOLERANCE:
        return replicas
    return ceil(total / target)


def noise(rng: np.random.Generator, seconds: int) -> list[float]:
    """Return factors of a load around 1 that wander slowly (log of an Ornstein-Uhlenbeck process)."""
    keep = exp(-1 / NOISE_SECONDS)
    steps = rng.normal(0, NOISE * sqrt(1 - keep * keep), seconds)
    factors, level = [], 0.0
    for step in steps.tolist():
        level = level * keep + step
        factors.append(exp(level))
    return factors


class Fleet:
    """Replicas as a fluid: what they compute, what waits, and which are starting.

    Args:
        replicas: that serve at the beginning.
        tokens_a_second: of one replica.
        start_seconds: from being asked for to serving.
    """

    def __init__(self, replicas: int, tokens_a_second: float, start_seconds: int) -> None:
        self.replicas = self.ready = replicas  # asked for; serving
        self.backlog = 0.0  # tokens
        self._tokens_a_second, self._start_seconds = tokens_a_second, start_seconds
        self._starting: deque[int] = deque()  # the second at which each serves

    @property
    def capacity(self) -> float:
        """Tokens a second of the replicas that serve."""
        return self.ready * self._tokens_a_second

    def work(self, second: int, offered: float) -> tuple[float, float]:
        """Let a second pass in which tokens come; return those computed and those refused."""
        while self._starting and self._starting[0] <= second:
            self._starting.popleft()
            self.ready += 1
        done = min(self.backlog + offered, self.capacity)
        waiting = self.backlog + offered - done
        refused = max(0.0, waiting - MOST_WAITING_SECONDS * self.capacity)
        self.backlog = waiting - refused
        return done, refused

    def scale(self, second: int, wanted: int) -> None:
        """Start replicas, or end those that start and then those that serve."""
        self._starting.extend([second + self._start_seconds] * (wanted - self.replicas))
        while wanted < self.ready + len(self._starting):
            if self._starting:
                self._starting.pop()
            else:
                self.ready -= 1
        self.replicas = wanted


def follow(
    rule: Rule,
    load: Callable[[int], float],
    seconds: int,
    tokens_a_second: float,
    behaviour: Behaviour,
    start_seconds: int,
    *,
    least: int = 2,
    most: int = 1000,
    seed: int = 1,
) -> Trace:
    """Let an autoscaler follow a load.

    Args:
        load: by the second, as the number of replicas that it keeps busy.
        tokens_a_second: of one replica.
        start_seconds: from being asked for to being ready.
    """
    factors = noise(np.random.default_rng(seed), seconds)
    scaler, trace = Autoscaler(rule, least, most), Trace()
    fleet = Fleet(max(least, ceil(load(0) / 0.7)), tokens_a_second, start_seconds)
    seen = (0.0, 0.0)  # the metrics when they were last read
    for second, factor in enumerate(factors):
        offered = load(second) * factor * tokens_a_second
        done, refused = fleet.work(second, offered)
        if second % SCRAPE_SECONDS == 0:
            waiting, busy = behaviour.at(done / fleet.capacity)
            seen = (fleet.backlog + waiting * fleet.ready, busy)
        if second % SYNC_SECONDS == SYNC_SECONDS // 2:
            fleet.scale(second, scaler.desired(second, fleet.replicas, fleet.ready, *seen))
        trace.offered += offered
        trace.refused += refused
        trace.needed.append(load(second) * factor)
        trace.replicas.append(fleet.replicas)
        trace.ready.append(fleet.ready)
        trace.waited.append(fleet.backlog / fleet.capacity)
    return trace


def summary(trace: Trace, begun: int = 0) -> dict[str, Any]:
    """Return the figures of a trace from the second `begun` on.

    Returns:
        late_share: of the seconds, with more than LATE_SECONDS of work waiting; recovered_seconds: from `begun` to the
        last of them; refused: share of the tokens; most and overshoot: the most replicas, also as a multiple of what
        the highest load keeps busy; turns_an_hour: changes between growing and shrinking; replicas_over_needed: the
        mean of what was asked for over that of what the load keeps busy.
    """
    waited, replicas, needed = trace.waited[begun:], trace.replicas[begun:], trace.needed[begun:]
    late = [second for second, value in enumerate(waited) if value > LATE_SECONDS]
    moves = [after - before for before, after in pairwise(replicas) if after != before]
    turns = sum((one > 0) != (other > 0) for one, other in pairwise(moves))
    return {
        "late_share": round(len(late) / len(waited), 4),
        "recovered_seconds": late[-1] + 1 if late else 0,
        "refused": round(trace.refused / trace.offered, 4),
        "most": max(replicas),
        "overshoot": round(max(replicas) / max(needed), 2),
        "changes_an_hour": round(len(moves) * 3600 / len(waited), 1),
        "turns_an_hour": round(turns * 3600 / len(waited), 1),
        "replicas_over_needed": round(sum(replicas) / sum(needed), 2),
    }
