"""Runs work whose cost is not known before it is done in a process beside the server, with a memory and a time limit.

The server's own process keeps its interpreter lock and its memory: a body that becomes a gigabyte of lists, or a
picture that takes a second, harms the caller who sent it alone. The process starts at the first need.
"""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any, TypeVar, TypeVarTuple

from service.errors import BodyTooLarge, InlayError, Overloaded, Unavailable
from service.heavy import transfer
from service.heavy.worker import OUT_OF_MEMORY
from service.machine import available_cpus
from service.request_context import CURRENT_CALL

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")
MAX_WAITING = 64  # tasks of one caller; those of all together are as many as requests may be served at a time
WALL_FACTOR = 6  # seconds that a task may last for each second of the processor that it may take
ENDED_BY_MEMORY = (OUT_OF_MEMORY, -signal.SIGABRT)
"""Exit codes of a process that wanted more memory than it may have: Python's, and that of libraries in C and Rust."""
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "RUST_BACKTRACE": "0",  # without memory a panic hangs while it writes one (pydantic-core)
}
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A function, its arguments, and the future that its caller awaits."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    future: "Future[Any]" = field(default_factory=Future)


class HeavyProcess:
    """One process, started when a task needs it; used by one thread at a time.

    Attributes:
        ended: how often a limit ended it, or it died.
    """

    def __init__(self, memory_bytes: int, seconds: float) -> None:
        self._memory_bytes, self._seconds = memory_bytes, seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Connection[Any, Any] | None = None
        self._at_work = threading.Lock()
        self.ended = 0

    def run(self, task: Task) -> Any:
        """Return what the task's function returns, or raise what it raises.

        Raises:
            BodyTooLarge: it needs more memory than the process may have.
            Unavailable: it takes too long, or the process was killed or cannot be started.
        """
        with self._at_work:
            answer = self._answer(task)
            while answer is None:  # it was idle, or had kept too much memory, and ended: the next one does it
                answer = self._answer(task)
        succeeded, result = answer
        if not succeeded:
            raise result
        return result

    def close(self) -> None:
        """End the process now, whatever it does; a later task starts one again."""
        if self._process is not None and self._channel is not None:
            self._process.kill()
            with self._at_work:
                self._process.wait()
                self._channel.close()

    def _answer(self, task: Task) -> tuple[bool, Any] | None:
        """Return whether the function succeeded, and its result or error; None if the process had ended before."""
        channel, process = self._open()
        size = 0
        try:
            size = transfer.send(channel, (task.function, task.arguments))
            if not channel.poll(WALL_FACTOR * self._seconds):
                process.kill()
                process.wait()
                raise self._gave_up(task, size, -signal.SIGXCPU)
            message = transfer.receive(channel)
        except (EOFError, OSError):
            if code := process.wait():
                raise self._gave_up(task, size, code) from None
            return None
        answer: tuple[bool, Any] = message.load()
        return answer

    def _open(self) -> "tuple[Connection[Any, Any], subprocess.Popen[bytes]]":
        """Return the process and the channel to it, started if there is none."""
        if self._channel is not None and self._process is not None:
            if self._process.poll() is None:
                return self._channel, self._process
            self._channel.close()
        self._channel, other = Pipe()
        numbers = (other.fileno(), os.getpid(), self._memory_bytes, self._seconds)
        with other:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "service.heavy.worker", *map(str, numbers)],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(other.fileno(),),
                    env={**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)},
                )
            except OSError as error:
                raise Unavailable(f"no process could be started for this ({error.strerror})") from error
        return self._channel, self._process

    def _gave_up(self, task: Task, size: int, code: int) -> InlayError:
        """Return the error for a task whose process ended with an exit code; SIGXCPU is the time limit."""
        self.ended += 1
        log.warning(
            "the heavy process ended (exit code %d) in %s of %d bytes",
            code,
            task.function.__qualname__,
            size,
        )
        if code in ENDED_BY_MEMORY:
            return BodyTooLarge(
                f"to read or compute this request of {size} bytes takes more memory than there is",
                allowed=f"this server has {self._memory_bytes} bytes for it",
                remedy="send less at a time, or have INLAY_HEAVY_MEMORY_BYTES raised",
            )
        if code == -signal.SIGXCPU:
            return Unavailable(
                f"to read or compute this request of {size} bytes takes more than {self._seconds:g} s",
                remedy="send less at a time, or have INLAY_HEAVY_SECONDS raised",
            )
        # SIGKILL comes from outside: an operator, or a system whose memory others have used up
        ended = f"the process that worked on this request ended (exit code {code})"
        return Unavailable(ended, remedy="try again in a moment")


