"""Describes the models, over HTTP and gRPC; the schema Model of openapi.json says what a description holds."""

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any

from models.artifacts.card import Card
from models.recipes.heads import MultiVector
from models.recipes.positional_encodings import Encodings
from service import machine
from service.context import ServiceContext
from service.embedding.model import Model
from service.http.response import Response, json_response
from service.http.routes import Handler, Request, Route
from service.machine import Mappings
from service.protocols.inlay import DATA, needs
from service.protocols.inlay.positions.schemes import available
from service.registry.registry import ModelRegistry
from service.registry.store import created
from service.settings import Settings

MODEL = DATA.schemas["Model"]


def summary(model: Model, registry: ModelRegistry, mappings: Mappings | None = None) -> dict[str, Any]:
    """Return the description of a loaded model: its card, its device, and its share of `mappings`."""
    card, choice, mapped = model.card, model.choice, machine.mapped_of(model.mapped, mappings or {})
    loaded = card.name in registry.models
    facts = {name: getattr(card, name) for name in MODEL["properties"] if hasattr(card, name)}
    facts |= {
        "default": model is registry.default,
        "loaded": loaded,
        "unloaded_in_seconds": left if loaded and (left := registry.seconds_left(model)) < math.inf else None,
        "device": model.engine.device,
        "engine": choice.engine,
        "precision": choice.precision,
        "closeness": choice.closeness,
        "flops_per_text": getattr(facts["modules"], "flops_per_text", 0),
        "memory": mapped if mapped.mapped else None,
        "positions": available(card),
        "reads_text": card.tokenizer is not None,
        "version": model.version,
    }
    facts |= {name: flat(facts[name]) for name, flat in FLAT.items()}
    described: dict[str, Any] = _described(facts, MODEL)
    return described


def _described(value: Any, part: Mapping[str, Any]) -> Any:
    """Return of a value what its schema lists: attributes of an object by name, and the same of each item."""
    if value is None:
        return None
    if "properties" in part:
        values = value if isinstance(value, dict) else {name: getattr(value, name) for name in part["properties"]}
        return {name: _described(values[name], member) for name, member in part["properties"].items()}
    if isinstance(value, dict):
        members = part["additionalProperties"]
        return {name: _described(each, members if isinstance(members, dict) else {}) for name, each in value.items()}
    return [_described(each, part.get("items", {})) for each in value] if isinstance(value, tuple | list) else value


def _encodings(encodings: Encodings) -> dict[str, Any]:
    ropes = {
        layer_type: asdict(table.rope) | asdict(table) | {"parameters": dict(table.rope.parameters)}
        for layer_type, table in encodings.ropes.items()
    }
    return {field.name: getattr(encodings, field.name) for field in fields(encodings)} | {"ropes": ropes}


def _vectors(vectors: MultiVector | None) -> dict[str, Any] | None:
    if vectors is None:
        return None
    return {
        "dimensions": vectors.modules.width,
        "query_tokens": vectors.query.max_tokens,
        "document_tokens": vectors.document.max_tokens,
        "expanded_tokens": vectors.expansion.tokens if vectors.expansion else None,
        "function": "listwise" if vectors.listwise else "meanmaxsim" if vectors.mean else "maxsim",
    }


FLAT: dict[str, Callable[[Any], Any]] = {
    "modules": lambda modules: [type(step).__name__ for step in modules.steps] if modules else [],
    "multi_vector": _vectors,
    "prompts": list,
    "encodings": _encodings,
}
"""Parts of a card that a description holds in another form."""


def default_flops_per_token(card: Card) -> int:
    """Return the FLOPs per token of the graph behind the default output."""
    graph = card.graph_for(card.default_output, False) or card.graph_for("last_hidden_state", False)
    return card.flops_per_token.get(graph or "", 0)


def listed(model: Model, settings: Settings) -> dict[str, Any]:
    """Return a loaded model as infinity lists it, with the length of its queue."""
    batchers = model.batchers.values()
    items = sum(batcher.waiting_items for batcher in batchers)
    share = sum(batcher.waiting_cost for batcher in batchers) / (settings.max_queue_tokens * max(1, len(batchers)))
    return {
        "id": model.card.name,
        "object": "model",
        "created": created(settings.store, model.card.name),
        "owned_by": "infinity",  # its client accepts no other
        "backend": model.choice.engine,
        "capabilities": ["image_embed" if needs.reads_images(model) else "embed"],
        "stats": {"queue_fraction": share, "queue_absolute": items, "results_pending": items},
    }


def routes(context: ServiceContext) -> list[Route]:
    """Return GET /models and GET /models/{name}."""
    registry, settings = context.registry, context.settings

    async def list_models(request: Request) -> Response:
        offered = registry.offered.values()
        mappings = await asyncio.to_thread(machine.mapped_files)
        data = [listed(model, settings) for model in offered]
        summaries = [summary(model, registry, mappings) for model in offered]
        return json_response({"object": "list", "data": data, "models": summaries})

    async def get_model(request: Request) -> Response:
        mappings = await asyncio.to_thread(machine.mapped_files)
        return json_response(summary(registry.described(request.parameters["name"]), registry, mappings))

    handlers: dict[str, Handler] = {"/models": list_models, "/models/{name}": get_model}
    return [Route("GET", path, handler, admitted=False) for path, handler in handlers.items()]
