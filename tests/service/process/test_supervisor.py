"""Workers that end or hang are replaced, and none outlives its supervisor."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from service.errors import StartError
from service.process import supervisor
from service.process.supervisor import (
    MAX_PAUSE_SECONDS,
    SHORT_LIFE_SECONDS,
    SILENT_SECONDS,
    START_FAILURE,
    Supervisor,
)

ROOT = Path(__file__).parents[3]
SECONDS = 100


class FakeWorker:
    """Ends with the code it is given, and is its own process."""

    made = 0
    room = 1000  # for so many more the system has memory

    def __init__(self, run: object = None, place: int = 0, stop_seconds: float = 0.0) -> None:
        if FakeWorker.room == 0:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        FakeWorker.room -= 1
        FakeWorker.made += 1
        self.exitcode: int | None = None
        self.pid = FakeWorker.made
        self.calls: list[str] = []
        self.process = self
        self.stubborn = False
        self.started = self.last_seen = supervisor.monotonic()

    def silent_seconds(self) -> float:
        return supervisor.monotonic() - self.last_seen

    def is_alive(self) -> bool:
        return self.exitcode is None

    def kill(self) -> None:
        self.calls.append("kill")
        self.exitcode = self.exitcode if self.exitcode is not None else -signal.SIGKILL

    def terminate(self) -> None:
        self.calls.append("terminate")

    def join(self, timeout: float | None = None) -> None:
        self.calls.append("join")
        if timeout is not None and self.stubborn:
            supervisor.monotonic.now += timeout  # type: ignore[attr-defined]
        elif timeout is not None:
            self.exitcode = 0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(supervisor, "monotonic", clock)
    monkeypatch.setattr(FakeWorker, "room", 1000)
    monkeypatch.setattr(supervisor, "Worker", FakeWorker)
    return clock


@pytest.fixture
def served() -> list[bool]:
    return [True]


@pytest.fixture
def watched(clock: Clock, served: list[bool]) -> Supervisor:
    made = Supervisor(lambda place: None, 2, lambda: served[0], 30.0)
    made.start()
    return made


def pass_seconds(watched: Supervisor, clock: Clock, seconds: float) -> None:
    """Look twice a second meanwhile, while all workers send heartbeats."""
    for _ in range(round(2 * seconds)):
        clock.now += 0.5
        for worker in watched.workers:
            if worker is not None:
                worker.last_seen = clock.now
        watched.check()


def end(watched: Supervisor, place: int, code: int) -> None:
    worker: Any = watched.workers[place]
    worker.exitcode = code
    watched.check()


def test_worker_that_ends_is_replaced_and_others_stay(watched: Supervisor, clock: Clock) -> None:
    first, second = watched.workers
    pass_seconds(watched, clock, SHORT_LIFE_SECONDS + 1)
    end(watched, 0, 70)
    assert watched.workers[0] not in (first, None)
    assert watched.workers[1] is second


def test_pauses_grow_for_workers_that_end_repeatedly(watched: Supervisor, clock: Clock) -> None:
    pauses = []
    for _ in range(8):
        before, began = watched.workers[0], clock.now
        end(watched, 0, 1)
        while watched.workers[0] in (before, None):
            pass_seconds(watched, clock, 0.5)
        pauses.append(clock.now - began)
    assert pauses[:5] == [0, 1, 2, 4, 8]
    assert pauses[-1] == MAX_PAUSE_SECONDS
    pass_seconds(watched, clock, SHORT_LIFE_SECONDS + 1)
    before = watched.workers[0]
    end(watched, 0, 1)
    assert watched.workers[0] not in (before, None)  # it had lived: at once again


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (1, "(exit code 1)"),
        (-signal.SIGSEGV, "(SIGSEGV)"),
        (-signal.SIGKILL, "(SIGKILL, as the system does where memory"),
    ],
)
def test_end_of_a_worker_is_logged_with_its_reason(
    watched: Supervisor, caplog: pytest.LogCaptureFixture, code: int, said: str
) -> None:
    end(watched, 0, code)
    assert f"worker 0 ended {said}" in caplog.text


def test_start_failure_before_any_served_ends_all(watched: Supervisor, served: list[bool]) -> None:
    served[0] = False
    end(watched, 0, START_FAILURE)
    assert watched.stopping


def test_later_start_failure_leaves_the_others(watched: Supervisor) -> None:
    end(watched, 0, START_FAILURE)
    end(watched, 0, START_FAILURE) if watched.workers[0] else None
    assert not watched.stopping
    assert watched.workers[1] is not None


def test_silent_worker_is_killed_and_replaced(
    watched: Supervisor, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    first: Any = watched.workers[0]
    while clock.now < 1000 + SILENT_SECONDS + 1:
        clock.now += 0.5
        watched.workers[1].last_seen = clock.now  # type: ignore[union-attr]
        watched.check()
    assert first.calls == ["kill", "join"]
    assert watched.workers[0] not in (first, None)
    assert "no heartbeat" in caplog.text


def test_paused_supervisor_does_not_kill_its_workers(watched: Supervisor, clock: Clock) -> None:
    before = [*watched.workers]
    clock.now += 100
    watched.check()
    watched.check()
    assert watched.workers == before


def test_worker_that_does_not_stop_is_killed(watched: Supervisor) -> None:
    first, second = workers = [*watched.workers]
    first.stubborn = True  # type: ignore[union-attr]
    watched.stop()
    assert [worker.calls[0] for worker in workers] == ["terminate", "terminate"]  # type: ignore[union-attr]
    assert "kill" in first.calls  # type: ignore[union-attr]
    assert "kill" not in second.calls  # type: ignore[union-attr]


def test_silent_worker_is_killed_while_others_are_waited_for(watched: Supervisor, clock: Clock) -> None:
    watched.workers[0].stubborn = True  # type: ignore[union-attr]
    began = clock.now
    watched.stop()
    assert "kill" in watched.workers[0].calls  # type: ignore[union-attr]
    assert clock.now - began < SILENT_SECONDS + 1


# ---- no memory for another process


def test_worker_that_cannot_start_now_is_tried_again(
    watched: Supervisor, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    second: Any = watched.workers[1]
    pass_seconds(watched, clock, SHORT_LIFE_SECONDS + 1)
    FakeWorker.room, began, tried = 0, clock.now, []
    end(watched, 0, -signal.SIGKILL)
    for _ in range(20):
        before = len(caplog.records)
        pass_seconds(watched, clock, 0.5)
        if len(caplog.records) > before:
            tried.append(clock.now - began)
    assert tried == [1, 3, 7]
    assert all("cannot be started now ([Errno 11]" in each.message for each in caplog.records[1:])
    assert watched.workers == [None, second]
    assert not second.calls
    FakeWorker.room = 1
    pass_seconds(watched, clock, 5)
    assert watched.workers[0] is not None


def test_too_little_room_at_the_start_is_one_line(clock: Clock) -> None:
    starting = Supervisor(lambda place: None, 2, lambda: False, 30.0)
    FakeWorker.room = 1
    held = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with pytest.raises(StartError, match=r"worker 2 of 2 cannot be started: Resource .*unavailable; .*--work"):
            starting.run()
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
    assert [worker and worker.calls for worker in starting.workers] == [["terminate", "join"], None]  # type: ignore[attr-defined]


# ---- real processes

SCRIPT = """
import os, signal, sys, time
from functools import partial
from pathlib import Path
from service.process import supervisor
from service.process.supervisor import Supervisor

