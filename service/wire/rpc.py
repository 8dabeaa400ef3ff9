"""inlay.v1.Embedder over grpc.aio, with the standard health and reflection services. Decodes, delegates, encodes."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import lru_cache
from time import perf_counter
from typing import Any, NoReturn

import grpc
import numpy as np
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from proto import embed_pb2 as pb
from service.encoder import Encoder
from service.errors import BadInput, BadRequest, InlayError, StartError
from service.messages import EmbedRequest, EmbedResult, Ids, Input, Int64s, Text
from service.metrics import Metrics
from service.wire import protobuf
from service.wire.models import default_flops_per_token, summary
from service.wire.parts import Parts
from service.wire.status import STATUSES
from service.wire.tables import blocks, span

SERVICE = "inlay.v1.Embedder"
IN_FLIGHT = 64  # requests of one stream worked on at a time
FEW = 64  # integers: one by one is quicker; above, the buffer a repeated field lends (protobuf 7, upb)
CHUNK_BYTES = 896 * 1024  # cos and sin of one chunk; clients take 4 MiB by default, proxies often 1
POOLINGS = {
    pb.POOLING_UNSPECIFIED: None,
    pb.CLS: "cls",
    pb.MEAN: "mean",
    pb.MAX: "max",
    pb.LAST_TOKEN: "lasttoken",
    pb.MEAN_SQRT_LEN: "mean_sqrt_len_tokens",
    pb.WEIGHTED_MEAN: "weightedmean",
}
Context = Any  # grpc.aio.ServicerContext is generic in ways its stubs and its runtime disagree on
log = logging.getLogger(__name__)


def decode(message: pb.EmbedRequest) -> EmbedRequest:
    """The request a message stands for; the message is used up.

    raises   BadInput, BadRequest
    """
    inputs = [_input(index, each) for index, each in enumerate(message.inputs)]
    message.ClearField("inputs")
    return EmbedRequest(inputs, *_options(message.SerializeToString()))


@lru_cache(maxsize=256)
def _options(rest: bytes) -> tuple[Any, ...]:
    """Everything but the inputs, in EmbedRequest's order. Callers repeat themselves, so it is read once."""
    message = pb.EmbedRequest.FromString(rest)
    if message.pooling not in POOLINGS:
        raise BadRequest(f"pooling is {message.pooling}; allowed: {', '.join(pb.Pooling.keys())}")
    return (
        message.model or None,
        tuple(message.outputs),
        message.truncate if message.HasField("truncate") else None,
        "left" if message.truncation_direction == pb.LEFT else "right",
        message.normalize if message.HasField("normalize") else None,
        message.dimensions if message.HasField("dimensions") else None,
        POOLINGS[message.pooling],
        _dtype(message.dtype),
        message.prompt_name if message.HasField("prompt_name") else None,
    )


def _input(index: int, message: pb.Input) -> Input:
    kind = message.WhichOneof("kind")
    if kind == "ids":
        ids = message.ids
        return Ids(
            _integers(ids.input_ids),
            _integers(ids.attention_mask) if ids.attention_mask else None,
            _integers(ids.token_type_ids) if ids.token_type_ids else None,
            _integers(ids.position_ids) if ids.position_ids else None,
        )
    if kind == "text":
        return Text(message.text)
    if kind == "pair":
        return Text(message.pair.first, message.pair.second)
    raise BadInput(f"inputs[{index}] is empty: set text, pair or ids", index)


def _integers(values: Any) -> Int64s:
    if len(values) < FEW:
        return np.fromiter(values, np.int64, len(values))
    return np.array(values, np.int64)


def _dtype(number: int) -> str:
    if number not in protobuf.DTYPE_OF:
        raise BadRequest(f"dtype is {number}; allowed: {', '.join(pb.DType.keys())}")
    return protobuf.DTYPE_OF[number]


class Embedder:
    """The methods of inlay.v1.Embedder."""

    def __init__(self, encoder: Encoder, metrics: Metrics) -> None:
        self._encoder = encoder
        self._metrics = metrics

    def handlers(self) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
        """Method name → handler; Embed and EmbedStream write their own bytes (wire/protobuf.py)."""
        serialise: Callable[[Any], bytes] = lambda message: message.SerializeToString()  # noqa: E731
        return {
            "Embed": grpc.unary_unary_rpc_method_handler(
                self.embed, pb.EmbedRequest.FromString, protobuf.embed_response
            ),
            "EmbedStream": grpc.stream_stream_rpc_method_handler(
                self.embed_stream, pb.EmbedRequest.FromString, _stream_answer
            ),
            "Rope": grpc.unary_stream_rpc_method_handler(self.rope, pb.RopeRequest.FromString, serialise),
            "ListModels": grpc.unary_unary_rpc_method_handler(
                self.list_models, pb.ListModelsRequest.FromString, serialise
            ),
            "GetModel": grpc.unary_unary_rpc_method_handler(self.get_model, pb.GetModelRequest.FromString, serialise),
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

    async def rope(self, request: pb.RopeRequest, context: Context) -> AsyncIterator[pb.RopeChunk]:
        """A table in chunks under 1 MiB."""
        try:
            model = self._encoder.catalog.get(request.model or None)
            wanted = span(model, request.start, request.length or None, _dtype(request.dtype))
            rows = max(1, CHUNK_BYTES // (2 * wanted.width * (4 if wanted.dtype == "float32" else 2)))
            async for start, arrays in blocks(self._encoder, wanted, ("rope_cos", "rope_sin"), rows):
                cos, sin = (
                    pb.Tensor(dtype=wanted.dtype.upper(), shape=array.shape, data=array.tobytes()) for array in arrays
                )
                yield pb.RopeChunk(start=start, cos=cos, sin=sin)
        except InlayError as error:
            await _abort(context, error)

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
        self._embedder = Embedder(parts.encoder, parts.metrics)
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
