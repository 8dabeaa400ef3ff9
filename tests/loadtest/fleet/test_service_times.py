"""Fitted service times, the replica that runs by them, and the committed measurements."""

import random

import pytest

from loadtest.fleet import limits, service_times
from loadtest.fleet.replica import BATCH_TOKENS, Call, Clock, Replica
from loadtest.fleet.service_times import Point, ServiceTimes, fit
from loadtest.fleet.simulation import capacity

TIMES = ServiceTimes(run=0.002, text=0.0001, token=0.0002, square=1e-7, request=0.0005, request_token=1e-5)


def points(times: ServiceTimes) -> list[Point]:
    rng = random.Random(1)
    lengths = [tuple(rng.randint(4, 250) for _ in range(rng.randint(1, 8))) for _ in range(30)]
    runs = [times.batch_seconds(tokens) for tokens in lengths]
    return [
        Point(tokens, 0.0, run + times.request_seconds(tokens), run) for tokens, run in zip(lengths, runs, strict=True)
    ]


def test_fit_finds_the_times_that_made_the_points() -> None:
    found = fit(points(TIMES))
    assert found["fit"] == pytest.approx(TIMES.__dict__, rel=1e-6)
    assert found["errors"]["largest"] == pytest.approx(0, abs=1e-6)


def test_fit_has_no_negative_time() -> None:
    cheaper_in_squares = ServiceTimes(0.002, 0.0001, 0.0002, -1e-7, 0.0005, 1e-5)
    assert all(value >= 0 for value in fit(points(cheaper_in_squares))["fit"].values())


def test_committed_measurements_are_fitted_within_a_sixth() -> None:
    times, document = service_times.load()
    assert document["errors"]["largest"] < 1 / 6
    assert all(value >= 0 for value in times.__dict__.values())
    assert "python -m loadtest.fleet.measure" in document["command"]


def replica(clock: Clock, batches: list[list[int]], ended: list[float], cores: int = 1) -> Replica:
    def seconds(tokens: object) -> float:
        batches.append(list(tokens))  # type: ignore[call-overload]
        return 1.0

    return Replica(clock, seconds, lambda _: ended.append(clock.now), cores=cores)


def call(clock: Clock, *costs: int) -> Call:
    return Call(costs, 0.0, clock, 100.0, clock.now)


def test_idle_replica_runs_at_once_and_gathers_during_the_run() -> None:
    clock, batches, ended = Clock(), list[list[int]](), list[float]()
    one = replica(clock, batches, ended)
    for cost in (10, 20, 30):
        assert one.offer(call(clock, cost)) is None
    clock.advance(5.0)
    assert batches == [[10], [20, 30]]
    assert ended == [1.0, 2.0, 2.0]


def test_batch_is_bounded_in_tokens() -> None:
    clock, batches, ended = Clock(), list[list[int]](), list[float]()
    one = replica(clock, batches, ended)
    for _ in range(11):
        one.offer(call(clock, 100))
    clock.advance(10.0)
    assert [sum(batch) for batch in batches] == [100, 500, 500]
    assert max(map(sum, batches)) <= BATCH_TOKENS


def test_request_is_answered_with_its_last_text() -> None:
    clock, batches, ended = Clock(), list[list[int]](), list[float]()
    one = replica(clock, batches, ended)
    one.offer(call(clock, 300, 300, 300))
    clock.advance(10.0)
    assert len(batches) == 3
    assert ended == [3.0]


def test_replica_of_two_cores_runs_two_batches_at_a_time() -> None:
    clock, batches, ended = Clock(), list[list[int]](), list[float]()
    one = replica(clock, batches, ended, cores=2)
    for _ in range(2):
        one.offer(call(clock, 400))
    clock.advance(10.0)
    assert ended == [1.0, 1.0]


def test_full_replica_says_when_to_come_back() -> None:
    clock = Clock()
    one = replica(clock, [], [])
    waits = [one.offer(call(clock, 1)) for _ in range(1100)]
    assert waits.count(None) < 1100
    assert all(wait > 0 for wait in waits if wait is not None)


def test_capacity_is_that_of_full_batches() -> None:
    requests = [(64,)] * 4000
    full = 8 / (TIMES.batch_seconds([64] * 8) + 8 * TIMES.request_seconds([64]))
    assert capacity(TIMES, requests) == pytest.approx(full, rel=0.01)
    assert capacity(TIMES, requests, cores=2) == pytest.approx(2 * full, rel=0.02)


def test_costs_follow_from_tokens_a_second() -> None:
    simulated = {"capacity_a_core": {"tokens_a_second": 5000}, "mean_tokens": 200.0}
    mix = limits.costs(TIMES, simulated)[-1]
    million_tokens_an_hour = 5000 * limits.ASSUMED["share of capacity used"] * 3600 / 1e6
    price = limits.ASSUMED["EUR per core and hour"]
    assert mix["eur_a_million_tokens"] == pytest.approx(price / million_tokens_an_hour, abs=1e-5)
