"""The stop of one process in two steps: it drains, serving on while probes fail, and then stops."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from service.process.supervisor import DRAIN

INTERRUPTED = 130  # the exit code of a program that Ctrl-C ended
LAME_DUCK_SECONDS = 0.2  # from the stop to the closing of idle connections: clients see `connection: close`
log = logging.getLogger(__name__)


class StopSignals:
    """Handles SIGTERM and SIGINT while a service runs; to be used in its event loop's thread.

    The first signal begins the drain. Its delay, or a second signal, ends it: then `stop` is called, and a little later
    the handlers that were there before, such as the HTTP server's. A further SIGINT, as of a person who does not want
    to wait for requests in flight, ends the process at once.

    Args:
        delay: seconds of the drain; 0: the first signal stops.
        drain: called at the first signal, and at DRAIN, which the supervisor of several workers sends.
        stop: called at the end of the drain.
    """

    def __init__(self, delay: float, drain: Callable[[], None], stop: Callable[[], None]) -> None:
        self._delay, self._drain, self._stop = delay, drain, stop
        self._loop = asyncio.get_running_loop()
        self._draining, self._over, self._interrupted = False, delay == 0, False
        self._timer: asyncio.TimerHandle | None = None
        self._previous: dict[int, Any] = {}

    def install(self) -> None:
        """Handle the signals from now on; in another thread than the main one Python cannot."""
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, DRAIN)}
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._handle)
            signal.signal(DRAIN, lambda number, frame: self._loop.call_soon_threadsafe(self._drain))

    def restore(self) -> None:
        """Put the handlers back that were there before."""
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
        """Begin the drain, or end it where it was begun or there is none."""
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
