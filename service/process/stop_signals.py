"""Handles SIGTERM and SIGINT: a starting process ends; a serving one drains, with its probes failing, then stops."""

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

STOPS = (signal.SIGTERM, signal.SIGINT)
INTERRUPTED = 130  # the exit code of a program that Ctrl-C ended
LAME_DUCK_SECONDS = 0.2  # seconds until idle connections close after a stop; clients see `connection: close`
log = logging.getLogger(__name__)


def exit_on_stop() -> None:
    """End the process with exit code 0 at a stop signal, until a server installs its own handlers.

    A server raises the signals again that it handled, for these.
    """
    for number in STOPS:
        signal.signal(number, _exit)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # the terminal is gone; nohup has it ignored
        signal.signal(signal.SIGHUP, lambda number, frame: os.kill(os.getpid(), signal.SIGTERM))


def _exit(number: int, frame: Any) -> NoReturn:
    ignore_stops()
    sys.exit(0)


def ignore_stops() -> None:
    """Ignore further signals: Python drops handlers before the process ends, and one more would give exit code -15."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)


def was_stopped() -> bool:
    """Return whether a stop signal came; libraries in C turn it into other errors while they are imported."""
    return signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


class StopSignals:
    """Handles SIGTERM and SIGINT while a service runs; used in its event loop's thread.

    The first signal begins the drain. Its delay, or a second signal, ends it: then `stop` is called, and a little later
    the handlers that were there before, such as the HTTP server's. A further SIGINT, as of a person who does not want
    to wait for requests in flight, ends the process at once.

    Args:
        delay: seconds of the drain; 0: the first signal stops.
        drain: called at the first signal.
        stop: called at the end of the drain.
    """

    def __init__(self, delay: float, drain: Callable[[], None], stop: Callable[[], None]) -> None:
        self._delay, self._drain, self._stop = delay, drain, stop
        self._loop = asyncio.get_running_loop()
        self._draining, self._over, self._interrupted = False, delay == 0, False
        self._timer: asyncio.TimerHandle | None = None
        self._previous: dict[int, Any] = {}

    def install(self) -> None:
        """Handle the signals from now on; does nothing outside the main thread, where Python cannot."""
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.getsignal(number) for number in STOPS}
            for number in STOPS:
                signal.signal(number, self._handle)

    def restore(self) -> None:
        """Restore the previous handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: Any) -> None:
        if number == signal.SIGINT:
            if self._interrupted and self._over:
                log.warning("interrupted again: requests in flight are cut off")
                os._exit(INTERRUPTED)
            self._interrupted = True
        if self._draining:
            self._over = True
        self._draining = True
        self._loop.call_soon_threadsafe(self._advance, number)

    def _advance(self, number: int) -> None:
        """Begin the drain; end it if it has begun already or there is none."""
        if self._over:
            self._end(number)
        else:
            log.info("draining: probes fail, requests are served for %g s more", self._delay)
            self._drain()
            self._timer = self._loop.call_later(self._delay, self._end, number)

    def _end(self, number: int) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        self._stop()
        handler = self._previous[number]
        if callable(handler):
            self._loop.call_later(LAME_DUCK_SECONDS, handler, number, None)
