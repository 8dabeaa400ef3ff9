"""A deterministic simulation of the scheduling core: real batchers, queues and admission, on a virtual clock.

    python -m tests.service.scheduling.simulation SEED [EVENTS]

One seed draws everything: limits, callers, arrivals, lengths, deadlines, callers that leave, runs that fail, lose a
result, give NaN, hang or get no thread, and exchanges of the model. After every event the invariants are checked. The
same seed gives the same events, so the command above repeats a failure and prints what led to it.
"""

import asyncio
import math
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from random import Random
from typing import Any
from weakref import WeakSet

from service.errors import DeadlineExceeded, EngineFailure, Overloaded
from service.scheduling import batcher as batchers
from service.scheduling.admission import AdmissionController, reserved
from service.scheduling.batcher import Batcher
from service.scheduling.callers import ItemTimes
from service.scheduling.deadlines import within
from service.scheduling.fair_queue import HEADROOM, MAX_REMEMBERED, OLDEST_SHARE, FairQueue
from tests.service.scheduling.virtual_time import Clock, run

EVENTS = 16_000
SHOWN = 40  # of the events before a failure
PATIENT = 1e-9  # seconds that a sum of floats may be off
Answer = tuple[int, int]  # the item's number and the version of the model that computed it


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass(frozen=True)
class Limits:
    """What a seed draws once."""

    callers: int
    rate: float  # requests a second
    speed: float  # cost a second of the engine
    batch: int
    inline: int
    queue: int
    longest: int
    most_items: int
    max_requests: int
    max_seconds: float | None
    stuck_seconds: float
    texts: float  # probabilities from here on
    deadlines: float
    leaves: float
    fails: float
    nans: float
    loses: float
    hangs: float
    no_thread: float
    two_graphs: float
    exchanges: float
    bulk: float
    now: float
    runs: int

    @classmethod
    def drawn(cls, random: Random) -> "Limits":
        """Each kind of fault is absent in half of the seeds, so that it does not hide others (swarm testing)."""

        def sometimes(most: float) -> float:
            return random.choice((0.0, random.uniform(0, most)))

        batch = random.choice((1, 20, 100, 500))
        longest = random.choice((1, 10, batch, 2 * batch))
        most_items = random.choice((1, 4, 30))
        load = random.choice((0.3, 0.9, 1.0, 1.5, 4.0))
        speed = 1000.0
        mean = (1 + longest) / 2 * (1 + most_items) / 2
        queue = random.choice((batch, 5 * batch, 100 * batch))
        return cls(
            callers=random.choice((1, 2, 3, 8)),
            rate=load * speed / mean,
            speed=speed,
            batch=batch,
            inline=random.choice((0, 0, 5, batch)),
            queue=queue,
            longest=longest,
            most_items=most_items,
            max_requests=random.choice((4, 30, 200)),
            max_seconds=random.choice((None, 0.5, 2.0, 30.0)),
            stuck_seconds=random.choice((2.0, 10.0)),
            texts=random.choice((0.0, 0.5, 1.0)),
            deadlines=sometimes(0.8),
            leaves=sometimes(0.5),
            fails=sometimes(0.1),
            nans=sometimes(0.1),
            loses=sometimes(0.05),
            hangs=sometimes(0.01),
            no_thread=sometimes(0.02),
            two_graphs=sometimes(0.5),
            exchanges=sometimes(0.002),
            bulk=sometimes(0.05),
            now=sometimes(0.2),
            runs=random.choice((1, 1, 2, 4)),
        )

    @property
    def largest(self) -> int:
        """The cost of the largest request."""
        return self.longest * self.most_items

    @property
    def most_queued(self) -> float:
        """The cost that may be queued: texts may be estimated at half of what they are."""
        return (2 if self.texts else 1) * (HEADROOM * self.queue + self.largest)

    @property
    def unfair(self) -> int:
        """How far one caller may be ahead of another: a batch at the beginning and at the end, and an item of each."""
        return 2 * self.batch + 2 * self.longest

    @property
    def only_items_fail(self) -> bool:
        """Whether an item without a fault has no reason to fail."""
        return not (self.loses or self.hangs or self.no_thread)


