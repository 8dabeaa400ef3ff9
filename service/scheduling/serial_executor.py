"""Heavy computations off the event loop, one at a time, stopped when nobody waits for them. Knows no request."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from models.tables.row_blocks import Check
from service.errors import Overloaded

Result = TypeVar("Result")
MAX_WAITING = 16


class _Left(Exception):
    """Nobody waits for this computation; seen by no one."""


class Turns:
    """One thread, and a short queue before it.

    what   of computations, in the plural: for the message that refuses one more
    """

    def __init__(self, name: str, what: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._what = what
        self._inside = 0

    async def run(self, compute: Callable[[Check], Result]) -> Result:
        """What `compute` returns, called in its turn with the Check it must call between its steps.

        raises   Overloaded where too many wait; what `compute` raises
        """
        if self._inside > MAX_WAITING:
            raise Overloaded(f"{MAX_WAITING} {self._what} are waiting: try again soon")
        left = threading.Event()

        def check() -> None:
            if left.is_set():
                raise _Left

        self._inside += 1
        try:
            return await asyncio.wrap_future(self._thread.submit(compute, check))
        except asyncio.CancelledError:
            left.set()
            raise
        finally:
            self._inside -= 1
