"""Counts of several workers are shown as one sum, which survives the end of each worker."""

import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.observability.metric_store import MetricStore
from service.observability.metrics import Metrics

ROOT = Path(__file__).parents[3]
WORKER = """
import sys
from pathlib import Path
from service.observability.metric_store import MetricStore
from service.observability.metrics import Metrics
metrics = Metrics(MetricStore(Path(sys.argv[1]), int(sys.argv[2])))
metrics.loaded("m")
keys = ("inlay_model_workers", "m"), ("inlay_model_bytes", "m"), ("inlay_requests_in_flight",)
metrics.watch(lambda: dict(zip(keys, (1, 1000, 7))))
metrics.save()
print("ready", flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        metrics.request("http", "embed", "200", 0.5)
    metrics.save()
    print("done", flush=True)
"""


class Worker:
    """A process that counts as many requests as it is told to."""

    def __init__(self, directory: Path, place: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(directory), str(place)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdin
        assert self.process.stdout
        self._in, self._out = self.process.stdin, self.process.stdout
        assert self._out.readline() == "ready\n"

    def count(self, requests: int) -> None:
        print(requests, file=self._in, flush=True)
        assert self._out.readline() == "done\n"

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._in.close()
        self._out.close()


@contextmanager
def workers(directory: Path, *places: int) -> Iterator[list[Worker]]:
    started = [Worker(directory, place) for place in places]
    try:
        yield started
    finally:
        for worker in started:
            worker.kill()


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Metrics]:
    """The metrics of this process, as worker 0 of the same directory."""
    with closing(MetricStore(tmp_path)) as store:
        yield Metrics(store)


def shown(metrics: Metrics) -> dict[str, float]:
    families = text_string_to_metric_families(metrics.text().decode())
    samples = [sample for family in families for sample in family.samples]
    return {f"{each.name}{sorted(each.labels.items()) or ''}": each.value for each in samples}


REQUESTS = "inlay_requests_total[('method', 'embed'), ('protocol', 'http'), ('status', '200')]"
SECONDS = "inlay_request_seconds_sum[('method', 'embed'), ('protocol', 'http')]"


def test_any_worker_shows_the_sum_of_all(tmp_path: Path, mine: Metrics) -> None:
    with workers(tmp_path, 1, 2, 3) as three:
        for worker, requests in zip(three, (10, 20, 30), strict=True):
            worker.count(requests)
        mine.request("http", "embed", "200", 0.5)
        seen = shown(mine)
    assert (seen[REQUESTS], seen[SECONDS]) == (61, 30.5)
    assert seen["inlay_workers"] == 4
    assert seen["inlay_requests_in_flight"] == 21


def test_successor_of_killed_worker_continues_its_counters(tmp_path: Path, mine: Metrics) -> None:
    with workers(tmp_path, 1, 2) as (first, second):
        first.count(100)
        second.count(5)
        first.kill()
        dead = shown(mine)
        with workers(tmp_path, 1) as (third,):
            third.count(1)
            restarted = shown(mine)
    assert (dead[REQUESTS], dead["inlay_workers"], dead["inlay_requests_in_flight"]) == (105, 2, 7)
    assert (restarted[REQUESTS], restarted["inlay_workers"], restarted["inlay_requests_in_flight"]) == (106, 3, 14)
    assert (dead["inlay_worker_restarts_total"], restarted["inlay_worker_restarts_total"]) == (0, 1)


def test_no_counter_falls_as_workers_come_and_go(tmp_path: Path, mine: Metrics) -> None:
    before = 0.0
    files = set()
    for requests in (3, 5, 2):
        with workers(tmp_path, 1, 2) as both:
            for worker in both:
                worker.count(requests)
                now = shown(mine)[REQUESTS]
                assert now == before + requests
                before = now
        files.add(frozenset(path.name for path in tmp_path.iterdir()))
    assert shown(mine)["inlay_workers"] == 1
    assert len(files) == 1  # those of workers that ended do not add up


def test_counts_are_shown_only_once_they_are_saved(tmp_path: Path, mine: Metrics) -> None:
    """A scrape saves before it answers, so what it shows cannot be lost by a kill."""
    with closing(MetricStore(tmp_path, 1)) as store:
        other = Metrics(store)
        other.request("http", "embed", "200", 0.5)
        assert REQUESTS not in shown(mine)
        assert shown(other)[REQUESTS] == 1
    assert shown(mine)[REQUESTS] == 1
    with closing(MetricStore(tmp_path, 1)) as store:
        assert shown(Metrics(store))[REQUESTS] == 1


def test_full_disk_is_logged_once_and_counting_goes_on(
    tmp_path: Path, mine: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "0.new").mkdir()  # where a snapshot is written first
    for _ in range(3):
        mine.request("http", "embed", "200", 0.5)
        seen = shown(mine)
    assert seen[REQUESTS] == 3
    assert [each.levelno for each in caplog.records] == [logging.ERROR]
    assert "cannot be shared with the others" in caplog.text


@pytest.mark.parametrize("shared", [False, True])
def test_a_key_has_the_same_numbers_each_time(shared: bool, tmp_path: Path) -> None:
    with closing(MetricStore(tmp_path if shared else None)) as store:
        store.counter(("a",))[0] += 1
        store.counter(("a",))[0] += 1
        assert store.snapshots()[0].counters["a",][0] == 2
