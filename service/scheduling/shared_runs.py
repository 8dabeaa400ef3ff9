"""Shared runs: of equal items that are in flight together, one runs, and its result is the answer to all.

Every item is queued for itself: with its own cost, turn and deadline, so that an item is served no later than without
the others, and none depends on whether the caller of another stays. When the first of them is taken to run, the others
wait for that run: those in the same batch, those in the queue, and those that arrive until it ends, which are not
queued at all. Of the others only those in the batch, whose turn had come, are charged to their callers.
"""

import asyncio
from typing import Generic, NamedTuple

from service.scheduling.fair_queue import ItemTimes, Result


class Waiter(NamedTuple, Generic[Result]):
    """The future of one of several equal items, and the times of its request.

    Args:
        since: when it was submitted.
    """

    future: "asyncio.Future[Result]"
    times: ItemTimes
    since: float


class SharedRun(Generic[Result]):
    """The run that equal items in flight share; it lives as long as one of them is queued or runs.

    Attributes:
        running: whether one of the items is being run.
    """

    __slots__ = ("__weakref__", "_waiters", "running")

    def __init__(self) -> None:
        self.running = False
        self._waiters: dict[asyncio.Future[Result], Waiter[Result]] = {}

    def join(self, future: "asyncio.Future[Result]", times: ItemTimes, since: float) -> None:
        """Add an item that is submitted."""
        if self._waiters:  # a single one needs no callback, which costs a turn of the event loop
            future.add_done_callback(self._leave)
        self._waiters[future] = Waiter(future, times, since)

    def _leave(self, future: "asyncio.Future[Result]") -> None:
        self._waiters.pop(future, None)

    def begin(self) -> bool:
        """Note that an item was taken to run; return False if another runs already, for whose result it waits."""
        begins, self.running = not self.running, True
        return begins

    def end(self, ran: "asyncio.Future[Result]") -> list[Waiter[Result]]:
        """Note the end of the run of one item; return all that wait for its result."""
        self.running = False
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters.values():
            waiter.times.joined += waiter.future is not ran
        return list(waiters.values())
