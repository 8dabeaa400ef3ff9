"""The batcher: batches form by load alone; a bad item, a cancelled caller or a full queue hurts no other request."""

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from time import perf_counter
from typing import Any

import pytest

from service.errors import DeadlineExceeded, EngineFailure, Overloaded
from service.scheduling import batcher as batchers
from service.scheduling.batcher import Batcher, abandoned_runs
from service.scheduling.fair_queue import FairQueue

CALLER = ContextVar("caller", default="nobody")


class Recorder:
    """A run that doubles numbers, remembers its batches, can be held back, and fails on negative numbers."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.threads: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Event()
        self.observed: list[tuple[int, int, float, float]] = []

    def run(self, items: list[int]) -> list[int]:
        self.batches.append(items)
        self.threads.append(threading.current_thread().name)
        self.started.set()
        assert self.gate.wait(10)
        if any(item < 0 for item in items):
            raise ValueError("negative")
        return [2 * item for item in items]

    def observe(self, items: int, cost: int, waited: float, seconds: float) -> None:
        self.observed.append((items, cost, waited, seconds))


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def make(recorder: Recorder) -> Iterator[Callable[..., Batcher[int, int]]]:
    executor = ThreadPoolExecutor(1, thread_name_prefix="run")

    def made(
        inline: int = 1000, batch: int = 1000, queue: int = 1000, stuck: float = 60.0, **changes: Any
    ) -> Batcher[int, int]:
        executors = iter([changes.pop("executor", executor)])
        options = {"run": recorder.run, "observe": recorder.observe} | changes
        return Batcher(
            queue=FairQueue(queue, None, batch),
            max_batch_cost=batch,
            max_inline_cost=inline,
            new_executor=lambda: next(executors, None) or ThreadPoolExecutor(2),
            stuck_seconds=stuck,
            **options,
        )

    yield made
    recorder.gate.set()
    executor.shutdown()


async def _started(recorder: Recorder) -> None:
    assert await asyncio.to_thread(recorder.started.wait, 10)
    recorder.started.clear()


async def test_concurrent_requests_share_one_run(make, recorder):
    batcher = make()
    futures = [batcher.submit([number], [1])[0] for number in range(200)]
    assert await asyncio.gather(*futures) == [2 * number for number in range(200)]
    assert recorder.batches == [list(range(200))]


async def test_items_that_cost_nothing_are_run(make, recorder):
    futures = make().submit([1, 2], [0, 0])
    assert await asyncio.wait_for(asyncio.gather(*futures), 10) == [2, 4]


async def test_only_large_batches_run_in_a_thread(make, recorder):
    batcher = make(inline=10)
    await batcher.submit([1], [10])[0]
    await batcher.submit([2], [11])[0]
    assert [name.startswith("run") for name in recorder.threads] == [False, True]


async def test_short_item_alone_runs_on_the_event_loop(make, recorder):
    now = 0.0

    def run(items):
        nonlocal now
        now += 0.001 * sum(items)
        return recorder.run(items)

    batcher = make(inline=0, run=run, clock=lambda: now, inline_seconds=0.0055)
    for milliseconds in (1, 5, 6, 1):
        await batcher.submit([milliseconds], [milliseconds])[0]
    await asyncio.gather(*batcher.submit([1, 1], [1, 1]))
    assert [name.startswith("run") for name in recorder.threads] == [True, False, True, False, True]


async def test_requests_during_a_run_form_the_next_batch(make, recorder):
    batcher = make(inline=0)
    recorder.gate.clear()
    first = batcher.submit([1], [1])[0]
    await _started(recorder)
    later = [batcher.submit([number], [1])[0] for number in (2, 3, 4)]
    recorder.gate.set()
    assert await asyncio.gather(first, *later) == [2, 4, 6, 8]
    assert recorder.batches == [[1], [2, 3, 4]]


async def test_batch_takes_items_of_like_cost_within_its_budget(make, recorder):
    batcher = make(inline=0, batch=20)
    costs = [10, 3, 9, 2, 11, 3]
    futures = batcher.submit(costs, costs)
    assert await asyncio.gather(*futures) == [2 * cost for cost in costs]
    assert recorder.batches[0] == [2, 3, 3, 9]
    assert all(sum(batch) <= 20 for batch in recorder.batches)
    assert sorted(item for batch in recorder.batches for item in batch) == sorted(costs)


async def test_item_above_the_budget_runs_alone(make, recorder):
    batcher = make(batch=20)
    assert await asyncio.gather(*batcher.submit([50, 1], [50, 1])) == [100, 2]
    assert recorder.batches == [[1], [50]]


@pytest.mark.parametrize("inline", [0, 1000])
async def test_only_the_item_that_fails_fails(make, recorder, inline):
    batcher = make(inline=inline)
    results = await asyncio.gather(*batcher.submit([1, -1, 3], [1, 1, 1]), return_exceptions=True)
    assert results[0] == 2
    assert isinstance(results[1], EngineFailure)
    assert results[2] == 6
    assert await batcher.submit([4], [1])[0] == 8


async def test_cancelled_item_does_not_run(make, recorder):
    batcher = make(inline=0)
    recorder.gate.clear()
    first = batcher.submit([1], [1])[0]
    await _started(recorder)
    gone, stays = batcher.submit([2, 3], [1, 1])
    gone.cancel()
    recorder.gate.set()
    assert await asyncio.gather(first, stays) == [2, 6]
    assert recorder.batches == [[1], [3]]


async def test_cancelling_during_a_run_hurts_no_other_item(make, recorder):
    batcher = make(inline=0)
    recorder.gate.clear()
    gone, stays = batcher.submit([1, 2], [1, 1])
    await _started(recorder)
    gone.cancel()
    recorder.gate.set()
    assert await stays == 4
    assert await batcher.submit([5], [1])[0] == 10


async def test_full_queue_refuses_a_request_as_a_whole(make, recorder):
    batcher = make(inline=0, queue=10)
    recorder.gate.clear()
    first = batcher.submit([1], [1])[0]
    await _started(recorder)
    waiting = batcher.submit([2], [8])
    with pytest.raises(Overloaded, match="8 tokens are waiting and this request brings 3; the queue holds 10"):
        batcher.submit([3, 4], [1, 2])
    assert batcher.waiting_cost == 8
    recorder.gate.set()
    assert await asyncio.gather(first, *waiting) == [2, 4]
    assert recorder.batches == [[1], [2]]


async def test_observes_every_run_with_items_and_cost(make, recorder):
    await asyncio.gather(*make().submit([1, 2], [5, 6]))
    ((items, cost, waited, seconds),) = recorder.observed
    assert (items, cost) == (2, 11)
    assert waited >= 0
    assert seconds >= 0


def test_batcher_outlives_its_first_event_loop(make):
    batcher = make()

    async def one(number: int) -> int:
        return await batcher.submit([number], [1])[0]

    assert [asyncio.run(one(number)) for number in (1, 2)] == [2, 4]


async def test_requests_of_successive_turns_share_one_run(make, recorder):
    batcher = make()
    futures = []
    for number in range(5):
        futures += batcher.submit([number], [1])
        await asyncio.sleep(0)
    assert await asyncio.gather(*futures) == [0, 2, 4, 6, 8]
    assert recorder.batches == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("before", "staggered", "runs"),
    [([9], False, [[0], [1], [2]]), ([9], True, [[0, 1, 2]]), ([8, 9], False, [[0, 1, 2]])],
)
async def test_lone_caller_waits_only_for_staggered_requests(make, recorder, before, staggered, runs):
    batcher = make()
    await asyncio.gather(*batcher.submit(before, [1] * len(before)))
    recorder.batches.clear()
    futures = []
    for number in range(3):
        futures += batcher.submit([number], [1], staggered=staggered)
        for _ in range(4):  # as gRPC hands its calls over
            await asyncio.sleep(0)
    assert await asyncio.gather(*futures) == [0, 2, 4]
    assert recorder.batches == runs


async def test_stuck_run_is_given_up_and_later_ones_go_on(make, recorder):
    batcher = make(inline=0, stuck=0.05)
    recorder.gate.clear()
    stuck = batcher.submit([1], [1])[0]
    await _started(recorder)
    waiting = batcher.submit([2], [1])[0]
    with pytest.raises(EngineFailure, match=r"it ran for 0\.05 s and was given up"):
        await stuck
    assert batcher.stuck == 1
    await _started(recorder)  # the next run began on a thread of its own, though the first still hangs
    recorder.gate.set()
    assert await waiting == 4
    assert await batcher.submit([3], [1])[0] == 6
    assert recorder.batches == [[1], [2], [3]]


async def held(runs: int) -> None:
    """Until so many runs that were given up go on."""
    async with asyncio.timeout(10):
        while abandoned_runs() != runs:
            await asyncio.sleep(0)


async def test_abandoned_runs_are_counted_until_they_end(make, recorder):
    batcher = make(inline=0, stuck=0.05)
    recorder.gate.clear()
    with pytest.raises(EngineFailure):
        await batcher.submit([1], [1])[0]
    await held(1)
    del batcher  # its model was exchanged
    gc.collect()
    assert abandoned_runs() == 1
    recorder.gate.set()
    await held(0)


async def test_failed_runs_do_not_change_the_drain_rate(make, recorder):
    batcher = make(inline=0, stuck=0.05)
    with pytest.raises(EngineFailure):
        await batcher.submit([-1], [1000])[0]
    assert batcher.queue.rate is None
    recorder.gate.clear()
    with pytest.raises(EngineFailure):
        await batcher.submit([1], [1000])[0]
    assert batcher.queue.rate is None
    recorder.gate.set()
    assert await batcher.submit([2], [1000])[0] == 4
    assert batcher.queue.rate is not None
    await held(0)


class NoThread(ThreadPoolExecutor):
    """Cannot start its thread, as under a limit of processes; what is submitted stays queued."""

    def _adjust_thread_count(self) -> None:
        raise RuntimeError("can't start new thread")


async def test_thread_that_does_not_start_fails_one_batch_only(make, recorder):
    batcher = make(inline=0, executor=NoThread(1))
    refused = await asyncio.wait_for(asyncio.gather(*batcher.submit([1, 2], [1, 1]), return_exceptions=True), 10)
    assert [type(each) for each in refused] == [EngineFailure] * 2
    assert "no thread could be started for it (can't start new thread): try again" in str(refused[0])
    assert await asyncio.wait_for(batcher.submit([3], [1])[0], 10) == 6
    assert recorder.batches == [[3]]  # what was refused is not computed later


async def test_one_slow_run_refuses_no_deadlines_while_idle(make):
    batcher = make(inline=0, batch=512)
    batcher.queue.drained(512, 1000.0, full=True)
    answers = [await batcher.submit([number], [300], deadline=perf_counter() + 60)[0] for number in range(20)]
    assert answers == [2 * number for number in range(20)]
    assert batcher.queue.rate > 300


async def test_item_past_its_deadline_does_not_run(make, recorder):
    batcher = make(inline=0)
    recorder.gate.clear()
    first = batcher.submit([1], [1])[0]
    await _started(recorder)
    late = batcher.submit([2], [1], deadline=perf_counter() + 0.001)[0]
    stays = batcher.submit([3], [1])[0]
    await asyncio.to_thread(threading.Event().wait, 0.01)
    recorder.gate.set()
    with pytest.raises(DeadlineExceeded, match="the time allowed was over"):
        await late
    assert await asyncio.gather(first, stays) == [2, 6]
    assert recorder.batches == [[1], [3]]


async def test_queue_is_empty_and_serves_after_faults(make, recorder):
    batcher = make(inline=0)
    futures = batcher.submit([1, -1, 2], [1, 1, 1])
    futures[0].cancel()
    await asyncio.gather(*futures, return_exceptions=True)
    assert (batcher.waiting_cost, batcher.waiting_items) == (0, 0)
    assert await batcher.submit([5], [1])[0] == 10
    assert batcher.succeeded_at is not None


@pytest.mark.parametrize("inline", [0, 1000])
async def test_run_that_loses_a_result_fails_its_items_only(make, recorder, inline):
    losing = True
    batcher = make(inline=inline, run=lambda items: recorder.run(items)[losing:])
    lost = await asyncio.gather(*batcher.submit([1, 2, 3], [1, 1, 1]), return_exceptions=True)
    assert [type(each) for each in lost] == [EngineFailure] * 3
    losing = False
    assert await asyncio.wait_for(batcher.submit([4], [1])[0], 10) == 8


@pytest.mark.parametrize("inline", [0, 1000])
async def test_failing_observer_does_not_stop_the_next_run(make, recorder, inline):
    def fail(*observed: object) -> None:
        raise ZeroDivisionError

    batcher = make(inline=inline, observe=fail)
    loop, met = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: met.append(context["exception"]))
    assert await asyncio.wait_for(batcher.submit([1], [1])[0], 10) == 2
    assert await asyncio.wait_for(batcher.submit([2], [1])[0], 10) == 4
    await asyncio.sleep(0)
    assert {type(each) for each in met} <= {ZeroDivisionError}
    assert met


@pytest.mark.parametrize("inline", [0, 1000], ids=["in a thread", "at once"])
async def test_log_lines_of_a_run_name_no_caller(
    make: Callable[..., Batcher[int, int]], monkeypatch: pytest.MonkeyPatch, inline: int
) -> None:
    """Nor what follows while the queue is not empty: whoever began it is not whose item failed."""
    named = list[str]()
    monkeypatch.setattr(batchers.log, "error", lambda *_: named.append(CALLER.get()))
    batcher = make(inline=inline, batch=1)
    CALLER.set("who began")
    futures = [batcher.submit([item], [1])[0] for item in (1, -1, 2, -3)]
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [isinstance(result, EngineFailure) for result in results] == [False, True, False, True]
    assert named == ["nobody", "nobody"]


# ---- run_now


async def test_runs_now_on_an_idle_event_loop(make, recorder):
    result = make().run_now(lambda: "done", 5, 3)
    assert result is not None
    assert result[0] == "done"
    assert result[1] >= 0
    assert [each[:3] for each in recorder.observed] == [(3, 5, 0.0)]


async def test_runs_nothing_now_beside_a_run(make, recorder):
    batcher = make(inline=0)
    recorder.gate.clear()
    first = batcher.submit([1], [1])[0]
    assert batcher.run_now(lambda: "done", 0, 1) is None  # it is about to start
    await _started(recorder)
    assert batcher.run_now(lambda: "done", 0, 1) is None
    recorder.gate.set()
    await first
    await asyncio.sleep(0)
    assert batcher.run_now(lambda: "done", 0, 1) is not None


async def test_runs_nothing_now_that_costs_too_much(make):
    batcher = make(inline=10)
    assert batcher.run_now(lambda: "done", 11, 1) is None
    assert batcher.run_now(lambda: "done", 10, 1) is not None


async def test_failing_run_now_leaves_its_requests_to_submit(make, recorder):
    batcher = make()

    def fail() -> None:
        raise ZeroDivisionError

    assert batcher.run_now(fail, 1, 1) is None
    assert recorder.observed == []
    assert batcher.succeeded_at is None
    assert await batcher.submit([4], [1])[0] == 8


# ---- several runs at a time


class Gated:
    """Runs that wait until the test lets each go."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.alone: list[int] = []
        self.gates: dict[int, threading.Event] = {}

    def run(self, items: list[int]) -> list[int]:
        self.batches.append(items)
        assert self.gates.setdefault(items[0], threading.Event()).wait(10)
        return [2 * item for item in items]

    def run_alone(self, items: list[int]) -> list[int]:
        self.alone += items
        return self.run(items)

    def end(self, item: int) -> None:
        self.gates.setdefault(item, threading.Event()).set()

    async def began(self, batches: int) -> None:
        async with asyncio.timeout(10):
            while len(self.batches) < batches:
                await asyncio.sleep(0.001)


