"""Forms batches by load alone: as soon as the engine is free, it runs the queued items.

A request that finds the engine idle runs at once; requests that arrive during a run form the next batch. There is no
timer. A small batch runs on the event loop itself, which saves the 20 to 60 µs of a hop to a thread; a large one in a
thread.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import Context
from functools import partial
from time import perf_counter
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from service.errors import EngineFailure
from service.scheduling.caller_queue import Item, ItemTimes, QueuedItem, Result
from service.scheduling.fair_queue import FairQueue

GATHERING_TURNS = 6  # of the event loop without a new request: then no other is readable
SINGLE_CALLER_TURNS = 1  # the same where the last run had one item: each turn costs its caller 4 µs
Ran = TypeVar("Ran")
log = logging.getLogger(__name__)
_abandoned: WeakSet[Future[Any]] = WeakSet()  # of all models, since a thread outlives an exchanged model


def abandoned_runs() -> int:
    """Return how many runs of this process were given up and still hold their thread."""
    return sum([not run.done() for run in _abandoned])


class Observer(Protocol):
    """Called after every run."""

    def __call__(self, items: int, cost: int, waited: float, seconds: float, /) -> None:
        """Note that `items` of `cost` together ran for `seconds`, after the oldest had `waited` seconds."""
        ...


def _ignore() -> None:
    """Count nothing."""


def _thread(name: str) -> Executor:
    return ThreadPoolExecutor(1, thread_name_prefix=name)


class Batcher(Generic[Item, Result]):
    """Runs items of concurrent requests together.

    Args:
        run: returns one result for each item, in order; called again item by item if a batch of several fails.
        max_batch_cost: items are added to a batch while their costs stay within it; a costlier item runs alone.
        max_inline_cost: batches up to this cost run on the event loop, others in `executor`.
        max_queue_cost: the cost that may be queued; `submit` refuses more.
        executor: a thread for the runs.
        observe: called after every run.
        max_queue_seconds: how long others may delay a new request; None: any time.
        max_queue_requests: the requests that may be queued; None: any number.
        stuck_seconds: a run in `executor` that takes longer is given up.
        count_failed: called for each item whose run gave no result.
        count_stuck: called for each run that is given up.
        clock: seconds.
        new_executor: makes the executor for the runs after one that is given up, from a prefix for its thread's name.
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
        max_queue_requests: int | None = None,
        stuck_seconds: float = 60.0,
        count_failed: Callable[[], None] = _ignore,
        count_stuck: Callable[[], None] = _ignore,
        clock: Callable[[], float] = perf_counter,
        new_executor: Callable[[str], Executor] = _thread,
    ) -> None:
        self._run = run
        self._max_batch_cost = max_batch_cost
        self._max_inline_cost = max_inline_cost
        self._executor, self._new_executor = executor, new_executor
        self._observe = observe
        self._stuck_seconds = stuck_seconds
        self._count_failed, self._count_stuck = count_failed, count_stuck
        self._clock = clock
        self.queue: FairQueue[Item, Result] = FairQueue(
            max_queue_cost, max_queue_seconds, max_batch_cost, max_queue_requests
        )
        self._empty_context = Context()  # a run serves many requests: its log lines carry no request id
        self._busy = False  # a run is under way or about to start
        self._single_item = True  # the last run was of one item
        self._staggered = False  # a request of a protocol whose callers arrive over several turns joined since
        self._run_number = 0  # of the run under way; a stuck one is given up by moving on
        self._idle_until = 0.0  # when the run under way, or about to start, could have started
        self._loop: asyncio.AbstractEventLoop | None = None  # asking asyncio each time costs a system call (3.11)
        self.stuck = 0  # runs given up so far
        self.succeeded_at: float | None = None  # on `clock`: when a run last gave results

    @property
    def waiting_cost(self) -> int:
        """The cost that is queued, cancelled requests included until they are dropped."""
        return self.queue.cost

    @property
    def waiting_items(self) -> int:
        """The number of queued items."""
        return self.queue.items

    @property
    def drain_rate(self) -> float | None:
        """The cost a second of full batches; None before the first."""
        return self.queue.rate

    def check(self, cost: int, deadline: float | None = None, caller: str = "") -> None:
        """Raise Overloaded or DeadlineExceeded if a caller's request of this cost could not join now."""
        self.queue.check(cost, self._clock(), deadline, caller)

    def reserve(self, cost: int, caller: str = "") -> None:
        """Count an admitted request that is still being prepared."""
        self.queue.reserve(cost, caller)

    def release(self, cost: int, caller: str = "") -> None:
        """Stop counting a reserved request, which is submitted now or has failed."""
        self.queue.release(cost, caller)

    def submit(
        self,
        items: Sequence[Item],
        costs: Sequence[int],
        times: ItemTimes | None = None,
        deadline: float | None = None,
        admitted: bool = False,
        staggered: bool = False,
    ) -> "list[asyncio.Future[Result]]":
        """Queue the items of one request, all or none; cancelling a future before its run drops that item.

        Args:
            items: passed to `run`.
            costs: of each item.
            times: where the times of each item are added; it names the caller, for fair shares.
            deadline: on `clock`; an item that cannot be done by then fails with DeadlineExceeded.
            admitted: the request passed `check` already.
            staggered: concurrent requests arrive over several turns of the event loop.

        Raises:
            Overloaded: there is no room.
            DeadlineExceeded: the request would be done too late.
        """
        loop, now, times = self._running_loop(), self._clock(), times or ItemTimes()
        if not admitted:
            self.queue.check(sum(costs), now, deadline, times.caller)
        futures: list[asyncio.Future[Result]] = [loop.create_future() for _ in items]
        for item, cost, future in zip(items, costs, futures, strict=True):
            self.queue.add(item, cost, future, now, times, deadline)
        self._start(loop, now, staggered)
        return futures

    def run_now(self, run: Callable[[], Ran], cost: int, requests: int) -> tuple[Ran, float] | None:
        """Call `run` for several requests on the event loop, if nothing is queued or running.

        Args:
            run: computes the results.
            cost: of all requests together.
            requests: their number.

        Returns:
            What `run` returned and the seconds it took; None if it would have to wait, costs too much for the event
            loop, or failed: the caller then submits each request by itself.
        """
        if self._busy or cost > self._max_inline_cost:
            return None
        started = self._clock()
        try:
            result = run()
        except Exception:
            return None
        ended = self._clock()
        self.succeeded_at = ended
        self._observe(requests, cost, 0.0, ended - started)
        return result, ended - started

    def _start(self, loop: asyncio.AbstractEventLoop, now: float, staggered: bool) -> None:
        """Start gathering a batch unless a run is under way."""
        if staggered:
            self._staggered = True
        if not self._busy:
            self._busy = True
            self._idle_until = now
            turns = SINGLE_CALLER_TURNS if self._single_item and not self._staggered else GATHERING_TURNS
            loop.call_soon(self._gather, self.queue.items, turns, context=self._empty_context)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.get_running_loop()
        return self._loop

    def _gather(self, seen: int, turns: int) -> None:
        """Run once every request that is already readable has been submitted: a few idle turns, no timer."""
        waiting = self.queue.items
        if waiting > seen:
            turns = GATHERING_TURNS
        if turns and self.queue.cost < self._max_batch_cost:
            self._running_loop().call_soon(self._gather, waiting, turns - 1, context=self._empty_context)
        else:
            self._next()

    def _next(self) -> None:
        started, self._staggered = self._clock(), False
        batch = self.queue.take(self._max_batch_cost, started)
        if not batch:
            self._continue()
            return
        items = [waiting.item for waiting in batch]
        self._single_item = len(items) == 1
        if sum([waiting.cost for waiting in batch]) <= self._max_inline_cost:
            self._settle(batch, started, self._run_or_errors(items))
        else:
            self._run_in_thread(batch, items, started)

    def _run_in_thread(self, batch: list[QueuedItem[Item, Result]], items: list[Item], started: float) -> None:
        loop, number = self._running_loop(), self._run_number
        try:
            run = self._executor.submit(self._run_or_errors, items)
        except RuntimeError as error:
            self._replace_thread(f"after-{number}")  # the work was queued before its thread failed to start (3.11)
            refusal = RuntimeError(f"no thread could be started for it ({error}): try again in a moment")
            self._settle(batch, started, [refusal] * len(batch))
            return
        watch = loop.call_later(
            self._stuck_seconds, self._abandon, batch, started, number, run, context=self._empty_context
        )
        running = asyncio.wrap_future(run, loop=loop)
        running.add_done_callback(partial(self._settled, batch, started, number, watch), context=self._empty_context)

    def _replace_thread(self, name: str) -> None:
        """Give later runs a thread of their own; cancel the runs queued for the present one."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._executor = self._new_executor(name)

    def _run_or_errors(self, items: list[Item]) -> list[Result | BaseException]:
        try:
            results = list(self._run(items))
            if len(results) != len(items):  # which result belongs to which item is then unknown
                raise RuntimeError(f"{len(items)} items ran and gave {len(results)} results")
            return results  # type: ignore[return-value]
        except Exception as error:
            if len(items) == 1:
                return [error]
            return [result for item in items for result in self._run_or_errors([item])]

    def _settled(
        self,
        batch: list[QueuedItem[Item, Result]],
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

    def _abandon(
        self,
        batch: list[QueuedItem[Item, Result]],
        started: float,
        number: int,
        run: "Future[list[Result | BaseException]]",
    ) -> None:
        """Fail the requests of a run that takes too long, and give later runs a thread of their own."""
        log.error("a run of %d items is stuck for %.1f s: given up", len(batch), self._clock() - started)
        self.stuck += 1
        self._count_stuck()
        _abandoned.add(run)
        self._run_number = number + 1
        self._replace_thread(f"after-stuck-{self.stuck}")
        failure = RuntimeError(f"it ran for {self._stuck_seconds:g} s and was given up")
        self._settle(batch, started, [failure] * len(batch))

    def _settle(
        self, batch: list[QueuedItem[Item, Result]], started: float, results: Sequence[Result | BaseException]
    ) -> None:
        try:
            self._deliver(batch, started, results)
        finally:  # so that the next batch runs whatever happens
            self._continue()

    def _deliver(
        self, batch: list[QueuedItem[Item, Result]], started: float, results: Sequence[Result | BaseException]
    ) -> None:
        ended = self._clock()
        seconds = ended - started
        for waiting, result in zip(batch, results, strict=True):
            waiting.times.add(started - waiting.since, seconds)
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
        if not any([isinstance(result, BaseException) for result in results]):  # a failed run says nothing of the speed
            self.queue.drained(cost, ended - self._idle_until, 2 * cost >= self._max_batch_cost)
        self._idle_until = ended
        self._observe(len(batch), cost, started - batch[0].since, seconds)

    def _continue(self) -> None:
        if self.queue.items:
            self._running_loop().call_soon(self._gather, self.queue.items, GATHERING_TURNS, context=self._empty_context)
        else:
            self._busy = False
