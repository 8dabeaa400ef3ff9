"""The fair queue: which requests may join, which items run next, what a refused caller is told."""

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import DeadlineExceeded, Overloaded
from service.scheduling.callers import ItemTimes
from service.scheduling.fair_queue import (
    CALM_FRACTION,
    HEADROOM,
    HOLD_FRACTION,
    MAX_REMEMBERED,
    MAX_RETRY_SECONDS,
    OVERLOADED_FRACTION,
    SLOWDOWN,
    SMALL_SHARE,
    FairQueue,
)

Queue = FairQueue[str, str]
Future = asyncio.Future[str]


def queue_of(
    max_cost: int = 1000, max_seconds: float | None = None, full_cost: int = 0, max_requests: int | None = None
) -> Queue:
    return FairQueue(max_cost, max_seconds, full_cost, max_requests)


def add(queue: Queue, caller: str, costs: Sequence[int], deadline: float | None = None, of: str = "") -> list[Future]:
    """Queue the items of one request, with names that begin with `caller`."""
    loop, times = asyncio.get_running_loop(), ItemTimes(of)
    futures = [loop.create_future() for _ in costs]
    for number, (cost, future) in enumerate(zip(costs, futures, strict=True)):
        queue.add(f"{caller}{number}", cost, future, 0.0, times, deadline)
    return futures


def taken(queue: Queue, most: int, now: float = 0.0) -> list[str]:
    """The next batch, done at once."""
    batch = queue.take(most, now)
    for each in batch:
        each.future.set_result("done")
    return [each.item for each in batch]


async def test_single_text_does_not_wait_for_a_thousand_others() -> None:
    queue = queue_of()
    add(queue, "bulk", [10] * 100)
    taken(queue, 20)
    add(queue, "lone", [10])
    assert "lone0" in taken(queue, 20)


async def test_single_texts_do_not_starve_a_large_request() -> None:
    queue = queue_of()
    add(queue, "bulk", [10] * 30)
    served = []
    for number in range(60):
        add(queue, f"single{number}-", [10])
        add(queue, f"other{number}-", [10])
        served += taken(queue, 20)
    assert sum(name.startswith("bulk") for name in served) >= 10  # of its 30, against two new callers a batch


async def test_one_request_does_not_wait_for_another_callers_hundred() -> None:
    queue = queue_of(10_000)
    for number in range(100):
        add(queue, f"bulk{number}-", [10] * 5, of="bulk")
    taken(queue, 20)
    add(queue, "lone", [10], of="lone")
    assert "lone0" in taken(queue, 20)


async def test_light_batch_takes_only_small_requests() -> None:
    queue = queue_of()
    add(queue, "bulk", [10] * 30)
    assert queue.take(20, 0.0, light=True) == []
    add(queue, "three", [10] * 3)
    add(queue, "two", [10] * 2)
    assert [each.item for each in queue.take(20, 0.0, light=True)] == ["two0", "two1"]
    assert queue.take(20, 0.0, light=True) == []


async def test_small_requests_fill_a_batch_further() -> None:
    queue = queue_of()
    for name in "abcde":
        add(queue, name, [10])
    add(queue, "large", [10] * 3)
    assert [each.item for each in queue.take(20, 0.0, small_cost=40)] == ["a0", "b0", "c0", "d0"]
    assert [each.item for each in queue.take(20, 0.0, small_cost=40)] == ["e0", "large0"]


async def test_light_batches_give_no_caller_more_than_its_share() -> None:
    queue, served = queue_of(full_cost=100), 0
    add(queue, "bulk", [10] * 30, of="bulk")
    for _ in range(100):
        add(queue, "light", [10], of="light")
        served += len(queue.take(20, 0.0, light=True))
    assert 100 <= 10 * served <= 120  # a full batch, and what was taken last


async def test_callers_get_equal_shares_whatever_they_send() -> None:
    queue, served = queue_of(100_000), Counter[str]()
    for number in range(100):
        add(queue, f"many{number}-", [10], of="many requests")
    add(queue, "large", [10] * 100, of="a large request")
    add(queue, "long", [50] * 20, of="long texts")
    while queue.items > 110:
        for item in queue.take(100, 0.0):
            item.future.set_result("done")
            served[item.times.caller] += item.cost
    assert max(served.values()) - min(served.values()) <= 200  # two batches


