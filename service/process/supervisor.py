"""The parent process of the workers: starts them, replaces those that end or hang, and stops all in bounded time."""

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from time import monotonic, sleep
from typing import Any

from service.errors import StartError
from service.process.stop_signals import STOPS

START_FAILURE = 3
"""The exit code of a worker that cannot serve what the settings ask for."""
POLL_SECONDS = 0.25
HEARTBEAT_SECONDS = 1.0
SILENT_SECONDS = 15.0  # without a heartbeat: a worker is stopped (SIGSTOP) or hangs with the GIL held, and is killed
SHORT_LIFE_SECONDS = 10.0
MAX_PAUSE_SECONDS = 16.0
STOP_SECONDS = 5.0  # seconds beyond a worker's time for its requests in flight
log = logging.getLogger(__name__)
_spawn = multiprocessing.get_context("spawn")


class Worker:
    """One worker process.

    Args:
        run: called in the process with its place; can be pickled.
        place: number of the worker, from 0 to the number of workers - 1.
        stop_seconds: how long it may finish requests in flight once it has to stop.
    """

    def __init__(self, run: Callable[[int], None], place: int, stop_seconds: float) -> None:
        self._heartbeats, sender = _spawn.Pipe(duplex=False)
        arguments = (run, place, sender, stop_seconds)
        self.process = _spawn.Process(target=_main, args=arguments, name=f"worker {place}")
        self.process.start()
        sender.close()
        self.started = self.last_seen = monotonic()

    def silent_seconds(self) -> float:
        """Return the seconds since the last heartbeat."""
        with suppress(EOFError, OSError):
            while self._heartbeats.poll():
                self._heartbeats.recv_bytes()
                self.last_seen = monotonic()
        return monotonic() - self.last_seen