@dataclass(eq=False)
class Work:
    """One item."""

    number: int
    caller: str
    cost: int
    version: int
    fault: str  # "", "fails" or "nan"
    begun: bool = False
    again: bool = False  # the run it was part of failed, so it may run by itself


@dataclass(eq=False)
class Waiting:
    """What the simulation knows of one submitted item that has not begun."""

    work: Work
    future: "asyncio.Future[Answer]"
    request: int


class VirtualExecutor(Executor):
    """The worker threads of the virtual clock."""

    def __init__(self, graph: "Graph") -> None:
        self._graph = graph
        self.replaced = False

    def submit(self, run: Callable[..., Any], /, *args: Any, **_: Any) -> "Future[Any]":
        graph, world = self._graph, self._graph.world
        if self.replaced:
            world.violated("a run in threads that were replaced")
        if graph.under_way > world.limits.runs:  # and a light one
            world.violated(f"{graph.under_way + 1} runs at a time")
        if world.random.random() < world.limits.no_thread:
            graph.began(args[0])
            raise RuntimeError("can't start new thread")
        future: Future[Any] = Future()
        graph.runs.append((future, world.clock.now))
        graph.began(args[0])
        seconds = world.run_seconds(args[0])
        if seconds < math.inf:
            asyncio.get_running_loop().call_later(seconds, self._end, future, run, args)
        return future

    def _end(self, future: "Future[Any]", run: Callable[..., Any], args: tuple[Any, ...]) -> None:
        future.set_result(run(*args))
        self._graph.world.event("end of a run")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.replaced = True


class Shares:
    """What callers got of a graph while they had something queued without interruption, pair by pair."""

    def __init__(self) -> None:
        self._ahead: dict[tuple[str, str], int] = {}

    def served(self, before: set[str], after: set[str], costs: dict[str, int]) -> int:
        """Count a batch; return how far one caller is ahead of another."""
        both = sorted(before & after)
        ahead = {
            (one, other): self._ahead.get((one, other), 0) + costs.get(one, 0) - costs.get(other, 0)
            for index, one in enumerate(both)
            for other in both[index + 1 :]
        }
        self._ahead = ahead
        return max(map(abs, ahead.values()), default=0)


class Order:
    """The order in which the requests of one caller are served, in cost."""

    def __init__(self) -> None:
        self._passed: dict[int, float] = {}  # by request: what larger ones got while it waited, beyond their share
        self._oldest: int | None = None
        self._owed = 0.0  # to the oldest request

    def served(self, cost: int, request: int, left: dict[int, int]) -> tuple[float, float]:
        """Count a served item.

        Args:
            cost: of the item.
            request: whose item it is.
            left: the cost that each of the caller's requests had left before it, the oldest request first.

        Returns:
            The most that a request waited for larger ones beyond the share of the oldest, and what the oldest should
            have got and has not.
        """
        oldest = next(iter(left))
        if oldest != self._oldest:
            self._oldest, self._owed = oldest, 0.0
        self._owed += -cost if request == oldest else cost / OLDEST_SHARE
        self._owed = max(0.0, self._owed)
        passed = {}
        for other, waiting in left.items():
            larger = left[request].bit_length() > waiting.bit_length()
            passed[other] = self._passed.get(other, 0.0) + (cost if larger else -cost / OLDEST_SHARE)
        self._passed = {other: max(0.0, each) for other, each in passed.items() if other != request}
        return max(self._passed.values(), default=0.0), self._owed