async def test_caller_of_long_texts_gains_nothing_by_coming_back() -> None:
    queue, served = queue_of(100_000), Counter[str]()
    add(queue, "b", [10] * 1000, of="b")
    add(queue, "c", [10] * 1000, of="c")
    add(queue, "long", [100], of="a")
    for _ in range(60):
        batch = queue.take(100, 0.0)
        for item in batch:
            item.future.set_result("done")
            served[item.times.caller] += item.cost
        if any([item.times.caller == "a" for item in batch]):
            add(queue, "long", [100], of="a")  # as soon as it has its answer
    assert max(served.values()) - min(served.values()) <= 200


async def test_early_reservation_gets_no_more_than_its_share() -> None:
    queue, served = queue_of(100_000), Counter[str]()
    add(queue, "b", [10] * 1000, of="b")
    queue.reserve(500, "a")
    for _ in range(50):
        taken(queue, 100)
    queue.release(500, "a")
    add(queue, "a", [10] * 50, of="a")
    for _ in range(4):
        for item in queue.take(100, 0.0):
            served[item.times.caller] += item.cost
    assert served["a"] <= 300


async def test_a_full_queue_has_room_for_callers_with_little() -> None:
    queue = queue_of(max_cost=1000, max_requests=100)
    add(queue, "bulk", [10] * 100, of="bulk")
    with pytest.raises(Overloaded, match="1000 tokens are waiting and this request brings 1; the queue holds 1000"):
        queue.check(1, 0.0, None, "bulk")
    queue.check(1000 // SMALL_SHARE, 0.0, None, "lone")
    with pytest.raises(Overloaded):
        queue.check(1000 // SMALL_SHARE + 1, 0.0, None, "lone")
    add(queue, "fill", [int(1000 * (HEADROOM - 1))], of="other")
    with pytest.raises(Overloaded):
        queue.check(1, 0.0, None, "lone")


async def test_bounds_requests_with_room_for_callers_with_few() -> None:
    queue = queue_of(max_cost=10_000, max_requests=100)
    for number in range(99):
        add(queue, f"{number}-", [1, 1], of="bulk")
    queue.reserve(1, "bulk")
    with pytest.raises(Overloaded, match="100 requests are waiting; the queue holds 100"):
        queue.check(1, 0.0, None, "bulk")
    queue.check(1, 0.0, None, "lone")
    queue.release(1, "bulk")
    queue.check(1, 0.0, None, "bulk")


async def test_remembers_few_of_many_callers() -> None:
    queue = queue_of(max_cost=10**9)
    add(queue, "bulk", [10] * 10, of="bulk")
    for number in range(2 * MAX_REMEMBERED):
        add(queue, "long", [100], of=f"{number}")
        taken(queue, 20)
    assert queue.remembered <= MAX_REMEMBERED + 3
    while queue.items:
        taken(queue, 100)
    assert queue.remembered == 0


@given(
    callers=st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=20), min_size=1, max_size=8),
    most=st.integers(1, 120),
)
def test_takes_every_item_once_within_the_budget(callers: list[list[int]], most: int) -> None:
    async def drain() -> None:
        queue, costs = queue_of(), {}
        for number, own in enumerate(callers):
            add(queue, f"{number}-", own)
            costs |= {f"{number}-{index}": cost for index, cost in enumerate(own)}
        seen: list[str] = []
        while queue.items:
            batch = taken(queue, most)
            assert sum(costs[item] for item in batch) <= most or len(batch) == 1
            seen += batch
            assert queue.cost == sum(cost for item, cost in costs.items() if item not in seen)
        assert sorted(seen) == sorted(costs)

    asyncio.run(drain())


async def test_refuses_a_request_that_others_would_delay_too_long() -> None:
    queue = queue_of(max_seconds=1.0)
    queue.drained(100, 1.0, full=True)  # 100 a second
    for number in range(15):
        add(queue, f"{number}-", [10])
    queue.check(1, 0.0, None)  # its share of the line is a tenth of that
    said = r"would delay this request by 1\.5 s; this server lets one wait 1 s"
    with pytest.raises(Overloaded, match=said) as refused:
        queue.check(10, 0.0, None)
    assert refused.value.retry_after == pytest.approx(0.5)


