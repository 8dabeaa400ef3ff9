"""The model repository extension: what the store holds, loading and unloading while others are served.

The core of both protocols, and its routes over HTTP. A name is that of one folder of the store; whatever else could
reach a file (a configuration, files in the request) is refused.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import APIRouter

from service.context import ServiceContext
from service.errors import BadRequest, Malformed, Unsupported
from service.http.endpoint import Answer, Call
from service.protocols.inlay.inputs import show
from service.protocols.oip.infer import VERSION
from service.protocols.oip.responses import PREFIX, answer_json, route
from service.registry.registry import State
from service.registry.store import checked

PATH = f"{PREFIX}/repository"
MODEL = f"{PATH}/models/{{name}}"
READY, UNAVAILABLE = "READY", "UNAVAILABLE"
DEPENDENTS = "unload_dependents"  # no model here has any


def routes(context: ServiceContext) -> APIRouter:
    """POST index, load and unload."""
    return APIRouter(
        routes=[
            route(context, f"{PATH}/index", "POST", "oip_index", _index),
            route(context, f"{MODEL}/load", "POST", "oip_load", _load),
            route(context, f"{MODEL}/unload", "POST", "oip_unload", _unload),
        ]
    )


async def index(context: ServiceContext, ready: bool, repository: str = "") -> list[dict[str, str]]:
    """Every model of the store by name, or the loaded ones alone."""
    _check_repository(repository)
    states = await asyncio.to_thread(context.registry.states)
    return [_entry(state) for state in states if state.ready or not ready]


async def load(context: ServiceContext, name: str, parameters: Mapping[str, Any], repository: str = "") -> None:
    """Serve the store's present version of a model.

    raises   Unsupported where the operator has not allowed it, or for parameters; what ModelRegistry.load raises
    """
    _check_repository(repository)
    _check_control(context)
    if parameters:
        raise Unsupported(
            f"parameter {next(iter(parameters))[:80]!r} of a load is not supported: models are served as they were "
            "exported to the store; leave it out"
        )
    await context.registry.known(name)
    await context.registry.load(name)


async def unload(context: ServiceContext, name: str, parameters: Mapping[str, Any], repository: str = "") -> None:
    """Stop serving a model.

    raises   Unsupported where the operator has not allowed it, or for parameters; what ModelRegistry.unload raises
    """
    _check_repository(repository)
    _check_control(context)
    if others := parameters.keys() - {DEPENDENTS}:
        raise Unsupported(f"parameter {min(others)[:80]!r} of an unload is not supported; leave it out")
    context.registry.get(checked(name))
    await context.registry.unload(name)


def _entry(state: State) -> dict[str, str]:
    return {
        "name": state.name,
        "version": VERSION,
        "state": READY if state.ready else UNAVAILABLE,
        "reason": state.reason,
    }


def _check_repository(name: str) -> None:
    if name:
        raise Unsupported(f"repository_name is {name[:80]!r}; this server has one store: leave it out")


def _check_control(context: ServiceContext) -> None:
    if context.settings.model_control != "explicit":
        raise Unsupported("loading and unloading is off: the operator switches it on with INLAY_MODEL_CONTROL=explicit")


async def _index(context: ServiceContext, call: Call) -> Answer:
    document = await _object(call)
    ready = document.get("ready", False)
    if type(ready) is not bool:
        raise BadRequest(f"ready is {show(ready)}; allowed: true or false")
    return answer_json(await index(context, ready))


async def _load(context: ServiceContext, call: Call) -> Answer:
    name = call.path["name"]
    await load(context, name, _parameters(await _object(call)))
    return answer_json({"name": name, "load": True})


async def _unload(context: ServiceContext, call: Call) -> Answer:
    name = call.path["name"]
    await unload(context, name, _parameters(await _object(call)))
    return answer_json({"name": name, "unload": True})


async def _object(call: Call) -> dict[str, Any]:
    """The body; none is an empty object."""
    body = await call.body()
    try:
        document = orjson.loads(body) if body.strip() else {}
    except orjson.JSONDecodeError as error:
        raise Malformed(f"the body is not JSON: {error}") from None
    if type(document) is not dict:
        raise BadRequest(f"the body is {show(document)}; send a JSON object, or none")
    return document


def _parameters(document: dict[str, Any]) -> dict[str, Any]:
    found = document.get("parameters")
    if found is not None and type(found) is not dict:
        raise BadRequest(f"parameters is {show(found)}; allowed: an object")
    return found or {}
