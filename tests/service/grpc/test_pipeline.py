"""What the pipeline does for every method: malformed messages, deadlines, faults, request ids."""

import asyncio
import gc
import logging
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from proto import embed_pb2 as pb
from proto import open_inference_pb2 as oip
from proto import tei_pb2 as tei
from service.errors import BadRequest, Overloaded
from service.grpc.calls import Shared
from service.grpc.methods import Method, Service
from service.grpc.server import RpcServer
from service.grpc.streams import IN_FLIGHT, PLACE_BYTES, in_order
from service.observability.metrics import Metrics
from service.request_context import RequestContext
from service.scheduling.admission import AdmissionController
from service.settings import Settings
from tests.collector import collect
from tests.served import Here, Served, serving_here

PACKAGES = {"inlay.v1": pb, "inference": oip, "tei.v1": tei}
NO_MESSAGE = b"\xff\xff\xff\xff"
GOOD = pb.EmbedRequest(inputs=[pb.Input(ids=pb.TokenIds(input_ids=[5]))])
OIP_GOOD = oip.ModelInferRequest(
    model_name="bert",
    inputs=[{"name": "input_ids", "datatype": "INT64", "shape": [1, 1], "contents": {"int64_contents": [5]}}],
)
TEI_GOOD = tei.EmbedRequest(inputs="a")
# stream, a good message, what answers it, its name in the metrics
STREAMS: list[tuple[str, Any, Any, str]] = [
    ("/inlay.v1.Embedder/EmbedStream", GOOD, pb.EmbedStreamResponse, "EmbedStream"),
    ("/inference.GRPCInferenceService/ModelStreamInfer", OIP_GOOD, oip.ModelStreamInferResponse, "ModelStreamInfer"),
    ("/tei.v1.Embed/EmbedStream", TEI_GOOD, tei.EmbedResponse, "tei.EmbedStream"),
]


NOT_SERVED = ("MemoryStatus", "MemoryRegister", "MemoryUnregister", "TraceSetting", "LogSettings")
"""Ends of the names of OIP's methods that this server does not have."""


def of_one_request() -> Iterator[tuple[str, str, str]]:
    """Path, message and name in the metrics of every method that is served and takes one request."""
    for package, module in PACKAGES.items():
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                if not method.client_streaming and not method.name.endswith(NOT_SERVED):
                    counted = f"tei.{method.name}" if package == "tei.v1" else method.name
                    yield f"/{service.full_name}/{method.name}", method.input_type.full_name, counted


@pytest.fixture(scope="module")
def channel(served: Served) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(served.rpc_address) as channel:
        yield channel


def among(text: str, method: str, status: str) -> float:
    """How many requests of a method were answered so, by the exposition."""
    named = {f'method="{method}"', f'status="{status}"'}
    lines = [line for line in text.splitlines() if line.startswith("inlay_requests_total{")]
    return sum([float(line.rsplit(" ", 1)[1]) for line in lines if named <= set(line[21 : line.index("}")].split(","))])


def counted(served: Served, method: str, status: str) -> float:
    """The same of a running service."""
    return among(served.http.get("/metrics").text, method, status)