async def test_admits_a_retry_after_its_retry_after() -> None:
    queue = queue_of(max_seconds=2.0)
    queue.drained(100, 1.0, full=True)
    for number in range(25):
        add(queue, f"{number}-", [10])
    with pytest.raises(Overloaded) as refused:
        queue.check(10, 0.0, None)
    batches = math.ceil(refused.value.retry_after / 0.1)
    for _ in range(batches):  # a tenth of a second each
        taken(queue, 10)
    assert batches / 10 < 2.0  # while the line is still kept short
    queue.check(10, batches / 10, None)


async def overloaded(cost: int = 1) -> Queue:
    """A queue of 100 a second whose caller, with requests of this cost, has just been refused at 10 s."""
    queue = queue_of(max_cost=100_000, max_seconds=90.0)
    queue.drained(100, 1.0, full=True)
    while True:
        try:
            queue.check(cost, 10.0, None)
        except Overloaded:
            return queue
        add(queue, f"{queue.items}-", [cost])


def drain(queue: Queue, cost: float) -> None:
    while queue.cost > cost:
        taken(queue, 50)


CALM, SHORT, HOLD = 90.0 / CALM_FRACTION, 90.0 / OVERLOADED_FRACTION, 90.0 / HOLD_FRACTION


async def test_request_waits_for_as_many_like_it_and_some_seconds() -> None:
    assert (await overloaded()).cost == pytest.approx(100 * CALM + SLOWDOWN, abs=2)
    assert (await overloaded(10)).cost == pytest.approx(100 * CALM + 10 * SLOWDOWN, abs=20)
    assert (await overloaded(1000)).cost == 90 * 100 + 1000  # never longer than max_seconds


async def test_keeps_the_queue_short_while_it_must_refuse() -> None:
    queue = await overloaded()
    short = 100 * SHORT + SLOWDOWN
    drain(queue, short + 80)
    with pytest.raises(Overloaded):
        queue.check(1, 10.1, None)
    drain(queue, short)
    queue.check(1, 10.2, None)
    for number in range(100):
        add(queue, f"later{number}", [1])
    with pytest.raises(Overloaded):
        queue.check(1, 10.2, None)
    queue.check(1, 10.2 + HOLD, None)  # without a refusal for a while: patient again


async def test_long_requests_may_wait_even_while_others_are_refused() -> None:
    queue = await overloaded()
    queue.check(50, 10.0, None)  # half a second by itself
    with pytest.raises(Overloaded):
        queue.check(5, 10.0, None)


async def test_overload_by_one_caller_refuses_no_other() -> None:
    queue = await overloaded()
    add(queue, "bulk", [10] * 500, of="other")
    queue.check(10, 10.0, None, "other")
    with pytest.raises(Overloaded):
        queue.check(10, 10.0, None)


async def test_retries_of_a_crowd_are_told_one_after_the_other() -> None:
    queue, waits = queue_of(max_seconds=1.0), []
    queue.drained(100, 1.0, full=True)
    for number in range(11):
        add(queue, f"{number}-", [10])
    for _ in range(200):
        with pytest.raises(Overloaded) as refused:
            queue.check(10, 10.0, None)
        waits.append(refused.value.retry_after)
    apart = [later - earlier for earlier, later in itertools.pairwise(waits[:50])]
    assert apart == pytest.approx([0.1] * 49)  # the run time of one
    assert waits[-1] == MAX_RETRY_SECONDS


async def test_queue_always_holds_a_full_batch() -> None:
    queue = queue_of(10_000, 0.001, full_cost=500)
    queue.drained(500, 1.0, full=True)  # a second a batch
    add(queue, "a", [10])
    for number in range(70):
        add(queue, f"{number}-", [10])
    queue.check(10, 0.0, None)
    for number in range(30):
        add(queue, f"more{number}-", [10])
    with pytest.raises(Overloaded):
        queue.check(10, 0.0, None)


async def test_refuses_no_delay_before_a_full_batch_was_timed() -> None:
    queue = queue_of(max_seconds=0.001)
    queue.drained(1, 10.0, full=False)
    add(queue, "a", [500])
    queue.check(500, 0.0, None)


