"""Ends a process whose event loop hangs, so that its supervisor starts another.

Callers of such a process would wait without an error. A thread watches, because a timer on the loop hangs with it.
"""

import asyncio
import faulthandler
import logging
import os
import threading
from collections.abc import Callable
from time import monotonic

BEATS = 4  # checks within the allowed time
EXIT_CODE = 70  # EX_SOFTWARE of sysexits.h
LOG_SECONDS = 2.0
log = logging.getLogger(__name__)


def end_process(seconds: float) -> None:
    """Log the stack of every thread and exit at once, without cleaning up.

    Args:
        seconds: how long the event loop has hung.
    """
    thread = threading.Thread(target=_log, args=(seconds,), daemon=True)  # the loop may hold what writing needs
    try:
        thread.start()
        thread.join(LOG_SECONDS)
    finally:  # even where the system has no thread left
        os._exit(EXIT_CODE)


def _log(seconds: float) -> None:
    log.critical("the event loop stood still for %.1f s: ending this process\n%s", seconds, _stacks())


def _stacks() -> str:
    """Return the stack of every thread."""
    if not hasattr(os, "memfd_create"):  # not Linux: as text on stderr, beside the log
        faulthandler.dump_traceback()
        return "its stacks are on stderr"
    with os.fdopen(os.memfd_create("stacks"), "r+") as file:  # faulthandler needs a file; a folder may not be writable
        faulthandler.dump_traceback(file)
        file.seek(0)
        return file.read()


class Watchdog:
    """Watches an event loop from another thread.

    Args:
        seconds: how long the loop may hang.
        end: called with the seconds that it has hung, once they exceed that.
        stopped: the event that ends the watch; None: one of its own.
    """

    def __init__(
        self, seconds: float, end: Callable[[float], None] = end_process, stopped: threading.Event | None = None
    ) -> None:
        self._seconds = seconds
        self._end = end
        self._last_beat = monotonic()
        self._stopped = stopped or threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Watch the running loop."""
        self._loop = asyncio.get_running_loop()
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()

    def _beat(self) -> None:
        self._last_beat = monotonic()
        if self._loop is not None and not self._stopped.is_set():
            self._loop.call_later(self._seconds / BEATS, self._beat)

    def _watch(self) -> None:
        woke = monotonic()
        while not self._stopped.wait(self._seconds / BEATS):
            slept, woke = monotonic() - woke, monotonic()
            if slept > 2 * self._seconds / BEATS:  # this thread stood still as well: a paused container, a debugger
                self._last_beat = woke
            elif woke - self._last_beat > self._seconds:
                self._end(woke - self._last_beat)
                return
