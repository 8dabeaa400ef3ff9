"""OpenAI's routes: /v1/embeddings, /embeddings, /v1/models, and vLLM's /pooling, /score and /classify."""

from typing import Any

from service.context import ServiceContext
from service.embedding.model import Model
from service.http import openapi_data
from service.http.formats import JSON
from service.http.response import Response, json_response
from service.http.routes import Handler, Request, Route, RouteGroup
from service.protocols.inlay import DATA as INLAY
from service.protocols.openai.embeddings import decode_inputs, handler_of
from service.protocols.openai.errors import OpenAIError, render_error
from service.protocols.openai.schemas import EmbeddingsBody, PoolingBody
from service.protocols.openai.scoring import ClassifyBody, ScoreBody, classify_handler, score_handler
from service.registry.store import created

PREFIXES = ("/v1", "/embeddings", "/pooling", "/score", "/classify")
DATA = openapi_data.read(__package__, INLAY.parts)


def routes(context: ServiceContext) -> RouteGroup:
    """Return OpenAI's routes."""
    embed, score = handler_of(context, EmbeddingsBody), score_handler(context)
    rows = [
        Route("POST", "/v1/embeddings", embed, bodies=(EmbeddingsBody,), vectors=True),
        Route("POST", "/embeddings", embed, bodies=(EmbeddingsBody,), vectors=True),
        Route("POST", "/infinity/embeddings", embed, bodies=(EmbeddingsBody,), vectors=True),
        Route("POST", "/pooling", handler_of(context, PoolingBody), bodies=(PoolingBody,), vectors=True),
        Route("POST", "/score", score, bodies=(ScoreBody,)),
        Route("POST", "/v1/score", score, bodies=(ScoreBody,)),
        Route("POST", "/classify", classify_handler(context, decode_inputs), bodies=(ClassifyBody,)),
        *_model_routes(context),
    ]
    return RouteGroup(rows, render_error, PREFIXES, (OpenAIError, JSON), data=DATA)


def _model_routes(context: ServiceContext) -> list[Route]:
    registry, settings = context.registry, context.settings

    def entry(model: Model, name: str) -> dict[str, Any]:
        card = model.card
        named = {"id": name, "object": "model", "created": created(settings.store, card.name), "owned_by": "inlay"}
        parent = card.name if name in registry.further else None
        return named | {"max_model_len": card.max_tokens, "root": card.source, "parent": parent}

    async def list_models(request: Request) -> Response:
        models = [*registry.offered.items(), *registry.further.items()]
        return json_response({"object": "list", "data": [entry(model, name) for name, model in models]})

    async def get_model(request: Request) -> Response:
        model, name = registry.described(request.parameters["name"]), request.parameters["name"]
        return json_response(entry(model, name if name in registry.further else model.card.name))

    handlers: dict[str, Handler] = {"/v1/models": list_models, "/v1/models/{name:path}": get_model}
    return [Route("GET", path, handler, admitted=False) for path, handler in handlers.items()]
