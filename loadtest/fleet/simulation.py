"""A discrete-event simulation of a fleet: clients, a balancer and replicas.

A client sends a request, waits for its answer for TIMEOUT seconds, and sends a refused request again after the time
that the refusal says, RETRIES times. A replica that dies (its machine is gone) answers nothing: requests in flight
there fail, and new ones are sent again by the balancer after CONNECT_SECONDS, until health checks leave it out.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadtest.fleet import traffic
from loadtest.fleet.balancing import Balancer
from loadtest.fleet.replica import BATCH_TOKENS, Call, Clock, Replica, Seconds
from loadtest.fleet.service_times import ServiceTimes
from loadtest.workload import percentile

TIMEOUT = 10.0
RETRIES = 2  # as OpenAI's clients
CONNECT_SECONDS = 1.0  # HAProxy's `timeout connect`; one redispatch
CHECK_SECONDS, CHECKS = 1.0, 2  # HAProxy's `inter 1s fall 2`
WARM = 0.25  # of a run, not counted
DIES_AT = 0.5  # of a run
SAMPLE_SECONDS = 0.1
CAPACITY_REQUESTS = 4000
PERCENTILES = (("50", 0.5), ("90", 0.9), ("99", 0.99), ("99.9", 0.999))


@dataclass(frozen=True)
class Scenario:
    """What is simulated.

    Attributes:
        policy: of the balancer.
        replicas: their number.
        load: arrivals as a part of what all replicas can compute at their nominal speed.
        seconds: simulated.
        is_bursty: arrivals come in bursts.
        slow: the share of replicas that have `slow_speed`.
        slow_speed: of these, as a part of the others'.
        dead: how many replicas die during the run.
        cores: of each replica.
        seed: of all that is random.
    """

    policy: str
    replicas: int
    load: float
    seconds: float
    is_bursty: bool = False
    slow: float = 0.0
    slow_speed: float = 1 / 3
    dead: int = 0
    cores: int = 1
    seed: int = 1


@dataclass
class Outcome:
    """What became of the requests that were due after the first quarter of the run.

    Attributes:
        due: requests.
        latencies: seconds, of answered requests from when they were first sent.
        completed: requests answered between the first quarter and the last arrival.
        refusals: 429 responses.
        given_up: requests refused RETRIES + 1 times, or told to wait past TIMEOUT.
        timed_out: requests not answered in time.
        lost: requests in flight at a replica that died.
        waiting: samples of the tokens that wait, a replica.
        busy: samples of the share of cores that run.
    """

    due: int = 0
    latencies: list[float] = field(default_factory=list)
    completed: int = 0
    refusals: int = 0
    given_up: int = 0
    timed_out: int = 0
    lost: int = 0
    waiting: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float | int | None]:
        """Return shares of the requests that were due, and percentiles in milliseconds."""
        ordered, due = sorted(self.latencies), max(1, self.due)
        latency = {f"p{name}_ms": percentile(ordered, share) * 1000 if ordered else None for name, share in PERCENTILES}
        return {
            "due": self.due,
            "goodput": round(self.completed / due, 3),
            "answered": round(len(ordered) / due, 4),
            **{name: value and round(value, 1) for name, value in latency.items()},
            "refusals": round(self.refusals / due, 4),
            "given_up": round(self.given_up / due, 4),
            "timed_out": round(self.timed_out / due, 4),
            "lost": round(self.lost / due, 4),
            "waiting_tokens": round(fmean(self.waiting), 1),
            "busy": round(fmean(self.busy), 3),
        }


class Simulation:
    """One run.

    Args:
        scenario: what is simulated.
        seconds: of a run by the tokens of its texts.
        overhead: seconds of a core for a request outside runs, by the tokens of its texts.
        requests: the tokens of each text of the requests to draw from.
        rate: requests a second.
        batch_tokens: of a batch.
        limited: whether replicas refuse requests.
    """

    def __init__(
        self,
        scenario: Scenario,
        seconds: Seconds,
        overhead: Seconds,
        requests: Sequence[tuple[int, ...]],
        rate: float,
        *,
        batch_tokens: int = BATCH_TOKENS,
        limited: bool = True,
    ) -> None:
        self.scenario, self.clock, self.outcome = scenario, Clock(), Outcome()
        self._warm = scenario.seconds * WARM
        slow = round(scenario.slow * scenario.replicas)
        speeds = [scenario.slow_speed] * slow + [1.0] * (scenario.replicas - slow)
        options: dict[str, Any] = {"cores": scenario.cores, "batch_tokens": batch_tokens, "limited": limited}
        self.replicas = [Replica(self.clock, seconds, self._answered, speed=speed, **options) for speed in speeds]
        rng = np.random.default_rng(scenario.seed)
        self.balancer = Balancer(scenario.policy, scenario.replicas, rng, self.clock)
        self._in_flight: dict[Call, int] = {}
        process = traffic.bursty if scenario.is_bursty else traffic.poisson
        self._arrivals: NDArray[np.float64] = process(rng, rate, scenario.seconds)
        self._requests, self._drawn = requests, rng.integers(len(requests), size=len(self._arrivals))
        self._overheads = [overhead(costs) for costs in requests]

    def run(self) -> Outcome:
        """Run to the end of the arrivals and of what they need."""
        scenario, clock = self.scenario, self.clock
        for offset in range(scenario.dead):
            clock.later(scenario.seconds * DIES_AT, self._die, scenario.replicas - 1 - offset)
        clock.later(self._warm, self._sample, None)
        for due, drawn in zip(self._arrivals.tolist(), self._drawn.tolist(), strict=True):
            clock.advance(due)
            call = Call(self._requests[drawn], self._overheads[drawn], clock, due + TIMEOUT, due)
            self.outcome.due += due >= self._warm
            self._send(call)
        clock.advance(scenario.seconds + 2 * TIMEOUT)
        return self.outcome

    def _sample(self, _: object) -> None:
        """Note the tokens that wait and the cores that run, per replica, some times a second."""
        living = [replica for replica in self.replicas if not replica.is_dead]
        self.outcome.waiting.append(sum(replica.queue.cost for replica in living) / len(living))
        self.outcome.busy.append(sum(replica.running / replica.cores for replica in living) / len(living))
        if self.clock.now + SAMPLE_SECONDS < self.scenario.seconds:
            self.clock.later(SAMPLE_SECONDS, self._sample, None)

    def _weight(self, call: Call) -> int:
        return sum(call.costs) if self.balancer.counts_tokens else 1

    def _is_counted(self, call: Call) -> bool:
        return call.begun >= self._warm

    def _send(self, call: Call) -> None:
        """Pass a request to the replica that the balancer chooses."""
        index = self.balancer.choose()
        self.balancer.loads[index] += self._weight(call)
        replica = self.replicas[index]
        if replica.is_dead:
            self.clock.later(CONNECT_SECONDS, self._not_connected, (call, index))
            return
        wait = replica.offer(call)
        if wait is None:
            self._in_flight[call] = index
            self.clock.later(call.until - self.clock.now, self._give_up, call)
            return
        self.balancer.loads[index] -= self._weight(call)
        self._refused(call, wait)

    def _refused(self, call: Call, wait: float) -> None:
        """Send a refused request again when its refusal says, if its client tries again."""
        self.outcome.refusals += self._is_counted(call)
        call.tries += 1
        if call.tries > RETRIES or self.clock.now + wait >= call.until:
            self.outcome.given_up += self._is_counted(call)
        else:
            self.clock.later(wait, self._send, call)

    def _not_connected(self, sent: tuple[Call, int]) -> None:
        call, index = sent
        self.balancer.loads[index] -= self._weight(call)
        if call.done():
            self.outcome.timed_out += self._is_counted(call)
        else:
            self._send(call)

    def _leave(self, call: Call) -> int | None:
        """Take a request from those in flight; return its replica, or None if it is not among them."""
        index = self._in_flight.pop(call, None)
        if index is not None:
            self.balancer.loads[index] -= self._weight(call)
        return index

    def _answered(self, call: Call) -> None:
        self._leave(call)
        self.outcome.completed += self._warm <= self.clock.now < self.scenario.seconds
        if self._is_counted(call):
            self.outcome.latencies.append(self.clock.now - call.begun)

    def _give_up(self, call: Call) -> None:
        """Let a client leave that has waited for TIMEOUT."""
        index = self._leave(call)
        if index is not None:
            self.replicas[index].cancel()
            self.outcome.timed_out += self._is_counted(call)

    def _die(self, index: int) -> None:
        """Let a replica vanish with what it holds, and leave it out when the health checks have seen it."""
        self.replicas[index].is_dead = True
        for call in [call for call, at in self._in_flight.items() if at == index]:
            del self._in_flight[call]  # its connection stays open, so the balancer goes on counting it
            self.outcome.lost += self._is_counted(call)
        self.clock.later(CHECK_SECONDS * CHECKS, self.balancer.mark_down, index)


def capacity(times: ServiceTimes, requests: Sequence[tuple[int, ...]], cores: int = 1) -> float:
    """Return the requests a second that a replica computes while its queue is never empty."""
    clock, ended = Clock(), []
    replica = Replica(clock, times.batch_seconds, lambda _: ended.append(clock.now), cores=cores, limited=False)
    for costs in requests[:CAPACITY_REQUESTS]:
        replica.offer(Call(costs, times.request_seconds(costs), clock, float("inf"), 0.0))
    clock.advance(1e6)
    return len(ended) / ended[-1]


def simulate(
    scenario: Scenario, times: ServiceTimes, requests: Sequence[tuple[int, ...]], rate: float
) -> dict[str, Any]:
    """Return the scenario and its outcome; `rate` is the capacity of one replica in requests a second."""
    arrivals = rate * scenario.replicas * scenario.load
    outcome = Simulation(scenario, times.batch_seconds, times.request_seconds, requests, arrivals).run()
    return asdict(scenario) | outcome.summary()