@pytest.mark.parametrize(("path", "message", "method"), list(of_one_request()))
def test_malformed_message_is_invalid_argument(
    served: Served, channel: grpc.Channel, path: str, message: str, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = counted(served, method, "INVALID_ARGUMENT")
    with pytest.raises(grpc.RpcError) as refusal:
        list(channel.unary_stream(path)(NO_MESSAGE))
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"the message's 4 bytes are no {message}" in refusal.value.details()
    assert dict(refusal.value.trailing_metadata())["inlay-code"] == "malformed"
    assert counted(served, method, "INVALID_ARGUMENT") == before + 1
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(("path", "good", "answer", "method"), STREAMS[:2])
def test_stream_continues_after_a_malformed_message(
    served: Served, channel: grpc.Channel, path: str, good: Any, answer: Any, method: str
) -> None:
    before = counted(served, method, "INVALID_ARGUMENT")
    sent = [good.SerializeToString(), NO_MESSAGE, good.SerializeToString()]
    first, second, third = channel.stream_stream(path, response_deserializer=answer.FromString)(iter(sent))
    message = second.error.message if answer is pb.EmbedStreamResponse else second.error_message
    assert f"the message's 4 bytes are no {good.DESCRIPTOR.full_name}" in message
    assert first == third != second
    assert counted(served, method, "INVALID_ARGUMENT") == before + 1


def test_malformed_message_ends_a_tei_stream(served: Served, channel: grpc.Channel) -> None:
    path, good, answer, method = STREAMS[2]
    before = counted(served, method, "INVALID_ARGUMENT")
    sent = [good.SerializeToString(), NO_MESSAGE, good.SerializeToString()]
    answers = channel.stream_stream(path, response_deserializer=answer.FromString)(iter(sent))
    assert next(answers).embeddings
    with pytest.raises(grpc.RpcError) as refusal:
        next(answers)
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "the message's 4 bytes are no tei.v1.EmbedRequest" in refusal.value.details()
    assert counted(served, method, "INVALID_ARGUMENT") == before + 1


async def test_a_stream_that_cannot_be_read_on_raises() -> None:
    async def requests() -> AsyncIterator[bytes]:
        yield b"a"
        raise RuntimeError("no more to read")

    async def work(request: bytes) -> bytes:
        return request

    answers = in_order(requests(), work)
    assert await anext(answers) == b"a"
    with pytest.raises(RuntimeError, match="no more to read"):
        await anext(answers)


async def test_an_abandoned_stream_logs_no_failure_of_its_reader() -> None:
    reports: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))

    async def requests() -> AsyncIterator[bytes]:
        yield b"a"
        raise RuntimeError("the call was aborted")

    async def work(request: bytes) -> bytes:
        return request

    answers = in_order(requests(), work)
    await anext(answers)
    for _ in range(3):
        await asyncio.sleep(0)
    await answers.aclose()
    del answers
    collect()
    assert reports == []


async def test_large_requests_of_a_stream_are_worked_on_one_at_a_time() -> None:
    begun: list[bytes] = []
    go_on = asyncio.Event()

    async def requests() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield bytes(IN_FLIGHT * PLACE_BYTES)

    async def work(request: bytes) -> int:
        begun.append(request)
        await go_on.wait()
        return len(begun)

    answers = in_order(requests(), work)
    first = asyncio.ensure_future(anext(answers))
    for _ in range(9):
        await asyncio.sleep(0)
    assert len(begun) == 1
    go_on.set()
    assert await first == 1
    assert len([answer async for answer in answers]) == 2


# ---- deadlines


async def test_every_kind_of_call_knows_its_deadline(tmp_path: Path) -> None:
    seen: dict[str, list[float | None]] = {}

    def see(name: str, call: RequestContext) -> None:
        seen.setdefault(name, []).append(None if call.deadline is None else call.deadline - time.perf_counter())

    def one(name: str) -> Callable[..., Any]:
        async def answer(request: Any, call: RequestContext) -> pb.EmbedResponse:
            see(name, call)
            return pb.EmbedResponse()

        return answer

    async def each(request: Any, call: RequestContext) -> AsyncIterator[pb.EmbedResponse]:
        see("server_stream", call)
        yield pb.EmbedResponse()

    methods = (
        Method(name="unary", request=pb.EmbedRequest, handler=one("unary")),
        Method(name="server_stream", request=pb.EmbedRequest, handler=each, kind="server_stream"),
        Method(name="client_stream", request=pb.EmbedRequest, handler=one("client_stream"), kind="client_stream"),
        Method(name="bidirectional", request=pb.EmbedRequest, handler=one("bidirectional"), kind="bidirectional"),
    )
    async with serving_methods(tmp_path, *methods) as (channel, _):
        for timeout in (70.0, None):
            for method in methods:
                call = channel.stream_stream(f"/some.Service/{method.name}")(iter([b""]), timeout=timeout)
                assert len([answer async for answer in call]) == 1
    assert seen.keys() == {method.name for method in methods}
    for with_deadline, without_deadline in seen.values():
        assert with_deadline is not None
        assert 60 < with_deadline < 80  # grpc rounds up what it sends
        assert without_deadline is None


