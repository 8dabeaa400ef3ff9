"""Who joins the line, who goes next, what a refused caller is told."""

import asyncio
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import DeadlineExceeded, Overloaded
from service.scheduling.fair_queue import (
    OVERLOADED_PART,
    SLOWDOWN,
    Line,
    Spent,
)


def line(max_cost: int = 1000, max_seconds: float | None = None) -> Line[str, str]:
    return Line(max_cost, max_seconds)


def add(to: Line[str, str], caller: str, costs: Sequence[int], deadline: float | None = None) -> list[asyncio.Future]:
    loop = asyncio.get_running_loop()
    futures = [loop.create_future() for _ in costs]
    to.add([f"{caller}{number}" for number in range(len(costs))], costs, futures, 0.0, Spent(), deadline)
    return futures


def taken(of: Line[str, str], most: int, now: float = 0.0) -> list[str]:
    batch = of.take(most, now)
    for each in batch:
        each.future.set_result("done")
    return [each.item for each in batch]


async def test_one_text_does_not_wait_for_the_thousand_before_it():
    waiting = line()
    add(waiting, "bulk", [10] * 100)
    taken(waiting, 20)
    add(waiting, "lone", [10])
    assert "lone0" in taken(waiting, 20)


async def test_a_thousand_texts_are_not_starved_by_single_ones_that_keep_coming():
    waiting = line()
    add(waiting, "bulk", [10] * 30)
    served = []
    for number in range(60):
        add(waiting, f"single{number}-", [10])
        add(waiting, f"other{number}-", [10])
        served += taken(waiting, 20)
    assert sum(name.startswith("bulk") for name in served) >= 10  # of its 30, against two new callers a batch


@given(
    callers=st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=20), min_size=1, max_size=8),
    most=st.integers(1, 120),
)
def test_every_item_is_taken_once_within_the_budget(callers: list[list[int]], most: int) -> None:
    async def drain() -> None:
        waiting, costs = line(), {}
        for number, own in enumerate(callers):
            add(waiting, f"{number}-", own)
            costs |= {f"{number}-{index}": cost for index, cost in enumerate(own)}
        seen: list[str] = []
        while waiting.items:
            batch = taken(waiting, most)
            assert sum(costs[item] for item in batch) <= most or len(batch) == 1
            seen += batch
            assert waiting.cost == sum(cost for item, cost in costs.items() if item not in seen)
        assert sorted(seen) == sorted(costs)

    asyncio.run(drain())


async def test_a_caller_that_left_costs_nothing():
    waiting = line()
    gone, _ = add(waiting, "a", [5, 5])
    gone.cancel()
    assert taken(waiting, 100) == ["a1"]
    assert waiting.cost == 0


async def test_a_newcomer_is_refused_once_others_would_delay_it_too_long_and_told_how_long():
    waiting = line(max_seconds=1.0)
    waiting.drained(100, 1.0, full=True)  # 100 a second
    for number in range(15):
        add(waiting, f"{number}-", [10])
    waiting.check(1, 0.0, None)  # its share of the line is a tenth of that
    waiting.check(100, 0.0, None)  # it takes a second by itself, so it may wait longer
    said = r"would delay this request by 1\.5 s; this server lets one wait 0\.53 s"
    with pytest.raises(Overloaded, match=said) as refused:
        waiting.check(10, 0.0, None)
    assert refused.value.retry_after == pytest.approx(1.5 - 1.0 / OVERLOADED_PART - SLOWDOWN * 0.1)


async def test_who_comes_back_when_it_was_told_to_is_let_in():
    waiting = line(max_seconds=2.0)
    waiting.drained(100, 1.0, full=True)
    for number in range(25):
        add(waiting, f"{number}-", [10])
    with pytest.raises(Overloaded) as refused:
        waiting.check(10, 0.0, None)
    batches = math.ceil(refused.value.retry_after / 0.1)
    for _ in range(batches):  # a tenth of a second each
        taken(waiting, 10)
    assert batches / 10 < 2.0  # while the line is still kept short
    waiting.check(10, batches / 10, None)


async def test_from_the_first_refusal_the_line_is_kept_short_until_none_was_needed():
    waiting = line(max_cost=10_000, max_seconds=1.0)
    waiting.drained(1000, 1.0, full=True)
    for number in range(150):
        add(waiting, f"{number}-", [10])
    assert not waiting.overloaded(10.0)
    with pytest.raises(Overloaded):
        waiting.check(10, 10.0, None)
    while waiting.cost > 300:
        taken(waiting, 100)
    with pytest.raises(Overloaded):
        waiting.check(10, 10.9, None)  # 0.3 s would have done before
    while waiting.cost > 100:
        taken(waiting, 100)
    waiting.check(10, 11.8, None)
    assert waiting.overloaded(11.8)
    assert not waiting.overloaded(12.0)
    for number in range(80):
        add(waiting, f"later{number}-", [10])
    waiting.check(10, 12.0, None)  # a second without a refusal: patient again


async def test_a_line_is_never_too_short_for_full_batches():
    waiting: Line[str, str] = Line(10_000, 0.001, full_cost=500)
    waiting.drained(500, 1.0, full=True)  # a second a batch
    add(waiting, "a", [10])
    for number in range(70):
        add(waiting, f"{number}-", [10])
    waiting.check(10, 0.0, None)
    for number in range(30):
        add(waiting, f"more{number}-", [10])
    with pytest.raises(Overloaded):
        waiting.check(10, 0.0, None)


