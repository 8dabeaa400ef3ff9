"""Ollama's /api/embed, /api/embeddings, /api/tags, /api/show, /api/ps and /api/version; its other routes answer 501.

Bodies are read whatever their content type, since Ollama's documentation sends them with curl.

Source: ollama 0.13, server/routes.go and api/types.go; ollama-python 0.6.
"""

from datetime import UTC, datetime, timedelta
from time import perf_counter
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema

from service.context import ServiceContext
from service.embedding.model import Model
from service.embedding.outputs.kind import POOLED
from service.embedding.requests import EmbedOptions, EmbedRequest, EmbedResult, Text
from service.error_status import INVALID_REQUESTS, STATUSES, retry_headers
from service.errors import SHORTEN_OR_TRUNCATE, InlayError, NoSuchPath, Spelling, Unsupported, WrongModelKind
from service.http import openapi_data
from service.http.formats import JSON, array_response
from service.http.response import Response, json_response
from service.http.routes import Handler, Request, Route, RouteGroup
from service.http.validation_errors import body_of
from service.http.worker_threads import inline_or_in_thread
from service.protocols.inlay import DATA as INLAY
from service.protocols.inlay import needs
from service.registry.store import created
from service.settings import duration_seconds

FOREVER = "9999-12-31T23:59:59Z"
FOREVER_SECONDS = 1e10  # 300 years; later times may have no date
DATA = openapi_data.read(__package__, INLAY.parts)
SPELLING = Spelling(
    fields={"inputs": "input", "dtype": "model"}, remedies={SHORTEN_OR_TRUNCATE: 'shorten it or send "truncate": true'}
)


class OllamaError(BaseModel):
    """An error of Ollama's routes."""

    error: str


class NamedModel(BaseModel, strict=True):
    """The model of a request."""

    model: str | None = Field(None, description="a model's name, with or without :latest; left out: the default")


KeepAlive = Annotated[
    Annotated[float, Field(ge=0)] | None,
    BeforeValidator(duration_seconds),
    WithJsonSchema({"type": ["number", "string", "null"]}),
    Field(
        description="how long a model that is loaded on demand stays after this: seconds, or a duration as 5m or "
        "1h30m; negative: until memory is needed, 0: no longer"
    ),
]


class OllamaEmbedBody(NamedModel):
    """What to embed."""

    input: str | Annotated[list[str], Field(fail_fast=True)] = Field([], description="a text or a list of texts")
    truncate: bool = Field(True, description="true cuts texts that are too long, false refuses them")
    dimensions: int | None = Field(None, ge=0, description="an integer from 1: leading values kept; 0: all")
    keep_alive: KeepAlive = None


class OllamaEmbeddingsBody(NamedModel):
    """The text to embed."""

    prompt: str = Field("", description="a text")
    keep_alive: KeepAlive = None


class OllamaShowBody(NamedModel):
    """The model to describe."""

    name: str | None = Field(None, description="as model, of older clients")


def render_error(error: InlayError) -> Response:
    """Return an error as {"error": message}; a path that Ollama may have and this server has not is 501."""
    if isinstance(error, NoSuchPath):
        error = Unsupported(error.received, allowed="this server embeds, and writes no texts")
    status = 400 if error.code in INVALID_REQUESTS else STATUSES[error.code].http
    return json_response({"error": error.render(SPELLING)}, status, tuple(retry_headers(error)))


def routes(context: ServiceContext) -> RouteGroup:
    """Return Ollama's routes."""
    rows = [*_embedding_routes(context), *_model_routes(context)]
    return RouteGroup(rows, render_error, ("/api",), (OllamaError, JSON), data=DATA)


# ---- vectors


