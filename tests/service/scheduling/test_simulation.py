"""The scheduling core under simulated load and faults, and each invariant is shown to fail when the scheduler is broken
on purpose. 16 seeds make 250 000 events.

A failure says which seed and how to repeat it: python -m tests.service.scheduling.simulation SEED
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from service.scheduling import callers
from service.scheduling.batcher import Batcher
from service.scheduling.callers import ItemTimes
from service.scheduling.fair_queue import FairQueue
from tests.service.scheduling.simulation import Answer, Violation, Work, simulate
from tests.sweeps import sampled

SEEDS = range(16)
MUTANT_SEEDS = range(8)
Works = FairQueue[Work, Answer]


@pytest.mark.parametrize("seed", sampled(SEEDS, 16))
def test_every_request_ends_once_and_shares_stay_fair(seed: int) -> None:
    world = simulate(seed)
    assert sum(world.outcomes.values()) > 100


def test_one_seed_gives_the_same_events_again() -> None:
    first, second = simulate(3, 2000), simulate(3, 2000)
    assert (first.outcomes, first.clock.now) == (second.outcomes, second.clock.now)


def test_simulation_meets_every_kind_of_outcome() -> None:
    worlds = [simulate(seed, 2000) for seed in MUTANT_SEEDS]
    for outcome in ("answered", "refused", "late", "failed", "left"):
        assert sum(world.outcomes[outcome] for world in worlds) > 20, outcome


# ---- broken schedulers

Batching = Batcher[Work, Answer]


def with_queue(changed: Callable[[Works], None]) -> type[Batching]:
    """A batcher whose queue is changed."""

    class Broken(Batching):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            changed(self.queue)

    return Broken


def every(count: int) -> Callable[[], bool]:
    """A function that is true at each `count`th call."""
    calls = 0

    def now() -> bool:
        nonlocal calls
        calls += 1
        return calls % count == 0

    return now


def loses_an_item(queue: Works) -> None:
    take, now = queue.take, every(50)
    queue.take = lambda *how: take(*how)[: -1 if now() else None]  # type: ignore[method-assign]


def runs_an_item_twice(queue: Works) -> None:
    take, now = queue.take, every(50)

    def twice(*how: Any) -> Any:
        batch = take(*how)
        return batch + batch[:1] if now() else batch

    queue.take = twice  # type: ignore[method-assign]


def forgets_to_release(queue: Works) -> None:
    release, now = queue.release, every(20)
    queue.release = lambda cost, caller: release(cost - now(), caller)  # type: ignore[method-assign,assignment,misc]


def counts_cancelled_items(queue: Works) -> None:
    take = queue.take

    def counting(*how: Any) -> Any:
        cost, batch = queue.cost, take(*how)
        if not queue.items:
            queue.cost = cost - sum(item.cost for item in batch)
        return batch

    queue.take = counting  # type: ignore[method-assign]


def knows_no_callers(queue: Works) -> None:
    add = queue.add

    def nameless(item: Work, cost: int, future: Any, now: float, times: ItemTimes, deadline: float | None) -> None:
        times.caller = ""
        add(item, cost, future, now, times, deadline)

    queue.add = nameless  # type: ignore[method-assign]


def knows_no_requests(queue: Works) -> None:
    add, first = queue.add, {}

    def first_in_first_out(
        item: Work, cost: int, future: Any, now: float, times: ItemTimes, deadline: float | None
    ) -> None:
        add(item, cost, future, now, first.setdefault(times.caller, times), deadline)

    queue.add = first_in_first_out  # type: ignore[method-assign]


class SwapsResults(Batching):
    """Answers neighbours with one another's results."""

    def __init__(self, run: Callable[[list[Work]], list[Answer]], queue: Works, **options: Any) -> None:
        super().__init__(lambda items: run(items)[::-1], queue, **options)


class AnswersFromAnOldModel(Batching):
    """Runs items of a new model on the first one."""

    def __init__(self, run: Callable[[list[Work]], list[Answer]], queue: Works, **options: Any) -> None:
        super().__init__(lambda items: [(number, 1) for number, _ in run(items)], queue, **options)


class StaysIdle(Batching):
    """Queues some requests without starting a run."""

    def submit(self, items: Sequence[Work], costs: Sequence[int], *how: Any, **more: Any) -> Any:
        if sum(costs) % 7:
            return super().submit(items, costs, *how, **more)
        times, deadline = how
        futures = [asyncio.get_running_loop().create_future() for _ in items]
        for item, cost, future in zip(items, costs, futures, strict=True):
            self.queue.add(item, cost, future, asyncio.get_running_loop().time(), times, deadline)
        return futures


BROKEN: dict[str, tuple[type[Batching], str]] = {
    "loses an item": (with_queue(loses_an_item), "wait"),
    "runs an item twice": (with_queue(runs_an_item_twice), "runs twice"),
    "forgets to release": (with_queue(forgets_to_release), "is reserved, not"),
    "counts cancelled items": (with_queue(counts_cancelled_items), "a cost of"),
    "knows no callers": (with_queue(knows_no_callers), "ahead of another"),
    "knows no requests": (with_queue(knows_no_requests), "went before smaller requests"),
    "swaps results": (SwapsResults, "got the answer"),
    "answers from an old model": (AnswersFromAnOldModel, "got the answer"),
    "stays idle": (StaysIdle, "nothing runs"),
}


@pytest.mark.parametrize("broken", sampled(BROKEN, 3))
def test_finds_a_scheduler_that(broken: str) -> None:
    batcher_class, said = BROKEN[broken]
    check_found(batcher_class, said)


def test_finds_a_queue_whose_oldest_request_starves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "OLDEST_SHARE", 1e12)
    check_found(Batching, "the oldest request of")


def check_found(batcher_class: type[Batching], said: str) -> None:
    violations = (violation_of(seed, batcher_class) for seed in SEEDS)
    found = next((violation for violation in violations if violation), "")
    assert said in found.partition("\n")[0]
    assert "python -m tests.service.scheduling.simulation" in found


def violation_of(seed: int, batcher_class: type[Batching]) -> str:
    try:
        simulate(seed, 2000, batcher_class)
    except Violation as violation:
        return str(violation)
    return ""