class Graph:
    """One batcher, and what the simulation knows of its queue."""

    def __init__(self, world: "World", version: int, batcher_class: "type[Batcher[Work, Answer]]") -> None:
        self.world, self.version = world, version
        self.executor: VirtualExecutor | None = None
        self.runs: list[tuple[Future[Any], float]] = []  # in threads, and when they began
        self.waiting: dict[int, Waiting] = {}  # by the item's number
        self._dead_items = self._dead_cost = 0  # cancelled or late, and perhaps still in the queue
        self.reserved = 0
        self.shares = Shares()
        self.orders: defaultdict[str, Order] = defaultdict(Order)  # by caller
        limits = world.limits
        self.batcher = batcher_class(
            self._run,
            FairQueue(limits.queue, limits.max_seconds, limits.batch, limits.max_requests),
            max_batch_cost=limits.batch,
            max_inline_cost=limits.inline,
            observe=lambda *_: None,
            stuck_seconds=limits.stuck_seconds,
            clock=world.clock,
            new_executor=self._new_executor,
            runs=limits.runs,
            run_alone=self._run_alone,
        )

    def _new_executor(self) -> VirtualExecutor:
        if self.executor is not None and not self.executor.replaced:
            self.world.violated("an executor was replaced that goes on")
        self.executor = VirtualExecutor(self)
        return self.executor

    # ---- runs

    @property
    def under_way(self) -> int:
        """The number of runs in threads that are not given up."""
        given_up = self.world.clock.now - self.world.limits.stuck_seconds + PATIENT
        self.runs = [(run, began) for run, began in self.runs if not run.done() and began > given_up]
        return len(self.runs)

    def _run_alone(self, items: list[Work]) -> list[Answer]:
        if len(items) > 1:
            self.world.violated(f"{len(items)} items run alone")
        return self._run(items)

    def _run(self, items: list[Work]) -> list[Answer]:
        world = self.world
        if not all([item.begun for item in items]):  # on the event loop
            self.began(items)
            world.clock.now += sum([item.cost for item in items]) / world.limits.speed
        if world.random.random() < world.limits.loses and not items[0].again:
            self._may_run_again(items)
            return [(item.number, self.version) for item in items[1:]]
        if any([item.fault == "fails" for item in items]):
            self._may_run_again(items)
            raise ValueError("an item fails")
        return [(-item.number if item.fault == "nan" else item.number, self.version) for item in items]

    def _may_run_again(self, items: list[Work]) -> None:
        for item in items:
            item.again = True

    def began(self, items: Sequence[Work]) -> None:
        """Check a batch that leaves the queue."""
        world = self.world
        before = {waiting.work.caller for waiting in self.live()}
        costs: Counter[str] = Counter()
        if not all(each.work in items for each in self.live()):  # else the order is of no consequence
            self._check_order(items)
        for item in items:
            if item.begun:
                world.violated(f"item {item.number} runs twice")
            item.begun = True
            known = self.waiting.pop(item.number, None)
            if known is None or known.future.cancelled():
                world.violated(f"item {item.number} runs, but waits no longer")
            before.add(item.caller)
            costs[item.caller] += item.cost
        if sum(costs.values()) > world.limits.batch and len(items) > 1:
            world.violated(f"a batch of {sum(costs.values())} is over the limit")
        after = {waiting.work.caller for waiting in self.live()}
        if (ahead := self.shares.served(before, after, costs)) > world.limits.unfair:
            world.violated(f"a caller is {ahead} ahead of another")
        world.event(f"run of {len(items)}")

    def _check_order(self, items: Sequence[Work]) -> None:
        """Check that small requests of a caller go before its large ones, and that its oldest gets its share."""
        left: defaultdict[str, dict[int, int]] = defaultdict(dict)
        for waiting in self.waiting.values():
            if not waiting.future.cancelled():
                requests, work = left[waiting.work.caller], waiting.work
                requests[waiting.request] = requests.get(waiting.request, 0) + work.cost
        for item in items:
            known, requests = self.waiting.get(item.number), left[item.caller]
            if known is None or known.request not in requests:
                continue
            passed, owed = self.orders[item.caller].served(item.cost, known.request, requests)
            requests[known.request] -= item.cost
            if not requests[known.request]:
                del requests[known.request]
            if passed > self.world.limits.unfair:
                self.world.violated(f"item {item.number} is one of {passed} that went before smaller requests")
            if owed > self.world.limits.unfair:
                self.world.violated(f"the oldest request of {item.caller} waits for {owed}")

    # ---- requests

    def submit(self, request: int, works: list[Work], deadline: float | None, **how: bool) -> list[Any]:
        costs, times = [work.cost for work in works], ItemTimes(works[0].caller)
        futures = self.batcher.submit(works, costs, times, deadline, **how)
        for work, future in zip(works, futures, strict=True):
            self.waiting[work.number] = Waiting(work, future, request)
        return futures

    # ---- invariants

    def check(self) -> None:
        """Check what the queue counts against what waits."""
        queue, world = self.batcher.queue, self.world
        items = cost = 0
        dead: list[int] = []
        for number, waiting in self.waiting.items():
            if waiting.future.done():
                dead.append(number)
            else:
                items += 1
                cost += waiting.work.cost
        for number in dead:
            self._dead_items += 1
            self._dead_cost += self.waiting.pop(number).work.cost
        if not 0 <= queue.items - items <= self._dead_items:
            world.violated(f"{queue.items} items are counted, {items} wait and {self._dead_items} did")
        if not 0 <= queue.cost - cost <= self._dead_cost:
            world.violated(f"a cost of {queue.cost} is counted, {cost} waits and {self._dead_cost} did")
        self._dead_items, self._dead_cost = queue.items - items, queue.cost - cost
        if queue.reserved != self.reserved:
            world.violated(f"{queue.reserved} is reserved, not {self.reserved}")
        if queue.items == 0 and self.reserved == 0 and queue.requests:
            world.violated(f"{queue.requests} requests are counted and none waits")
        if queue.cost + queue.reserved > world.limits.most_queued:
            world.violated(f"a cost of {queue.cost + queue.reserved} is queued")
        if queue.remembered > MAX_REMEMBERED + world.limits.callers:
            world.violated(f"{queue.remembered} callers are remembered")

    def check_idle(self) -> None:
        """Check that time does not pass while something waits and a run may begin."""
        if (live := self.live()) and (under_way := self.under_way) < self.world.limits.runs:
            self.world.violated(f"item {live[0].work.number} waits and {under_way or 'nothing'} runs")

    def live(self) -> list[Waiting]:
        """Return the items for whose answer somebody waits."""
        return [waiting for waiting in self.waiting.values() if not waiting.future.done()]