async def test_reservations_count_as_queued() -> None:
    queue = queue_of(max_cost=100)
    queue.check(300, 0.0, None)  # nothing waits
    queue.reserve(60)
    queue.check(40, 0.0, None)
    with pytest.raises(Overloaded, match="60 tokens are waiting and this request brings 41; the queue holds 100"):
        queue.check(41, 0.0, None)
    add(queue, "a", [10])
    with pytest.raises(Overloaded, match="70 tokens are waiting and this request brings 31; the queue holds 100"):
        queue.check(31, 0.0, None)
    queue.release(60)
    queue.check(90, 0.0, None)


async def test_reservations_delay_a_request_like_queued_items() -> None:
    queue = queue_of(max_seconds=1.0)
    queue.drained(100, 1.0, full=True)
    for _ in range(15):
        queue.reserve(10)
    with pytest.raises(Overloaded, match=r"would delay this request by 1\.5 s"):
        queue.check(10, 0.0, None)
    for _ in range(15):
        queue.release(10)
    assert queue.delay(10) == 0


async def test_full_queue_tells_when_there_is_room() -> None:
    queue = queue_of(max_cost=100)
    queue.drained(50, 1.0, full=True)
    add(queue, "a", [90])
    with pytest.raises(Overloaded) as refused:
        queue.check(35, 0.0, None)
    assert refused.value.retry_after == pytest.approx(25 / 50)


async def test_refuses_and_drops_items_that_would_be_late() -> None:
    queue = queue_of()
    queue.drained(10, 1.0, full=True)
    late, in_time = add(queue, "a", [5], deadline=1.0)[0], add(queue, "b", [5], deadline=9.0)[0]
    queue.check(10, 0.0, 2.0)
    with pytest.raises(DeadlineExceeded, match=r"1\.5 s are left and this needs about 2 s"):
        queue.check(10, 0.0, 1.5)
    assert taken(queue, 9, now=0.2) == ["b0"]  # a batch takes 0.9 s
    assert isinstance(late.exception(), DeadlineExceeded)
    assert in_time.done()


@pytest.mark.parametrize("behind", [0, 50])
async def test_drops_late_items_of_a_long_queue_in_their_turn(behind: int) -> None:
    queue = queue_of()
    queue.drained(10, 1.0, full=True)
    late = add(queue, "late", [10, 10, 10], deadline=1.5)
    add(queue, "b", [10] * (1 + behind))
    assert taken(queue, 20, now=1.0)[0] == "b0"
    assert all(isinstance(each.exception(), DeadlineExceeded) for each in late)
    assert queue.cost == max(0, 10 * behind - 10)


async def test_idle_queue_ignores_a_wrong_rate_and_corrects_it() -> None:
    queue = queue_of()
    queue.drained(512, 1000.0, full=True)  # one run that stood still
    queue.check(300, 0.0, 0.5)
    future = add(queue, "a", [300], deadline=0.5)[0]
    assert taken(queue, 512, now=0.0) == ["a0"]
    assert future.result() == "done"
    queue.drained(300, 0.01, full=False)
    assert queue.rate == pytest.approx(30_000)


async def test_idle_queue_refuses_items_that_are_already_late() -> None:
    queue = queue_of()
    with pytest.raises(DeadlineExceeded, match="the time allowed was over before this could wait"):
        queue.check(1, 1.0, 0.9)
    (late,) = add(queue, "a", [1], deadline=0.9)
    assert taken(queue, 10, now=1.0) == []
    assert isinstance(late.exception(), DeadlineExceeded)


class CountedFuture:
    """A future that counts how often any of its kind is looked at."""

    looks = 0

    def done(self) -> bool:
        CountedFuture.looks += 1
        return False


def test_taking_a_batch_looks_at_a_part_of_a_long_queue() -> None:
    queue = queue_of()
    for _ in range(20):
        times = ItemTimes()
        for index in range(1000):
            queue.add(f"{index}", 10, CountedFuture(), 0.0, times, None)  # type: ignore[arg-type]
    assert len(queue.take(500, 0.0)) == 50
    assert CountedFuture.looks < 1000
    assert queue.items == 20_000 - 50


async def test_drain_rate_follows_full_batches() -> None:
    queue = queue_of()
    queue.drained(5, 1.0, full=False)
    assert queue.rate is None
    for _ in range(50):
        queue.drained(100, 2.0, full=True)
    assert queue.rate == pytest.approx(50)
    queue.drained(1, 1.0, full=False)  # a lone item says nothing of what full batches do
    assert queue.rate == pytest.approx(50)
