"""gRPC calls as Ray Serve hands them over, without Ray: their answers are those of Inlay's own server."""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.struct_pb2 import Struct

from deploy.ray import rpc
from proto import embed_pb2 as pb
from proto import tei_pb2 as tei
from service.app import Application, create_app
from service.settings import Settings
from tests.served import Served, array_of
from tests.service.http.toy_server import counted_in

EMBEDDER = "/inlay.v1.Embedder/"
ONE = pb.EmbedRequest(inputs=[pb.Input(ids=pb.TokenIds(input_ids=[5, 6]))])
TABLE = Struct()
TABLE.update({"dim": 64, "length": 20_000})


class ServeContext:
    """The context that Serve gives a method: ray.serve.grpc_util.RayServegRPCContext, as far as it is used."""

    def __init__(self, *metadata: tuple[str, str]) -> None:
        self._metadata = metadata
        self.code: grpc.StatusCode | None = None
        self.details = ""
        self.trailing: dict[str, str] = {}

    def invocation_metadata(self) -> Sequence[tuple[str, str]]:
        return self._metadata

    def peer(self) -> str:
        return "ipv4:10.1.1.1:5"

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        self.details = details

    def set_trailing_metadata(self, metadata: list[tuple[str, str]]) -> None:
        self.trailing = dict(metadata)


def message(name: str, request: Any, service: str = EMBEDDER) -> rpc.Message:
    return rpc.Message(service + name, request.SerializeToString())


async def stream(*messages: rpc.Message) -> AsyncIterator[rpc.Message]:
    for each in messages:
        yield each


NOT_SERVED = ("MemoryStatus", "MemoryRegister", "MemoryUnregister", "TraceSetting", "LogSettings")  # of OIP


@asynccontextmanager
async def hosted(store: Path, **settings: Any) -> AsyncIterator[Application]:
    """The service without ports."""
    app = create_app(Settings(store=store, device="cpu", **({"default_model": "bert"} | settings)), listens=False)
    api: Any = app.api
    async with api.lifespan_context(api):
        yield app


@pytest.fixture
async def app(tiny_store: Path) -> AsyncIterator[Application]:
    async with hosted(tiny_store) as running:
        yield running


def test_methods_of_one_name_are_streams_alike() -> None:
    kinds: dict[str, set[tuple[bool, bool]]] = {}
    for service in rpc.SERVICES:
        for method in service.methods:
            kinds.setdefault(method.name, set()).add((method.client_streaming, method.server_streaming))
    assert {name: kind for name, kind in kinds.items() if len(kind) > 1} == {}
    assert kinds.keys() == rpc.METHODS.keys()


async def test_every_method_is_declared_to_serves_proxy(app: Application) -> None:
    class Servicer:
        def __getattr__(self, name: str) -> Any:
            return lambda: name

    class Server:
        handlers: tuple[Any, ...] = ()

        def add_generic_rpc_handlers(self, handlers: Any) -> None:
            self.handlers += tuple(handlers)

    server = Server()
    rpc.add_services(Servicer(), server)
    served = {f"/{service.full_name}/{method.name}": method for service in rpc.SERVICES for method in service.methods}
    assert len(served) > 40
    for path, method in served.items():
        details: Any = type("Details", (), {"method": path, "invocation_metadata": ()})
        [handler] = filter(None, (each.service(details) for each in server.handlers))
        assert (handler.request_streaming, handler.response_streaming) == (
            method.client_streaming,
            method.server_streaming,
        )
        assert handler.request_deserializer(b"data") == (path, b"data")
        assert (app.rpc.pipeline.service(details) is None) == path.endswith(NOT_SERVED)


async def test_unary_answers_are_those_over_a_port(app: Application, served: Served) -> None:
    context = ServeContext(("x-request-id", "mine"))
    answer = await rpc.unary(app.rpc.pipeline, "Embed", message("Embed", ONE), context)
    given = pb.EmbedResponse.FromString(answer.SerializeToString())
    expected = served.stub.Embed(ONE)
    assert array_of(given.outputs[0].tensor).tobytes() == array_of(expected.outputs[0].tensor).tobytes()
    assert (context.code, context.trailing["x-request-id"]) == (None, "mine")


