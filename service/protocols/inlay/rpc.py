"""inlay.v1.Embedder: decodes, delegates, encodes."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

from proto import embed_pb2 as pb
from service.context import ServiceContext
from service.embedding.requests import EmbedResult
from service.errors import InlayError
from service.grpc.methods import (
    CALL,
    Service,
    answering,
    answers_stream,
    guarded,
    guarded_each,
    retry_milliseconds,
    serialise,
    streams,
    unary,
)
from service.process import memory
from service.protocols.inlay import prompt_embeds as precomputed
from service.protocols.inlay import rpc_messages as protobuf
from service.protocols.inlay.models import default_flops_per_token, summary
from service.protocols.inlay.prompt_embeds import PROMPT_EMBEDS, PromptEmbeds
from service.protocols.inlay.rpc_positions import Positions
from service.protocols.inlay.rpc_requests import decode, encoding

Embedded = EmbedResult | PromptEmbeds
Work = Callable[[Any], Awaitable[Any]]


def service(context: ServiceContext) -> Service:
    """inlay.v1.Embedder."""
    return Service("inlay.v1.Embedder", Embedder(context).handlers())


class Embedder:
    """The methods of inlay.v1.Embedder."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._metrics = context.metrics
        self._positions = Positions(context)

    def handlers(self) -> dict[str, Any]:
        """Method name → handler; Embed and EmbedStream write their own bytes (wire/protobuf.py)."""
        embed_stream = partial(guarded, self._metrics, "EmbedStream", self._embedded)
        return {
            "Embed": self._one("Embed", self._embedded, pb.EmbedRequest, protobuf.embed_response),
            "EmbedStream": streams(embed_stream, pb.EmbedRequest, _stream_answer),
            "Rope": self._table("Rope", self._positions.rope, pb.RopeRequest),
            "Positions": self._table("Positions", self._positions.positions, pb.PositionsRequest),
            "Rotate": self._one("Rotate", self._rotated, pb.RotateRequest),
            "ListPresets": self._one("ListPresets", self._presets, pb.ListPresetsRequest),
            "ListModels": self._one("ListModels", self._models, pb.ListModelsRequest),
            "GetModel": self._one("GetModel", self._one_model, pb.GetModelRequest),
        }

    def _one(self, method: str, work: Work, kind: Any, *serialise: Callable[[Any], bytes]) -> Any:
        """A method of one request and one answer."""
        return unary(answering(self._metrics, method, work), kind, *serialise)

    def _table(self, method: str, work: Callable[[Any], AsyncGenerator[Any, None]], kind: Any) -> Any:
        """A method that answers with a table in chunks under 1 MiB; it is inside until the last one is sent."""

        async def let_in(request: Any) -> AsyncGenerator[Any, None]:
            with self._context.admission.admitted():
                async with aclosing(work(request)) as chunks:
                    async for chunk in chunks:
                        yield chunk

        return answers_stream(partial(guarded_each, self._metrics, method, let_in), kind)

    async def _rotated(self, request: pb.RotateRequest) -> pb.RotateResponse:
        with self._context.admission.admitted():
            return await self._positions.rotate(request)

    async def _embedded(self, request: pb.EmbedRequest) -> Embedded:
        handed, dtype_sent = encoding(request), request.dtype != pb.DTYPE_UNSPECIFIED
        wanted = decode(request)
        if handed is None:
            with self._context.admission.admitted():
                return await self._context.embedder.embed(wanted, CALL.get())
        card = self._context.registry.get(wanted.model).card
        result = await self._context.embedder.embed(
            precomputed.asked(card, wanted, handed, dtype_sent), CALL.get()
        )
        return precomputed.prompt_embeds(result) if handed == PROMPT_EMBEDS else result

    async def _presets(self, request: pb.ListPresetsRequest) -> pb.ListPresetsResponse:
        return self._positions.presets()

    async def _models(self, request: pb.ListModelsRequest) -> pb.ListModelsResponse:
        mappings = await asyncio.to_thread(memory.mappings)
        return pb.ListModelsResponse(models=[self._model(name, mappings) for name in self._context.registry.models])

    async def _one_model(self, request: pb.GetModelRequest) -> pb.Model:
        """The default where none is named."""
        return self._model(request.name or None, await asyncio.to_thread(memory.mappings))

    def _model(self, name: str | None, mappings: memory.Mappings) -> pb.Model:
        catalog = self._context.registry
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


def _stream_answer(answer: Embedded | InlayError) -> bytes:
    if not isinstance(answer, InlayError):
        return protobuf.stream_response(answer)
    wait = retry_milliseconds(answer)
    error = pb.Error(code=answer.code, message=answer.message, index=answer.index, retry_after_ms=wait)
    return serialise(pb.EmbedStreamResponse(error=error))
