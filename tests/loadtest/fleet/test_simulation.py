"""The simulation against queueing theory: M/M/1, M/D/1, M/M/c, and the queues of two choices."""

import math
from collections.abc import Sequence
from statistics import fmean

import numpy as np
import pytest

from loadtest.fleet.balancing import LEAST_CONNECTIONS, RANDOM, ROUND_ROBIN, TWO_CHOICES
from loadtest.fleet.simulation import Outcome, Scenario, Simulation
from tests.sweeps import sampled

SERVICE = 0.001  # seconds of a run on average
REQUESTS: list[tuple[int, ...]] = [(1,)]
SEED = 7


def exponential(seed: int = SEED) -> "list[float]":
    """Return service times to be taken one after the other, the last first."""
    return np.random.default_rng(seed).exponential(SERVICE, 300_000).tolist()


def simulation(scenario: Scenario, drawn: "list[float] | None" = None, limited: bool = False) -> Simulation:
    """Return a fleet of single-text runs with exponential, or without `drawn` constant, service times."""

    def seconds(tokens: Sequence[int]) -> float:
        return drawn.pop() if drawn else SERVICE

    rate = scenario.load * scenario.replicas * scenario.cores / SERVICE
    return Simulation(scenario, seconds, lambda _: 0.0, REQUESTS, rate, batch_tokens=1, limited=limited)


def mean_time(outcome: Outcome) -> float:
    """Return the mean time from arrival to answer, in service times."""
    assert len(outcome.latencies) == outcome.due
    return fmean(outcome.latencies) / SERVICE


@pytest.mark.parametrize("load", sampled((0.6, 0.3, 0.8), 3))
def test_mm1_waits_as_theory_says(load: float) -> None:
    outcome = simulation(Scenario(RANDOM, 1, load, 80.0, seed=SEED), exponential()).run()
    assert mean_time(outcome) == pytest.approx(1 / (1 - load), rel=0.06)


@pytest.mark.parametrize("load", sampled((0.6, 0.3, 0.8), 3))
def test_md1_waits_as_pollaczek_and_khinchine_say(load: float) -> None:
    outcome = simulation(Scenario(RANDOM, 1, load, 80.0, seed=SEED)).run()
    assert mean_time(outcome) == pytest.approx(1 + load / (2 * (1 - load)), rel=0.03)


@pytest.mark.parametrize("cores", sampled((8, 2), 2))
def test_mmc_waits_as_erlang_says(cores: int) -> None:
    load = 0.8
    offered = load * cores
    waiting = offered**cores / math.factorial(cores) / (1 - load)
    waiting_share = waiting / (sum(offered**k / math.factorial(k) for k in range(cores)) + waiting)
    outcome = simulation(Scenario(RANDOM, 1, load, 100.0 / cores, cores=cores, seed=SEED), exponential()).run()
    assert mean_time(outcome) == pytest.approx(1 + waiting_share / (cores * (1 - load)), rel=0.05)


@pytest.mark.sweep
def test_random_balancing_gives_many_mm1_queues() -> None:
    outcome = simulation(Scenario(RANDOM, 50, 0.7, 2.0, seed=SEED), exponential()).run()
    assert mean_time(outcome) == pytest.approx(1 / 0.3, rel=0.07)


@pytest.mark.sweep
def test_two_choices_have_the_tail_of_mitzenmacher() -> None:
    # of infinitely many queues the part that holds k requests or more is load^(2^k - 1)
    load, lengths = 0.8, list[int]()
    one = simulation(Scenario(TWO_CHOICES, 100, load, 1.0, seed=SEED), exponential())

    def sample(_: object) -> None:
        lengths.extend(replica.active for replica in one.replicas)
        if one.clock.now < 1.0:
            one.clock.later(0.005, sample, None)

    one.clock.later(0.2, sample, None)
    assert mean_time(one.run()) == pytest.approx(sum(load ** (2**k - 2) for k in range(1, 8)), rel=0.05)
    for k in (1, 2, 3, 4):
        share = sum(length >= k for length in lengths) / len(lengths)
        assert share == pytest.approx(load ** (2**k - 1), abs=0.02)


@pytest.mark.sweep
def test_two_choices_are_near_the_least_and_far_from_random() -> None:
    times = {
        policy: mean_time(simulation(Scenario(policy, 50, 0.9, 1.0, seed=SEED), exponential()).run())
        for policy in (RANDOM, ROUND_ROBIN, TWO_CHOICES, LEAST_CONNECTIONS)
    }
    assert times[LEAST_CONNECTIONS] < times[TWO_CHOICES] < times[ROUND_ROBIN] < times[RANDOM]


def test_same_seed_gives_the_same_outcome() -> None:
    one, other = (simulation(Scenario(TWO_CHOICES, 5, 0.8, 1.0, seed=3)).run() for _ in range(2))
    assert one == other


@pytest.mark.sweep
def test_slow_replicas_hurt_random_more_than_least_connections() -> None:
    scenario = {"replicas": 20, "load": 0.6, "seconds": 3.0, "slow": 0.1}
    times = {
        policy: mean_time(simulation(Scenario(policy, **scenario), exponential()).run())
        for policy in (RANDOM, LEAST_CONNECTIONS)
    }
    assert times[LEAST_CONNECTIONS] * 10 < times[RANDOM]


def test_dead_replica_gets_nothing_once_checks_failed() -> None:
    one = simulation(Scenario(ROUND_ROBIN, 4, 0.4, 20.0, dead=1, seed=SEED), exponential())
    outcome = one.run()
    # Each request that it got meanwhile reached another a second later, some of them at the second attempt.
    late = [latency for latency in outcome.latencies if latency > 1.0]
    assert len(late) == pytest.approx(0.4 / SERVICE * 2.0, rel=0.1)  # a quarter of all requests of two seconds
    assert outcome.lost + len(outcome.latencies) == outcome.due


def test_overload_is_refused_and_every_request_is_counted_once() -> None:
    outcome = simulation(Scenario(RANDOM, 1, 3.0, 3.0, seed=SEED), limited=True).run()
    answered = len(outcome.latencies)
    assert outcome.refusals > 0
    assert answered + outcome.given_up + outcome.timed_out + outcome.lost == outcome.due
    assert answered >= 0.3 * outcome.due


def test_clients_that_wait_too_long_give_up() -> None:
    one = Simulation(Scenario(RANDOM, 1, 2.0, 4.0, seed=1), lambda _: 1.0, lambda _: 0.0, REQUESTS, 10.0, limited=False)
    one.replicas[0].batch_tokens = 1
    outcome = one.run()
    assert outcome.timed_out > 0
    assert max(outcome.latencies) <= 10.0
    assert len(outcome.latencies) + outcome.timed_out == outcome.due
