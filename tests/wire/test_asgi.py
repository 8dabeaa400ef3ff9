"""The plain ASGI pieces: bounded bodies, and clients that leave."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from service.errors import BodyTooLarge
from service.wire.asgi import ClientGone, Patrol, Receive, read_body

GONE = {"type": "http.disconnect"}


async def unless_gone(patrol, work, receive):
    with patrol.watch(receive):
        return await work


def receiving(messages: Iterable[dict[str, Any]]) -> Receive:
    left = iter(messages)

    async def receive() -> dict[str, Any]:
        return next(left)

    return receive


def piece(body: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


@pytest.mark.parametrize(
    "messages", [[piece(b"abcd", False)], [piece(b"ab"), piece(b"cd", False)], [piece(b"abcd"), piece(b"", False)]]
)
async def test_a_body_is_read_whole(messages: list[dict[str, Any]]) -> None:
    assert await read_body(receiving(messages), None, 4) == b"abcd"


async def test_a_body_declared_too_large_is_refused_unread() -> None:
    with pytest.raises(BodyTooLarge, match="5 bytes"):
        await read_body(receiving([]), b"5", 4)


@pytest.mark.parametrize("messages", [[piece(b"abcde", False)], [piece(b"abc"), piece(b"de"), piece(b"", False)]])
async def test_a_body_is_refused_as_soon_as_it_is_too_large(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(BodyTooLarge):
        await read_body(receiving(messages), None, 4)


@pytest.mark.parametrize("messages", [[GONE], [piece(b"ab"), GONE]])
async def test_a_client_that_leaves_while_sending_is_no_fault(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(ClientGone):
        await read_body(receiving(messages), None, 4)


async def test_a_client_that_leaves_while_waiting_has_its_work_cancelled() -> None:
    work: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wait() -> int:
        return await work

    with pytest.raises(ClientGone):
        await asyncio.wait_for(unless_gone(Patrol(), wait(), receiving([GONE])), 10)
    assert work.cancelled()


async def test_a_client_that_stays_gets_its_answer_and_leaves_no_watcher() -> None:
    watched = asyncio.Event()

    async def receive() -> dict[str, Any]:
        watched.set()
        await asyncio.Event().wait()  # a client that says nothing more
        raise AssertionError

    async def wait_to_be_watched() -> int:
        await watched.wait()
        return 7

    assert await asyncio.wait_for(unless_gone(Patrol(), wait_to_be_watched(), receive), 10) == 7
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)


async def test_a_quick_answer_starts_no_watcher() -> None:
    async def answer() -> int:
        return 7

    assert await unless_gone(Patrol(), answer(), receiving([])) == 7


async def test_a_cancellation_from_elsewhere_is_passed_on() -> None:
    async def wait() -> int:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    async def silent() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    task = asyncio.create_task(unless_gone(Patrol(), wait(), silent))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_patrol_rests_when_nobody_waits() -> None:
    async def answer() -> int:
        return 7

    patrol, loop = Patrol(interval_seconds=0), asyncio.get_running_loop()
    await unless_gone(patrol, answer(), receiving([]))
    rested = loop.create_future()
    loop.call_later(0, lambda: loop.call_later(0, rested.set_result, None))
    await rested
    assert not patrol._patrolling