class World:
    """Everything that one seed decides."""

    def __init__(self, seed: int, events: int, batcher_class: "type[Batcher[Work, Answer]]" = Batcher) -> None:
        self.seed, self._events, self._batcher_class = seed, events, batcher_class
        self.random = Random(seed)
        self.limits = Limits.drawn(self.random)
        self.clock = Clock()
        self.admission = AdmissionController(self.limits.max_requests)
        self.happened = 0
        self.outcomes: Counter[str] = Counter()
        self.broken: list[str] = []
        self._recent: deque[str] = deque(maxlen=SHOWN)
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.active = self._requests = self._items = self._version = 0
        self._graphs: list[Graph] = []  # of the newest model
        self._old: list[Graph] = []  # of exchanged models

    # ---- what is noted

    def event(self, what: str) -> None:
        """Count an event and check the invariants."""
        self.happened += 1
        self._recent.append(f"{self.happened:6} at {self.clock.now:.6f} s: {what}")
        for graph in self._graphs:
            graph.check()
        for graph in self._old:
            graph.check()
        if self.admission.active != self.active:
            self.violated(f"{self.admission.active} requests are admitted, not {self.active}")

    def violated(self, what: str) -> None:
        """Note that an invariant does not hold; the driver ends at its next step."""
        self.broken.append(what)
        raise Violation(what)

    def idle(self) -> None:
        """Check what must hold before time passes."""
        for graph in (*self._graphs, *self._old):
            graph.check_idle()
        self._old = [graph for graph in self._old if graph.waiting or graph.under_way or graph.reserved]

    def failed(self, context: dict[str, Any]) -> None:
        """Note what the event loop would log."""
        self.broken.append(f"{context['message']}: {context.get('exception')!r}")

    # ---- what happens

    def run_seconds(self, items: Sequence[Work]) -> float:
        """Draw how long a run takes."""
        if self.random.random() < self.limits.hangs:
            return self.random.choice((math.inf, self.limits.stuck_seconds * self.random.uniform(1.1, 3)))
        return sum([item.cost for item in items]) / self.limits.speed

    def _exchange(self) -> None:
        self._version += 1
        self._old += self._graphs
        self._graphs = [Graph(self, self._version, self._batcher_class) for _ in range(2)]

    async def main(self) -> None:
        """Let things happen, wait until all requests have ended, and check that nothing is left."""
        limits, random = self.limits, self.random
        self._exchange()
        while self.happened < self._events and not self.broken:
            await asyncio.sleep(random.expovariate(limits.rate))
            if random.random() < limits.exchanges:
                self._exchange()
            if self._tasks and random.random() < limits.leaves:
                random.choice(list(self._tasks)).cancel()
            if random.random() < limits.now:
                self._run_now(self._graphs[0])
            caller = f"{random.randrange(limits.callers)}"
            for _ in range(20 if random.random() < limits.bulk else 1):
                task = asyncio.ensure_future(self._request(caller))
                self._tasks[task] = None
                task.add_done_callback(self._tasks.pop)
        while self._tasks and not self.broken:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        if self.broken:
            return
        await asyncio.sleep(3 * limits.stuck_seconds)
        self.event("the end")
        for graph in self._graphs:
            queue = graph.batcher.queue
            if queue.items or queue.cost or queue.reserved or queue.requests:
                self.violated(
                    f"at the end {queue.items} items, {queue.requests} requests and a cost of {queue.cost} wait"
                )

    def _run_now(self, graph: Graph) -> None:
        cost = self.random.randint(1, self.limits.longest)
        done = graph.batcher.run_now(lambda: cost, cost, 1)
        if done is not None and (graph.live() or graph.under_way or done[0] != cost):
            self.violated("run_now overtook others")
        self.event("run_now")

    async def _request(self, caller: str) -> None:
        """Send one request as the embedding pipeline does, and check its answer."""
        self._requests += 1
        request, limits, began = self._requests, self.limits, self.clock.now
        deadline = None
        if self.random.random() < limits.deadlines:
            deadline = self.clock.now + self.random.uniform(0, 8) * (limits.largest + limits.batch) / limits.speed
        outcome = "left"
        try:
            with self._admitted():
                async with within(deadline, self.clock):
                    await self._serve(request, caller, deadline)
            outcome = "answered"
            if deadline is not None and self.clock.now > deadline + PATIENT:
                self.violated(f"request {request} was answered {self.clock.now - deadline} s late")
        except Overloaded as error:
            outcome = "refused"
            if error.retry_after is not None and error.retry_after <= 0:
                self.violated(f"request {request} is to be sent again after {error.retry_after} s")
        except DeadlineExceeded:
            outcome = "late"
            if deadline is None and self.clock.now <= began + (limits.max_seconds or math.inf):
                self.violated(f"request {request} has no deadline and has waited {self.clock.now - began} s")
        except EngineFailure:
            outcome = "failed"
        finally:
            self.outcomes[outcome] += 1
            self.event(f"request {request} of {caller} is {outcome}")

    def _admitted(self) -> Any:
        """A place of the admission controller, counted here too."""
        return _Counted(self)

    async def _serve(self, request: int, caller: str, deadline: float | None) -> None:
        random, limits = self.random, self.limits
        graphs = self._graphs if random.random() < limits.two_graphs else self._graphs[:1]
        costs = [random.randint(1, limits.longest) for _ in range(random.randint(1, limits.most_items))]
        faults = [random.choices(("fails", "nan", ""), (limits.fails, limits.nans, 1))[0] for _ in costs]
        is_text = random.random() < limits.texts
        if is_text:
            await self._tokenize(graphs, max(1, int(sum(costs) * random.uniform(0.5, 1.5))), caller, deadline)
        queued: list[tuple[Work, asyncio.Future[Answer]]] = []
        try:
            for graph in graphs:
                works = [self._work(graph, caller, cost, fault) for cost, fault in zip(costs, faults, strict=True)]
                futures = graph.submit(request, works, deadline, admitted=is_text, staggered=random.random() < 0.1)
                queued += zip(works, futures, strict=True)
            self.event(f"request {request} of {caller} joins: {costs}, until {deadline}, {faults}")
            for work, future in queued:
                self._check_answer(work, await future)
        except EngineFailure:
            if limits.only_items_fail and not any([fault for fault in faults]):
                self.violated(f"request {request} failed for no reason of its own")
            raise
        finally:
            for _, future in queued:
                future.cancel()

    async def _tokenize(self, graphs: list[Graph], cost: int, caller: str, deadline: float | None) -> None:
        """Check and reserve room for texts, and wait as for the tokenizer."""
        batchers = [graph.batcher for graph in graphs]
        for batcher in batchers:
            batcher.check(cost, deadline, caller)
        with reserved([batcher.queue for batcher in batchers], cost, caller):
            for graph in graphs:
                graph.reserved += cost
            try:
                await asyncio.sleep(self.random.expovariate(self.limits.rate))
            finally:
                for graph in graphs:
                    graph.reserved -= cost

    def _work(self, graph: Graph, caller: str, cost: int, fault: str) -> Work:
        self._items += 1
        return Work(self._items, caller, cost, graph.version, fault)

    def _check_answer(self, work: Work, answer: Answer) -> None:
        if answer == (-work.number, work.version) and work.fault == "nan":
            raise EngineFailure("NaN")
        if answer != (work.number, work.version):
            self.violated(f"item {work.number} of version {work.version} got the answer {answer}")

    def replay(self) -> str:
        """Return the command that repeats this run, and the events before its end."""
        command = f"python -m tests.service.scheduling.simulation {self.seed} {self._events}"
        return "\n".join([*self._recent, *self.broken[:3], f"repeat it with: {command}"])


