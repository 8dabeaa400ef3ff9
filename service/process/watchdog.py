"""A process whose event loop stands still ends itself, so that its supervisor starts another. Restarts nothing itself.

Callers of such a process hang without an error: no watchdog on the loop can tell, since it stands still with it.
"""

import asyncio
import faulthandler
import logging
import os
import threading
from collections.abc import Callable
from time import monotonic

BEATS = 4  # in the time that is allowed
EXIT_CODE = 70  # EX_SOFTWARE of sysexits.h
TELL_SECONDS = 2.0
log = logging.getLogger(__name__)


def _end(still: float) -> None:
    telling = threading.Thread(target=_tell, args=(still,), daemon=True)  # the loop may hold what writing needs
    try:
        telling.start()
        telling.join(TELL_SECONDS)
    finally:  # even where the system has no thread left
        os._exit(EXIT_CODE)  # nothing orderly can be waited for


def _tell(still: float) -> None:
    log.critical("the event loop stood still for %.1f s: ending this process", still)
    faulthandler.dump_traceback()  # where every thread stands, for whoever reads the log


class Watchdog:
    """Watches the running loop from a thread of its own.

    seconds   how long it may stand still
    end       what is done then, told for how long it has
    """

    def __init__(self, seconds: float, end: Callable[[float], None] = _end) -> None:
        self._seconds = seconds
        self._end = end
        self._beat = monotonic()
        self._stopped = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Watch the loop this is called on."""
        self._loop = asyncio.get_running_loop()
        self._beats()
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer."""
        self._stopped.set()

    def _beats(self) -> None:
        self._beat = monotonic()
        if self._loop is not None and not self._stopped.is_set():
            self._loop.call_later(self._seconds / BEATS, self._beats)

    def _watch(self) -> None:
        woke = monotonic()
        while not self._stopped.wait(self._seconds / BEATS):
            slept, woke = monotonic() - woke, monotonic()
            if slept > 2 * self._seconds / BEATS:  # this thread stood still as well: a paused container, a debugger
                self._beat = woke
            elif woke - self._beat > self._seconds:
                self._end(woke - self._beat)
                return