@pytest.fixture
def gated() -> Iterator[Gated]:
    made = Gated()
    yield made
    for gate in made.gates.values():
        gate.set()


def concurrent(
    gated: Gated, make: Callable[..., Batcher[int, int]], runs: int = 2, **changes: Any
) -> Batcher[int, int]:
    options = {"run": gated.run, "run_alone": gated.run_alone, "executor": ThreadPoolExecutor(runs + 1), "runs": runs}
    return make(inline=0, **options, **changes)


async def test_what_waits_is_divided_among_free_runs(make, gated):
    batcher = concurrent(gated, make, runs=3)
    futures = batcher.submit(list(range(9)), [10] * 9)
    await gated.began(3)
    assert sorted(gated.batches) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    for item in (6, 0, 3):
        gated.end(item)
    assert await asyncio.gather(*futures) == [2 * number for number in range(9)]


async def test_a_free_run_begins_beside_one_under_way(make, gated):
    batcher = concurrent(gated, make)
    first = batcher.submit([1], [1])[0]
    await gated.began(1)
    second = batcher.submit([2], [1])[0]
    await gated.began(2)
    waiting = [batcher.submit([number], [1])[0] for number in (3, 4)]
    gated.end(2)
    assert await second == 4
    await gated.began(3)
    assert gated.batches[2] == [3, 4]  # all that waited, as one run was free
    gated.end(1)
    gated.end(3)
    assert await asyncio.gather(first, *waiting) == [2, 6, 8]