class _Counted:
    """Admission of one request, counted by the simulation too."""

    def __init__(self, world: World) -> None:
        self._world, self._admitted = world, world.admission.admitted()

    def __enter__(self) -> None:
        self._admitted.__enter__()
        self._world.active += 1

    def __exit__(self, *error: Any) -> None:
        self._world.active -= 1
        self._admitted.__exit__(*error)


def simulate(seed: int, events: int = EVENTS, batcher_class: "type[Batcher[Work, Answer]]" = Batcher) -> World:
    """Run one seed; raise Violation with the command that repeats it if an invariant does not hold."""
    world = World(seed, events, batcher_class)
    batchers.log.disabled = True  # failing runs are part of it
    before, batchers.abandoned = batchers.abandoned, WeakSet()  # its hung runs never end: they are not the process's
    try:
        run(world.main(), world.clock, world.idle, world.failed)
    except AssertionError as error:
        world.broken.append(str(error))
    finally:
        batchers.log.disabled = False
        batchers.abandoned = before
    if world.broken:
        raise Violation(f"{world.broken[0]}\n{world.replay()}")
    return world


if __name__ == "__main__":
    done = simulate(int(sys.argv[1]), *map(int, sys.argv[2:3]))
    print(done.limits, dict(done.outcomes), f"{done.happened} events, {done.clock.now:.0f} s", sep="\n")
