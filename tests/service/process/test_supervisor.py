"""A worker's end is answered by its next, sooner or later; what every worker would meet ends them all."""

import errno
import logging
import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from uvicorn.config import STARTUP_FAILURE

from service.errors import StartError
from service.process import supervisor
from service.process.supervisor import LONGEST_PAUSE_SECONDS, SHORT_LIFE_SECONDS, Supervisor


class Worker:
    """As uvicorn's Process; ends with the code it is given."""

    made = 0
    room = 1000  # for so many more the system has memory

    def __init__(self, config: Any = None, sockets: Any = None) -> None:
        Worker.made += 1
        self.exitcode: int | None = None
        self.pid = Worker.made
        self.asked: list[str] = []
        self.process = self
        self.stubborn = False

    def start(self) -> None:
        if Worker.room == 0:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        Worker.room -= 1

    def is_alive(self, timeout: float = 0) -> bool:
        return self.exitcode is None

    def kill(self) -> None:
        self.asked.append("kill")
        self.exitcode = self.exitcode if self.exitcode is not None else -signal.SIGKILL

    def terminate(self) -> None:
        self.asked.append("terminate")

    def join(self, timeout: float | None = None) -> None:
        self.asked.append("join")
        if timeout is not None and not self.stubborn:
            self.exitcode = 0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(supervisor, "monotonic", clock)
    monkeypatch.setattr(Worker, "room", 1000)
    monkeypatch.setattr(supervisor, "Process", Worker)
    monkeypatch.setattr("uvicorn.supervisors.multiprocess.Process", Worker)
    return clock


@pytest.fixture
def served() -> list[bool]:
    return [True]


@pytest.fixture
def watched(clock: Clock, served: list[bool]) -> Iterator[Supervisor]:
    held = {number: signal.getsignal(number) for number in signal.valid_signals()}
    with socket.socket() as listener:
        made = Supervisor(uvicorn.Config("none:none", workers=2, log_config=None), [listener], lambda: served[0], 30.0)
        made.init_processes()
        yield made
    for number, handler in held.items():
        if number not in (signal.SIGKILL, signal.SIGSTOP) and handler is not None:
            signal.signal(number, handler)


def ends(watched: Supervisor, place: int, code: int) -> None:
    watched.processes[place].exitcode = code  # type: ignore[misc]
    watched.keep_subprocess_alive()


def test_a_worker_that_ends_is_replaced_at_once_and_the_others_stay(watched: Supervisor, clock: Clock) -> None:
    first, second = watched.processes
    clock.now += SHORT_LIFE_SECONDS + 1
    ends(watched, 0, 70)
    assert watched.processes[0] is not first
    assert watched.processes[1] is second


def test_one_that_ends_again_and_again_is_started_ever_more_rarely(watched: Supervisor, clock: Clock) -> None:
    pauses = []
    for _ in range(8):
        before, began = watched.processes[0], clock.now
        ends(watched, 0, 1)
        while watched.processes[0] is before:
            clock.now += 0.5
            watched.keep_subprocess_alive()
        pauses.append(clock.now - began)
    assert pauses[:5] == [0, 1, 2, 4, 8]
    assert pauses[-1] == LONGEST_PAUSE_SECONDS
    clock.now += SHORT_LIFE_SECONDS + 1
    before = watched.processes[0]
    ends(watched, 0, 1)
    assert watched.processes[0] is not before  # it had lived: at once again


def test_what_no_worker_can_start_with_ends_them_all(watched: Supervisor, served: list[bool]) -> None:
    served[0] = False
    ends(watched, 0, STARTUP_FAILURE)
    assert watched.should_exit.is_set()


def test_what_one_worker_cannot_start_with_later_leaves_the_others(watched: Supervisor, clock: Clock) -> None:
    ends(watched, 0, STARTUP_FAILURE)
    ends(watched, 0, STARTUP_FAILURE)
    assert not watched.should_exit.is_set()
    assert watched.processes[1].is_alive()


def test_a_worker_that_does_not_stop_is_killed(watched: Supervisor) -> None:
    watched.processes[0].stubborn = True  # type: ignore[attr-defined]
    watched.join_all()
    assert "kill" in watched.processes[0].asked  # type: ignore[attr-defined]
    assert "kill" not in watched.processes[1].asked  # type: ignore[attr-defined]


# ---- no memory for another process


def test_a_worker_that_cannot_be_started_now_is_tried_again_ever_more_rarely_and_the_others_stay(
    watched: Supervisor, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = watched.processes
    clock.now += SHORT_LIFE_SECONDS + 1
    Worker.room, began, tried = 0, clock.now, []
    ends(watched, 0, -signal.SIGKILL)
    for _ in range(20):
        before = len(caplog.records)
        clock.now += 0.5
        watched.keep_subprocess_alive()
        if len(caplog.records) > before:
            tried.append(clock.now - began)
    assert tried == [1, 3, 7]
    assert all("cannot be started now ([Errno 11]" in each.message for each in caplog.records[1:])
    assert watched.processes == [first, second]
    assert not second.asked  # type: ignore[attr-defined]
    Worker.room, clock.now = 1, began + 15
    watched.keep_subprocess_alive()
    assert watched.processes[0] is not first
    assert watched.processes[0].is_alive()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTTIN])
def test_a_signal_that_asks_for_a_process_too_many_leaves_those_there_are(
    number: int, watched: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    before = [*watched.processes]
    Worker.room = 0
    watched.signal_queue.append(number)
    watched.handle_signals()
    assert watched.processes == before
    assert not watched.should_exit.is_set()
    assert [each.levelno for each in caplog.records] == [logging.ERROR]


def test_too_little_room_for_all_at_the_start_is_said_in_one_line_and_leaves_none(watched: Supervisor) -> None:
    watched.processes.clear()
    Worker.room = 1
    with pytest.raises(StartError, match=r"worker 2 of 2 cannot be started: Resource .*unavailable; .*--work"):
        watched.init_processes()
    assert [each.asked for each in watched.processes] == [["terminate", "join"]]  # type: ignore[attr-defined]