async def test_only_a_lone_item_runs_alone(make, gated):
    batcher = concurrent(gated, make)
    for item in (1, 2, 3, 4, 5):
        gated.end(item)
    assert await batcher.submit([1], [1])[0] == 2
    assert gated.alone == [1]
    await asyncio.gather(*batcher.submit([2, 3], [1, 1]))
    assert gated.alone == [1]
    gated.gates[4].clear()
    beside = [batcher.submit([4], [1])[0]]
    await gated.began(4)
    assert gated.alone == [1, 4]
    beside += batcher.submit([5], [1])
    await beside[1]
    assert gated.alone == [1, 4]
    gated.end(4)
    await beside[0]


async def test_stuck_run_leaves_its_neighbour_alone(make, gated):
    batcher = concurrent(gated, make, stuck=0.3)
    stuck, neighbour = batcher.submit([1], [1])[0], batcher.submit([2], [1])[0]
    await gated.began(2)
    gated.end(2)
    assert await neighbour == 4
    with pytest.raises(EngineFailure, match="given up"):
        await stuck
    later = batcher.submit([3, 4], [1, 1])
    gated.end(3)
    gated.end(4)
    assert await asyncio.gather(*later) == [6, 8]
    assert batcher.stuck == 1


async def test_one_light_run_begins_beside_large_ones(make, gated):
    batcher = concurrent(gated, make, batch=100)
    large = batcher.submit([1, 2], [100, 100])
    await gated.began(2)
    light, heavier, next_light = [batcher.submit([item], [cost])[0] for item, cost in ((3, 50), (4, 51), (5, 50))]
    await gated.began(3)
    gated.end(3)
    assert await light == 6
    await gated.began(4)
    gated.end(5)
    assert await next_light == 10
    assert gated.batches[2:] == [[3], [5]]  # the other is more than half of a run that is under way
    for item in (1, 2, 4):
        gated.end(item)
    assert await asyncio.gather(*large, heavier) == [2, 4, 8]


async def test_no_light_run_is_for_requests_like_those_that_run(make, gated):
    """However many of them share a run: a third run on two cores takes the others' time."""
    batcher = concurrent(gated, make, batch=100)
    first = [future for item in range(8) for future in batcher.submit([item], [25])]
    await gated.began(2)
    alike, light = [batcher.submit([item], [cost])[0] for item, cost in ((8, 25), (9, 12))]
    await gated.began(3)
    assert gated.batches == [[0, 1, 2, 3], [4, 5, 6, 7], [9]]
    for item in (9, 0, 4, 8):
        gated.end(item)
    assert await asyncio.gather(*first, alike, light) == [2 * number for number in range(10)]


async def test_drain_rate_counts_all_runs_but_light_ones(make, gated):
    now = 0.0
    batcher = concurrent(gated, make, batch=100, clock=lambda: now)
    futures = batcher.submit([1, 2], [100, 100])
    await gated.began(2)
    light = batcher.submit([3], [10])[0]
    await gated.began(3)
    now = 2.0
    for item in (3, 1, 2):
        gated.end(item)
        await (light, *futures)[item % 3]
    assert batcher.queue.rate == 100  # two runs of 100 in two seconds
