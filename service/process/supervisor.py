"""The parent of the workers: starts another for one that ended or stands still, stops them in bounded time.

uvicorn 0.54 keeps watch; what it does is bent in three places. It stops every worker when one cannot start, though the
others serve: here only while none ever did. It waits for ever for a worker that does not stop. And it ends, leaving
its workers alone, where the system has no room for another process.
"""

import logging
from collections.abc import Callable
from socket import socket
from time import monotonic

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import Process

from service.errors import StartError

SHORT_LIFE_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 16.0
STOP_SECONDS = 5.0  # beyond what a worker has for its requests in flight
log = logging.getLogger(__name__)


class Supervisor(Multiprocess):
    """Workers that share a listening socket.

    served        whether any worker ever did: tells a passing fault from one that every worker would meet
    stop_seconds  that a worker has for its requests in flight, once it is told to stop
    """

    def __init__(
        self, config: uvicorn.Config, sockets: list[socket], served: Callable[[], bool], stop_seconds: float
    ) -> None:
        super().__init__(config, sockets)
        self._served = served
        self._stop_seconds = stop_seconds
        self._started: dict[int, float] = {}
        self._pauses: dict[int, float] = {}  # of places whose worker did not live long
        self._due: dict[int, float] = {}  # when a place gets its next worker

    def init_processes(self) -> None:
        """Start as many as are wanted.

        raises   StartError in one line where the system has no room for them: none is left
        """
        try:
            super().init_processes()
        except OSError as error:
            self.terminate_all()
            self.join_all()
            number = f"worker {len(self.processes) + 1} of {self.processes_num}"
            why = f"{number} cannot be started: {error.strerror}; allow for more processes and memory"
            raise StartError(f"{why}, or ask for fewer with INLAY_WORKERS or --workers") from error
        self._started = dict.fromkeys(range(len(self.processes)), monotonic())

    def handle_signals(self) -> None:
        """Do what signals ask for; SIGHUP and SIGTTIN start processes, for which there may be no room."""
        try:
            super().handle_signals()
        except OSError as error:
            log.error("what a signal asked for cannot be done now, ask again: %s", error)

    def keep_subprocess_alive(self) -> None:
        """Look at every worker once; replace what ended, at once where it had lived for long enough."""
        for place, process in enumerate(self.processes):
            if self.should_exit.is_set():
                return
            if place in self._due:
                if monotonic() >= self._due[place]:
                    self._start(place)
            elif not process.is_alive(timeout=self.config.timeout_worker_healthcheck):
                process.kill()  # it may live and not answer
                process.join()
                self._ended(place, process)

    def _ended(self, place: int, process: Process) -> None:
        if process.exitcode == STARTUP_FAILURE and not self._served():
            self.should_exit.set()
            return
        lived = monotonic() - self._started.get(place, 0.0)
        if process.exitcode != STARTUP_FAILURE and lived > SHORT_LIFE_SECONDS:
            self._pauses.pop(place, None)
        pause = self._put_off(place)
        log.error("worker %s ended (%s) after %.1f s; the next starts in %g s", place, _how(process), lived, pause)
        if not pause:
            self._start(place)

    def _put_off(self, place: int) -> float:
        """In how many seconds the place gets its next worker: more from one time to the next."""
        pause = self._pauses.get(place, 0.0)
        self._pauses[place] = min(LONGEST_PAUSE_SECONDS, 2 * pause or 1.0)
        self._due[place] = monotonic() + pause
        return pause

    def _start(self, place: int) -> None:
        try:
            process = Process(self.config, self.sockets)
            process.start()
        except OSError as error:  # no memory, process number or file left: just after an OOM kill, for example
            pause = self._put_off(place)
            log.error("worker %s cannot be started now (%s); tried again in %g s", place, error, pause)
            return
        self._due.pop(place, None)
        self._started[place] = monotonic()
        self.processes[place] = process

    def join_all(self) -> None:
        """Wait for all to end, and end what does not."""
        over = monotonic() + self._stop_seconds + STOP_SECONDS
        for process in self.processes:
            process.process.join(max(0.0, over - monotonic()))
            if process.process.is_alive():
                log.error("worker %d did not stop: killed", process.pid)
                process.process.kill()
                process.process.join()


def _how(process: Process) -> str:
    code = process.exitcode
    return "no answer" if code is None else f"signal {-code}" if code < 0 else f"exit code {code}"