def _embedding_routes(context: ServiceContext) -> list[Route]:
    async def embed(request: Request) -> Response:
        body = await inline_or_in_thread(len(request.body), body_of, request.body, OllamaEmbedBody)
        texts = [body.input] * bool(body.input) if isinstance(body.input, str) else body.input
        name = context.registry.get(body.model).card.name
        if not texts:  # Ollama loads the model then
            await _keep(context, name, body.keep_alive)
            return json_response({"model": body.model or name, "embeddings": []})
        options = EmbedOptions((POOLED,), body.truncate, normalize=True, dimensions=body.dimensions or None)
        result = await _embedded(context, name, texts, options, request)
        await _keep(context, name, body.keep_alive)
        nanoseconds = int((perf_counter() - request.arrived) * 1e9)
        times = {"total_duration": nanoseconds, "load_duration": 0, "prompt_eval_count": result.tokens}
        rows = result.outputs[0].rows
        return array_response({"model": body.model or name, "embeddings": rows} | times, rows.size)

    async def embeddings(request: Request) -> Response:
        body = await inline_or_in_thread(len(request.body), body_of, request.body, OllamaEmbeddingsBody)
        name = context.registry.get(body.model).card.name
        if not body.prompt:
            await _keep(context, name, body.keep_alive)
            return json_response({"embedding": []})
        options = EmbedOptions((POOLED,), truncate=True)
        [row] = (await _embedded(context, name, [body.prompt], options, request)).outputs[0].rows
        await _keep(context, name, body.keep_alive)
        return array_response({"embedding": row}, row.size)

    return [
        Route("POST", "/api/embed", embed, bodies=(OllamaEmbedBody,), vectors=True),
        Route("POST", "/api/embeddings", embeddings, bodies=(OllamaEmbeddingsBody,), vectors=True),
    ]


async def _embedded(
    context: ServiceContext, name: str, texts: list[str], options: EmbedOptions, request: Request
) -> EmbedResult:
    """Return the vectors of texts; raise WrongModelKind if the model has none."""
    model = context.registry.get(name)
    if not needs.reads_images(model) and POOLED not in model.card.outputs:
        raise WrongModelKind(f"{name} gives no vector of a text", remedy="name another model")
    embed_request = EmbedRequest([Text(text) for text in texts], name, options)
    return await context.embedder.embed(embed_request, request.context)


async def _keep(context: ServiceContext, name: str, seconds: float | None) -> None:
    """Let a model that is loaded on demand stay for so many seconds; None: the request does not say."""
    on_demand, model = context.registry.on_demand, context.registry.models.get(name)
    if seconds is not None and on_demand is not None and model is not None:
        await on_demand.keep(model, seconds)


# ---- models


def _model_routes(context: ServiceContext) -> list[Route]:
    registry, store = context.registry, context.settings.store

    async def tags(request: Request) -> Response:
        entries = [_entry(model) | {"modified_at": _modified(store, model)} for model in registry.offered.values()]
        return json_response({"models": entries})

    async def loaded(request: Request) -> Response:
        models = registry.models.values()
        entries = [{"size_vram": 0, "context_length": model.card.max_tokens or 0} for model in models]
        for entry, model in zip(entries, models, strict=True):
            entry |= _entry(model) | {"expires_at": _expiry(registry.seconds_left(model))}
        return json_response({"models": entries})

    async def show(request: Request) -> Response:
        body = body_of(request.body, OllamaShowBody)
        model = registry.described(body.model or body.name)
        return json_response(_description(model) | {"modified_at": _modified(store, model)})

    async def version(request: Request) -> Response:
        return json_response({"version": context.version})

    lists: dict[str, Handler] = {"/api/tags": tags, "/api/ps": loaded, "/api/version": version}
    rows = [Route("GET", path, handler, admitted=False) for path, handler in lists.items()]
    return [*rows, Route("POST", "/api/show", show, bodies=(OllamaShowBody,), admitted=False)]


def _details(model: Model) -> dict[str, Any]:
    card = model.card
    return {
        "parent_model": "",
        "format": "onnx",
        "family": card.family,
        "families": [card.family],
        "parameter_size": f"{card.parameters / 1e6:.1f}M",
        "quantization_level": {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}.get(card.dtype, card.dtype),
    }


def _entry(model: Model) -> dict[str, Any]:
    name, size = model.card.name, model.card.bytes
    return {"name": name, "model": name, "size": size, "digest": model.version, "details": _details(model)}


def _description(model: Model) -> dict[str, Any]:
    card = model.card
    lengths = {"embedding_length": card.hidden_size, "context_length": card.max_tokens}
    general = {"general.architecture": card.family, "general.parameter_count": card.parameters}
    return {
        "modelfile": f"FROM {card.source}",
        "parameters": "",
        "template": "",
        "details": _details(model),
        "model_info": general | {f"{card.family}.{name}": value for name, value in lengths.items()},
        "capabilities": ["embedding"],
    }


def _expiry(seconds: float) -> str:
    """Return when a model is unloaded, if no request comes for it."""
    return (
        FOREVER if seconds > FOREVER_SECONDS else (datetime.now(UTC) + timedelta(seconds=max(0, seconds))).isoformat()
    )


def _modified(store: Any, model: Model) -> str:
    return datetime.fromtimestamp(created(store, model.card.name), UTC).isoformat()
