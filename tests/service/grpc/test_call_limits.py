"""The limit of calls under way, and the refusal of calls above it, on real sockets."""

import asyncio
import gc
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from proto import embed_pb2 as pb
from proto import open_inference_pb2 as oip
from proto.embed_pb2_grpc import EmbedderStub
from proto.open_inference_pb2_grpc import GRPCInferenceServiceStub
from service.grpc.call_limits import CALLS_PER_REQUEST
from service.grpc.calls import Shared
from service.grpc.methods import Method, Service
from service.grpc.server import RpcServer
from service.observability.metrics import Metrics
from service.protocols.oip.errors import grpc_status
from service.scheduling.admission import AdmissionController
from service.settings import Settings
from tests.served import serving_here


class Held:
    """A service whose requests wait to be let go: one method of one request, one of many, one probe."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.go = asyncio.Event()
        self.arrived: asyncio.Queue[str] = asyncio.Queue()
        self.read: list[bytes] = []
        self.probe_seconds = 0.0  # that a probe holds the event loop

    async def _one(self, request: pb.EmbedRequest, call: Any) -> pb.EmbedResponse:
        self.arrived.put_nowait("request")
        await self.go.wait()
        return pb.EmbedResponse(model=request.model)

    async def _probe(self, request: Any, call: Any) -> pb.EmbedResponse:
        time.sleep(self.probe_seconds)
        return pb.EmbedResponse(model="probe")

    def _kind(self) -> Any:
        held = self

        class Kind:
            DESCRIPTOR = pb.EmbedRequest.DESCRIPTOR

            @staticmethod
            def FromString(data: bytes) -> pb.EmbedRequest:
                held.read.append(data)
                return pb.EmbedRequest.FromString(data)

        return Kind

    def service(self) -> Service:
        kind = self._kind()
        methods = (
            Method(name="One", request=kind, handler=self._one),
            Method(name="Many", request=kind, handler=self._one, kind="bidirectional"),
            Method(name="Probe", request=kind, handler=self._probe, probe=True),
        )
        return Service(name="some.Service", methods=methods, metric_prefix="some.", status_of=grpc_status)


@asynccontextmanager
async def listening(
    held: Held, tmp_path: Path, client_seconds: float = 30.0, **changes: Any
) -> AsyncIterator[grpc.aio.Channel]:
    """Serve `held` with room for one request."""
    chosen = {"max_concurrent_requests": 1} | changes
    settings = Settings(store=tmp_path, grpc_port=0, client_seconds=client_seconds, **chosen)
    server = RpcServer(
        settings, [held.service()], Shared(held.metrics, AdmissionController(settings.max_concurrent_requests))
    )
    port = await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        held.go.set()
        await server.stop()


@pytest.mark.parametrize("probe_seconds", [0.0, 0.04])
async def test_answers_calls_that_arrived_before_the_stop(tmp_path: Path, probe_seconds: float) -> None:
    """grpc's core keeps them till Python asks for the next, which a busy process does late, and cancels the others."""
    held = Held()
    held.probe_seconds = probe_seconds
    server = RpcServer(Settings(store=tmp_path, grpc_port=0), [held.service()])
    port = await server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:  # of threads of its own
        probe = channel.unary_unary("/some.Service/Probe")
        await asyncio.to_thread(probe, b"")
        calls = [probe.future(b"") for _ in range(6)]
        time.sleep(0.3)
        await server.stop()
        assert [call.code() for call in calls] == [grpc.StatusCode.OK] * len(calls)


async def fill(held: Held, channel: grpc.aio.Channel, method: str) -> list[Any]:
    """As many calls as there is room for, all with the service."""
    calls = [channel.stream_stream(f"/some.Service/{method}")(iter([b""])) for _ in range(CALLS_PER_REQUEST)]
    for _ in calls:
        await held.arrived.get()
    return calls


async def refusal(channel: grpc.aio.Channel, method: str) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await channel.unary_unary(f"/some.Service/{method}")(b"\x12\x05never")
    return refused.value


