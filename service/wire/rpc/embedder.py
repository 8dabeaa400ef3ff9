"""inlay.v1.Embedder: decodes, delegates, encodes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from time import perf_counter
from typing import Any

from proto import embed_pb2 as pb
from service.errors import InlayError
from service.life import memory
from service.messages import EmbedResult
from service.wire import precomputed, protobuf
from service.wire.models import default_flops_per_token, summary
from service.wire.parts import Parts
from service.wire.precomputed import PROMPT_EMBEDS, PromptEmbeds
from service.wire.rpc.methods import (
    Context,
    Service,
    abort,
    answers_stream,
    guarded,
    in_order,
    serialise,
    streams,
    unary,
)
from service.wire.rpc.positions import Positions
from service.wire.rpc.requests import decode, encoding
from service.wire.status import STATUSES

Embedded = EmbedResult | PromptEmbeds
IN_FLIGHT = 64  # requests of one stream worked on at a time


def service(parts: Parts) -> Service:
    """inlay.v1.Embedder."""
    return Service("inlay.v1.Embedder", Embedder(parts).handlers())


class Embedder:
    """The methods of inlay.v1.Embedder."""

    def __init__(self, parts: Parts) -> None:
        self._encoder = parts.encoder
        self._metrics = parts.metrics
        self._positions = Positions(parts)

    def handlers(self) -> dict[str, Any]:
        """Method name → handler; Embed and EmbedStream write their own bytes (wire/protobuf.py)."""
        return {
            "Embed": unary(self.embed, pb.EmbedRequest, protobuf.embed_response),
            "EmbedStream": streams(self.embed_stream, pb.EmbedRequest, _stream_answer),
            "Rope": answers_stream(self._table("Rope", self._positions.rope), pb.RopeRequest),
            "Positions": answers_stream(self._table("Positions", self._positions.positions), pb.PositionsRequest),
            "Rotate": unary(self.rotate, pb.RotateRequest),
            "ListPresets": unary(self.list_presets, pb.ListPresetsRequest),
            "ListModels": unary(self.list_models, pb.ListModelsRequest),
            "GetModel": unary(self.get_model, pb.GetModelRequest),
        }

    async def embed(self, request: pb.EmbedRequest, context: Context) -> Embedded:
        """One request, one answer."""
        answer = await self._answer("Embed", request)
        if isinstance(answer, InlayError):
            await abort(context, answer)
        return answer

    async def embed_stream(
        self, requests: AsyncIterator[pb.EmbedRequest], context: Context
    ) -> AsyncIterator[Embedded | InlayError]:
        """Answers in the order of the requests, IN_FLIGHT of which are worked on together."""
        async with aclosing(in_order(requests, partial(self._answer, "EmbedStream"), IN_FLIGHT)) as answers:
            async for answer in answers:
                yield answer

    def _table(self, method: str, answer: Callable[[Any], AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
        """A method that answers with a table in chunks under 1 MiB."""

        async def call(request: Any, context: Context) -> AsyncIterator[Any]:
            started, status = perf_counter(), "OK"
            try:
                async for chunk in answer(request):
                    yield chunk
            except InlayError as error:
                status = STATUSES[error.code].grpc
                self._metrics.refused(error.code)
                await abort(context, error)
            finally:
                self._metrics.request("grpc", method, status, perf_counter() - started)

        return call

    async def rotate(self, request: pb.RotateRequest, context: Context) -> pb.RotateResponse:
        """q and k turned by their positions."""
        answer: pb.RotateResponse = await self._counted("Rotate", self._positions.rotate(request), context)
        return answer

    async def list_presets(self, request: pb.ListPresetsRequest, context: Context) -> pb.ListPresetsResponse:
        """Every preset."""

        async def answer() -> pb.ListPresetsResponse:
            return self._positions.presets()

        listed: pb.ListPresetsResponse = await self._counted("ListPresets", answer(), context)
        return listed

    async def list_models(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        """Every loaded model."""

        async def answer() -> pb.ListModelsResponse:
            mappings = await asyncio.to_thread(memory.mappings)
            return pb.ListModelsResponse(models=[self._model(name, mappings) for name in self._encoder.catalog.models])

        listed: pb.ListModelsResponse = await self._counted("ListModels", answer(), context)
        return listed

    async def get_model(self, request: pb.GetModelRequest, context: Context) -> pb.Model:
        """One model; the default where none is named."""

        async def answer() -> pb.Model:
            return self._model(request.name or None, await asyncio.to_thread(memory.mappings))

        model: pb.Model = await self._counted("GetModel", answer(), context)
        return model

    async def _counted(self, method: str, work: Awaitable[Any], context: Context) -> Any:
        answer = await guarded(self._metrics, method, work)
        if isinstance(answer, InlayError):
            await abort(context, answer)
        return answer

    def _model(self, name: str | None, mappings: memory.Mappings) -> pb.Model:
        catalog = self._encoder.catalog
        model = catalog.get(name)
        told = summary(model, catalog, mappings)
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

    async def _answer(self, method: str, request: pb.EmbedRequest) -> Embedded | InlayError:
        return await guarded(self._metrics, method, self._embedded(request))

    async def _embedded(self, request: pb.EmbedRequest) -> Embedded:
        handed, dtype_sent = encoding(request), request.dtype != pb.DTYPE_UNSPECIFIED
        wanted = decode(request)
        if handed is None:
            return await self._encoder.embed(wanted)
        card = self._encoder.catalog.get(wanted.model).card
        result = await self._encoder.embed(precomputed.asked(card, wanted, handed, dtype_sent))
        return precomputed.prompt_embeds(result) if handed == PROMPT_EMBEDS else result


def _stream_answer(answer: Embedded | InlayError) -> bytes:
    if not isinstance(answer, InlayError):
        return protobuf.stream_response(answer)
    error = pb.Error(code=answer.code, message=answer.message, index=answer.index)
    return serialise(pb.EmbedStreamResponse(error=error))
