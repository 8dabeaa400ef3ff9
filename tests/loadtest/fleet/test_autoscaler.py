"""The autoscaler's rule against Kubernetes' documentation, and what it does with a load."""

import pytest

from loadtest.fleet.autoscaler import Autoscaler, Behaviour, Rule, Trace, follow, noise, summary

LINEAR = Behaviour((0.0, 0.5, 0.9, 1.0), (0.0, 100.0, 400.0, 1000.0), (0.0, 0.5, 0.9, 1.0))
BUSY = Rule(busy_target=0.7)


def test_ratio_within_the_tolerance_changes_nothing() -> None:
    assert Autoscaler(BUSY, 1, 100).desired(0, 10, 10, 0.0, 0.75) == 10
    assert Autoscaler(BUSY, 1, 100).desired(0, 10, 10, 0.0, 0.78) == 12  # ceil(10 x 0.78 / 0.7)


def test_metric_gives_what_the_documentation_says() -> None:
    # desiredReplicas = ceil(currentReplicas * currentMetricValue / desiredMetricValue): 200m over 100m doubles
    scaler = Autoscaler(Rule(waiting_target=100, up_percent=900), 1, 100)
    assert scaler.desired(0, 4, 4, 4 * 200.0, 0.0) == 8


def test_largest_proposal_wins() -> None:
    scaler = Autoscaler(Rule(waiting_target=100, busy_target=0.5, up_percent=900), 1, 100)
    assert scaler.desired(0, 4, 4, 1200.0, 0.6) == 12


def test_starting_replicas_count_as_idle() -> None:
    assert Autoscaler(BUSY, 1, 100).desired(0, 20, 10, 0.0, 1.0) == 15  # ceil(10 / 0.7), not ceil(20 / 0.7)


@pytest.mark.parametrize(("replicas", "expected"), [(2, 6), (10, 20)])
def test_grows_by_the_larger_policy_at_most(replicas: int, expected: int) -> None:
    # the defaults: 100 % or 4 pods in 15 s, whichever is more
    assert Autoscaler(Rule(waiting_target=1), 1, 10_000).desired(0, replicas, replicas, 1e6, 0.0) == expected


def test_shrinks_to_the_highest_of_the_window() -> None:
    scaler = Autoscaler(Rule(waiting_target=100, down_window=60, up_percent=900), 1, 100)
    assert scaler.desired(0, 10, 10, 1000.0, 0.0) == 10
    assert scaler.desired(15, 10, 10, 500.0, 0.0) == 10
    assert scaler.desired(45, 10, 10, 200.0, 0.0) == 10
    assert scaler.desired(75, 10, 10, 200.0, 0.0) == 5  # what was recommended 60 s ago still counts


def test_stays_within_least_and_most() -> None:
    assert Autoscaler(Rule(waiting_target=1, up_percent=10_000), 2, 8).desired(0, 4, 4, 1e6, 0.0) == 8
    assert Autoscaler(Rule(waiting_target=1, down_window=0), 2, 8).desired(0, 4, 4, 0.0, 0.0) == 2


def followed(rule: Rule, start_seconds: int = 15) -> Trace:
    return follow(rule, lambda second: 4.0 if second < 600 else 20.0, 3600, 5000.0, LINEAR, start_seconds)


def test_cpu_rule_recovers_from_a_step_and_settles_above_need() -> None:
    figures = summary(followed(BUSY), 600)
    assert 0 < figures["recovered_seconds"] < 120
    assert 1.2 < figures["replicas_over_needed"] < 2.2


def test_slow_start_takes_longer_to_recover() -> None:
    assert summary(followed(BUSY, 120), 600)["recovered_seconds"] > summary(followed(BUSY), 600)["recovered_seconds"]


def test_queue_alone_flaps_and_no_window_flaps_more() -> None:
    turns = {
        name: summary(followed(rule), 600)["turns_an_hour"]
        for name, rule in {
            "cpu": BUSY,
            "queue": Rule(waiting_target=500),
            "queue, no window": Rule(waiting_target=500, down_window=0),
        }.items()
    }
    assert turns["cpu"] < turns["queue"] < turns["queue, no window"]


def test_work_is_served_waits_or_is_refused() -> None:
    trace = followed(BUSY)
    served = sum(trace.ready) * 5000.0
    assert trace.offered <= served + trace.refused
    assert max(trace.waited) <= 5.0 + 1e-9  # MOST_WAITING_SECONDS


def test_noise_is_around_one_and_repeats_by_its_seed() -> None:
    import numpy as np

    drawn = noise(np.random.default_rng(1), 20_000)
    assert np.mean(drawn) == pytest.approx(1, abs=0.05)
    assert np.std(drawn) == pytest.approx(0.1, rel=0.25)
    assert drawn == noise(np.random.default_rng(1), 20_000)