async def test_refuses_a_call_over_the_limit_before_reading_it(tmp_path: Path) -> None:
    held = Held()
    async with listening(held, tmp_path) as channel:
        calls = await fill(held, channel, "One")
        refused = await refusal(channel, "One")
        assert refused.code() is grpc.StatusCode.UNAVAILABLE  # as the service's protocol has it
        assert refused.details() == "2 calls are under way; this server takes 2 at a time: try again in a moment"
        metadata = dict(refused.trailing_metadata())
        assert (metadata["inlay-code"], metadata["grpc-retry-pushback-ms"]) == ("overloaded", "1000")
        assert "x-request-id" in metadata
        assert held.read == [b"", b""]
        held.go.set()
        assert [len([answer async for answer in call]) for call in calls] == [1, 1]
        for _ in range(5 * CALLS_PER_REQUEST):  # whoever ended has left
            assert await channel.unary_unary("/some.Service/One")(b"\x12\x01x") == b"\x0a\x01x"
    text = held.metrics.text().decode()
    assert 'inlay_requests_total{method="some.One",protocol="grpc",status="UNAVAILABLE"} 1.0' in text
    assert 'inlay_refusals_total{reason="overloaded"} 1.0' in text


@pytest.mark.parametrize(("full", "free"), [("One", "Many"), ("Many", "One")])
async def test_requests_streams_and_probes_have_places_of_their_own(tmp_path: Path, full: str, free: str) -> None:
    held = Held()
    async with listening(held, tmp_path) as channel:
        await fill(held, channel, full)
        assert (await refusal(channel, full)).code() is grpc.StatusCode.UNAVAILABLE
        assert await channel.unary_unary("/some.Service/Probe")(b"") == b"\x0a\x05probe"
        health = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
        held.go.set()
        assert await channel.unary_unary(f"/some.Service/{free}")(b"\x12\x01x") == b"\x0a\x01x"


@pytest.mark.parametrize("method", ["One", "Many"])
async def test_silent_calls_give_their_places_to_others(tmp_path: Path, method: str) -> None:
    held = Held()
    held.go.set()
    never = asyncio.Event()

    async def silent() -> AsyncIterator[bytes]:
        await never.wait()
        yield b""

    async with listening(held, tmp_path, client_seconds=2.0) as channel:
        calls = [channel.stream_stream(f"/some.Service/{method}")(silent()) for _ in range(CALLS_PER_REQUEST)]
        for call in calls:
            await call.wait_for_connection()
        answer = channel.unary_unary(f"/some.Service/{method}")
        assert (await refusal(channel, method)).code() is grpc.StatusCode.UNAVAILABLE
        async with asyncio.timeout(10):
            while await answer(b"").code() is grpc.StatusCode.UNAVAILABLE:
                pass
        for _ in range(5 * CALLS_PER_REQUEST):
            assert await answer(b"\x12\x01x") == b"\x0a\x01x"
        for call in calls:
            call.cancel()


async def test_a_call_whose_message_arrived_keeps_its_place(tmp_path: Path) -> None:
    held = Held()
    async with listening(held, tmp_path, client_seconds=0.001) as channel:
        calls = await fill(held, channel, "One")
        for _ in range(20):
            await refusal(channel, "One")
        held.go.set()
        assert [len([answer async for answer in call]) for call in calls] == [1, 1]


async def test_a_cancelled_call_gives_its_place_back(tmp_path: Path) -> None:
    held = Held()
    async with listening(held, tmp_path) as channel:
        for call in await fill(held, channel, "One"):
            call.cancel()
        while not await arrives(held, channel):
            pass


async def arrives(held: Held, channel: grpc.aio.Channel) -> bool:
    """Return whether a call is accepted."""
    call = channel.unary_unary("/some.Service/One")(b"")
    taken, ended = asyncio.create_task(held.arrived.get()), asyncio.create_task(call.code())
    await asyncio.wait((taken, ended), return_when=asyncio.FIRST_COMPLETED)
    taken.cancel()
    return not ended.done()


# ---- admission


