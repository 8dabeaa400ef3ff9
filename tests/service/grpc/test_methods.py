"""What every method of every service does with messages that are none, with deadlines and with its own faults."""

import asyncio
import gc
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from proto import embed_pb2 as pb
from proto import open_inference_pb2 as oip
from proto import tei_pb2 as tei
from service.errors import InlayError, Overloaded
from service.grpc.methods import (
    Service,
    answers_stream,
    collects,
    guarded,
    guarded_each,
    in_order,
    streams,
    unary,
)
from service.grpc.server import RpcServer
from service.observability.metrics import Metrics
from service.scheduling import deadlines
from service.settings import Settings
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


def of_one_request() -> Iterator[tuple[str, str, str]]:
    """Path, message and name in the metrics of every method that takes one request."""
    for package, module in PACKAGES.items():
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                if not method.client_streaming:
                    counted = f"tei.{method.name}" if package == "tei.v1" else method.name
                    yield f"/{service.full_name}/{method.name}", method.input_type.full_name, counted


@pytest.fixture(scope="module")
def channel(served: Served) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(served.rpc_address) as channel:
        yield channel


def among(text: str, method: str, status: str) -> float:
    """How many requests of a method were answered so, by the exposition."""
    named = {f'method="{method}"', f'status="{status}"'}
    found = [line for line in text.splitlines() if line.startswith("inlay_requests_total{")]
    return sum([float(line.rsplit(" ", 1)[1]) for line in found if named <= set(line[21 : line.index("}")].split(","))])


def counted(served: Served, method: str, status: str) -> float:
    """The same of a running service."""
    return among(served.http.get("/metrics").text, method, status)


