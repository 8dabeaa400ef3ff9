"""Bulk requests use what interactive ones leave, and get a share of the time while both wait; on a virtual clock."""

import asyncio
from random import Random

import pytest

from service.errors import DeadlineExceeded, Overloaded
from service.request_context import BULK, RequestContext
from service.scheduling.admission import AdmissionController
from service.scheduling.callers import ItemTimes
from service.scheduling.fair_queue import FairQueue
from service.settings import Settings
from tests.service.scheduling.test_overload import BATCH, Server

SECONDS = 30
TEXTS = [62] * 16


def busy(server: Server, callers: dict[str, int], tokens: dict[str, int]) -> None:
    """Let callers send requests without pause, each on so many connections, and count the tokens of each."""

    async def connection(caller: str) -> None:
        while server.clock.now < SECONDS:
            try:
                await server.embed(TEXTS, caller)
                tokens[caller] = tokens.get(caller, 0) + sum(TEXTS)
            except Overloaded as refusal:
                await asyncio.sleep(refusal.retry_after or 1)

    async def main() -> None:
        await asyncio.gather(*[connection(caller) for caller, count in callers.items() for _ in range(count)])

    server.run(main())


@pytest.mark.parametrize("bulk", [1, 16])
def test_bulk_gets_its_share_while_others_wait(bulk: int) -> None:
    """As many callers as there are: the share is of the class."""
    tokens: dict[str, int] = {}
    callers = {f"{BULK}{number}": 1 for number in range(bulk)} | {"a": 8}
    busy(Server(8e3), callers, tokens)
    share = 1 - tokens["a"] / sum(tokens.values())
    assert share == pytest.approx(Settings().bulk_share, abs=0.04)


def test_bulk_gets_all_that_others_leave() -> None:
    tokens: dict[str, int] = {}
    busy(Server(8e3), {f"{BULK}a": 4}, tokens)
    assert tokens[f"{BULK}a"] >= 0.9 * 8e3 * SECONDS


def test_bulk_callers_share_evenly() -> None:
    tokens: dict[str, int] = {}
    busy(Server(8e3), {f"{BULK}a": 4, f"{BULK}b": 4, f"{BULK}c": 4}, tokens)
    assert max(tokens.values()) <= 1.2 * min(tokens.values())


def test_a_text_waits_for_no_bulk_but_the_run_under_way() -> None:
    """One text at a time beside sixteen bulk callers: a run of a full batch, and its own."""
    server, waits, random = Server(8e3), list[float](), Random(1)

    async def bulk(number: int) -> None:
        while server.clock.now < SECONDS:
            try:
                await server.embed(TEXTS * 4, f"{BULK}{number}")
            except Overloaded as refusal:
                await asyncio.sleep(refusal.retry_after or 1)

    async def user() -> None:
        while server.clock.now < SECONDS:
            await asyncio.sleep(random.uniform(0, 0.1))
            waits.append(await server.embed([16], "user"))

    async def main() -> None:
        await asyncio.gather(user(), *map(bulk, range(16)))

    server.run(main())
    assert sorted(waits)[len(waits) // 2] <= 1.5 * BATCH / 8e3
    assert max(waits) <= 2.5 * BATCH / 8e3


def queue_of(**options: float) -> FairQueue[int, int]:
    queue = FairQueue[int, int](1000, None, 10, 100, **options)
    queue.rate = 100.0
    return queue


def test_bulk_leaves_room_in_the_queue() -> None:
    queue = queue_of()
    queue.reserve(740, f"{BULK}a")
    with pytest.raises(Overloaded, match="the queue holds 750"):
        queue.check(20, 0.0, None, f"{BULK}b")
    queue.check(20, 0.0, None, "user")
    queue.check(200, 0.0, None, "user")


def test_bulk_leaves_room_among_the_requests() -> None:
    admission = AdmissionController(100)
    for number in range(75):
        admission.acquire(f"{BULK}{number}")
    with pytest.raises(Overloaded, match="bulk requests are being served; this server takes 75 at a time"):
        admission.acquire(f"{BULK}more")
    admission.acquire("user")
    admission.release(f"{BULK}0")
    admission.acquire(f"{BULK}more")


def test_queued_bulk_delays_others_by_its_share_alone() -> None:
    queue = queue_of(bulk_share=0.2)
    queue.reserve(400, f"{BULK}a")
    assert queue.delay(10, "user") == 0
    queue.reserve(100, "user")
    assert queue.delay(100, "other") == pytest.approx(1 / 0.8)
    assert queue.delay(100, f"{BULK}b") == pytest.approx((100 + 100) / 100)


async def test_a_long_bulk_item_is_not_starved() -> None:
    """One that is longer than a batch gets its turn once its share has grown to it."""
    queue = FairQueue[str, str](100_000, None, 10)
    loop = asyncio.get_running_loop()
    queue.add("long", 40, loop.create_future(), 0.0, ItemTimes(f"{BULK}a"), None)
    user, taken = ItemTimes("user"), list[str]()
    for number in range(100):
        for _ in range(2):
            queue.add(f"short {number}", 10, loop.create_future(), 0.0, user, None)
        taken += [item.item for item in queue.take(10, 0.0)]
        if "long" in taken:
            break
    # a tenth of the cost: 40 beside 360
    assert len(taken) == 37
    assert taken[-1] == "long"


# ---- the deadline of requests that name none


async def added(queue: FairQueue[str, str], caller: str, costs: list[int]) -> list["asyncio.Future[str]"]:
    loop, times = asyncio.get_running_loop(), ItemTimes(caller)
    futures = [loop.create_future() for _ in costs]
    for cost, future in zip(costs, futures, strict=True):
        queue.add("item", cost, future, 0.0, times, None)
    return futures


async def test_requests_without_a_deadline_have_max_seconds() -> None:
    queue = FairQueue[str, str](10_000, 30.0, 10)
    queue.rate = 100.0
    (late,) = await added(queue, "a", [10])
    assert queue.take(10, 30.1) != []  # its own work takes 0.1 s
    (late,) = await added(queue, "a", [10])
    assert queue.take(10, 30.3) == []
    with pytest.raises(DeadlineExceeded) as refused:
        late.result()
    assert str(refused.value.message) == (
        "this waited 30.3 s and is not done; a request that names no deadline has 30 s and the time of its own work: "
        "name a longer one, such as inlay-timeout-ms, send fewer inputs, or try again later"
    )


async def test_long_requests_have_the_time_of_their_own_work() -> None:
    """100 s by itself, and as long beside one other caller."""
    queue = FairQueue[str, str](100_000, 30.0, 10)
    queue.rate = 100.0
    futures = await added(queue, "a", [10] * 1000)
    assert len(queue.take(10, 229.0)) == 1
    assert queue.take(10, 231.0) == []
    assert sum(future.done() for future in futures) == 999


async def test_bulk_and_an_unknown_speed_have_no_such_deadline() -> None:
    queue = FairQueue[str, str](10_000, 30.0, 10)
    await added(queue, "a", [10])
    assert len(queue.take(10, 1000.0)) == 1
    queue.rate = 100.0
    await added(queue, f"{BULK}a", [10])
    assert len(queue.take(10, 1000.0)) == 1


def test_calls_become_bulk_once() -> None:
    call = RequestContext()
    call.show_key("key")
    call.make_bulk()
    call.make_bulk()
    assert (call.caller, call.key_name) == (f"{BULK}key", "key")