async def test_services_may_share_a_method_name(app: Application) -> None:
    sent = message("Embed", tei.EmbedRequest(inputs="a"), "/tei.v1.Embed/")
    answer = await rpc.unary(app.rpc.pipeline, "Embed", sent, ServeContext())
    assert len(tei.EmbedResponse.FromString(answer.data).embeddings) > 0


async def test_errors_keep_code_and_metadata(app: Application) -> None:
    context = ServeContext()
    sent = message("Embed", pb.EmbedRequest(inputs=ONE.inputs, model="bort"))
    assert (await rpc.unary(app.rpc.pipeline, "Embed", sent, context)).data == b""
    assert (context.code, context.trailing["inlay-code"]) == (grpc.StatusCode.NOT_FOUND, "unknown_model")
    assert "did you mean 'bert'" in context.details


async def test_malformed_messages_are_inlays_to_refuse(app: Application) -> None:
    context = ServeContext()
    await rpc.unary(app.rpc.pipeline, "Embed", rpc.Message(EMBEDDER + "Embed", b"\xff\xff"), context)
    assert context.code is grpc.StatusCode.INVALID_ARGUMENT


async def test_server_streams_are_whole(app: Application, served: Served) -> None:
    request = pb.PositionsRequest(scheme="sinusoidal", parameters=TABLE)
    chunks = rpc.streaming(app.rpc.pipeline, "Positions", message("Positions", request), ServeContext())
    given = [pb.PositionsChunk.FromString(chunk.data) async for chunk in chunks]
    expected = list(served.stub.Positions(request))
    assert given[0] == expected[0]
    assert b"".join(chunk.data for chunk in given) == b"".join(chunk.data for chunk in expected)
    assert len(given) > 3


async def test_error_of_a_stream_ends_it_with_its_code(app: Application) -> None:
    context = ServeContext()
    sent = message("Positions", pb.PositionsRequest(scheme="none"))
    with pytest.raises(rpc.Aborted, match="there is no scheme"):
        [_ async for _ in rpc.streaming(app.rpc.pipeline, "Positions", sent, context)]
    assert context.code is grpc.StatusCode.NOT_FOUND


async def test_stream_that_is_given_up_is_cancelled(app: Application) -> None:
    request = pb.PositionsRequest(scheme="sinusoidal", parameters=TABLE)
    sent = message("Positions", request)
    async with aclosing(rpc.streaming(app.rpc.pipeline, "Positions", sent, ServeContext())) as chunks:
        assert (await anext(chunks)).data
    while not counted_in(app.context.metrics):  # the call's task ends in a later turn of the loop
        await rpc.asyncio.sleep(0)
    assert counted_in(app.context.metrics) == {("Positions", "CANCELLED"): 1}


async def test_bidirectional_streams_keep_their_order(app: Application) -> None:
    counts = [3, 1, 5, 2]
    requests = [pb.EmbedRequest(inputs=[ONE.inputs[0]] * count) for count in counts]
    sent = stream(*[message("EmbedStream", request) for request in requests])
    context = ServeContext()
    answers = [
        pb.EmbedStreamResponse.FromString(answer.data)
        async for answer in rpc.streaming(app.rpc.pipeline, "EmbedStream", sent, context)
    ]
    assert [array_of(answer.response.outputs[0].tensor).shape[0] for answer in answers] == counts


async def test_streams_without_requests_have_no_answers(app: Application) -> None:
    assert [_ async for _ in rpc.streaming(app.rpc.pipeline, "EmbedStream", stream(), ServeContext())] == []


async def test_keys_are_checked(tiny_store: Path) -> None:
    async with hosted(tiny_store, api_keys="k" * 32) as app:
        refused, admitted = ServeContext(), ServeContext(("authorization", f"Bearer {'k' * 32}"))
        for context in (refused, admitted):
            await rpc.unary(app.rpc.pipeline, "Embed", message("Embed", ONE), context)
    assert (refused.code, admitted.code) == (grpc.StatusCode.UNAUTHENTICATED, None)
