"""The heavy process: receives a function and its arguments, and sends the result back, one after the other.

It ends when its parent does, when it was idle for a while, and when it keeps as much memory as a task may take; the
lane then starts another at the next need.
"""

import ctypes
import gc
import os
import pickle
import resource
import signal
import sys
import traceback
from contextlib import suppress
from math import ceil
from multiprocessing.connection import Connection
from pathlib import Path
from time import process_time
from typing import Any

from service import machine
from service.errors import InlayError
from service.heavy import transfer

IDLE_SECONDS = 60.0  # without a task it ends, and gives its memory back
NICENESS = 5  # what light callers wait for goes first where cores are few
OUT_OF_MEMORY = 77  # exit code
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h


def serve(channel: "Connection[Any, Any]", memory_bytes: int, seconds: float) -> None:
    """Run tasks until the parent ends, no task comes, or too much memory is kept."""
    gc.disable()  # it visits millions of lists again and again: 16 MiB of `[],` are read in 0.7 s, without it in 0.3
    start_bytes = _data_bytes()
    while True:
        try:
            if not channel.poll(IDLE_SECONDS):
                return
            task = transfer.receive(channel)
        except (EOFError, OSError, MemoryError):  # without memory for it: another process does the task
            return
        _send(channel, _answer(task, memory_bytes, seconds))
        del task
        if _data_bytes() - start_bytes > memory_bytes:
            gc.collect()
            machine.trim_heaps()
            if _data_bytes() - start_bytes > memory_bytes:
                return


def _answer(task: transfer.Message, memory_bytes: int, seconds: float) -> tuple[bool, Any]:
    """Return whether a task succeeded, and its result or its error."""
    try:
        function, arguments = task.load()  # imports the function's module, which is not the task's cost
        _limit(memory_bytes, seconds)
        return True, function(*arguments)
    except Exception as error:
        if isinstance(error, MemoryError):
            os._exit(OUT_OF_MEMORY)
        if not isinstance(error, InlayError):
            error.add_note(f"in the heavy process:\n{traceback.format_exc()}")
        return False, error
    except BaseException:  # a panic of a library in Rust, which a failed allocation ends in
        os._exit(OUT_OF_MEMORY)


def _send(channel: "Connection[Any, Any]", answer: tuple[bool, Any]) -> None:
    """Send a result or an error; one that cannot be pickled as an error that says so."""
    try:
        transfer.send(channel, answer)
    except (MemoryError, OSError):  # OSError: the parent has ended
        os._exit(OUT_OF_MEMORY)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        transfer.send(channel, (False, RuntimeError(f"{answer[1]!r:.200} cannot be sent: {error}")))


def _limit(memory_bytes: int, seconds: float) -> None:
    """Limit what the next task may allocate, besides what is allocated, and take of the processor."""
    limits = {
        resource.RLIMIT_DATA: _data_bytes() + memory_bytes,
        resource.RLIMIT_CPU: ceil(process_time() + seconds),
    }
    for limit, most in limits.items():
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _data_bytes() -> int:
    """Return the bytes of this process's data segments, which RLIMIT_DATA bounds; 0 outside Linux."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    except OSError:
        return 0


def _stay_behind(parent: int) -> None:
    """End with the parent, leave signals to it, take less of the processor, and be the first that the system kills."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
    if os.getppid() != parent:
        sys.exit()
    with suppress(OSError):
        os.nice(NICENESS)


if __name__ == "__main__":
    channel_number, parent_number, memory, time = sys.argv[1:]
    _stay_behind(int(parent_number))
    serve(Connection(int(channel_number)), int(memory), float(time))
