"""inlay.v1.Embedder over gRPC."""

import asyncio
from collections.abc import Callable
from typing import Any

from proto import embed_pb2 as pb
from service import machine
from service.context import ServiceContext
from service.embedding.requests import EmbedResult
from service.errors import InlayError
from service.grpc.methods import Handler, Method, Service, serialize
from service.grpc.pipeline import retry_milliseconds
from service.protocols.inlay import prompt_embeds, rpc_messages
from service.protocols.inlay.models import default_flops_per_token, summary
from service.protocols.inlay.prompt_embeds import PROMPT_EMBEDS, PromptEmbeds
from service.protocols.inlay.rpc_positions import Positions
from service.protocols.inlay.rpc_requests import decode
from service.request_context import RequestContext

Embedded = EmbedResult | PromptEmbeds


def service(context: ServiceContext) -> Service:
    """Return inlay.v1.Embedder; tables are sent in chunks under 1 MiB."""
    embed, positions, models = EmbedHandler(context), Positions(context), Models(context)
    rope, table, rotate = _without_context(positions.rope, positions.positions, positions.rotate)

    async def presets(request: Any, call: RequestContext) -> pb.ListPresetsResponse:
        return positions.presets()

    return Service(
        name="inlay.v1.Embedder",
        methods=(
            Method(
                name="Embed",
                request=pb.EmbedRequest,
                handler=embed,
                serialize=rpc_messages.embed_response,
                admitted=True,
            ),
            Method(
                name="EmbedStream",
                request=pb.EmbedRequest,
                handler=embed,
                serialize=_stream_answer,
                kind="bidirectional",
                admitted=True,
                error_answer=_stream_error,
            ),
            Method(name="Rope", request=pb.RopeRequest, handler=rope, kind="server_stream", admitted=True),
            Method(name="Positions", request=pb.PositionsRequest, handler=table, kind="server_stream", admitted=True),
            Method(name="Rotate", request=pb.RotateRequest, handler=rotate, admitted=True),
            Method(name="ListPresets", request=pb.ListPresetsRequest, handler=presets),
            Method(name="ListModels", request=pb.ListModelsRequest, handler=models.list_models),
            Method(name="GetModel", request=pb.GetModelRequest, handler=models.get_model),
        ),
    )


def _without_context(*handlers: Callable[[Any], Any]) -> list[Handler]:
    """Return handlers of requests that do not need to know their call."""
    return [lambda request, call, handler=handler: handler(request) for handler in handlers]


class EmbedHandler:
    """Answers Embed, and each request of EmbedStream."""

    def __init__(self, context: ServiceContext) -> None:
        self._registry, self._embedder, self._lookup = context.registry, context.embedder, context.lookup

    async def __call__(self, message: pb.EmbedRequest, call: RequestContext) -> Embedded:
        """Return the outputs, or the rows for another server as the request's encoding has them."""
        request, encoding, dtype_sent = decode(message)
        if encoding is None:
            # a lone caller's rows are looked up at once: without a queue and two more turns of the loop, 80 µs of 600
            result = None if call.staggered else self._lookup.answer(((request, call),))[0]
            return result or await self._embedder.embed(request, call)
        card = self._registry.get(request.model).card
        result = await self._embedder.embed(prompt_embeds.rows_request(card, request, encoding, dtype_sent), call)
        return prompt_embeds.prompt_embeds(result) if encoding == PROMPT_EMBEDS else result


def _stream_answer(answer: Embedded | pb.EmbedStreamResponse) -> bytes:
    return serialize(answer) if isinstance(answer, pb.EmbedStreamResponse) else rpc_messages.stream_response(answer)


def _stream_error(request: object, error: InlayError) -> pb.EmbedStreamResponse:
    wait = retry_milliseconds(error)
    return pb.EmbedStreamResponse(
        error=pb.Error(code=error.code, message=error.message, index=error.index, retry_after_ms=wait)
    )


class Models:
    """Describes the loaded models."""

    def __init__(self, context: ServiceContext) -> None:
        self._registry = context.registry

    async def list_models(self, request: pb.ListModelsRequest, call: RequestContext) -> pb.ListModelsResponse:
        """Return every model."""
        mappings = await asyncio.to_thread(machine.mapped_files)
        return pb.ListModelsResponse(models=[self._model(name, mappings) for name in self._registry.models])

    async def get_model(self, request: pb.GetModelRequest, call: RequestContext) -> pb.Model:
        """Return one model; the default where none is named."""
        return self._model(request.name or None, await asyncio.to_thread(machine.mapped_files))

    def _model(self, name: str | None, mappings: machine.Mappings) -> pb.Model:
        model = self._registry.get(name)
        found = summary(model, self._registry, mappings)
        return pb.Model(
            name=found.name,
            family=found.family,
            hidden_size=found.hidden_size,
            vocab_size=found.vocab_size,
            max_tokens=found.max_tokens or 0,
            outputs=found.outputs,
            default_output=found.default_output,
            parameters=found.parameters,
            bytes=found.bytes,
            flops_per_token=default_flops_per_token(model.card),
            device=found.device,
            default=found.default,
            card_json=found.model_dump_json(),
        )