supervisor.SILENT_SECONDS = 3.0

def run(folder, place):
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    (Path(folder) / f"{place}-{os.getpid()}").touch()
    while True:
        time.sleep(1)

if __name__ == "__main__":
    sys.exit(Supervisor(partial(run, sys.argv[1]), 2, lambda: True, 1.0).run())
"""


@contextmanager
def supervised(folder: Path) -> Iterator[tuple["subprocess.Popen[bytes]", Callable[[], set[int]]]]:
    """A supervisor of two workers in a process of its own, and what lists the workers that have started."""
    script, pids = folder / "script.py", folder / "pids"
    script.write_text(SCRIPT)
    pids.mkdir()
    command = [sys.executable, script, pids]
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})

    def workers() -> set[int]:
        return {int(path.name.split("-")[1]) for path in pids.iterdir()}

    try:
        until(lambda: len(workers()) == 2)
        yield process, workers
    finally:
        process.kill()
        process.wait(SECONDS)


def until(holds: Callable[[], bool]) -> None:
    ends = monotonic() + SECONDS
    while not holds():
        assert monotonic() < ends
        sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != "Z"
    except FileNotFoundError:
        return False


def test_workers_end_with_a_supervisor_killed_by_sigkill(tmp_path: Path) -> None:
    with supervised(tmp_path) as (process, workers):
        process.kill()
        process.wait(SECONDS)
        until(lambda: not any(is_alive(pid) for pid in workers()))


def test_stopped_worker_is_replaced_and_sigterm_exits_0(tmp_path: Path) -> None:
    with supervised(tmp_path) as (process, workers):
        first = min(workers())
        os.kill(first, signal.SIGSTOP)
        until(lambda: len(workers()) == 3)
        assert not is_alive(first)
        process.terminate()
        assert process.wait(SECONDS) == 0
        assert not any(is_alive(pid) for pid in workers())
