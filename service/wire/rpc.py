"""inlay.v1.Embedder over grpc.aio, with the standard health and reflection services. Decodes, delegates, encodes."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from time import perf_counter
from typing import Any, NoReturn

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from proto import embed_pb2 as pb
from service.errors import InlayError, StartError
from service.messages import EmbedResult
from service.wire import protobuf
from service.wire.models import default_flops_per_token, summary
from service.wire.parts import Parts
from service.wire.rpc_positions import Positions
from service.wire.rpc_requests import decode
from service.wire.status import STATUSES

SERVICE = "inlay.v1.Embedder"
IN_FLIGHT = 64  # requests of one stream worked on at a time
Context = Any  # grpc.aio.ServicerContext is generic in ways its stubs and its runtime disagree on
log = logging.getLogger(__name__)


class Embedder:
    """The methods of inlay.v1.Embedder."""

    def __init__(self, parts: Parts) -> None:
        self._encoder = parts.encoder
        self._metrics = parts.metrics
        self._positions = Positions(parts)

    def handlers(self) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
        """Method name → handler; Embed and EmbedStream write their own bytes (wire/protobuf.py)."""
        tables: dict[str, tuple[Any, Any]] = {
            "Rope": (self._positions.rope, pb.RopeRequest),
            "Positions": (self._positions.positions, pb.PositionsRequest),
        }
        return {
            "Embed": _unary(self.embed, pb.EmbedRequest, protobuf.embed_response),
            "EmbedStream": grpc.stream_stream_rpc_method_handler(
                self.embed_stream, pb.EmbedRequest.FromString, _stream_answer
            ),
            **{
                name: grpc.unary_stream_rpc_method_handler(self._table(name, answer), kind.FromString, _serialise)
                for name, (answer, kind) in tables.items()
            },
            "Rotate": _unary(self.rotate, pb.RotateRequest),
            "ListPresets": _unary(self.list_presets, pb.ListPresetsRequest),
            "ListModels": _unary(self.list_models, pb.ListModelsRequest),
            "GetModel": _unary(self.get_model, pb.GetModelRequest),
        }

    async def embed(self, request: pb.EmbedRequest, context: Context) -> EmbedResult:
        """One request, one answer."""
        answer = await self._answer("Embed", request)
        if isinstance(answer, InlayError):
            await _abort(context, answer)
        return answer

    async def embed_stream(
        self, requests: AsyncIterator[pb.EmbedRequest], context: Context
    ) -> AsyncIterator[EmbedResult | InlayError]:
        """Answers in the order of the requests, IN_FLIGHT of which are worked on together."""
        room = asyncio.Semaphore(IN_FLIGHT)
        answers: asyncio.Queue[asyncio.Task[EmbedResult | InlayError] | None] = asyncio.Queue()
        tasks: set[asyncio.Task[Any]] = set()

        async def read() -> None:
            try:
                async for request in requests:
                    await room.acquire()
                    answers.put_nowait(begin(self._answer("EmbedStream", request)))
            finally:
                answers.put_nowait(None)

        def begin(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
            task = asyncio.create_task(work)
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            return task

        begin(read())
        try:
            while (answer := await answers.get()) is not None:
                yield await answer
                room.release()
        finally:
            for task in tasks:
                task.cancel()

    def _table(self, method: str, answer: Callable[[Any], AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
        """A method that answers with a table in chunks under 1 MiB."""

        async def call(request: Any, context: Context) -> AsyncIterator[Any]:
            started, status = perf_counter(), "OK"
            try:
                async for chunk in answer(request):
                    yield chunk
            except InlayError as error:
                status = STATUSES[error.code].grpc
                await _abort(context, error)
            finally:
                self._metrics.request("grpc", method, status, perf_counter() - started)

        return call

    async def rotate(self, request: pb.RotateRequest, context: Context) -> pb.RotateResponse:
        """q and k turned by their positions."""
        try:
            return await self._positions.rotate(request)
        except InlayError as error:
            await _abort(context, error)

    async def list_presets(self, request: pb.ListPresetsRequest, context: Context) -> pb.ListPresetsResponse:
        """Every preset."""
        return self._positions.presets()

    async def list_models(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        """Every loaded model."""
        catalog = self._encoder.catalog
        return pb.ListModelsResponse(models=[self._model(name) for name in catalog.models])

    async def get_model(self, request: pb.GetModelRequest, context: Context) -> pb.Model:
        """One model; the default where none is named."""
        try:
            return self._model(request.name or None)
        except InlayError as error:
            await _abort(context, error)

    def _model(self, name: str | None) -> pb.Model:
        catalog = self._encoder.catalog
        model = catalog.get(name)
        told = summary(model, catalog)
        return pb.Model(
            name=told.name,
            family=told.family,
            hidden_size=told.hidden_size,
            vocab_size=told.vocab_size,
            max_tokens=told.max_tokens or 0,
            outputs=told.outputs,
            default_output=told.default_output,
            parameters=told.parameters,
            bytes=told.bytes,
            flops_per_token=default_flops_per_token(model.card),
            device=told.device,
            default=told.default,
            card_json=told.model_dump_json(),
        )

    async def _answer(self, method: str, request: pb.EmbedRequest) -> EmbedResult | InlayError:
        started = perf_counter()
        answer: EmbedResult | InlayError
        status = "OK"
        try:
            answer = await self._encoder.embed(decode(request))
        except InlayError as error:
            answer, status = error, STATUSES[error.code].grpc
        except asyncio.CancelledError:
            self._metrics.request("grpc", method, "CANCELLED", perf_counter() - started)
            raise
        except Exception:
            log.exception("a call of %s met a fault", method)
            answer, status = InlayError("the service has a fault; its log says more"), "INTERNAL"
        self._metrics.request("grpc", method, status, perf_counter() - started)
        return answer


def _serialise(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def _unary(answer: Any, kind: Any, serialise: Callable[[Any], bytes] = _serialise) -> Any:
    return grpc.unary_unary_rpc_method_handler(answer, kind.FromString, serialise)


def _stream_answer(answer: EmbedResult | InlayError) -> bytes:
    if isinstance(answer, EmbedResult):
        return protobuf.stream_response(answer)
    error = pb.Error(code=answer.code, message=answer.message, index=answer.index)
    return pb.EmbedStreamResponse(error=error).SerializeToString()


async def _abort(context: Context, error: InlayError) -> NoReturn:
    metadata = [("inlay-code", error.code)]
    if error.index is not None:
        metadata.append(("inlay-index", str(error.index)))
    code = grpc.StatusCode[STATUSES[error.code].grpc]
    await context.abort(code, error.message, tuple(metadata))
    raise AssertionError("abort returned")


class RpcServer:
    """The gRPC listener of one process."""

    def __init__(self, parts: Parts) -> None:
        self._embedder = Embedder(parts)
        self._settings = parts.settings
        self._health = health.aio.HealthServicer()
        self._server: Any = None

    async def start(self) -> int:
        """Listen and serve; the port.

        raises   StartError if the address is taken
        """
        settings = self._settings
        options = [
            ("grpc.max_receive_message_length", settings.max_body_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", int(settings.workers > 1)),
        ]
        self._server = grpc.aio.server(options=options)
        handlers = self._embedder.handlers()
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        try:
            port: int = self._server.add_insecure_port(f"{host}:{settings.grpc_port}")
        except RuntimeError as error:
            raise StartError(
                f"gRPC cannot listen on {host}:{settings.grpc_port}: set INLAY_GRPC_PORT or --grpc-port"
            ) from error
        await self._health.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
        await self._server.start()
        return port

    async def refuse(self) -> None:
        """Say NOT_SERVING to health checks."""
        await self._health.enter_graceful_shutdown()

    async def stop(self) -> None:
        """Take no new calls and finish those in flight, for at most `shutdown_seconds`."""
        await self._server.stop(self._settings.shutdown_seconds)