@asynccontextmanager
async def serving_methods(tmp_path: Path, *methods: Method) -> AsyncIterator[tuple[grpc.aio.Channel, Metrics]]:
    """Serve the methods as some.Service; yield a channel and the metrics."""
    metrics = Metrics()
    service = Service(name="some.Service", methods=methods)
    server = RpcServer(Settings(store=tmp_path, grpc_port=0), [service], Shared(metrics, AdmissionController(8)))
    port = await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel, metrics
    finally:
        await server.stop()


async def test_a_jump_of_the_clock_does_not_end_a_call(tiny_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """grpcio counts by time.time; a call whose time really is over is cancelled by grpc's core, which does not."""
    now = time.time
    async with serving_here(tiny_store, default_model="bert") as here:
        monkeypatch.setattr(time, "time", lambda: now() + 10 * 365 * 86400)
        async with grpc.aio.insecure_channel(here.rpc_address) as channel:
            call = channel.stream_stream("/inlay.v1.Embedder/Embed")
            request = pb.EmbedRequest(inputs=[pb.Input(text="a")])
            assert len([each async for each in call(iter([request.SerializeToString()]), timeout=70)]) == 1


@pytest.mark.parametrize(("path", "good", "answer", "method"), STREAMS)
async def test_a_streams_deadline_reaches_the_pipeline(
    tiny_store: Path, monkeypatch: pytest.MonkeyPatch, path: str, good: Any, answer: Any, method: str
) -> None:
    seen = []
    async with serving_here(tiny_store, default_model="bert") as here:
        embed = here.context.embedder.embed

        async def watched(request: Any, call: RequestContext) -> Any:
            seen.append(call.deadline)
            return await embed(request, call)

        monkeypatch.setattr(here.context.embedder, "embed", watched)
        async with grpc.aio.insecure_channel(here.rpc_address) as channel:
            call = channel.stream_stream(path)(iter([good.SerializeToString()]), timeout=70)
            assert len([each async for each in call]) == 1
    (deadline,) = seen
    assert deadline is not None


async def test_refused_message_is_freed_without_the_garbage_collector(tmp_path: Path) -> None:
    kept: list[weakref.ref[Any]] = []

    class Sent:
        """What a handler makes of a message."""

    async def refuse(request: Any, call: RequestContext) -> None:
        sent = Sent()
        kept.append(weakref.ref(sent))
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            raise BadRequest("no") from None

    async with serving_methods(tmp_path, Method(name="M", request=pb.EmbedRequest, handler=refuse)) as (channel, _):
        gc.collect()
        gc.disable()
        try:
            with pytest.raises(grpc.aio.AioRpcError):
                await channel.unary_unary("/some.Service/M")(b"")
            assert [each() for each in kept] == [None]
        finally:
            gc.enable()


# ---- what is counted and told


async def table_with_a_fault(request: Any, call: RequestContext) -> AsyncIterator[pb.PositionsChunk]:
    yield pb.PositionsChunk(offset=1)
    raise ZeroDivisionError


async def test_a_fault_in_a_table_is_internal_logged_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    method = Method(name="Positions", request=pb.PositionsRequest, handler=table_with_a_fault, kind="server_stream")
    async with serving_methods(tmp_path, method) as (channel, metrics):
        call = channel.unary_stream("/some.Service/Positions")(b"")
        assert await call.read() == pb.PositionsChunk(offset=1).SerializeToString()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call.read()
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    assert failed.value.details() == "the service has a fault; its log says more"
    text = metrics.text().decode()
    assert among(text, "Positions", "INTERNAL") == 1
    assert 'inlay_refusals_total{reason="error"} 1' in text
    assert "Positions met a fault" in caplog.text


async def test_a_table_left_half_way_is_counted_as_cancelled(tmp_path: Path) -> None:
    async def table(request: Any, call: RequestContext) -> AsyncIterator[pb.PositionsChunk]:
        yield pb.PositionsChunk(offset=1)
        await asyncio.Event().wait()

    method = Method(name="Positions", request=pb.PositionsRequest, handler=table, kind="server_stream")
    async with serving_methods(tmp_path, method) as (channel, metrics):
        call = channel.unary_stream("/some.Service/Positions")(b"")
        await call.read()
        call.cancel()
        async with asyncio.timeout(30):
            while among(metrics.text().decode(), "Positions", "CANCELLED") < 1:
                await asyncio.sleep(0.01)


async def test_an_unexpected_fault_is_counted_and_hidden(tmp_path: Path) -> None:
    async def broken(request: Any, call: RequestContext) -> None:
        raise ZeroDivisionError("hidden")

    method = Method(name="Embed", request=pb.EmbedRequest, handler=broken)
    async with serving_methods(tmp_path, method) as (channel, metrics):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await channel.unary_unary("/some.Service/Embed")(b"")
    assert "hidden" not in str(failed.value.details())
    assert dict(failed.value.trailing_metadata())["inlay-code"] == "error"
    assert 'inlay_refusals_total{reason="error"} 1' in metrics.text().decode()


@pytest.mark.parametrize("own", ["mine-1", None])
async def test_every_call_gets_its_request_id(tmp_path: Path, own: str | None) -> None:
    async def answer(request: Any, call: RequestContext) -> pb.EmbedResponse:
        return pb.EmbedResponse()

    async def answers(request: Any, call: RequestContext) -> AsyncIterator[pb.EmbedResponse]:
        yield pb.EmbedResponse()

    request, metadata = pb.EmbedRequest, (("x-request-id", own),) if own else ()
    methods = (
        Method(name="unary", request=request, handler=answer),
        Method(name="server_stream", request=request, handler=answers, kind="server_stream"),
        Method(name="client_stream", request=request, handler=answer, kind="client_stream"),
        Method(name="bidirectional", request=request, handler=answer, kind="bidirectional"),
    )
    async with serving_methods(tmp_path, *methods) as (channel, _):
        for method in methods:
            call = channel.stream_stream(f"/some.Service/{method.name}")(iter([b""]), metadata=metadata)
            assert len([each async for each in call]) == 1
            request_id = dict(await call.trailing_metadata())["x-request-id"]
            assert request_id == own if own else len(request_id) >= 16


def overloaded(monkeypatch: pytest.MonkeyPatch, here: Here) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise Overloaded("the queue is full", 17.2501)

    for batcher in here.context.registry.get("bert").batchers.values():  # not of the servers of other tests
        monkeypatch.setattr(batcher, "submit", full)


async def test_an_error_in_a_stream_says_when_to_retry(tiny_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving_here(tiny_store, default_model="bert") as here:
        path, good, answer, _ = STREAMS[0]
        bad = pb.EmbedRequest(inputs=[pb.Input(ids=pb.TokenIds(input_ids=[99]))])
        overloaded(monkeypatch, here)
        async with grpc.aio.insecure_channel(here.rpc_address) as channel:
            sent = iter([good.SerializeToString(), bad.SerializeToString()])
            call = channel.stream_stream(path, response_deserializer=answer.FromString)(sent)
            refused, wrong = [each.error async for each in call]
    assert (refused.code, refused.retry_after_ms) == ("overloaded", 17251)
    assert wrong.code == "out_of_range"
    assert not wrong.HasField("retry_after_ms")  # the same would happen again
