"""Samples of the last hour: what rose since the last one in all workers, and the slowest requests with their stages."""

import asyncio
import json
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.observability.history import QUICK_SECONDS, SAMPLES, SLOWEST, quantile
from service.observability.metric_families import SECONDS
from service.observability.metric_store import MetricStore
from service.observability.metrics import Metrics
from service.request_context import RequestContext, StageTimes
from tests.served import serving


class Clock:
    """The time in seconds since 1970, which a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000_000.0
        monkeypatch.setattr("time.time", lambda: self.now)
        monkeypatch.setattr("service.observability.history.time", lambda: self.now)

    def later(self, seconds: float, *each: Metrics) -> None:
        """Let time pass, after which each worker saves and looks whether a sample is due."""
        self.now += seconds
        for metrics in each:
            metrics.save()
        for metrics in each:
            asyncio.run(metrics.look())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def samples(metrics: Metrics) -> list[dict[str, Any]]:
    return json.loads(metrics.history())["samples"]  # type: ignore[no-any-return]


def ask(metrics: Metrics, seconds: float, id: bytes = b"order-17") -> None:
    """Count a request of the model m, most of whose time went into the queue."""
    context = RequestContext()
    context.request_id = id
    metrics.passes([context], "m", [12], StageTimes(0.001, 0.7 * seconds, 0.2 * seconds))
    metrics.request("http", "/embed", "200", seconds, context)


def test_sample_has_what_rose_since_the_last(clock: Clock) -> None:
    metrics = Metrics()
    ask(metrics, 0.2)
    clock.later(10, metrics)
    metrics.runs("m", "encoder")(3, 50, 0.1, 0.2)
    metrics.refused("too_long")
    metrics.request("grpc", "Embedder/Embed", "OK", 0.5)
    clock.later(10, metrics)
    first, second, now = samples(metrics)
    assert first["routes"] == {"/embed": {"requests": 1, "timed": 1, "timed_seconds": 0.2}}
    assert first["models"]["m"] == pytest.approx(
        {"requests": 1, "tokenize": 0.001, "queue": 0.14, "run": 0.04}, rel=1e-9
    )
    assert second["routes"] == {"Embedder/Embed": {"requests": 1, "timed": 1, "timed_seconds": 0.5}}
    assert second["models"] == {"m": {"batches": 1, "inputs": 3, "tokens": 50}}
    assert second["refusals"] == {"too_long": 1}
    assert (second["at"], second["seconds"]) == (1_000_020, 10)
    assert (now["routes"], now["models"], now["refusals"], now["latency"]) == ({}, {}, {}, None)


def test_an_hour_is_kept(clock: Clock) -> None:
    metrics = Metrics()
    for _ in range(SAMPLES + 5):
        clock.later(10, metrics)
    kept = samples(metrics)
    assert len(kept) == SAMPLES + 1  # and the time since the last
    assert clock.now - kept[0]["at"] == 10 * (SAMPLES - 1)


def test_slowest_requests_of_a_sample_are_explained(clock: Clock) -> None:
    metrics = Metrics()
    clock.later(1)
    ask(metrics, 0.5 * QUICK_SECONDS)
    for number in range(20):
        ask(metrics, 1.0 + number, b"request-%d" % number)
    clock.later(9, metrics)
    slowest = samples(metrics)[0]["slowest"]
    assert [each["request_id"] for each in slowest] == [f"request-{20 - n}" for n in range(1, SLOWEST + 1)]
    assert slowest[0] | {"stages": {}} == {
        "at": 1_000_001, "protocol": "http", "method": "/embed", "status": "200", "seconds": 20.0,
        "request_id": "request-19", "model": "m", "tokens": 12, "stages": {},
    }  # fmt: skip
    stages = slowest[0]["stages"]
    assert (stages["tokenize"], stages["queue"], stages["run"]) == (0.001, 14.0, 4.0)
    clock.later(10, metrics)
    assert [len(sample["slowest"]) for sample in samples(metrics)] == [SLOWEST, 0, 0]  # each in one sample


def test_any_worker_answers_for_all(clock: Clock, tmp_path: Path) -> None:
    with ExitStack() as stores:
        opened = [stores.enter_context(closing(MetricStore(tmp_path, number))) for number in range(3)]
        check_all([Metrics(store) for store in opened], clock)


def check_all(workers: list[Metrics], clock: Clock) -> None:
    """Assert that each of these workers answers with the figures of all."""
    clock.later(1)
    for number, metrics in enumerate(workers):
        ask(metrics, 1.0 + number, b"of-worker-%d" % number)
        metrics.refused("overloaded")
    clock.later(9, *workers)
    for metrics in workers:
        first = samples(metrics)[0]
        assert first["routes"]["/embed"]["requests"] == 3
        assert first["refusals"] == {"overloaded": 3}
        assert first["workers"] == 3
        assert [each["request_id"] for each in first["slowest"]] == ["of-worker-2", "of-worker-1", "of-worker-0"]


def test_a_worker_started_again_counts_from_its_start(clock: Clock, tmp_path: Path) -> None:
    with closing(MetricStore(tmp_path, 1)) as store:
        metrics = Metrics(store)
        ask(metrics, 0.2)
        clock.later(10, metrics)
    with closing(MetricStore(tmp_path, 1)) as store:
        again = Metrics(store)
        clock.later(10, again)
        assert [sample["routes"] for sample in samples(again)] == [{}, {}]


@pytest.mark.parametrize("share", [0.01, 0.5, 0.95, 0.99, 1.0])
def test_quantiles_are_those_of_the_observations_within_a_bucket(share: float) -> None:
    seconds = np.random.default_rng(4).lognormal(-3, 1.5, 4000)
    counts, _ = np.histogram(seconds, [0.0, *SECONDS, np.inf])
    found, exact = quantile(share, counts.tolist()), min(float(np.quantile(seconds, share)), SECONDS[-1])
    place = int(np.searchsorted(SECONDS, exact))
    assert ([0.0, *SECONDS][place]) <= found <= SECONDS[min(place, len(SECONDS) - 1)]


def test_history_needs_a_key_where_others_do(tiny_store: Path) -> None:
    with serving(tiny_store, default_model="bert", api_keys="correct-horse-battery-staple") as service:
        assert service.http.get("/metrics/history").status_code == 401
        key = {"authorization": "Bearer correct-horse-battery-staple"}
        service.http.post("/embed", json={"inputs": [[1, 2]]}, headers=key).raise_for_status()
        answer = service.http.get("/metrics/history", headers=key)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["samples"][-1]["routes"]["/embed"]["requests"] == 1


def test_history_has_no_parameters(tiny_store: Path) -> None:
    with serving(tiny_store, default_model="bert") as service:
        answer = service.http.get("/metrics/history?minutes=5")
    assert answer.status_code == 422
    assert answer.json()["detail"] == '"minutes" is no parameter; /metrics/history has none'
