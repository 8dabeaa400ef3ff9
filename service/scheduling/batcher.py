"""Batches formed by load alone. Knows items and their cost; no model, no ONNX, no protocol.

Whatever waits when the runner is free runs next: at once when idle, with its neighbours while a run is under way.
There is no timer to wait out. A small batch runs on the event loop itself, a large one in a thread.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import Context
from functools import partial
from time import perf_counter
from typing import Any, Generic, Protocol
from weakref import WeakSet

from service.errors import EngineFailure
from service.scheduling.arrivals import ONE_BY_ONE
from service.scheduling.fair_queue import (
    Item,
    Line,
    Result,
    Spent,
    Waiting,
)

QUIET_TURNS = 6  # of the event loop without a newcomer: then nobody is ready who was not heard
ALONE_TURNS = 1  # the same where the last run had one caller: each turn costs him 4 µs
log = logging.getLogger(__name__)
_given_up: WeakSet[Future[Any]] = WeakSet()  # of every model there was: its threads outlive a model that is exchanged


def runs_held() -> int:
    """Runs of this process that were given up and go on all the same, each in a thread that nobody gets back."""
    return sum([not run.done() for run in _given_up])


class Observer(Protocol):
    """Told of every run."""

    def __call__(self, items: int, cost: int, waited: float, seconds: float) -> None:
        """`items` of `cost` together ran for `seconds`, after the oldest had `waited` seconds."""
        ...


def _unheard() -> None:
    """What nobody counts."""


class Batcher(Generic[Item, Result]):
    """Runs items of concurrent callers together.

    run              items → one result each, in order; called with one item again if a batch of several fails
    max_batch_cost   items are added to a batch while their costs stay within it; a costlier item runs alone
    max_inline_cost  batches up to this run on the event loop, others in `executor`
    max_queue_cost   what may wait; beyond it `submit` refuses
    max_queue_seconds  how long others may delay a newcomer; None: any time
    stuck_seconds    a run in `executor` that takes longer is given up
    count_failed     told of each item whose run gave no result
    count_stuck      told of each run that is given up
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
        max_queue_seconds: float | None = None,
        stuck_seconds: float = 60.0,
        count_failed: Callable[[], None] = _unheard,
        count_stuck: Callable[[], None] = _unheard,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._run = run
        self._max_batch_cost = max_batch_cost
        self._max_inline_cost = max_inline_cost
        self._executor = executor
        self._observe = observe
        self._stuck_seconds = stuck_seconds
        self._count_failed, self._count_stuck = count_failed, count_stuck
        self._clock = clock
        self.line: Line[Item, Result] = Line(max_queue_cost, max_queue_seconds, max_batch_cost)
        self._nobody = Context()  # a run is of many callers: what is logged of it bears no request's id, no key's name
        self._busy = False  # a run is under way or about to start
        self._alone = True  # the last run was of one item
        self._one_by_one = False  # somebody came so since then
        self._run_number = 0  # of the run under way; a stuck one is given up by moving on
        self._idle_until = 0.0  # when the run under way, or about to start, could have started
        self._loop: asyncio.AbstractEventLoop | None = None  # asking asyncio each time costs a system call (3.11)
        self.stuck = 0  # runs given up so far
        self.succeeded_at: float | None = None  # on `clock`: when a run last gave results

    @property
    def waiting_cost(self) -> int:
        """What waits now, cancelled callers not yet dropped included."""
        return self.line.cost

    @property
    def waiting_items(self) -> int:
        """How many items that is."""
        return self.line.items

    @property
    def drain_rate(self) -> float | None:
        """Cost a second that full batches get done; None before the first."""
        return self.line.rate

    @property
    def overloaded(self) -> bool:
        """Whether more comes than can be done."""
        return self.line.overloaded(self._clock())

    def check(self, cost: int, deadline: float | None = None) -> None:
        """Raise Overloaded or DeadlineExceeded if a request of this cost could not join now."""
        self.line.check(cost, self._clock(), deadline)

    def promise(self, cost: int) -> None:
        """Count a request that was let in and is still being prepared."""
        self.line.promise(cost)

    def redeem(self, cost: int) -> None:
        """It is submitted now, or will not be."""
        self.line.redeem(cost)

    def submit(
        self,
        items: Sequence[Item],
        costs: Sequence[int],
        spent: Spent | None = None,
        deadline: float | None = None,
        admitted: bool = False,
    ) -> "list[asyncio.Future[Result]]":
        """Queue the items of one caller, all or none; cancelling a future before its run drops that item.

        spent      is told how long each item took
        deadline   on `clock`; an item that can't be done by then fails with DeadlineExceeded
        admitted   it passed `check` already
        raises     Overloaded, DeadlineExceeded
        """
        loop, now = self._running_loop(), self._clock()
        if not admitted:
            self.line.check(sum(costs), now, deadline)
        futures: list[asyncio.Future[Result]] = [loop.create_future() for _ in items]
        self.line.add(items, costs, futures, now, spent or Spent(), deadline)
        self._one_by_one = self._one_by_one or ONE_BY_ONE.get()
        if not self._busy:
            self._busy = True
            self._idle_until = now
            turns = ALONE_TURNS if self._alone and not self._one_by_one else QUIET_TURNS
            loop.call_soon(self._gather, self.line.items, turns, context=self._nobody)
        return futures

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.get_running_loop()
        return self._loop

    def _gather(self, seen: int, turns: int) -> None:
        """Run once every request that is already readable has been submitted: a few idle turns, no time."""
        waiting = self.line.items
        if waiting > seen:
            turns = QUIET_TURNS
        if turns and self.line.cost < self._max_batch_cost:
            self._running_loop().call_soon(self._gather, waiting, turns - 1, context=self._nobody)
        else:
            self._next()

    def _next(self) -> None:
        started, self._one_by_one = self._clock(), False
        batch = self.line.take(self._max_batch_cost, started)
        if not batch:
            self._go_on()
            return
        items = [waiting.item for waiting in batch]
        self._alone = len(items) == 1
        if sum([waiting.cost for waiting in batch]) <= self._max_inline_cost:
            self._settle(batch, started, self._attempt(items))
        else:
            self._run_in_thread(batch, items, started)

    def _run_in_thread(self, batch: list[Waiting[Item, Result]], items: list[Item], started: float) -> None:
        loop, number = self._running_loop(), self._run_number
        try:
            run = self._executor.submit(self._attempt, items)
        except RuntimeError as error:
            self._change_thread(f"after-{number}")  # the work was queued before its thread failed to start (3.11)
            refusal = RuntimeError(f"no thread could be started for it ({error}): try again in a moment")
            self._settle(batch, started, [refusal] * len(batch))
            return
        watch = loop.call_later(self._stuck_seconds, self._give_up, batch, started, number, run, context=self._nobody)
        running = asyncio.wrap_future(run, loop=loop)
        running.add_done_callback(partial(self._settled, batch, started, number, watch), context=self._nobody)

    def _change_thread(self, name: str) -> None:
        """Later runs get a thread of their own; what is queued for the present one is dropped."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)

    def _attempt(self, items: list[Item]) -> list[Result | BaseException]:
        try:
            results = list(self._run(items))
            if len(results) != len(items):  # whose is whose cannot be known
                raise RuntimeError(f"{len(items)} items ran and gave {len(results)} results")
            return results  # type: ignore[return-value]
        except Exception as error:
            if len(items) == 1:
                return [error]
            return [result for item in items for result in self._attempt([item])]

    def _settled(
        self,
        batch: list[Waiting[Item, Result]],
        started: float,
        number: int,
        watch: asyncio.TimerHandle,
        running: "asyncio.Future[list[Result | BaseException]]",
    ) -> None:
        watch.cancel()
        if number != self._run_number:
            log.error("a run that was given up ended after %.1f s", self._clock() - started)
            return
        error = running.exception()
        self._settle(batch, started, [error] * len(batch) if error else running.result())

    def _give_up(
        self,
        batch: list[Waiting[Item, Result]],
        started: float,
        number: int,
        run: "Future[list[Result | BaseException]]",
    ) -> None:
        """A run takes longer than any should: its callers are told, later ones get a thread of their own."""
        log.error("a run of %d items is stuck for %.1f s: given up", len(batch), self._clock() - started)
        self.stuck += 1
        self._count_stuck()
        _given_up.add(run)
        self._run_number = number + 1
        self._change_thread(f"after-stuck-{self.stuck}")
        failure = RuntimeError(f"it ran for {self._stuck_seconds:g} s and was given up")
        self._settle(batch, started, [failure] * len(batch))

    def _settle(
        self, batch: list[Waiting[Item, Result]], started: float, results: Sequence[Result | BaseException]
    ) -> None:
        try:
            self._tell(batch, started, results)
        finally:  # whatever happens to one batch, the next one runs
            self._go_on()

    def _tell(
        self, batch: list[Waiting[Item, Result]], started: float, results: Sequence[Result | BaseException]
    ) -> None:
        ended = self._clock()
        seconds = ended - started
        for waiting, result in zip(batch, results, strict=True):
            waiting.spent.add(started - waiting.since, seconds)
            if waiting.future.done():  # the caller left during the run
                continue
            if isinstance(result, BaseException):
                self._count_failed()
                log.error("a run failed: %s: %s", type(result).__name__, result)
                waiting.future.set_exception(EngineFailure(f"the engine could not compute this request: {result}"))
            else:
                self.succeeded_at = ended
                waiting.future.set_result(result)
        cost = sum([waiting.cost for waiting in batch])
        if not any([isinstance(result, BaseException) for result in results]):  # one that fails says nothing of others
            self.line.drained(cost, ended - self._idle_until, 2 * cost >= self._max_batch_cost)
        self._idle_until = ended
        self._observe(len(batch), cost, started - batch[0].since, seconds)

    def _go_on(self) -> None:
        if self.line.items:
            self._running_loop().call_soon(self._gather, self.line.items, QUIET_TURNS, context=self._nobody)
        else:
            self._busy = False
