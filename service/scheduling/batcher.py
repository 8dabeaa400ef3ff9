"""Forms batches by load alone: whenever a run may begin, it takes the queued items.

A request that finds the engine idle runs at once; requests that arrive while all runs are under way form the next
batch. There is no timer. A small batch and a short lone item run on the event loop itself, which saves a hop to a
thread; others run in threads. A batch is bounded in cost, and in time by the measured speed, since a request waits for
one of the runs that are under way when it comes. A light request does not: one run more may begin for those that are at
most half as large as a request in each run under way, and the operating system shares the cores among them.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from service.errors import EngineFailure, Unavailable
from service.scheduling.callers import Item, ItemTimes, QueuedItem, Result
from service.scheduling.fair_queue import FairQueue

GATHERING_TURNS = 6  # turns of the event loop without a new request, after which no other is readable
SINGLE_CALLER_TURNS = 1  # the same if the last run had one item: each turn costs its caller 4 µs
RUN_SECONDS = 0.03  # a batch of several items takes about this long; MiniLM computes no less than in runs of 0.1 s
SMALL_RUNS = 2  # requests that fit such a batch may fill one so many times as large: 32 callers get 15 % more texts
LIGHT_SHARE = 2  # a light run costs at most this part of the largest request in each run that it begins beside
MIN_RUN_COST = 64  # of such a batch: with fewer rows a matrix product reads its weights for too little work
Observer = Callable[[int, int, float, float], None]
Ran = TypeVar("Ran")
log = logging.getLogger(__name__)
abandoned: WeakSet[Future[Any]] = WeakSet()  # runs of all models, since a thread outlives an exchanged model


def abandoned_runs() -> int:
    """Return how many runs of this process were abandoned and still hold their thread."""
    return sum([not run.done() for run in abandoned])


@dataclass(slots=True, eq=False)
class _Run(Generic[Item, Result]):
    """A run of one batch.

    Args:
        batch: the items of the run, with the futures that await them.
        began: when the batch was taken.
        since: when it could have begun.
        is_light: it goes on beside as many runs as are best.
        together: the most runs that were under way with it, itself included, a light one aside.

    Attributes:
        cost: the cost of its items.
        largest: the cost of those of one request, the largest.
    """

    batch: list[QueuedItem[Item, Result]]
    began: float
    since: float
    is_light: bool
    together: int = 1
    cost: int = field(init=False)
    largest: int = field(init=False)

    def __post_init__(self) -> None:
        costs = Counter[ItemTimes]()
        for waiting in self.batch:
            costs[waiting.times] += waiting.cost
        self.cost, self.largest = costs.total(), max(costs.values())


class Batcher(Generic[Item, Result]):
    """Runs items of concurrent requests together.

    Args:
        run: returns one result for each item, in order; called again item by item if a batch of several fails.
        queue: the queue of the items that wait.
        max_batch_cost: items are added to a batch while their costs stay within it, and within what runs in
            RUN_SECONDS; a costlier item runs alone.
        max_inline_cost: batches up to this cost run on the event loop, others in threads.
        new_executor: makes the threads of the runs, one for each that may be under way; called again when a run is
            given up, for the runs after it.
        observe: called after every run with its items, their cost, and the seconds that the oldest waited and it ran.
        stuck_seconds: a run in a thread that takes longer is given up.
        count_failed: called for each item whose run gave no result.
        count_stuck: called for each run that is given up.
        clock: seconds.
        runs: most runs at a time outside the event loop.
        run_alone: runs one item while nothing else runs or waits; None: as `run` does.

    Attributes:
        inline_seconds: an item that runs alone does so on the event loop if it takes no longer at the speed of the
            last one. A text of 16 tokens so takes 4.5 instead of 5.1 ms (two cores).
        stuck: runs given up so far.
        succeeded_at: when a run last gave results, on `clock`.
    """

    stuck = 0
    succeeded_at: float | None = None

    def __init__(
        self,
        run: Callable[[list[Item]], list[Result]],
        queue: FairQueue[Item, Result],
        *,
        max_batch_cost: int,
        max_inline_cost: int,
        new_executor: Callable[[], Executor],
        observe: Observer,
        stuck_seconds: float = 60.0,
        count_failed: Callable[[], None] = lambda: None,
        count_stuck: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = perf_counter,
        runs: int = 1,
        run_alone: Callable[[list[Item]], list[Result]] | None = None,
        inline_seconds: float = 0.0,
    ) -> None:
        self._run, self._run_alone, self.queue = run, run_alone or run, queue
        self._max_batch_cost, self._max_inline_cost, self._max_runs = max_batch_cost, max_inline_cost, runs
        self.inline_seconds, self._alone_rate = inline_seconds, 0.0
        self._new_executor, self._executor = new_executor, new_executor()
        self._observe, self._count_failed, self._count_stuck = observe, count_failed, count_stuck
        self._stuck_seconds, self._clock = stuck_seconds, clock
        self._empty_context = Context()  # a run serves many requests: its log lines carry no request id
        self._under_way: dict[int, _Run[Item, Result]] = {}  # runs by number; a stuck run is abandoned by removing it
        self._single_item = True  # the last run was of one item
        self._gathering = False  # a batch is about to be taken,
        self._staggered = False  # for which a request came whose protocol delivers calls over several turns
        self._run_number = 0  # number of the newest run in a thread
        self._idle_until = 0.0  # when the next run could have begun
        self._loop: asyncio.AbstractEventLoop | None = None  # asking asyncio each time is a system call (3.11)

    @property
    def waiting_cost(self) -> int:
        """The queued cost; cancelled requests count until their turn."""
        return self.queue.cost

    @property
    def waiting_items(self) -> int:
        """The number of queued items."""
        return self.queue.items

    @property
    def busy(self) -> bool:
        """Whether anything is queued, reserved or running."""
        return bool(self.queue.requests or self._under_way)

    @property
    def _run_cost(self) -> int:
        """The largest cost of a batch, by the measured speed of one of the runs that go on together."""
        timed = int(self.queue.rate * RUN_SECONDS / self._max_runs) if self.queue.rate else self._max_batch_cost
        return min(max(timed, MIN_RUN_COST), self._max_batch_cost)

    @property
    def _free(self) -> int:
        """The number of runs that may begin, a light one aside."""
        return self._max_runs - sum([not run.is_light for run in self._under_way.values()])

    @property
    def _light_cost(self) -> int:
        """The most that a light run may cost that begins now; 0: none may."""
        runs = self._under_way.values()
        if any([run.is_light for run in runs]):
            return 0
        return min(self._run_cost, min([run.largest for run in runs]) // LIGHT_SHARE)

    def check(self, cost: int, deadline: float | None = None, caller: str = "") -> None:
        """Raise Overloaded or DeadlineExceeded if a caller's request of this cost could not join now."""
        self.queue.check(cost, self._clock(), deadline, caller)

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
            costs: cost of each item.
            times: where the times of each item are added; it names the caller, for fair shares.
            deadline: time on `clock`; an item that cannot be done by then fails with DeadlineExceeded.
            admitted: the request passed `check` already.
            staggered: concurrent requests arrive over several turns of the event loop.

        Raises:
            Overloaded: the queue has no room.
            DeadlineExceeded: the request would be done too late.
        """
        loop, now, times = self._loop, self._clock(), times or ItemTimes()
        if loop is None or loop.is_closed():
            loop = self._loop = asyncio.get_running_loop()
        if not admitted:
            self.queue.check(sum(costs), now, deadline, times.caller)
        futures: list[asyncio.Future[Result]] = [loop.create_future() for _ in items]
        for item, cost, future in zip(items, costs, futures, strict=True):
            self.queue.add(item, cost, future, now, times, deadline)
        if staggered:
            self._staggered = True
        if not self._gathering and (self._free or sum(costs) <= self._light_cost):
            self._idle_until = now
            self._gather_soon(SINGLE_CALLER_TURNS if self._single_item and not self._staggered else GATHERING_TURNS)
        return futures

    def run_now(self, run: Callable[[], Ran], cost: int, requests: int) -> tuple[Ran, float] | None:
        """Call `run` for several requests on the event loop, if nothing is queued or running.

        Args:
            run: computes the results.
            cost: cost of all requests together.
            requests: number of requests.

        Returns:
            What `run` returned and the seconds it took; None if it would have to wait, costs too much for the event
            loop, or failed: the caller then submits each request by itself.
        """
        if self._gathering or self._under_way or cost > self._max_inline_cost:
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

    def _gather_soon(self, turns: int = GATHERING_TURNS) -> None:
        """Gather the next batch if items wait."""
        if self.queue.items and not self._gathering and self._loop is not None:
            self._gathering = True
            self._loop.call_soon(self._gather, self.queue.items, turns, context=self._empty_context)

    def _gather(self, seen: int, turns: int) -> None:
        """Run when every request that is already readable has been submitted: after a few idle turns, no timer."""
        waiting = self.queue.items
        if waiting > seen:
            turns = GATHERING_TURNS
        if turns and self.queue.cost < self._run_cost and self._loop is not None:
            self._loop.call_soon(self._gather, waiting, turns - 1, context=self._empty_context)
        else:
            self._next()

    def _next(self) -> None:
        """Begin a run on the event loop, or as many in threads as are allowed while items wait."""
        self._gathering = self._staggered = False
        while self.queue.items and (most := self._next_costs()) != (0, 0):
            began, is_light = self._clock(), not self._free
            batch = self.queue.take(most[0], began, is_light, most[1])
            if not batch:  # nothing else may run now
                return
            if not self._begins_in_thread(_Run(batch, began, self._idle_until, is_light)):
                self._gather_soon()
                return

    def _next_costs(self) -> tuple[int, int]:
        """Return what the next batch may cost, and one of small requests: what waits is divided among the free runs."""
        if not (free := self._free):
            return self._light_cost, 0
        share = max(1, -(-self.queue.cost // free))  # texts without a token cost nothing
        small = min(SMALL_RUNS * self._run_cost, self._max_batch_cost)
        return min(self._run_cost, share), min(small, share)

    def _begins_in_thread(self, run: _Run[Item, Result]) -> bool:
        """Run a batch; return whether a thread runs it: False if it ran here, or no thread could be started."""
        items, loop = [waiting.item for waiting in run.batch], self._loop
        self._single_item = len(items) == 1
        alone = self._single_item and not self._under_way and not self.queue.items
        run_or_errors = partial(self._run_or_errors, self._run_alone if alone else self._run)
        is_short = alone and run.cost <= self.inline_seconds * self._alone_rate
        if loop is None or run.cost <= self._max_inline_cost or is_short:
            self._deliver(run, run_or_errors(items))
            return False
        self._run_number += 1
        number = self._run_number
        try:
            future = self._executor.submit(run_or_errors, items)
        except RuntimeError as error:
            self._replace_threads()  # the work was queued before its thread failed to start (3.11)
            refusal = RuntimeError(f"no thread could be started for it ({error}): try again in a moment")
            self._deliver(run, [refusal] * len(items))
            return False
        self._under_way[number] = run
        for each in self._under_way.values():
            each.together = max(each.together, self._max_runs - self._free)
        watch = loop.call_later(self._stuck_seconds, self._abandon, number, future, context=self._empty_context)
        running = asyncio.wrap_future(future, loop=loop)
        running.add_done_callback(partial(self._settled, number, run.began, watch), context=self._empty_context)
        return True

    def _replace_threads(self) -> None:
        """Give later runs new threads; cancel the runs queued for the present ones."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._executor = self._new_executor()

    def _run_or_errors(
        self, run: Callable[[list[Item]], list[Result]], items: list[Item]
    ) -> list[Result | BaseException]:
        try:
            results = list(run(items))
            if len(results) != len(items):  # which result belongs to which item is then unknown
                raise RuntimeError(f"{len(items)} items ran and gave {len(results)} results")
            return results  # type: ignore[return-value]
        except Exception as error:
            if len(items) == 1:
                return [error]
            return [result for item in items for result in self._run_or_errors(run, [item])]

    def _settled(
        self,
        number: int,
        began: float,
        watch: asyncio.TimerHandle,
        running: "asyncio.Future[list[Result | BaseException]]",
    ) -> None:
        watch.cancel()
        run = self._under_way.get(number)
        if run is None:
            log.error("a run that was given up ended after %.1f s", self._clock() - began)
            return
        error = running.exception()
        self._deliver(run, [error] * len(run.batch) if error else running.result(), number)

    def _abandon(self, number: int, future: "Future[list[Result | BaseException]]") -> None:
        """Fail the requests of a run that takes too long, and give later runs new threads."""
        run = self._under_way[number]
        log.error("a run of %d items is stuck for %.1f s: given up", len(run.batch), self._clock() - run.began)
        self.stuck += 1
        self._count_stuck()
        abandoned.add(future)
        self._replace_threads()
        failure = RuntimeError(f"it ran for {self._stuck_seconds:g} s and was given up")
        self._deliver(run, [failure] * len(run.batch), number)

    def _deliver(self, run: _Run[Item, Result], results: Sequence[Result | BaseException], number: int = 0) -> None:
        """Answer the items of a run that ends now; `number` is that of a run in a thread."""
        ended = self._clock()
        try:
            for waiting, result in zip(run.batch, results, strict=True):
                times = waiting.times
                times.items += 1
                times.queued += run.began - waiting.since
                times.ran += ended - run.began
                times.batched += len(run.batch)
                if waiting.future.done():  # the caller left during the run
                    continue
                if isinstance(result, BaseException):
                    self._fail(waiting.future, result)
                else:
                    self.succeeded_at = ended
                    waiting.future.set_result(result)
            cost, failed = run.cost, any([isinstance(result, BaseException) for result in results])
            if not failed and not run.is_light:  # else it says nothing of the speed
                if len(run.batch) == run.together == 1 and ended > run.began:
                    self._alone_rate = cost / (ended - run.began)
                self.queue.drained(cost, (ended - run.since) / run.together, 2 * cost >= self._run_cost)
            self._idle_until = ended
            self._observe(len(run.batch), cost, run.began - run.batch[0].since, ended - run.began)
        finally:  # so that the next batch runs whatever happens
            self._under_way.pop(number, None)
            self._gather_soon()

    def _fail(self, future: "asyncio.Future[Result]", error: BaseException) -> None:
        self._count_failed()
        log.error("a run failed: %s: %s", type(error).__name__, error)
        if isinstance(error, Unavailable):
            future.set_exception(Unavailable(error.received, remedy=error.remedy))
        else:
            future.set_exception(EngineFailure(f"the engine could not compute this request: {error}"))
