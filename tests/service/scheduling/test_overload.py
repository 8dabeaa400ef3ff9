"""Ordinary ingestion and overload on a virtual clock, where a figure is a law of the scheduler and not of the machine.

`make overload` measures the same on a real server.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from statistics import mean, median, quantiles
from typing import Any

import pytest

from service.errors import DeadlineExceeded, Overloaded
from service.scheduling.admission import AdmissionController
from service.scheduling.batcher import RUN_SECONDS, Batcher
from service.scheduling.callers import OLDEST_SHARE, ItemTimes
from service.scheduling.deadlines import within
from service.scheduling.fair_queue import FairQueue
from service.settings import Settings
from tests.service.scheduling.virtual_time import Clock, run
from tests.sweeps import sampled

BATCH = 512  # tokens of an encoder on CPU
SHORT, LONG = 22, 130  # tokens of a text of 20 words, and of one of a hundred
ADDRESSES = 16
FIRST = 5.0  # seconds that are not counted
SECONDS = 30.0


class Engine(Executor):
    """One thread that computes `speed` tokens a second."""

    def __init__(self, speed: float) -> None:
        self.speed = speed

    def submit(self, compute: Callable[..., Any], /, *args: Any, **_: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        seconds = sum(args[0]) / self.speed
        asyncio.get_running_loop().call_later(seconds, lambda: future.set_result(compute(*args)))
        return future


@dataclass
class Server:
    """The scheduling of one encoder as it is by default."""

    speed: float
    clock: Clock = field(default_factory=Clock)
    refused: int = 0

    def __post_init__(self) -> None:
        settings = Settings()
        self.admission = AdmissionController(settings.max_concurrent_requests)
        self.batcher = Batcher[int, int](
            lambda items: items,
            FairQueue(
                settings.max_queue_tokens,
                settings.max_queue_seconds,
                BATCH,
                3 * settings.max_concurrent_requests // 4,
            ),
            max_batch_cost=BATCH,
            max_inline_cost=0,
            new_executor=lambda: Engine(self.speed),
            observe=lambda *_: None,
            clock=self.clock,
        )

    async def embed(self, lengths: Sequence[int], caller: str, timeout: float | None = None) -> float:
        """Return the seconds that a request of texts of these lengths took."""
        began = self.clock.now
        deadline = None if timeout is None else began + timeout
        futures: list[asyncio.Future[int]] = []
        try:
            with self.admission.admitted():
                async with within(deadline, self.clock):
                    futures = self.batcher.submit(lengths, lengths, ItemTimes(caller), deadline)
                    for future in futures:
                        await future
        except Overloaded:
            self.refused += 1
            raise
        finally:
            for future in futures:
                future.cancel()
        return self.clock.now - began

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        failures: list[Any] = []
        run(main, self.clock, lambda: None, failures.append)
        assert failures == []


FLOODS: dict[str, Callable[[Random], list[int]]] = {
    "bulk": lambda random: [62] * 64,
    "mixed lengths": lambda random: [random.randint(7, 260) for _ in range(64)],
    "mixed sizes": lambda random: [62] * random.choice((2, 8, 32, 128)),
    "long texts": lambda random: [256] * 4,
}


@pytest.mark.parametrize(
    ("flood", "speed"), sampled([(name, speed) for name in FLOODS for speed in (8e3, 16e3)], 4, unpack=True)
)
def test_a_text_beside_its_callers_flood_is_quick(flood: str, speed: float) -> None:
    server, random, waits = Server(speed), Random(1), list[float]()

    async def connection() -> None:
        while server.clock.now < SECONDS:
            await server.embed(FLOODS[flood](random), "127.0.0.1")

    async def user() -> None:
        while server.clock.now < SECONDS:
            await asyncio.sleep(random.uniform(0, 0.02))
            waits.append(await server.embed([SHORT], "127.0.0.1"))

    async def main() -> None:
        await asyncio.gather(user(), *[connection() for _ in range(16)])

    server.run(main())
    assert server.refused == 0
    assert median(waits) <= 1.2 * SHORT / speed  # it runs beside the run under way
    assert quantiles(waits, n=100)[98] <= 1.2 * max(RUN_SECONDS, 260 / speed)  # or waits for a part of it


def test_requests_of_like_size_end_in_the_order_of_arrival() -> None:
    server, random, ended = Server(8000.0), Random(1), list[int]()

    async def connection(number: int) -> None:
        await server.embed([random.randint(55, 65) for _ in range(64)], "127.0.0.1")
        ended.append(number)

    server.run(all_of([connection(number) for number in range(16)]))
    assert ended == list(range(16))


def test_bulks_that_wait_for_half_of_the_queue_get_answers() -> None:
    server, answered = Server(8000.0), list[float]()

    async def connection() -> None:
        while server.clock.now < SECONDS:
            with suppress(DeadlineExceeded, TimeoutError):
                async with asyncio.timeout(4.0):  # 16 of them would take eight seconds
                    answered.append(await server.embed([62] * 64, "127.0.0.1"))

    server.run(all_of([connection() for _ in range(16)]))
    assert len(answered) * 62 * 64 >= 0.3 * SECONDS * server.speed  # in equal shares none would get one


def test_large_request_ends_beside_any_number_of_small_ones() -> None:
    server, waits = Server(8000.0), list[float]()

    async def connection() -> None:
        while not waits:
            await server.embed([SHORT] * 4, "127.0.0.1")

    async def large() -> None:
        waits.append(await server.embed([62] * 64, "127.0.0.1"))

    server.run(all_of([large(), *[connection() for _ in range(64)]]))
    assert waits[0] <= 1.1 * (OLDEST_SHARE + 1) * 62 * 64 / server.speed


async def all_of(tasks: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Wait for tasks."""
    await asyncio.gather(*tasks)


