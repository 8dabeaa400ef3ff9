"""Batches form by load alone; a bad item, a lost caller or a full queue touches nobody else."""

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from time import perf_counter

import pytest

from service.errors import DeadlineExceeded, EngineFailure, Overloaded
from service.scheduling import batcher as batchers
from service.scheduling.arrivals import ONE_BY_ONE
from service.scheduling.batcher import Batcher, runs_held

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

    def made(inline: int = 1000, batch: int = 1000, queue: int = 1000, stuck: float = 60.0) -> Batcher[int, int]:
        return Batcher(
            recorder.run,
            max_batch_cost=batch,
            max_inline_cost=inline,
            max_queue_cost=queue,
            executor=executor,
            observe=recorder.observe,
            stuck_seconds=stuck,
        )

    yield made
    recorder.gate.set()
    executor.shutdown()


async def _started(recorder: Recorder) -> None:
    assert await asyncio.to_thread(recorder.started.wait, 10)
    recorder.started.clear()


async def test_callers_of_the_same_moment_share_one_run(make, recorder):
    batcher = make()
    futures = [batcher.submit([number], [1])[0] for number in range(200)]
    assert await asyncio.gather(*futures) == [2 * number for number in range(200)]
    assert recorder.batches == [list(range(200))]


async def test_small_batches_run_on_the_event_loop_and_large_ones_in_a_thread(make, recorder):
    batcher = make(inline=10)
    await batcher.submit([1], [10])[0]
    await batcher.submit([2], [11])[0]
    assert [name.startswith("run") for name in recorder.threads] == [False, True]


async def test_what_arrives_during_a_run_forms_the_next_batch(make, recorder):
    batcher = make(inline=0)
    recorder.gate.clear()
    first = batcher.submit([1], [1])[0]
    await _started(recorder)
    later = [batcher.submit([number], [1])[0] for number in (2, 3, 4)]
    recorder.gate.set()
    assert await asyncio.gather(first, *later) == [2, 4, 6, 8]
    assert recorder.batches == [[1], [2, 3, 4]]


async def test_a_batch_keeps_to_its_budget_and_takes_items_of_like_cost(make, recorder):
    batcher = make(inline=0, batch=20)
    costs = [10, 3, 9, 2, 11, 3]
    futures = batcher.submit(costs, costs)
    assert await asyncio.gather(*futures) == [2 * cost for cost in costs]
    assert recorder.batches[0] == [10, 9]  # the oldest and the nearest that fits
    assert all(sum(batch) <= 20 for batch in recorder.batches)
    assert sorted(item for batch in recorder.batches for item in batch) == sorted(costs)


async def test_an_item_above_the_budget_runs_alone(make, recorder):
    batcher = make(batch=20)
    assert await asyncio.gather(*batcher.submit([50, 1], [50, 1])) == [100, 2]
    assert recorder.batches == [[50], [1]]


@pytest.mark.parametrize("inline", [0, 1000])
async def test_only_the_item_that_fails_fails(make, recorder, inline):
    batcher = make(inline=inline)
    results = await asyncio.gather(*batcher.submit([1, -1, 3], [1, 1, 1]), return_exceptions=True)
    assert results[0] == 2
    assert isinstance(results[1], EngineFailure)
    assert results[2] == 6
    assert await batcher.submit([4], [1])[0] == 8


async def test_a_cancelled_caller_is_dropped_before_its_run(make, recorder):
    batcher = make(inline=0)
    recorder.gate.clear()
    first = batcher.submit([1], [1])[0]
    await _started(recorder)
    gone, stays = batcher.submit([2, 3], [1, 1])
    gone.cancel()
    recorder.gate.set()
    assert await asyncio.gather(first, stays) == [2, 6]
    assert recorder.batches == [[1], [3]]


async def test_a_caller_that_leaves_during_the_run_hurts_nobody(make, recorder):
    batcher = make(inline=0)
    recorder.gate.clear()
    gone, stays = batcher.submit([1, 2], [1, 1])
    await _started(recorder)
    gone.cancel()
    recorder.gate.set()
    assert await stays == 4
    assert await batcher.submit([5], [1])[0] == 10


async def test_a_full_queue_refuses_all_of_a_request_or_nothing(make, recorder):
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


async def test_a_request_larger_than_the_queue_is_taken_when_nothing_waits(make):
    assert await make(queue=10).submit([7], [50])[0] == 14


async def test_every_run_is_observed_with_its_items_and_their_cost(make, recorder):
    await asyncio.gather(*make().submit([1, 2], [5, 6]))
    ((items, cost, waited, seconds),) = recorder.observed
    assert (items, cost) == (2, 11)
    assert waited >= 0
    assert seconds >= 0


def test_a_batcher_outlives_the_loop_it_first_ran_on(make):
    batcher = make()

    async def one(number: int) -> int:
        return await batcher.submit([number], [1])[0]

    assert [asyncio.run(one(number)) for number in (1, 2)] == [2, 4]