class Supervisor:
    """Keeps a number of workers running.

    Args:
        run: called in each worker process with its place; can be pickled.
        workers: number of workers.
        served: returns whether any worker was ever ready; if none was, every worker would meet the same fault.
        stop_seconds: a worker's time for its requests in flight once it has to stop.
        drain_seconds: how long a worker that was told to stop fails its probes and serves on; a second signal ends it.
    """

    def __init__(
        self,
        run: Callable[[int], None],
        workers: int,
        served: Callable[[], bool],
        stop_seconds: float,
        drain_seconds: float = 0.0,
    ) -> None:
        self._run = run
        self._served = served
        self._stop_seconds, self._drain_seconds = stop_seconds, drain_seconds
        self._signals = 0
        self.workers: list[Worker | None] = [None] * workers
        self.stopping = False
        self._failed = False
        self._pauses: dict[int, float] = {}  # before the next start of places whose worker did not live long
        self._due: dict[int, float] = {}  # time at which a place gets its next worker
        self._looked = monotonic()

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT; return the exit code.

        Raises:
            StartError: the system has no room for as many processes.
        """
        for number in STOPS:
            signal.signal(number, self._on_signal)
        try:
            self.start()
            while not self.stopping:
                wait([worker.process.sentinel for worker in self.workers if worker], POLL_SECONDS)
                self.check()
        finally:
            self.stop()
        return int(self._failed)

    def _on_signal(self, number: int, frame: Any) -> None:
        self._signals += 1
        self.stopping = True

    def start(self) -> None:
        """Start all workers; raise StartError if the system has no room for them."""
        for place in range(len(self.workers)):
            try:
                self.workers[place] = Worker(self._run, place, self._stop_seconds + self._drain_seconds)
            except OSError as error:
                number = f"worker {place + 1} of {len(self.workers)}"
                why = f"{number} cannot be started: {error.strerror}; allow for more processes and memory"
                raise StartError(f"{why}, or ask for fewer with INLAY_WORKERS or --workers") from error

    def check(self) -> None:
        """Check every worker once and replace those that ended, without delay if they had lived long enough."""
        now = monotonic()
        paused, self._looked = now - self._looked > SILENT_SECONDS / 2, now
        for place, worker in enumerate(self.workers):
            if worker is None:
                if now >= self._due[place]:
                    self._replace(place)
            elif not worker.process.is_alive():
                self._ended(place, worker, "")
            elif paused:  # this process stood still as well: a paused container, a debugger
                worker.last_seen = now
            elif worker.silent_seconds() > SILENT_SECONDS:
                worker.process.kill()
                worker.process.join()
                self._ended(place, worker, "no heartbeat")

    def _ended(self, place: int, worker: Worker, reason: str) -> None:
        code = worker.process.exitcode or 0
        self.workers[place] = None
        if code == START_FAILURE and not self._served():
            self.stopping = self._failed = True
            return
        lived = monotonic() - worker.started
        if code != START_FAILURE and lived > SHORT_LIFE_SECONDS:
            self._pauses.pop(place, None)
        pause = self._put_off(place)
        log.error(
            "worker %s ended (%s) after %.1f s; the next starts %s",
            place,
            reason or _named(code),
            lived,
            f"in {pause:g} s" if pause else "now",
        )
        if not pause:
            self._replace(place)

    def _put_off(self, place: int) -> float:
        """Return the delay in seconds until a failed worker is replaced; it doubles with each failure."""
        pause = self._pauses.get(place, 0.0)
        self._pauses[place] = min(MAX_PAUSE_SECONDS, 2 * pause or 1.0)
        self._due[place] = monotonic() + pause
        return pause

    def _replace(self, place: int) -> None:
        try:
            self.workers[place] = Worker(self._run, place, self._stop_seconds + self._drain_seconds)
        except OSError as error:  # no memory, process number or file left: just after an OOM kill, for example
            pause = self._put_off(place)
            log.error("worker %s cannot be started now (%s); tried again in %g s", place, error, pause)

    def stop(self) -> None:
        """Tell all workers to stop, wait for them, and kill those that do not stop or send no heartbeat.

        A second signal is passed on: it ends the workers' drains.
        """
        workers = [worker for worker in self.workers if worker]
        _terminate(workers)
        if self._drain_seconds:
            _wait_until(monotonic() + self._drain_seconds, workers, lambda: self._signals > 1)
        if self._signals > 1:
            _terminate(workers)
        stopping_at = monotonic()
        _wait_until(stopping_at + self._stop_seconds + STOP_SECONDS, workers)
        for worker in workers:
            if worker.process.is_alive():
                log.error("worker %s did not stop: killed", worker.process.pid)
                worker.process.kill()
                worker.process.join()


def _named(code: int) -> str:
    """Return an exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    hint = ", as the system does where memory runs out" if -code == signal.SIGKILL else ""
    return f"{signal.Signals(-code).name}{hint}"


def _terminate(workers: list[Worker]) -> None:
    for worker in workers:
        worker.process.terminate()


def _wait_until(deadline: float, workers: list[Worker], hurried: Callable[[], bool] = lambda: False) -> None:
    """Wait for the workers to end, until the deadline; kill those without a heartbeat, which cannot stop."""
    while monotonic() < deadline and (alive := [worker for worker in workers if worker.process.is_alive()]):
        for worker in alive:
            if hurried():
                return
            worker.process.join(min(POLL_SECONDS, max(0.0, deadline - monotonic())))
            if worker.silent_seconds() > SILENT_SECONDS:
                worker.process.kill()


def _main(run: Callable[[int], None], place: int, heartbeats: Connection, stop_seconds: float) -> None:
    """Run a worker in its process, and send heartbeats through a pipe that breaks when the supervisor ends."""
    arguments = (heartbeats, stop_seconds)
    threading.Thread(target=_send_heartbeats, args=arguments, name="heartbeat", daemon=True).start()
    run(place)


def _send_heartbeats(heartbeats: Connection, stop_seconds: float) -> None:
    """Send heartbeats; once the supervisor has ended, stop this process as it would have done."""
    with suppress(OSError):
        while True:
            heartbeats.send_bytes(b".")
            sleep(HEARTBEAT_SECONDS)
    log.error("the supervisor has ended: this worker stops")
    os.kill(os.getpid(), signal.SIGTERM)
    sleep(stop_seconds + STOP_SECONDS)
    os._exit(1)
