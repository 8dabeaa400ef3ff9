"""The Open Inference Protocol over HTTP: health, metadata, statistics, inference. Refuses in its words."""

from typing import Any

from fastapi import APIRouter

from service.context import ServiceContext
from service.errors import Unavailable
from service.http.endpoint import Answer, Call
from service.protocols.oip import binary
from service.protocols.oip import metadata as described
from service.protocols.oip import shared_memory_routes as lending
from service.protocols.oip.infer import VERSION, infer, model_of
from service.protocols.oip.responses import (
    PREFIX,
    Row,
    answer_json,
    refusal,
    route,
)

__all__ = ["PREFIX", "answer_json", "refusal", "route", "routes"]
MODEL = f"{PREFIX}/models/{{name}}"
VERSIONED = f"{MODEL}/versions/{{version}}"


def routes(context: ServiceContext) -> APIRouter:
    """Everything under /v2 but the model repository."""
    rows = (*ROUTES, *lending.ROUTES)
    return APIRouter(
        routes=[route(context, path, verb, method, reply) for verb, method, reply, *paths in rows for path in paths]
    )


async def _server(context: ServiceContext, call: Call) -> Answer:
    return answer_json(described.server(context.version, context.settings))


async def _live(context: ServiceContext, call: Call) -> Answer:
    return answer_json({"live": True})


async def _ready(context: ServiceContext, call: Call) -> Answer:
    return await _probed(context, {"ready": True})


async def _model(context: ServiceContext, call: Call) -> Answer:
    return answer_json(described.model(model_of(context, *_asked(call))))


async def _model_ready(context: ServiceContext, call: Call) -> Answer:
    name = model_of(context, *_asked(call)).card.name
    return await _probed(context, {"name": name, "ready": True})


async def _probed(context: ServiceContext, document: Any) -> Answer:
    """A probe's "no" is its answer: nobody was refused anything, and no refusal is counted."""
    try:
        await context.check_ready()
    except Unavailable as error:
        return refusal(error)
    return answer_json(document)


async def _config(context: ServiceContext, call: Call) -> Answer:
    return answer_json(described.config(model_of(context, *_asked(call))))


async def _statistics(context: ServiceContext, call: Call) -> Answer:
    names = [model_of(context, *_asked(call)).card.name] if "name" in call.path else list(context.registry.models)
    return answer_json({"model_stats": [context.statistics.document(name, VERSION) for name in names]})


async def _infer(context: ServiceContext, call: Call) -> Answer:
    name, version = _asked(call)
    model_of(context, name, version)
    asked = binary.read(await call.body(), call.fields, context.settings, context.regions)
    wanted = [each.name for each in asked.outputs]
    model, outputs = await infer(context, name, version, asked.inputs, asked.parameters, wanted, call.request.context)
    return await binary.answer(model, asked, outputs, context.regions)


def _asked(call: Call) -> tuple[str, str]:
    return call.path["name"], call.path.get("version", "")


ROUTES: tuple[Row, ...] = (
    ("GET", "oip_server", _server, PREFIX),
    ("GET", "oip_live", _live, f"{PREFIX}/health/live"),
    ("GET", "oip_ready", _ready, f"{PREFIX}/health/ready"),
    ("GET", "oip_statistics", _statistics, f"{PREFIX}/models/stats", f"{MODEL}/stats", f"{VERSIONED}/stats"),
    ("GET", "oip_model", _model, MODEL, VERSIONED),
    ("GET", "oip_model_ready", _model_ready, f"{MODEL}/ready", f"{VERSIONED}/ready"),
    ("GET", "oip_config", _config, f"{MODEL}/config", f"{VERSIONED}/config"),
    ("POST", "oip_infer", _infer, f"{MODEL}/infer", f"{VERSIONED}/infer"),
)
"""Verb, name in the metrics, what answers, paths."""