def test_bulks_of_three_callers_are_served_beside_one_another() -> None:
    server, random = Server(8000.0), Random(1)

    async def thread(caller: str) -> None:
        await server.embed([random.randint(7, 260) for _ in range(32)], caller)

    server.run(all_of([thread(f"10.0.0.{number % 3}") for number in range(54)]))  # 29 s
    assert server.refused == 0


@dataclass
class Outcome:
    """What became of clients that came after FIRST seconds."""

    good: float = 0.0  # texts answered in a second, of those that the engine can do
    waits: list[float] = field(default_factory=list)
    tries: list[int] = field(default_factory=list)
    gave_up: int = 0


def arrivals(multiple: float, tokens: int, timeouts: Sequence[float], retries: int = 0, seed: int = 1) -> Outcome:
    """Let single texts come as a Poisson process at a multiple of what the engine can do."""
    server, random, outcome = Server(5500.0), Random(seed), Outcome()
    end, capacity, answered = FIRST + SECONDS, server.speed / tokens, 0

    async def client(number: int) -> None:
        nonlocal answered
        began, tries, until = server.clock.now, 0, server.clock.now + random.choice(timeouts)
        try:
            async with asyncio.timeout_at(until):
                while True:
                    tries += 1
                    try:
                        await server.embed([tokens], f"127.0.0.{number % ADDRESSES}")
                        break
                    except Overloaded as refused:
                        if tries > retries:
                            return
                        await asyncio.sleep(refused.retry_after or 1.0)
        except TimeoutError:
            outcome.gave_up += began >= FIRST
            return
        answered += FIRST <= server.clock.now < end
        if began >= FIRST:
            outcome.waits.append(server.clock.now - began)
            outcome.tries.append(tries)

    async def main() -> None:
        clients = set()
        number = 0
        while server.clock.now < end:
            await asyncio.sleep(random.expovariate(multiple * capacity))
            clients.add(asyncio.create_task(client(number)))
            number += 1
        await asyncio.gather(*clients)

    server.run(main())
    outcome.good = answered / SECONDS / capacity
    return outcome


@pytest.mark.parametrize(
    ("multiple", "tokens"), sampled([(4.0, SHORT), (2.0, LONG), (4.0, LONG), (8.0, LONG), (2.0, SHORT)], 5, unpack=True)
)
def test_goodput_stays_under_overload(multiple: float, tokens: int) -> None:
    outcome = arrivals(multiple, tokens, [10.0])
    assert outcome.good >= 0.95
    assert outcome.gave_up <= len(outcome.waits) / 5
    assert median(outcome.waits) <= 3.0


def test_goodput_stays_when_clients_give_up_early() -> None:
    outcome = arrivals(4.0, LONG, [1.0, 3.0, 10.0, 30.0])
    assert outcome.good >= 0.9


@pytest.mark.parametrize(("tokens", "timeout"), [(SHORT, 1.0), (LONG, 0.3)])
def test_goodput_stays_when_callers_state_deadlines(tokens: int, timeout: float) -> None:
    server, random, answered = Server(5500.0), Random(1), list[float]()

    async def client(number: int) -> None:
        with suppress(DeadlineExceeded):
            answered.append(await server.embed([tokens], f"127.0.0.{number % ADDRESSES}", timeout))

    async def main() -> None:
        async with asyncio.TaskGroup() as clients:
            number = 0
            while server.clock.now < SECONDS:
                await asyncio.sleep(random.expovariate(2 * server.speed / tokens))
                clients.create_task(client(number))
                number += 1

    server.run(main())
    assert len(answered) * tokens >= 0.95 * SECONDS * server.speed
    assert max(answered) <= timeout


def test_goodput_stays_when_clients_retry_as_told() -> None:
    outcome = arrivals(4.0, LONG, [30.0], retries=2)
    assert outcome.good >= 0.95


def test_crowd_that_retries_as_told_is_served() -> None:
    server, tries = Server(5500.0), list[int]()

    async def client(number: int) -> None:
        for attempt in range(1, 101):
            try:
                await server.embed([SHORT], f"127.0.0.{number % ADDRESSES}")
                tries.append(attempt)
                return
            except Overloaded as refused:
                await asyncio.sleep(refused.retry_after or 1.0)

    async def main() -> None:
        await server.embed([SHORT] * 100, "127.0.0.1")  # so that the rate is known
        await asyncio.gather(*[client(number) for number in range(3000)])

    server.run(main())
    assert len(tries) == 3000
    assert mean(tries) <= 4
    assert server.clock.now <= 1.2 * 3100 * SHORT / server.speed
