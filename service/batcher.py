"""Batches formed by load alone. Knows items and their cost; no model, no ONNX, no protocol.

Whatever waits when the runner is free runs next: at once when idle, with its neighbours while a run is under way.
There is no timer to wait out. A small batch runs on the event loop itself, a large one in a thread.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Generic, Protocol, TypeVar

from service.errors import EngineFailure, Overloaded

QUIET_TURNS = 6  # of the event loop; callers that are already readable come one a turn over gRPC (grpcio 1.85)
Item = TypeVar("Item")
Result = TypeVar("Result")
log = logging.getLogger(__name__)


class Observer(Protocol):
    """Told of every run."""

    def __call__(self, items: int, cost: int, waited: float, seconds: float) -> None:
        """`items` of `cost` together ran for `seconds`, after the oldest had `waited` seconds."""
        ...


class Spent:
    """Seconds the items of one caller waited and ran; each item of a batch counts its whole run."""

    __slots__ = ("items", "queued", "ran")

    def __init__(self) -> None:
        self.items, self.queued, self.ran = 0, 0.0, 0.0

    def add(self, queued: float, ran: float) -> None:
        """One item is done."""
        self.items += 1
        self.queued += queued
        self.ran += ran


@dataclass(slots=True)
class _Waiting(Generic[Item, Result]):
    item: Item
    cost: int
    since: float
    future: "asyncio.Future[Result]"
    spent: Spent | None


class Batcher(Generic[Item, Result]):
    """Runs items of concurrent callers together.

    run              items → one result each, in order; called with one item again if a batch of several fails
    max_batch_cost   items are added to a batch while their costs stay within it; a costlier item runs alone
    max_inline_cost  batches up to this run on the event loop, others in `executor`
    max_queue_cost   what may wait; beyond it `submit` refuses
    """

    def __init__(
        self,
        run: Callable[[list[Item]], list[Result]],
        *,
        max_batch_cost: int,
        max_inline_cost: int,
        max_queue_cost: int,
        executor: Executor,
        observe: Observer,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._run = run
        self._max_batch_cost = max_batch_cost
        self._max_inline_cost = max_inline_cost
        self._max_queue_cost = max_queue_cost
        self._executor = executor
        self._observe = observe
        self._clock = clock
        self._waiting: list[_Waiting[Item, Result]] = []
        self._cost = 0
        self._busy = False  # a run is under way or about to start
        self._loop: asyncio.AbstractEventLoop | None = None  # asking asyncio each time costs a system call (3.11)

    @property
    def waiting_cost(self) -> int:
        """What waits now, cancelled callers not yet dropped included."""
        return self._cost

    def submit(
        self, items: Sequence[Item], costs: Sequence[int], spent: Spent | None = None
    ) -> "list[asyncio.Future[Result]]":
        """Queue the items of one caller, all or none; cancelling a future before its run drops that item.

        spent    is told how long each item took
        raises   Overloaded if others wait and the queue would hold more than max_queue_cost
        """
        if self._waiting and self._cost + sum(costs) > self._max_queue_cost:
            raise Overloaded(
                f"{self._cost} tokens are waiting and this request brings {sum(costs)}; the queue holds "
                f"{self._max_queue_cost}: try again in a moment"
            )
        loop, now = self._running_loop(), self._clock()
        futures = []
        for item, cost in zip(items, costs, strict=True):
            future: asyncio.Future[Result] = loop.create_future()
            self._waiting.append(_Waiting(item, cost, now, future, spent))
            self._cost += cost
            futures.append(future)
        if not self._busy:
            self._busy = True
            loop.call_soon(self._gather, len(self._waiting), QUIET_TURNS)
        return futures

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.get_running_loop()
        return self._loop

    def _gather(self, seen: int, turns: int) -> None:
        """Run once every request that is already readable has been submitted: a few idle turns, no time."""
        waiting = len(self._waiting)
        if waiting > seen:
            turns = QUIET_TURNS
        if turns and self._cost < self._max_batch_cost:
            self._running_loop().call_soon(self._gather, waiting, turns - 1)
        else:
            self._next()

    def _next(self) -> None:
        batch = self._take()
        if not batch:
            self._busy = False
            return
        items = [waiting.item for waiting in batch]
        started = self._clock()
        if sum([waiting.cost for waiting in batch]) <= self._max_inline_cost:
            self._settle(batch, started, self._attempt(items))
            return
        running = self._running_loop().run_in_executor(self._executor, self._attempt, items)
        running.add_done_callback(partial(self._settled, batch, started))

    def _take(self) -> list[_Waiting[Item, Result]]:
        """The oldest item and those nearest to its cost, so that a batch holds sequences of like length."""
        alive = [waiting for waiting in self._waiting if not waiting.future.done()]
        if sum([waiting.cost for waiting in alive]) <= self._max_batch_cost:
            self._waiting, self._cost = [], 0
            return alive
        head = alive[0]
        chosen, room = {id(head)}, self._max_batch_cost - head.cost
        for waiting in sorted(alive[1:], key=lambda other: abs(other.cost - head.cost)):
            if waiting.cost <= room:
                chosen.add(id(waiting))
                room -= waiting.cost
        self._waiting = [waiting for waiting in alive if id(waiting) not in chosen]
        self._cost = sum(waiting.cost for waiting in self._waiting)
        return [waiting for waiting in alive if id(waiting) in chosen]

    def _attempt(self, items: list[Item]) -> list[Result | BaseException]:
        try:
            return list(self._run(items))
        except Exception as error:
            if len(items) == 1:
                return [error]
            return [result for item in items for result in self._attempt([item])]

    def _settled(
        self,
        batch: list[_Waiting[Item, Result]],
        started: float,
        running: "asyncio.Future[list[Result | BaseException]]",
    ) -> None:
        error = running.exception()
        self._settle(batch, started, [error] * len(batch) if error else running.result())

    def _settle(
        self, batch: list[_Waiting[Item, Result]], started: float, results: list[Result | BaseException]
    ) -> None:
        seconds = self._clock() - started
        for waiting, result in zip(batch, results, strict=True):
            if waiting.spent is not None:
                waiting.spent.add(started - waiting.since, seconds)
            if waiting.future.done():  # the caller left during the run
                continue
            if isinstance(result, BaseException):
                log.error("a run failed: %s: %s", type(result).__name__, result)
                waiting.future.set_exception(EngineFailure(f"the engine could not compute this request: {result}"))
            else:
                waiting.future.set_result(result)
        cost = sum([waiting.cost for waiting in batch])
        self._observe(len(batch), cost, started - batch[0].since, seconds)
        if self._waiting:
            self._running_loop().call_soon(self._gather, len(self._waiting), QUIET_TURNS)
        else:
            self._busy = False