async def test_tables_are_admitted_once_and_released(tiny_store: Path) -> None:
    async with serving_here(tiny_store, default_model="bert", max_concurrent_requests=1) as here:
        admission = here.context.admission
        async with AsyncExitStack() as stack:
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(here.rpc_address))
            stub = EmbedderStub(channel)
            positions = pb.PositionsRequest(scheme="sinusoidal")
            positions.parameters.update({"length": 4, "dim": 8})
            rope = pb.PositionsRequest(scheme="rope", model="llama")
            rope.parameters.update({"length": 4})
            requests = [
                lambda: stub.Positions(positions).read(),
                lambda: stub.Positions(rope).read(),
                lambda: stub.Similar(pb.SimilarRequest(token_id=5)),
            ]

            async def accepted() -> None:
                for ask in requests:
                    assert await ask()
                    async with asyncio.timeout(20):
                        while admission.active:  # a stream's first message came; its place is given back at its end
                            await asyncio.sleep(0.001)

            await accepted()
            admission.acquire()
            for ask in requests:
                with pytest.raises(grpc.aio.AioRpcError, match="1 requests are being served") as refused:
                    await ask()
                assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert await stub.ListModels(pb.ListModelsRequest())  # lists are no work
            assert (await GRPCInferenceServiceStub(channel).ServerLive(oip.ServerLiveRequest())).live
            admission.release()
            await accepted()


FEW_READERS = {"max_concurrent_requests": 100, "max_body_bytes": 1 << 20, "max_receiving_bytes": 2 << 20}


async def test_messages_wait_for_their_turn_to_be_read(tmp_path: Path) -> None:
    held = Held()
    held.go.set()
    async with listening(held, tmp_path, **FEW_READERS) as channel:
        call = channel.unary_unary("/some.Service/One")
        answers = await asyncio.gather(*[call(b"\x12\x01x") for _ in range(100)])
        assert answers == [b"\x0a\x01x"] * 100


async def test_messages_that_come_slowly_give_way_to_others(tmp_path: Path) -> None:
    """Else a few clients that send nothing would keep the server from reading the messages of all others."""
    held = Held()
    held.go.set()
    never = asyncio.Event()

    async def silent() -> AsyncIterator[bytes]:
        await never.wait()
        yield b""

    async with listening(held, tmp_path, client_seconds=0.2, **FEW_READERS) as channel:
        slow = [channel.stream_stream("/some.Service/One")(silent()) for _ in range(6)]
        for call in slow:
            await call.wait_for_connection()
        gc.disable()  # what they hold must not wait for it
        try:
            async with asyncio.timeout(20):
                assert await channel.unary_unary("/some.Service/One")(b"\x12\x01x") == b"\x0a\x01x"
                ended = [asyncio.ensure_future(call.code()) for call in slow]
                done, _ = await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
            assert {each.result() for each in done} == {grpc.StatusCode.UNAVAILABLE}
        finally:
            gc.enable()
        for call in slow:
            call.cancel()


async def test_large_messages_are_counted_until_they_are_answered(tiny_store: Path) -> None:
    async with (
        serving_here(tiny_store, default_model="bert", max_answering_bytes=1 << 21) as here,
        grpc.aio.insecure_channel(here.rpc_address) as channel,
    ):
        stub: Any = EmbedderStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Embed(pb.EmbedRequest(inputs=[pb.Input(text="hello " * 50_000)]))
        assert "INLAY_MAX_ANSWERING_BYTES" in (refused.value.details() or "")
        async with asyncio.timeout(20):
            while here.context.budget.held:
                await asyncio.sleep(0.001)


@pytest.mark.parametrize("readers", [0, 1])
async def test_refused_calls_keep_no_message(tiny_store: Path, readers: int) -> None:
    """grpc keeps the error of an aborted call, and the frames that it passed, until Python looks for cycles."""
    size = 3_000_000
    message = pb.EmbedRequest(inputs=[pb.Input(text="a" * size)]).SerializeToString()
    held_up = asyncio.Event()

    async def silent() -> AsyncIterator[bytes]:
        await held_up.wait()
        yield b""

    async with (
        serving_here(tiny_store, default_model="bert", max_receiving_bytes=1) as here,
        grpc.aio.insecure_channel(here.rpc_address) as channel,
    ):
        path = "/inlay.v1.Embedder/Embed"
        silents = [channel.stream_stream(path)(silent()) for _ in range(readers)]  # then others wait for their turn
        for call in silents:
            await call.wait_for_connection()
        gc.collect()
        gc.disable()
        try:
            tracemalloc.start()
            for _ in range(8):
                assert await channel.unary_unary(path)(message).code() is grpc.StatusCode.INVALID_ARGUMENT
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
        for call in silents:
            call.cancel()
    assert kept < 3 * size