async def test_nobody_is_refused_for_time_before_a_full_batch_was_timed():
    waiting = line(max_seconds=0.001)
    waiting.drained(1, 10.0, full=False)
    add(waiting, "a", [500])
    waiting.check(500, 0.0, None)


async def test_what_is_promised_counts_as_waiting():
    waiting = line(max_cost=100)
    add(waiting, "a", [10])
    waiting.promise(60)
    waiting.check(30, 0.0, None)
    with pytest.raises(Overloaded, match="70 tokens are waiting and this request brings 31; the queue holds 100"):
        waiting.check(31, 0.0, None)


async def test_what_is_promised_counts_where_nothing_waits_yet():
    waiting = line(max_cost=100)
    waiting.promise(60)
    waiting.check(40, 0.0, None)
    with pytest.raises(Overloaded, match="60 tokens are waiting and this request brings 41; the queue holds 100"):
        waiting.check(41, 0.0, None)
    waiting.redeem(60)
    waiting.check(41, 0.0, None)


async def test_callers_whose_work_is_promised_delay_a_newcomer_like_those_that_wait():
    waiting = line(max_seconds=1.0)
    waiting.drained(100, 1.0, full=True)
    for _ in range(15):
        waiting.promise(10)
    with pytest.raises(Overloaded, match=r"would delay this request by 1\.5 s"):
        waiting.check(10, 0.0, None)
    for _ in range(15):
        waiting.redeem(10)
    assert waiting.delay(10) == 0


async def test_a_full_line_says_when_there_is_room_by_the_rate_it_drains_at():
    waiting = line(max_cost=100)
    waiting.drained(50, 1.0, full=True)
    add(waiting, "a", [90])
    with pytest.raises(Overloaded) as refused:
        waiting.check(35, 0.0, None)
    assert refused.value.retry_after == pytest.approx(25 / 50)


async def test_work_that_cannot_be_done_in_time_is_refused_at_the_door_and_dropped_in_the_line():
    waiting = line()
    waiting.drained(10, 1.0, full=True)
    late, in_time = add(waiting, "a", [5], deadline=1.0)[0], add(waiting, "b", [5], deadline=9.0)[0]
    waiting.check(10, 0.0, 2.0)
    with pytest.raises(DeadlineExceeded, match=r"1\.5 s are left and this needs about 2 s"):
        waiting.check(10, 0.0, 1.5)
    assert taken(waiting, 100, now=0.9) == ["b0"]
    assert isinstance(late.exception(), DeadlineExceeded)
    assert in_time.done()


@pytest.mark.parametrize("behind", [0, 50])
async def test_of_a_line_longer_than_a_batch_late_items_are_dropped_in_their_turn(behind):
    waiting = line()
    waiting.drained(10, 1.0, full=True)
    late = add(waiting, "late", [10, 10, 10], deadline=1.5)
    add(waiting, "b", [10] * (1 + behind))
    assert taken(waiting, 20, now=1.0)[0] == "b0"
    assert all(isinstance(each.exception(), DeadlineExceeded) for each in late)
    assert waiting.cost == max(0, 10 * behind - 10)


async def test_where_nothing_waits_a_rate_refuses_nobody_and_is_corrected():
    waiting = line()
    waiting.drained(512, 1000.0, full=True)  # one run that stood still
    waiting.check(300, 0.0, 0.5)
    future = add(waiting, "a", [300], deadline=0.5)[0]
    assert taken(waiting, 512, now=0.0) == ["a0"]
    assert future.result() == "done"
    waiting.drained(300, 0.01, full=False)
    assert waiting.rate == pytest.approx(30_000)


async def test_what_is_already_late_is_refused_and_dropped_even_where_nothing_waits():
    waiting = line()
    with pytest.raises(DeadlineExceeded, match="the time allowed was over before this could wait"):
        waiting.check(1, 1.0, 0.9)
    (late,) = add(waiting, "a", [1], deadline=0.9)
    assert taken(waiting, 10, now=1.0) == []
    assert isinstance(late.exception(), DeadlineExceeded)


async def test_a_caller_that_adds_its_items_one_by_one_gets_no_larger_share():
    waiting, spent, loop = line(), Spent(), asyncio.get_running_loop()
    for number in range(100):
        waiting.add([f"bulk{number}"], [10], [loop.create_future()], 0.0, spent, None)
    taken(waiting, 20)
    add(waiting, "lone", [10])
    assert "lone0" in taken(waiting, 20)
    assert waiting.delay(10) == 0  # no rate
    waiting.drained(100, 1.0, full=True)
    assert waiting.delay(10) == pytest.approx(0.1)  # one caller is ahead


class Asked:
    """A future that counts how often any of its kind is looked at."""

    looks = 0

    def done(self) -> bool:
        Asked.looks += 1
        return False


def test_a_batch_is_made_without_a_look_at_all_that_waits():
    waiting = line()
    for number in range(20):
        items = [f"{number}-{index}" for index in range(1000)]
        waiting.add(items, [10] * 1000, [Asked() for _ in items], 0.0, Spent(), None)
    assert len(waiting.take(500, 0.0)) == 50
    assert Asked.looks < 1000
    assert waiting.items == 20_000 - 50


async def test_the_drain_rate_follows_full_batches():
    waiting = line()
    waiting.drained(5, 1.0, full=False)
    assert waiting.rate is None
    for _ in range(50):
        waiting.drained(100, 2.0, full=True)
    assert waiting.rate == pytest.approx(50)
    waiting.drained(1, 1.0, full=False)  # a lone item says nothing of what full batches do
    assert waiting.rate == pytest.approx(50)
