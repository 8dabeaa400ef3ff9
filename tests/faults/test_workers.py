"""A worker that is killed, stopped or stands still is replaced; the port never stops answering."""

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import Notes
from tests.faults.processes import running, until
from tests.faults.traffic import traffic

pytestmark = pytest.mark.faults
GAP_SECONDS = 3.0  # on a machine that is busy with the callers and with starting a worker


def counters(samples: dict[Any, float]) -> dict[Any, float]:
    """What only grows; a worker's processor time is its own and begins anew, as process_cpu_seconds does."""
    ends = ("_total", "_count", "_bucket", "_sum")
    return {key: value for key, value in samples.items() if key[0].endswith(ends) and "cpu_seconds" not in key[0]}


def test_a_killed_worker(store: Path, log: Path, notes: Notes) -> None:
    """kill -9 of one of two under traffic: only calls on its connections break, at that moment; every other is right;
    new connections are answered throughout; it is replaced; no counter goes back."""
    with running(store, log, "--workers", "2") as service:
        until(lambda: service.measured("inlay_workers_ready") == 2, "two workers")
        with traffic(service) as seen:
            until(lambda: len(seen.answered) > 200, "traffic")
            before, old = counters(service.samples()), service.workers()
            killed = time.monotonic()
            service.signal(signal.SIGKILL, old[0])
            until(lambda: old[0] not in service.workers() and len(service.workers()) == 2, "a new worker")
            until(lambda: service.measured("inlay_workers_ready") == 2, "the new worker serves")
            back = time.monotonic() - killed
            after = counters(service.samples())
        assert not seen.wrong
        assert all(each.began <= killed + 1 for each in seen.broken)
        assert len(seen.broken) <= 8  # one for each caller that kept a connection or made one just then
        assert seen.longest_gap() < GAP_SECONDS
        assert not {key for key, value in before.items() if after.get(key, 0) < value}
        notes(f"{len(seen.answered)} answered, {len(seen.broken)} broke, 0 wrong; longest gap "
              f"{seen.longest_gap() * 1000:.0f} ms; replaced after {back:.1f} s")  # fmt: skip


def test_a_stopped_worker(store: Path, log: Path, notes: Notes) -> None:
    """SIGSTOP of one of two: calls on its connections wait and break when it is ended, after 15 s without a heartbeat;
    every other is right, new HTTP connections throughout; it is replaced; nothing waits afterwards."""
    with running(store, log, "--workers", "2") as service:
        until(lambda: service.measured("inlay_workers_ready") == 2, "two workers")
        with traffic(service) as seen:
            until(lambda: len(seen.answered) > 100, "traffic")
            old = service.workers()
            stopped = time.monotonic()
            service.signal(signal.SIGSTOP, old[0])
            until(lambda: old[0] not in service.workers() and len(service.workers()) == 2, "a new worker")
            back = time.monotonic() - stopped
            until(lambda: service.measured("inlay_workers_ready") == 2, "the new worker serves")
        assert not seen.wrong
        assert all(each.began <= stopped + back + 1 for each in seen.broken)
        assert not [each for each in seen.broken if each.fresh and each.began > stopped + 0.5]
        assert len(seen.broken) <= 12
        assert seen.longest_gap() < GAP_SECONDS
        until(service.idle, "nothing waits")
        notes(f"{len(seen.answered)} answered, {len(seen.broken)} broke, 0 wrong; longest gap "
              f"{seen.longest_gap() * 1000:.0f} ms; replaced after {back:.1f} s")  # fmt: skip


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_event_loop_that_stands_still(store: Path, log: Path, notes: Notes, workers: str) -> None:
    """The process says where it stood and ends with 70 after stuck_seconds; among several it is replaced."""
    flags = ("--workers", workers, "--stuck-seconds", "1")
    with running(store, log, *flags, meddling={"block": "1"}) as service:
        if workers == "1":
            service.signal(signal.SIGUSR2)
            assert service.ended() == 70
        else:
            until(lambda: service.measured("inlay_workers_ready") == 2, "two workers")
            old = service.workers()
            service.signal(signal.SIGUSR2, old[0])
            until(lambda: old[0] not in service.workers() and len(service.workers()) == 2, "a new worker")
            until(lambda: service.measured("inlay_workers_ready") == 2, "the new worker serves")
            assert "exit code 70" in service.said
            assert service.embed().status_code == 200
        assert "the event loop stood still" in service.said
        assert "stand_still" in service.said  # where it stood
        notes("exit code 70" + ("" if workers == "1" else ", replaced"))


def test_a_paused_process_goes_on(store: Path, log: Path) -> None:
    """SIGSTOP of all for three times stuck_seconds, then SIGCONT (a paused container): nothing ends, it answers."""
    with running(store, log, "--stuck-seconds", "1") as service:
        service.embed().raise_for_status()
        service.signal(signal.SIGSTOP)
        resumed = time.monotonic() + 3
        until(lambda: time.monotonic() > resumed, "three seconds")
        service.signal(signal.SIGCONT)
        over = time.monotonic() + 2
        while time.monotonic() < over:
            assert service.embed().status_code == 200
        assert service.process.poll() is None


def test_a_worker_that_cannot_start_again(store: Path, log: Path, tmp_path: Path, notes: Notes) -> None:
    """The store breaks, then a worker is killed: its place stays empty, the others serve on; once the store is mended
    the place is filled."""
    own = tmp_path / "store"
    shutil.copytree(store, own)
    card = own / "bert/card.json"
    with running(own, log, "--workers", "2") as service:
        until(lambda: service.measured("inlay_workers_ready") == 2, "two workers")
        good, old = card.read_bytes(), service.workers()
        card.write_bytes(b"{")
        service.signal(signal.SIGKILL, old[0])
        until(lambda: "exit code 3" in service.said, "a start that fails")
        for _ in range(20):
            assert service.embed().status_code == 200
        assert service.process.poll() is None
        card.write_bytes(good)
        until(lambda: service.measured("inlay_workers_ready") == 2, "the place is filled")
        notes("200 from the others throughout; filled once the store was mended")


def test_a_stop_with_a_worker_that_hears_nothing(store: Path, log: Path, notes: Notes) -> None:
    """SIGTERM while one worker is stopped by SIGSTOP: all are gone within shutdown_seconds and a little; exit 0."""
    with running(store, log, "--workers", "2", "--shutdown-seconds", "1") as service:
        until(lambda: service.measured("inlay_workers_ready") == 2, "two workers")
        workers = service.workers()
        service.signal(signal.SIGSTOP, workers[0])
        stopped_at = time.monotonic()
        service.signal(signal.SIGTERM)
        assert service.ended(20) == 0
        notes(f"gone after {time.monotonic() - stopped_at:.1f} s")
        for pid in workers:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