async def test_callers_that_come_one_a_turn_of_the_loop_share_one_run(make, recorder):
    batcher = make()
    futures = []
    for number in range(5):
        futures += batcher.submit([number], [1])
        await asyncio.sleep(0)
    assert await asyncio.gather(*futures) == [0, 2, 4, 6, 8]
    assert recorder.batches == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("before", "one_by_one", "runs"),
    [([9], False, [[0], [1], [2]]), ([9], True, [[0, 1, 2]]), ([8, 9], False, [[0, 1, 2]])],
)
async def test_who_was_alone_waits_for_nobody_unless_callers_come_one_by_one(make, recorder, before, one_by_one, runs):
    batcher = make()
    await asyncio.gather(*batcher.submit(before, [1] * len(before)))
    recorder.batches.clear()
    futures = []
    token = ONE_BY_ONE.set(one_by_one)
    for number in range(3):
        futures += batcher.submit([number], [1])
        for _ in range(4):  # as gRPC hands its calls over
            await asyncio.sleep(0)
    ONE_BY_ONE.reset(token)
    assert await asyncio.gather(*futures) == [0, 2, 4]
    assert recorder.batches == runs


async def test_a_stuck_run_is_given_up_and_later_callers_go_on(make, recorder):
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
        while runs_held() != runs:
            await asyncio.sleep(0)


async def test_a_run_that_was_given_up_is_held_until_it_ends_whatever_became_of_its_batcher(make, recorder):
    batcher = make(inline=0, stuck=0.05)
    recorder.gate.clear()
    with pytest.raises(EngineFailure):
        await batcher.submit([1], [1])[0]
    await held(1)
    del batcher  # its model was exchanged
    gc.collect()
    assert runs_held() == 1
    recorder.gate.set()
    await held(0)


async def test_a_run_that_was_given_up_or_failed_says_nothing_of_the_drain_rate(make, recorder):
    batcher = make(inline=0, stuck=0.05)
    with pytest.raises(EngineFailure):
        await batcher.submit([-1], [1000])[0]
    assert batcher.drain_rate is None
    recorder.gate.clear()
    with pytest.raises(EngineFailure):
        await batcher.submit([1], [1000])[0]
    assert batcher.drain_rate is None
    recorder.gate.set()
    assert await batcher.submit([2], [1000])[0] == 4
    assert batcher.drain_rate is not None
    await held(0)


class NoThread(ThreadPoolExecutor):
    """Cannot start its thread, as under a limit of processes; what is submitted stays queued."""

    def _adjust_thread_count(self) -> None:
        raise RuntimeError("can't start new thread")


async def test_a_thread_that_cannot_be_started_fails_its_batch_and_not_the_next(make, recorder):
    batcher = make(inline=0)
    batcher._executor = NoThread(1)
    refused = await asyncio.wait_for(asyncio.gather(*batcher.submit([1, 2], [1, 1]), return_exceptions=True), 10)
    assert [type(each) for each in refused] == [EngineFailure] * 2
    assert "no thread could be started for it (can't start new thread): try again" in str(refused[0])
    assert await asyncio.wait_for(batcher.submit([3], [1])[0], 10) == 6
    assert recorder.batches == [[3]]  # what was refused is not computed later


async def test_one_slow_run_does_not_refuse_the_hurried_callers_of_an_idle_graph(make):
    batcher = make(inline=0, batch=512)
    batcher.line.drained(512, 1000.0, full=True)
    answers = [await batcher.submit([number], [300], deadline=perf_counter() + 60)[0] for number in range(20)]
    assert answers == [2 * number for number in range(20)]
    assert batcher.drain_rate > 300


async def test_ids_that_come_while_texts_are_prepared_are_refused_like_texts(make):
    batcher = make(queue=10)
    batcher.promise(8)
    with pytest.raises(Overloaded, match="8 tokens are waiting and this request brings 3; the queue holds 10"):
        batcher.submit([1], [3])
    batcher.redeem(8)
    assert await batcher.submit([1], [3])[0] == 2


async def test_a_deadline_that_passed_in_the_line_costs_no_run(make, recorder):
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


async def test_after_faults_of_every_kind_the_line_is_empty_and_serves(make, recorder):
    batcher = make(inline=0)
    futures = batcher.submit([1, -1, 2], [1, 1, 1])
    futures[0].cancel()
    await asyncio.gather(*futures, return_exceptions=True)
    assert (batcher.waiting_cost, batcher.waiting_items) == (0, 0)
    assert await batcher.submit([5], [1])[0] == 10
    assert batcher.succeeded_at is not None


@pytest.mark.parametrize("inline", [0, 1000])
async def test_a_run_that_loses_a_result_fails_its_callers_and_not_the_next(make, recorder, monkeypatch, inline):
    batcher = make(inline=inline)
    run = batcher._run
    batcher._run = lambda items: run(items)[1:]
    lost = await asyncio.gather(*batcher.submit([1, 2, 3], [1, 1, 1]), return_exceptions=True)
    assert [type(each) for each in lost] == [EngineFailure] * 3
    batcher._run = run
    assert await asyncio.wait_for(batcher.submit([4], [1])[0], 10) == 8


@pytest.mark.parametrize("inline", [0, 1000])
async def test_an_observer_that_fails_does_not_stop_the_next_run(make, recorder, inline):
    batcher = make(inline=inline)
    loop, met = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: met.append(context["exception"]))

    def fail(*told: object) -> None:
        raise ZeroDivisionError

    batcher._observe = fail
    assert await asyncio.wait_for(batcher.submit([1], [1])[0], 10) == 2
    assert await asyncio.wait_for(batcher.submit([2], [1])[0], 10) == 4
    await asyncio.sleep(0)
    assert {type(each) for each in met} <= {ZeroDivisionError}
    assert met


@pytest.mark.parametrize("inline", [0, 1000], ids=["in a thread", "at once"])
async def test_what_is_logged_of_a_run_bears_no_callers_name(
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