class HeavyLane:
    """The processes, and the callers that wait for one. Callers take turns; the tasks of one keep their order.

    Args:
        processes: how many; 0: the same work in threads of this process, without limits.
        memory_bytes: what a task may allocate.
        seconds: of the processor that a task may take.
        threads: how many, where there are no processes; None: one a processor.

    Attributes:
        processes: these processes.
        waiting: tasks that wait.
        tasks: tasks done.
        seconds: seconds of these together.
    """

    def __init__(
        self, processes: int = 0, memory_bytes: int = sys.maxsize, seconds: float = 0, threads: int | None = None
    ) -> None:
        self._threads = ThreadPoolExecutor(processes or threads or available_cpus(), "heavy")
        self.processes = [HeavyProcess(memory_bytes, seconds) for _ in range(processes)]
        self._free = list(self.processes)
        self._lock = threading.Lock()
        self._callers: dict[str, deque[Task]] = {}  # waiting tasks; first those of the caller whose turn it is
        self.waiting = self.tasks = 0
        self.seconds = 0.0

    @property
    def ended(self) -> int:
        """How many processes a limit ended, or died."""
        return sum(process.ended for process in self.processes)

    async def run(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Return the function's result.

        Args:
            function: a function of a module, which has no effects.
            arguments: objects that can be pickled.

        Raises:
            Overloaded: too many tasks of its caller wait.
            BodyTooLarge, Unavailable: a limit ended it.
        """
        task = Task(function, arguments)
        self._add(CURRENT_CALL.get().caller, task)
        self._threads.submit(self._serve_next)
        result: Result = await asyncio.wrap_future(task.future)
        return result

    def close(self) -> None:
        """End the processes; a later task starts one again."""
        for process in self.processes:
            process.close()

    def _add(self, caller: str, task: Task) -> None:
        with self._lock:
            tasks = self._callers.get(caller) or deque()
            if len(tasks) >= MAX_WAITING:
                raise Overloaded(f"{len(tasks)} large requests of this caller wait", remedy="try again in a moment")
            tasks.append(task)
            self._callers[caller] = tasks
            self.waiting += 1

    def _next(self) -> Task:
        """Return the first task of the caller whose turn it is, which is then the last to have one."""
        with self._lock:
            caller = next(iter(self._callers))
            tasks = self._callers.pop(caller)
            task = tasks.popleft()
            if tasks:
                self._callers[caller] = tasks
            self.waiting -= 1
            return task

    def _serve_next(self) -> None:
        task = self._next()
        if not task.future.set_running_or_notify_cancel():
            return  # its caller has left
        process = self._free.pop() if self.processes else None
        began = perf_counter()
        try:
            answer = process.run(task) if process else task.function(*task.arguments)
        except InlayError as error:
            task.future.set_exception(error.without_frames())
        except Exception as error:
            task.future.set_exception(error)
        else:
            task.future.set_result(answer)
        with self._lock:
            self.tasks += 1
            self.seconds += perf_counter() - began
            if process:
                self._free.append(process)


_open = [HeavyLane()]  # threads, where no service runs; the newest is used


@contextmanager
def serving(lane: HeavyLane) -> Iterator[None]:
    """Let the whole process use a lane; close it at the end of the block."""
    _open.append(lane)
    try:
        yield
    finally:
        _open.remove(lane)
        lane.close()


def has_processes() -> bool:
    """Return whether the work is done in processes, within their memory."""
    return bool(_open[-1].processes)


async def run_beside(function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
    """Return the function's result, computed by the lane of this process; see `HeavyLane.run`."""
    return await _open[-1].run(function, *arguments)
