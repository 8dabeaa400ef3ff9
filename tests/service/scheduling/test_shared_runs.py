"""Equal items in flight run once; each keeps its caller, deadline, place and answer. Also as a seeded simulation."""

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from itertools import chain
from random import Random
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import pytest

from service.errors import DeadlineExceeded, EngineFailure, Overloaded
from service.scheduling import batcher as batchers
from service.scheduling.batcher import Batcher, SharedRun
from service.scheduling.deadlines import within
from service.scheduling.fair_queue import FairQueue, ItemTimes
from tests.collector import collect
from tests.service.scheduling.virtual_time import Clock, run
from tests.sweeps import sampled

SPEED = 1000.0  # cost a second
Answer = tuple[str, int]  # the item's text, and the number of the run that computed it


class Work(NamedTuple):
    """One text; texts that begin with "bad" fail."""

    text: str
    shared: SharedRun[Answer] | None


class Engine(Executor):
    """A batcher of shared runs on a virtual clock; runs last as long as their cost, or until they are let go."""

    def __init__(self, clock: Clock, queue: int = 10_000, **options: Any) -> None:
        self.clock, self.held, self.repeated = clock, False, False
        self.runs: list[list[str]] = []
        self.running: list[list[str]] = []
        self.failing = False
        self._release: list[Callable[[], None]] = []
        self.shares: WeakValueDictionary[str, SharedRun[Answer]] = WeakValueDictionary()
        limits = {"max_batch_cost": 100, "max_inline_cost": 0, "runs": 1} | options
        self.most = limits["runs"]
        self.batcher = Batcher(
            self._run,
            FairQueue(queue, None, 100),
            observe=lambda *_: None,
            clock=clock,
            new_executor=lambda: self,
            shared=lambda work: work.shared,
            **limits,
        )

    def submit(self, work: Callable[..., Any], /, *args: Any, **_: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        texts = [item.text for item in args[0]]
        self.running.append(texts)
        self.repeated |= len(self.running) > self.most + 1  # a light one
        self.repeated |= len(set(chain(*self.running))) < sum(map(len, self.running))

        def end() -> None:
            self.running.remove(texts)
            if not future.cancelled():
                future.set_result(work(*args))

        if self.held:
            self._release.append(end)
        else:
            asyncio.get_running_loop().call_later(10 * len(texts) / SPEED, end)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        raise AssertionError("no run is stuck")

    def let_go(self) -> None:
        self.held = False
        while self._release:
            self._release.pop()()

    def _run(self, items: list[Work]) -> list[Answer]:
        texts = [item.text for item in items]
        self.runs.append(texts)
        if self.failing or any(text.startswith("bad") for text in texts):
            raise ValueError("it fails")
        return [(text, len(self.runs)) for text in texts]

    def send(
        self, *texts: str, caller: str = "", deadline: float | None = None, times: ItemTimes | None = None
    ) -> "list[asyncio.Future[Answer]]":
        works = [Work(text, self.shares.setdefault(text, SharedRun())) for text in texts]
        return self.batcher.submit(works, [10] * len(works), times or ItemTimes(caller), deadline)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def virtually(test: Callable[[Engine], Any], **options: Any) -> Engine:
    """Run a test with an engine on a virtual clock; what the loop would log fails it."""
    clock, faults = Clock(), []
    engine = Engine(clock, **options)
    run(test(engine), clock, lambda: None, faults.append)
    assert faults == []
    assert not engine.repeated, "equal items ran at a time"
    return engine


def test_equal_items_of_a_batch_run_once() -> None:
    async def test(engine: Engine) -> None:
        (one,), (other,), (third,) = engine.send("a", caller="x"), engine.send("a", caller="y"), engine.send("b")
        assert await asyncio.gather(one, other, third) == [("a", 1), ("a", 1), ("b", 1)]

    assert virtually(test).runs == [["a", "b"]]


def test_item_that_arrives_during_the_run_joins_it() -> None:
    async def test(engine: Engine) -> None:
        engine.held = True
        (first,) = engine.send("a")
        await turns()
        (second,), (other,) = engine.send("a"), engine.send("b")
        assert engine.batcher.waiting_cost == 10  # of "b" alone
        engine.let_go()
        assert [await first, await second, await other] == [("a", 1), ("a", 1), ("b", 2)]

    assert virtually(test).runs == [["a"], ["b"]]


def test_items_that_are_queued_take_the_answer_of_an_equal_one() -> None:
    async def test(engine: Engine) -> None:
        futures = [engine.send("a", caller=str(number))[0] for number in range(25)]  # of which ten fit a batch
        assert set(await asyncio.gather(*futures)) == {("a", 1)}
        await turns()
        assert engine.batcher.waiting_items == 0

    assert virtually(test).runs == [["a"]]


def test_equal_items_share_a_run_where_others_could_begin() -> None:
    async def test(engine: Engine) -> None:
        futures = [engine.send("a", caller=str(number))[0] for number in range(25)]
        futures += engine.send("b")
        assert {text for text, _ in await asyncio.gather(*futures)} == {"a", "b"}

    assert sorted(text for texts in virtually(test, runs=2).runs for text in texts) == ["a", "b"]


def test_later_equal_item_runs_again() -> None:
    async def test(engine: Engine) -> None:
        assert await engine.send("a")[0] == ("a", 1)
        assert await engine.send("a")[0] == ("a", 2)

    virtually(test)


@pytest.mark.parametrize("leaver", [0, 1])
@pytest.mark.parametrize("during_the_run", [False, True])
def test_caller_that_leaves_ends_nobody_elses_item(leaver: int, during_the_run: bool) -> None:
    async def test(engine: Engine) -> None:
        engine.held = True
        if not during_the_run:
            engine.send("before")
            await turns()
        futures = [engine.send("a")[0]]
        await turns()
        futures += engine.send("a")
        futures[leaver].cancel()
        await turns()
        engine.let_go()
        assert (await futures[1 - leaver])[0] == "a"

    assert [text for texts in virtually(test).runs for text in texts].count("a") == 1


def test_all_that_left_leave_nothing_behind() -> None:
    async def test(engine: Engine) -> None:
        engine.held = True
        engine.send("before")
        await turns()
        for future in [engine.send("a")[0] for _ in range(100)]:
            future.cancel()
        engine.let_go()
        await asyncio.sleep(1)
        collect()
        assert not engine.shares

    assert virtually(test).runs == [["before"]]


@pytest.mark.parametrize("hurried_first", [True, False])
def test_each_keeps_its_own_deadline(hurried_first: bool) -> None:
    async def test(engine: Engine) -> None:
        engine.held = True
        engine.send("before")
        await turns()
        deadlines = [0.5, None] if hurried_first else [None, 0.5]
        futures = [engine.send("a", deadline=deadline)[0] for deadline in deadlines]
        await asyncio.sleep(1)
        engine.let_go()
        results = await asyncio.gather(*futures, return_exceptions=True)
        patient = results.pop(int(hurried_first))
        assert patient == ("a", 2)
        assert isinstance(results[0], DeadlineExceeded) or results == [("a", 2)]
        if hurried_first:
            assert isinstance(results[0], DeadlineExceeded)

    virtually(test)


def test_item_does_not_wait_behind_the_queue_of_an_equal_one() -> None:
    async def test(engine: Engine) -> None:
        many = engine.send(*[str(number) for number in range(100)], "a", caller="x")
        (single,) = engine.send("a", caller="y")
        assert (await single)[1] <= 2  # of eleven runs
        assert (await many[-1]) == await single

    engine = virtually(test, queue=100_000)
    assert [text for texts in engine.runs for text in texts].count("a") == 1


def test_full_queue_counts_equal_items_and_lets_them_join_a_run() -> None:
    async def test(engine: Engine) -> None:
        engine.held = True
        running = engine.send("a")
        await turns()
        queued = engine.send("b", "c")
        with pytest.raises(Overloaded):
            engine.send("b", "c", "d")  # which of the equal ones runs is not known yet
        joined = engine.send("a", "a")
        engine.let_go()
        assert {text for text, _ in await asyncio.gather(*running, *queued, *joined)} == {"a", "b", "c"}

    virtually(test, queue=20)


def test_failed_run_fails_every_equal_item() -> None:
    async def test(engine: Engine) -> None:
        batchers.log.disabled = True
        try:
            engine.held = True
            first = engine.send("bad")
            await turns()
            joined, other = engine.send("bad", caller="y"), engine.send("good")
            engine.let_go()
            results = await asyncio.gather(*first, *joined, *other, return_exceptions=True)
        finally:
            batchers.log.disabled = False
        assert [type(result) for result in results[:2]] == [EngineFailure, EngineFailure]
        assert results[0] is not results[1]  # an exception collects the frames of whoever raises it
        assert results[2] == ("good", 2)
        assert await engine.send("a")[0] == ("a", 3)

    virtually(test)


def test_item_after_a_failed_run_is_tried_again() -> None:
    async def test(engine: Engine) -> None:
        batchers.log.disabled = engine.failing = True
        with pytest.raises(EngineFailure):
            await engine.send("a")[0]
        batchers.log.disabled = engine.failing = False
        assert await engine.send("a")[0] == ("a", 2)

    virtually(test)


def test_times_of_a_joined_item_are_its_own() -> None:
    async def test(engine: Engine) -> None:
        first, second = ItemTimes(), ItemTimes()
        futures = engine.send("a", times=first)
        await asyncio.sleep(0.004)
        futures += engine.send("a", times=second)
        await asyncio.gather(*futures)
        assert (first.joined, second.joined) == (0, 1)
        assert (first.items, second.items) == (1, 1)
        assert (first.queued, second.queued) == (0, 0)
        assert first.ran == pytest.approx(0.010)
        assert second.ran == pytest.approx(0.006)

    virtually(test)


# ---- callers that leave, hurry and fail, by a seed


class World:
    """What one seed draws: callers that send equal texts, leave early, have deadlines, and runs that fail."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.outcomes: Counter[str] = Counter()
        self.texts = self.random.choice((1, 3, 30))
        self.load = self.random.choice((0.5, 2.0, 8.0))

    async def main(self, engine: Engine) -> None:
        tasks = []
        for _ in range(400):
            tasks.append(asyncio.create_task(self._request(engine)))
            await asyncio.sleep(self.random.expovariate(self.load * SPEED / 10))
        await asyncio.gather(*tasks)
        await asyncio.sleep(1)
        collect()
        assert not engine.shares
        assert not engine.batcher.waiting_items
        assert sum(self.outcomes.values()) == 400

    async def _request(self, engine: Engine) -> None:
        random = self.random
        texts = [f"{random.choice(('bad', 'good'))}{random.randrange(self.texts)}" for _ in range(random.randint(1, 3))]
        texts = texts if random.random() < 0.1 else [text.replace("bad", "good") for text in texts]
        seconds = random.choice((None, None, 0.02, 0.2))
        deadline = seconds and engine.clock.now + seconds
        leaves = random.choice((None, 0.0, 0.001, 0.015, 0.1))
        task = asyncio.create_task(self._answers(engine, texts, deadline))
        if leaves is not None:
            await asyncio.sleep(leaves)
            task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(result, asyncio.CancelledError):
            assert leaves is not None, "a caller that stays is cancelled"
        elif isinstance(result, DeadlineExceeded):
            assert deadline is not None, "a caller without a deadline is late"
        elif isinstance(result, EngineFailure):
            assert any(text.startswith("bad") for text in texts), "a good text fails"
        elif not isinstance(result, Overloaded):
            answered, at = result
            assert answered == texts
            assert deadline is None or at <= deadline + 1e-9
        self.outcomes[type(result).__name__] += 1

    async def _answers(self, engine: Engine, texts: list[str], deadline: float | None) -> Any:
        futures: list[asyncio.Future[Answer]] = []
        try:
            async with within(deadline, engine.clock):
                futures = engine.send(*texts, caller=self.random.choice("xyz"), deadline=deadline)
                return [(await future)[0] for future in futures], engine.clock.now
        finally:
            for future in futures:
                future.cancel()


@pytest.mark.parametrize("runs", [1, 2])
@pytest.mark.parametrize("seed", sampled(range(60), 20))
def test_each_caller_gets_its_own_end_whoever_else_leaves(seed: int, runs: int) -> None:
    world = World(seed)
    batchers.log.disabled = True
    try:
        engine = virtually(world.main, queue=150, runs=runs)
    finally:
        batchers.log.disabled = False
    assert world.outcomes["tuple"] > 20
    assert sum(map(len, engine.runs)) < 2 * 400


def test_simulated_callers_end_in_every_way() -> None:
    worlds = [World(seed) for seed in range(6)]
    batchers.log.disabled = True
    try:
        for world in worlds:
            virtually(world.main, queue=150)
    finally:
        batchers.log.disabled = False
    names = ("tuple", "CancelledError", "DeadlineExceeded", "EngineFailure", "Overloaded")
    assert [name for name in names if not sum(world.outcomes[name] for world in worlds)] == []
