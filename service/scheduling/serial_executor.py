"""Runs heavy computations one at a time in a thread, and stops them when their caller leaves."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from models.tables.row_blocks import Check
from service.errors import Overloaded

Result = TypeVar("Result")
MAX_WAITING = 16


class _Cancelled(Exception):
    """Ends a computation whose caller has left."""


class SerialExecutor:
    """One thread and a short queue before it.

    Args:
        name: prefix of the thread's name.
        work: a plural noun for the computations, used in the error message.
    """

    def __init__(self, name: str, work: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._work = work
        self._admitted = 0

    async def run(self, compute: Callable[[Check], Result]) -> Result:
        """Return what `compute` returns.

        Args:
            compute: called in the thread, with a function that it must call between its steps.

        Raises:
            Overloaded: too many computations are waiting.
        """
        if self._admitted > MAX_WAITING:
            raise Overloaded(f"{MAX_WAITING} {self._work} are waiting", remedy="try again soon")
        cancelled = threading.Event()

        def check() -> None:
            if cancelled.is_set():
                raise _Cancelled

        self._admitted += 1
        try:
            return await asyncio.wrap_future(self._thread.submit(compute, check))
        except asyncio.CancelledError:
            cancelled.set()
            raise
        finally:
            self._admitted -= 1
