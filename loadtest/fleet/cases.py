"""What `make fleet` simulates, and the figures of each part."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

from loadtest.fleet import autoscaler, traffic
from loadtest.fleet.autoscaler import Behaviour, Rule, Trace
from loadtest.fleet.balancing import LEAST_CONNECTIONS, POLICIES
from loadtest.fleet.service_times import ServiceTimes
from loadtest.fleet.simulation import Scenario, capacity, simulate

SIZES = {1: 300.0, 10: 100.0, 100: 20.0, 1000: 8.0}  # replicas, and the seconds simulated
HARD_SECONDS = {1: 300.0, 10: 100.0, 100: 30.0, 1000: 16.0}  # slow replicas fill their queues for ten seconds
EVEN_LOAD, HARD_LOAD = 0.8, 0.6
SLOW = 0.1  # of the replicas, at a third of the speed, in hard cases
DEAD = {1: 0, 10: 1, 100: 2, 1000: 20}  # replicas that die in hard cases
LOADS, LOADS_REPLICAS, LOADS_SECONDS = (0.3, 0.5, 0.7, 0.8, 0.9, 1.1), 20, 40.0
SHAPES = ((8, 1), (4, 2), (2, 4), (1, 8))  # replicas, and cores of each
BEHAVIOUR_LOADS = (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
HOUR, DAY = 3600, 86400
STEP_AT, STEP_FROM, STEP_TO, RAMP_SECONDS = 600, 4.0, 20.0, 600  # loads as replicas that they keep busy
NIGHT = 0.2  # of the load of the day's peak
WARM_START, NEW_NODE = 15, 120  # seconds until a replica serves: on a node that is there, and on one that is started
RULES = {
    "waiting, 500 tokens": Rule(waiting_target=500),
    "waiting, 10 000 tokens": Rule(waiting_target=10_000),
    "CPU, 70 %": Rule(busy_target=0.7),
    "CPU 70 %, waiting 500": Rule(waiting_target=500, busy_target=0.7),
    "CPU 70 %, waiting 10 000": Rule(waiting_target=10_000, busy_target=0.7),
    "the same, no window": Rule(waiting_target=10_000, busy_target=0.7, down_window=0),
    "the same, half more in 15 s at most": Rule(waiting_target=10_000, busy_target=0.7, up_percent=50),
}
RECOMMENDED, QUEUE_ALONE = "CPU 70 %, waiting 10 000", "waiting, 500 tokens"


def step(second: int) -> float:
    """Return a load that jumps."""
    return STEP_FROM if second < STEP_AT else STEP_TO


def ramp(second: int) -> float:
    """Return a load that grows for RAMP_SECONDS."""
    return STEP_FROM + (STEP_TO - STEP_FROM) * min(1.0, max(0.0, (second - STEP_AT) / RAMP_SECONDS))


def day(second: int) -> float:
    """Return the load of a day with one peak at noon."""
    return STEP_TO * (NIGHT + (1 - NIGHT) * (0.5 - 0.5 * math.cos(2 * math.pi * second / DAY)) ** 2)


LOAD_CURVES: dict[str, tuple[Callable[[int], float], int, int]] = {
    "step": (step, HOUR, STEP_AT),
    "ramp": (ramp, HOUR, STEP_AT),
    "day": (day, DAY, 0),
}
"""Load, seconds, and the second from which figures count."""


def size_scenarios(policies: Sequence[str], sizes: Sequence[int]) -> list[Scenario]:
    """Return the cases by number of replicas, even ones and hard ones; one replica has one policy."""
    pairs = [(size, policy) for size in sizes for policy in (policies if size > 1 else policies[:1])]
    even = [Scenario(policy, size, EVEN_LOAD, SIZES[size]) for size, policy in pairs]
    hard = [
        replace(one, load=HARD_LOAD, seconds=seconds, is_bursty=True, slow=SLOW, dead=DEAD[one.replicas])
        for one in even
        for seconds in [HARD_SECONDS[one.replicas]]
    ]
    return [*even, *hard]


def load_scenarios(policies: Sequence[str]) -> list[Scenario]:
    """Return the cases by load, of bursts and slow replicas."""
    return [
        Scenario(policy, LOADS_REPLICAS, load, LOADS_SECONDS, is_bursty=True, slow=SLOW)
        for load in LOADS
        for policy in policies
    ]


def shape_scenarios() -> list[Scenario]:
    """Return the cases of eight cores in replicas of one to eight cores."""
    return [Scenario(LEAST_CONNECTIONS, replicas, EVEN_LOAD, 200.0, cores=cores) for replicas, cores in SHAPES]


def behaviour_scenarios() -> list[Scenario]:
    """Return the cases whose metrics the autoscaler's simulation takes."""
    return [Scenario(LEAST_CONNECTIONS, 20, load, 40.0) for load in BEHAVIOUR_LOADS]


def simulate_all(times: ServiceTimes, processes: int, sizes: Sequence[int]) -> dict[str, Any]:
    """Return the outcomes of all request simulations by part; those that take longest begin first."""
    requests = traffic.pool()
    rates = {cores: capacity(times, requests, cores) for _, cores in SHAPES}
    parts = {
        "sizes": size_scenarios(POLICIES, sizes),
        "loads": load_scenarios(POLICIES),
        "shapes": shape_scenarios(),
        "behaviour": behaviour_scenarios(),
    }
    every = sorted({one for part in parts.values() for one in part}, key=lambda one: -one.replicas * one.seconds)
    with ProcessPoolExecutor(processes) as pool:
        run = partial(_outcome, times, requests, rates)
        outcomes = dict(zip(every, pool.map(run, every), strict=True))
    found: dict[str, Any] = {name: [outcomes[one] for one in part] for name, part in parts.items()}
    tokens, texts = fmean(map(sum, requests)), fmean(map(len, requests))
    per_core = {"requests_a_second": round(rates[1], 1), "tokens_a_second": round(rates[1] * tokens)}
    return {"capacity_a_core": per_core, "mean_tokens": round(tokens, 1), "mean_texts": round(texts, 2), **found}


def _outcome(
    times: ServiceTimes, requests: Sequence[tuple[int, ...]], rates: dict[int, float], scenario: Scenario
) -> dict[str, Any]:
    return simulate(scenario, times, requests, rates[scenario.cores])


def behaviour(outcomes: Sequence[dict[str, Any]]) -> Behaviour:
    """Return a replica's metrics by load."""
    return Behaviour(*([one[key] for one in outcomes] for key in ("load", "waiting_tokens", "busy")))


def autoscale(tokens_a_second: float, metrics: Behaviour) -> dict[str, Any]:
    """Return the figures of every rule and load curve, and traces of two rules, a point every 15 s or 5 minutes."""
    rows, traces = [], {}
    for start in (WARM_START, NEW_NODE):
        for name, rule in RULES.items():
            for curve, (load, seconds, begun) in LOAD_CURVES.items():
                trace = autoscaler.follow(rule, load, seconds, tokens_a_second, metrics, start)
                rows.append({"rule": name, "start": start, "load": curve, **autoscaler.summary(trace, begun)})
                if name in (RECOMMENDED, QUEUE_ALONE):
                    traces[f"{curve}, {start} s, {name}"] = _thinned(trace, 15 if seconds == HOUR else 300)
    return {"rows": rows, "traces": traces}


def _thinned(trace: Trace, every: int) -> dict[str, Any]:
    needed = [round(value, 2) for value in trace.needed[::every]]
    waited = [round(value, 2) for value in trace.waited[::every]]
    return {"every": every, "needed": needed, "replicas": trace.replicas[::every], "waited": waited}
