"""The open-loop generator against small servers: what it sends when, and how it counts the answers."""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from loadtest.open_loop import Order, Tally, execute, retry_seconds

Answer = Callable[[int, asyncio.StreamWriter], Awaitable[None]]
VECTOR = b"x" * 64
RIGHT = b"HTTP/1.1 200 OK\r\nContent-Length: 64\r\n\r\n" + VECTOR
WITH_RETRY_AFTER = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n"
MILLISECONDS = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\nretry-after-ms: 300\r\ncontent-length: 0\r\n\r\n"
WITHOUT_RETRY_AFTER = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"
SHORT = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx"
FAULT = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n"


@asynccontextmanager
async def listening(answer: Answer) -> AsyncIterator[int]:
    """Run a server that passes every request, numbered from 0, to `answer`; yield its port."""
    number = count()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]))
                await answer(next(number), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def order(port: int, **fields: Any) -> Order:
    settings: dict[str, Any] = {"rate": 400.0, "seconds": 0.5, "warm_seconds": 0.0, "timeout_s": 5.0} | fields
    body = base64.b64encode(b"{}").decode()
    return Order(port, "/", {}, [body], response_bytes=64, connections=500, **settings)


async def executed(answer: Answer, **fields: Any) -> Tally:
    async with listening(answer) as port:
        return await execute(order(port, **fields))


async def test_sends_when_due_although_nothing_was_answered() -> None:
    held: list[asyncio.StreamWriter] = []

    async def hold(number: int, writer: asyncio.StreamWriter) -> None:
        held.append(writer)
        if number >= 99:
            while held:
                held.pop().write(RIGHT)

    tally = await executed(hold)
    assert tally.accepted == tally.due > 150
    assert tally.most_open >= 100
    # the first of a hundred waited for about 100 more arrivals, 400 a second
    assert tally.p99_ms is not None
    assert tally.p99_ms > 150


async def test_sends_at_the_ordered_rate() -> None:
    async def at_once(number: int, writer: asyncio.StreamWriter) -> None:
        writer.write(RIGHT)

    tally = await executed(at_once, rate=200.0, seconds=1.0)
    assert abs(tally.due - 200) < 5 * 200**0.5  # of a Poisson count, five standard deviations
    assert tally.accepted == tally.due
    assert tally.failed == {}


async def test_counts_each_kind_of_failure_apart() -> None:
    answers = (RIGHT, WITH_RETRY_AFTER, WITHOUT_RETRY_AFTER, SHORT, FAULT, b"")

    async def in_turns(number: int, writer: asyncio.StreamWriter) -> None:
        if (answer := answers[number % len(answers)]) == b"":
            writer.close()
        writer.write(answer)

    tally = await executed(in_turns)
    share = tally.due / len(answers)
    assert tally.with_retry_after == tally.refused / 2
    assert set(tally.failed) == {"short", "500", "cut off"}
    for failures in (tally.accepted, tally.refused / 2, *tally.failed.values()):
        assert abs(failures - share) <= 1


async def test_counts_requests_without_an_answer_as_timed_out() -> None:
    async def never(number: int, writer: asyncio.StreamWriter) -> None:
        pass

    tally = await executed(never, timeout_s=0.2)
    assert tally.failed == {"timed out": tally.due}
    assert tally.p50_ms is None
    assert tally.goodput == 0


async def test_retries_after_the_time_that_a_refusal_says() -> None:
    began: dict[int, float] = {}

    async def refuse_first(number: int, writer: asyncio.StreamWriter) -> None:
        writer.write(MILLISECONDS if number < 3 else RIGHT)
        began[number] = asyncio.get_running_loop().time()

    tally = await executed(refuse_first, retries=2, rate=6.0)
    assert (tally.refused, tally.accepted) == (0, tally.due)
    assert tally.due * tally.mean_tries >= tally.due + min(3, tally.due) - 0.1
    assert max(began.values()) - min(began.values()) >= 0.3


async def test_gives_up_when_its_retries_or_its_time_are_over() -> None:
    requests = 0

    async def refuse(number: int, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        requests += 1
        writer.write(MILLISECONDS)

    tally = await executed(refuse, retries=1)
    assert (tally.refused, tally.accepted) == (tally.due, 0)
    assert requests == 2 * tally.due
    tally = await executed(refuse, retries=100, timeout_s=0.29)  # less than it is told to wait
    assert tally.accepted == 0
    assert requests == 3 * tally.due  # by the same seed as many are due


async def test_each_client_gives_up_after_its_own_time() -> None:
    async def after_a_while(number: int, writer: asyncio.StreamWriter) -> None:
        asyncio.get_running_loop().call_later(0.5, writer.write, RIGHT)
        await asyncio.sleep(0.5)

    tally = await executed(after_a_while, timeouts_s=(0.1, 5.0))
    assert tally.accepted + tally.failed["timed out"] == tally.due
    assert min(tally.accepted, tally.failed["timed out"]) > tally.due / 4


def test_reads_the_wait_of_a_refusal_as_clients_do() -> None:
    assert retry_seconds(MILLISECONDS.lower()) == 0.3
    assert retry_seconds(WITH_RETRY_AFTER) == 1.0
    assert retry_seconds(WITHOUT_RETRY_AFTER) == 1.0
