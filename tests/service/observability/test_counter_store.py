"""What several processes count is read as one, and outlives each of them."""

import math
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.observability.counter_store import (
    CHUNK_BYTES,
    NUMBER_BYTES,
    Private,
    Shared,
)
from service.observability.metrics import Metrics

ROOT = Path(__file__).parents[3]
WORKER = """
import sys
from pathlib import Path
from service.observability.counter_store import Shared
from service.observability.metrics import Metrics
store = Shared(Path(sys.argv[1]))
metrics = Metrics(store)
metrics.loaded("m", 1000)
metrics.watch("inlay_requests_in_flight", {}, lambda: 7)
metrics.ask()
print(store.slot, flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        metrics.request("http", "embed", "200", 0.5)
    print("done", flush=True)
"""


class Worker:
    """A process that counts as many requests as it is told to."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(directory)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdin
        assert self.process.stdout
        self._in, self._out = self.process.stdin, self.process.stdout
        self.slot = int(self._out.readline())

    def count(self, requests: int) -> None:
        print(requests, file=self._in, flush=True)
        assert self._out.readline() == "done\n"

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._in.close()
        self._out.close()


@contextmanager
def workers(directory: Path, number: int) -> Iterator[list[Worker]]:
    found = [Worker(directory) for _ in range(number)]
    try:
        yield found
    finally:
        for worker in found:
            worker.kill()


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Metrics]:
    """Numbers of this process in the slot 0 of the same directory."""
    with closing(Shared(tmp_path)) as store:
        yield Metrics(store)


def shown(metrics: Metrics) -> dict[str, float]:
    families = text_string_to_metric_families(metrics.text().decode())
    samples = [sample for family in families for sample in family.samples]
    return {f"{each.name}{sorted(each.labels.items()) or ''}": each.value for each in samples}


REQUESTS = "inlay_requests_total[('method', 'embed'), ('protocol', 'http'), ('status', '200')]"


def test_every_process_counts_and_any_tells_the_sum(tmp_path: Path, mine: Metrics) -> None:
    with workers(tmp_path, 3) as three:
        for worker, requests in zip(three, (10, 20, 30), strict=True):
            worker.count(requests)
        mine.request("http", "embed", "200", 0.5)
        seen = shown(mine)
    assert seen[REQUESTS] == 61
    assert seen["inlay_request_seconds_sum[('method', 'embed'), ('protocol', 'http'), ('status', '200')]"] == 30.5
    assert seen["inlay_workers"] == 4
    assert seen["inlay_requests_in_flight"] == 21


def test_a_killed_process_loses_no_count_and_its_successor_goes_on_from_it(tmp_path: Path, mine: Metrics) -> None:
    with workers(tmp_path, 2) as (first, second):
        first.count(100)
        second.count(5)
        first.kill()
        dead = shown(mine)
        with workers(tmp_path, 1) as (third,):
            third.count(1)
            restarted = shown(mine)
    assert (dead[REQUESTS], dead["inlay_workers"], dead["inlay_requests_in_flight"]) == (105, 2, 7)
    assert third.slot == first.slot
    assert (restarted[REQUESTS], restarted["inlay_workers"], restarted["inlay_requests_in_flight"]) == (106, 3, 14)
    assert (dead["inlay_worker_restarts_total"], restarted["inlay_worker_restarts_total"]) == (0, 1)


def test_no_counter_ever_falls_while_processes_come_and_go(tmp_path: Path, mine: Metrics) -> None:
    before = 0.0
    for requests in (3, 5, 2):
        with workers(tmp_path, 2) as both:
            for worker in both:
                worker.count(requests)
                now = shown(mine)[REQUESTS]
                assert now == before + requests
                before = now
    assert shown(mine)["inlay_workers"] == 1


def test_a_key_half_written_by_a_killed_process_is_no_key(tmp_path: Path) -> None:
    with closing(Shared(tmp_path)) as store:
        store.cells(("a", "x"), 3)[1] = 4
        slot = store.slot
    with (tmp_path / f"{slot}.keys").open("ab") as file:
        file.write(b'[["b", "y')
    with closing(Shared(tmp_path)) as again:
        again.cells(("c", "z"), 1)[0] = 9
        (seen,) = again.seen()
        assert again.slot == slot
    assert (list(seen.cells["a", "x"]), list(seen.cells["c", "z"])) == ([0, 4, 0], [9])
    assert len(seen.cells) == 3  # and how often the slot was taken


def test_numbers_of_one_key_stay_together_beyond_the_first_chunk(tmp_path: Path) -> None:
    size = 13
    keys = [("f", str(number)) for number in range(3 * CHUNK_BYTES // NUMBER_BYTES // size)]
    with closing(Shared(tmp_path)) as store:
        for number, key in enumerate(keys):
            store.cells(key, size)[-1] = number
        (seen,) = store.seen()
    assert [seen.cells[key][-1] for key in keys] == list(range(len(keys)))


@pytest.mark.parametrize("shared", [False, True])
def test_cells_of_a_key_are_the_same_ones_each_time(shared: bool, tmp_path: Path) -> None:
    with closing(Shared(tmp_path)) if shared else nullcontext(Private()) as store:
        store.cells(("a",), 1)[0] += 1
        store.cells(("a",), 1)[0] += 1
        assert store.seen()[0].cells["a",][0] == 2
        assert math.isnan(store.cells(("gauge",), 1, gauge=True)[0])
