"""Health and reflection, which need no key: their answers, the limit of their streams, and how a stop ends them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from service.grpc import health as health_service
from service.grpc.methods import Service
from service.grpc.server import RpcServer
from service.settings import Settings

NAME = "some.Service"
ASKED = health_pb2.HealthCheckRequest(service=NAME)
STATES = health_pb2.HealthCheckResponse
LIST = reflection_pb2.ServerReflectionRequest(list_services="")
PATIENCE = 3600.0  # of the stop: longer than any test
SECONDS = 60.0


@asynccontextmanager
async def listening(tmp_path: Path) -> AsyncIterator[tuple[RpcServer, Any]]:
    """A server whose stop waits an hour for calls in flight, and a channel to it."""
    server = RpcServer(
        Settings(store=tmp_path, grpc_port=0, shutdown_seconds=PATIENCE), [Service(name=NAME, methods=())]
    )
    port = await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield server, channel
    await server.stop()


async def ended(call: Any) -> tuple[list[Any], grpc.StatusCode]:
    """What still comes, and how it ends."""
    answers = []
    while (answer := await call.read()) is not grpc.aio.EOF:
        answers.append(answer)
    return answers, await call.code()


async def test_watchers_are_notified_of_a_stop_and_do_not_delay_it(tmp_path: Path) -> None:
    async with listening(tmp_path) as (server, channel):
        stub = health_pb2_grpc.HealthStub(channel)
        calls = [stub.Watch(health_pb2.HealthCheckRequest(service=name)) for name in (NAME, "", "unknown")]
        first = [(await call.read()).status for call in calls]
        assert first == [STATES.SERVING, STATES.SERVING, STATES.SERVICE_UNKNOWN]
        await asyncio.wait_for(server.stop(), SECONDS)
        last = [await ended(call) for call in calls]
        assert [[answer.status for answer in answers] for answers, _ in last] == [[STATES.NOT_SERVING]] * 2 + [[]]
        assert {code for _, code in last} == {grpc.StatusCode.OK}


async def test_watchers_stay_while_it_drains(tmp_path: Path) -> None:
    async with listening(tmp_path) as (server, channel):
        watch = health_pb2_grpc.HealthStub(channel).Watch(ASKED)
        assert (await watch.read()).status == STATES.SERVING
        server.health.drain()
        assert (await watch.read()).status == STATES.NOT_SERVING
        server.health.set(NAME, True)  # as the next look at the models does
        assert (await health_pb2_grpc.HealthStub(channel).Check(ASKED)).status == STATES.NOT_SERVING
        await asyncio.wait_for(server.stop(), SECONDS)
        assert await ended(watch) == ([], grpc.StatusCode.OK)


@pytest.mark.parametrize("asks", [0, 1])
async def test_open_reflection_stream_does_not_delay_a_stop(tmp_path: Path, asks: int) -> None:
    async with listening(tmp_path) as (server, channel):
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        for _ in range(asks):
            await call.write(LIST)
            listed = (await call.read()).list_services_response.service
            assert NAME in {each.name for each in listed}
        await health_pb2_grpc.HealthStub(channel).Check(ASKED)  # behind the stream: so that has begun
        await asyncio.wait_for(server.stop(), SECONDS)
        assert await ended(call) == ([], grpc.StatusCode.OK)


async def test_refuses_streams_over_the_limit_until_one_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_service, "MAX_STREAMS", 2)
    async with listening(tmp_path) as (_, channel):
        health = health_pb2_grpc.HealthStub(channel)
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        watch, reflected = health.Watch(ASKED), reflection.ServerReflectionInfo()
        await watch.read()
        await reflected.write(LIST)
        await reflected.read()
        for late in (health.Watch(ASKED), reflection.ServerReflectionInfo()):
            assert await ended_by_refusal(late) == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "2 streams" in await late.details()
        assert (await health.Check(ASKED)).status == STATES.SERVING
        watch.cancel()
        async with asyncio.timeout(SECONDS):
            while (again := health.Watch(ASKED)) and await first_status(again) is None:
                await again.code()
        again.cancel()


async def ended_by_refusal(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError):
        await ended(call)
    code: grpc.StatusCode = await call.code()
    return code


async def first_status(call: Any) -> int | None:
    """Of a watch; None where it was refused."""
    try:
        status: int = (await call.read()).status
    except grpc.aio.AioRpcError:
        return None
    return status


async def test_a_watch_sends_each_change_once(tmp_path: Path) -> None:
    async with listening(tmp_path) as (server, channel):
        call = health_pb2_grpc.HealthStub(channel).Watch(ASKED)
        states = [(await call.read()).status]
        for serving in (True, False, False, True):
            server.health.set(NAME, serving)
            if serving != (states[-1] == STATES.SERVING):
                states.append((await call.read()).status)
        assert states == [STATES.SERVING, STATES.NOT_SERVING, STATES.SERVING]
        call.cancel()


async def test_nothing_serves_again_after_a_stop_began(tmp_path: Path) -> None:
    async with listening(tmp_path) as (server, channel):
        health = health_pb2_grpc.HealthStub(channel)
        server.health.stop()
        server.health.set(NAME, True)
        listed = (await health.List(health_pb2.HealthListRequest())).statuses
        assert {name: each.status for name, each in listed.items()} == dict.fromkeys(["", NAME], STATES.NOT_SERVING)


async def test_an_unknown_service_is_not_found(tmp_path: Path) -> None:
    async with listening(tmp_path) as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="x"))
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
