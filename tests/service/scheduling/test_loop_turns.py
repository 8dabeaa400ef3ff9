"""Large bodies that are readable at once begin over several passes of the event loop; callers take turns."""

import asyncio
from contextlib import AsyncExitStack

from service.http.response import Response
from service.http.routes import Request
from service.scheduling.loop_turns import TURN_BYTES, LoopTurns
from tests.service.http.toy_server import connected, request, route, running

LARGE = request(b"POST /large", body=b"a" * TURN_BYTES)
MANY = 64


async def begin(turns: LoopTurns, size: int, name: str, begun: list[str]) -> None:
    await turns.wait(size, name)
    begun.append(name)


async def test_small_request_is_answered_before_many_large_ones_began() -> None:
    begun: list[Request] = []

    async def large(request: Request) -> Response:
        begun.append(request)
        return Response((b"large",))

    async def small(request: Request) -> Response:
        return Response((b"small",))

    routes = [route("/large", large, "POST"), route("/small", small)]
    async with running(routes) as toy, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(toy.port)) for _ in range(MANY + 1)]
        for client in clients[1:]:
            await client.send(LARGE[:-1])
        for client in clients[1:]:
            client.writer.write(LARGE[-1:])
        clients[0].writer.write(request(b"GET /small"))
        assert (await clients[0].answer())[2] == b"small"
        assert len(begun) < MANY // 2
        for client in clients[1:]:
            assert (await client.answer())[2] == b"large"


async def test_callers_take_turns() -> None:
    turns, begun = LoopTurns(), list[str]()
    tasks = [asyncio.create_task(begin(turns, TURN_BYTES, name, begun)) for name in ["a"] * 5 + ["b"] * 2]
    await asyncio.gather(*tasks)
    assert begun == ["a", "a", "b", "a", "b", "a", "a"]


async def test_caller_that_left_takes_no_turn() -> None:
    turns, begun = LoopTurns(), list[str]()
    tasks = [asyncio.create_task(begin(turns, TURN_BYTES, name, begun)) for name in "abc"]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.wait(tasks)
    assert begun == ["a", "c"]
    await begin(turns, TURN_BYTES, "d", begun)
    assert begun[-1] == "d"