@pytest.mark.parametrize(("path", "message", "method"), list(of_one_request()))
def test_what_is_no_message_is_the_callers_mistake_told_and_counted(
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
def test_what_is_no_message_gets_its_error_in_its_turn_and_the_stream_goes_on(
    served: Served, channel: grpc.Channel, path: str, good: Any, answer: Any, method: str
) -> None:
    before = counted(served, method, "INVALID_ARGUMENT")
    sent = [good.SerializeToString(), NO_MESSAGE, good.SerializeToString()]
    first, second, third = channel.stream_stream(path, response_deserializer=answer.FromString)(iter(sent))
    told = second.error.message if answer is pb.EmbedStreamResponse else second.error_message
    assert f"the message's 4 bytes are no {good.DESCRIPTOR.full_name}" in told
    assert first == third != second
    assert counted(served, method, "INVALID_ARGUMENT") == before + 1


def test_what_is_no_message_ends_a_stream_of_tei_behind_the_answers_before_it(
    served: Served, channel: grpc.Channel
) -> None:
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


async def test_a_stream_that_cannot_be_read_on_does_not_end_as_if_it_were_whole() -> None:
    async def requests() -> AsyncIterator[int]:
        yield 1
        raise RuntimeError("no more to read")

    async def work(request: int) -> int:
        return request

    answers = in_order(requests(), work)
    assert await anext(answers) == 1
    with pytest.raises(RuntimeError, match="no more to read"):
        await anext(answers)


async def test_a_reader_that_fails_behind_an_abandoned_stream_leaves_no_word_in_the_log() -> None:
    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    async def requests() -> AsyncIterator[int]:
        yield 1
        raise RuntimeError("the call was aborted")

    async def work(request: int) -> int:
        return request

    answers = in_order(requests(), work)
    await anext(answers)
    for _ in range(3):
        await asyncio.sleep(0)
    await answers.aclose()
    del answers
    gc.collect()
    assert told == []


# ---- deadlines


async def test_every_kind_of_call_hands_its_deadline_on(tmp_path: Path) -> None:
    seen: dict[str, list[float | None]] = {}

    def see(name: str) -> None:
        deadline = deadlines.current()
        seen.setdefault(name, []).append(None if deadline is None else deadline - time.perf_counter())

    def one(name: str) -> Callable[..., Any]:
        async def answer(*_: Any) -> pb.EmbedResponse:
            see(name)
            return pb.EmbedResponse()

        return answer

    async def each(request: Any, context: Any) -> AsyncIterator[pb.EmbedResponse]:
        see("UnaryStream")
        yield pb.EmbedResponse()

    kind = pb.EmbedRequest
    handlers = {
        "UnaryUnary": unary(one("UnaryUnary"), kind),
        "UnaryStream": answers_stream(each, kind),
        "StreamUnary": collects(one("StreamUnary"), kind),
        "StreamStream": streams(one("StreamStream"), kind),
    }
    server = RpcServer(Settings(store=tmp_path, grpc_port=0), [Service("some.Service", handlers)])
    port = await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for timeout in (70.0, None):
                for name in handlers:
                    call = channel.stream_stream(f"/some.Service/{name}")(iter([b""]), timeout=timeout)
                    assert len([answer async for answer in call]) == 1
    finally:
        await server.stop()
    assert seen.keys() == handlers.keys()
    for told, untold in seen.values():
        assert told is not None
        assert 60 < told < 80  # grpc rounds up what it sends
        assert untold is None


async def test_a_call_whose_time_seems_over_since_a_clock_jumped_is_served(
    tiny_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """grpcio counts by time.time; a call whose time really is over is cancelled by grpc's core, which does not."""
    now = time.time
    async with serving_here(tiny_store, default_model="bert") as here:
        monkeypatch.setattr(time, "time", lambda: now() + 10 * 365 * 86400)
        async with grpc.aio.insecure_channel(here.rpc_address) as channel:
            call = channel.stream_stream("/inlay.v1.Embedder/Embed")
            request = pb.EmbedRequest(inputs=[pb.Input(text="a")])
            assert len([each async for each in call(iter([request.SerializeToString()]), timeout=70)]) == 1


@pytest.mark.parametrize(("path", "good", "answer", "method"), STREAMS)
async def test_a_streams_deadline_reaches_the_road(
    tiny_store: Path, monkeypatch: pytest.MonkeyPatch, path: str, good: Any, answer: Any, method: str
) -> None:
    seen = []
    async with serving_here(tiny_store, default_model="bert") as here:
        embed = here.parts.encoder.embed

        async def watched(request: Any) -> Any:
            seen.append(deadlines.current())
            return await embed(request)

        monkeypatch.setattr(here.parts.encoder, "embed", watched)
        async with grpc.aio.insecure_channel(here.rpc_address) as channel:
            call = channel.stream_stream(path)(iter([good.SerializeToString()]), timeout=70)
            assert len([each async for each in call]) == 1
    (deadline,) = seen
    assert deadline is not None


# ---- what is counted and told


async def test_a_fault_behind_a_table_is_internal_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    aborted = []

    class Context:
        def trailing_metadata(self) -> tuple[()]:
            return ()

        async def abort(self, code: grpc.StatusCode, message: str, metadata: Any) -> None:
            aborted.append((code.name, message))
            raise asyncio.CancelledError  # whatever ends the handler

    async def broken(request: Any) -> AsyncIterator[int]:
        yield 1
        raise ZeroDivisionError

    metrics = Metrics()
    answers = guarded_each(metrics, "Positions", broken, object(), Context())
    assert await anext(answers) == 1
    with pytest.raises(asyncio.CancelledError):
        await anext(answers)
    assert aborted == [("INTERNAL", "the service has a fault; its log says more")]
    assert among(metrics.text().decode(), "Positions", "INTERNAL") == 1
    assert "Positions met a fault" in caplog.text


async def test_a_table_left_half_way_is_counted_as_cancelled() -> None:
    async def table(request: Any) -> AsyncIterator[int]:
        yield 1
        yield 2

    metrics = Metrics()
    answers = guarded_each(metrics, "Positions", table, object(), None)
    assert await anext(answers) == 1
    await answers.aclose()
    assert among(metrics.text().decode(), "Positions", "CANCELLED") == 1


async def test_our_own_faults_are_counted_among_the_refusals() -> None:
    async def broken(request: Any) -> None:
        raise ZeroDivisionError

    metrics = Metrics()
    answer = await guarded(metrics, "Embed", broken, object())
    assert isinstance(answer, InlayError)
    assert 'inlay_refusals_total{reason="error"} 1' in metrics.text().decode()


def overloaded(monkeypatch: pytest.MonkeyPatch, here: Here) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise Overloaded("the queue is full", 17.2501)

    for batcher in here.parts.catalog.get("bert").batchers.values():  # not of the servers of other tests
        monkeypatch.setattr(batcher, "submit", full)


async def test_an_error_within_a_stream_says_when_to_come_again(
    tiny_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving_here(tiny_store, default_model="bert") as here:
        path, good, answer, _ = STREAMS[0]
        bad = pb.EmbedRequest(inputs=[pb.Input(ids=pb.TokenIds(input_ids=[99]))])
        overloaded(monkeypatch, here)
        async with grpc.aio.insecure_channel(here.rpc_address) as channel:
            sent = iter([good.SerializeToString(), bad.SerializeToString()])
            call = channel.stream_stream(path, response_deserializer=answer.FromString)(sent)
            refused, wrong = [each.error async for each in call]
    assert (refused.code, refused.retry_after_ms) == ("overloaded", 17251)
    assert wrong.code == "bad_input"
    assert not wrong.HasField("retry_after_ms")  # the same would happen again
