"""Positional encodings over HTTP: /positions/... of any parameters, and the same of a model under /models/{name}/..."""

from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from service.context import ServiceContext
from service.http.endpoint import StarletteEndpoint as Endpoint
from service.protocols.inlay.positions import (
    answers,
    graphs,
    listing,
    lookup,
    rotation,
)
from service.protocols.inlay.positions import (
    parsing as asked,
)
from service.protocols.inlay.positions import (
    plots as pictures,
)

Answer = Any
from service.protocols.inlay.positions.model_schemes import BOUND, Bound
from service.protocols.inlay.positions.schemes import SCHEMES, Scheme
from service.protocols.inlay.positions.table_call import Call

PURE, OF_A_MODEL = "/positions", "/models/{name}"
TENSORS_ONLY = ("POST",)


def routes(context: ServiceContext) -> APIRouter:
    """Every route of positions; openapi.py describes them."""
    drawn = pictures.Pictures(context.tables)
    found: list[BaseRoute] = [
        _route(context, PURE, _json(listing.schemes()), ("GET",)),
        _route(context, f"{PURE}/presets", _json(listing.presets()), ("GET",)),
        _route(context, f"{PURE}/rope/rotate", partial(_rotate, context), TENSORS_ONLY),
        _route(context, f"{PURE}/rope/convert", partial(_convert, context), TENSORS_ONLY),
        _route(context, f"{OF_A_MODEL}/rope/rotate", partial(_rotate_of_a_model, context), TENSORS_ONLY),
    ]
    for prefix, rows in ((PURE, SCHEMES), (OF_A_MODEL, BOUND)):
        for name, row in rows.items():
            found.append(_route(context, f"{prefix}/{name}", partial(_table, context, row), row.methods))
            found += [
                _route(context, f"{prefix}/{name}.{form}", partial(_picture, context, drawn, row, form), ("GET",))
                for form in pictures.MEDIA_TYPES
                if "GET" in row.methods and pictures.drawable(name)
            ]
            if "GET" in row.methods and graphs.emitted(name):
                found.append(_route(context, f"{prefix}/{name}.onnx", partial(_graph, context, row), ("GET",)))
    return APIRouter(routes=found)


def _route(context: ServiceContext, path: str, answer: Answer, methods: tuple[str, ...]) -> Route:
    return Route(path, Endpoint(path, answer, context), methods=list(methods), include_in_schema=False)


def _json(document: bytes) -> Answer:
    async def answer(request: Request) -> Response:
        return Response(document, media_type="application/json")

    return answer


async def _table(context: ServiceContext, row: Scheme | Bound, request: Request) -> Response:
    make = lookup.maker(context, row, request.path_params.get("name", ""))
    if request.method == "POST":
        wanted, cache = await asked.of_body(row.parameters, request), None
    else:
        wanted, cache = asked.of_query(row.parameters, request.query_params), _cache(row)
    return await answers.answer(request, context.tables, make(wanted), answers.wanted(wanted, request), cache)


async def _picture(
    context: ServiceContext, drawn: pictures.Pictures, row: Scheme | Bound, form: str, request: Request
) -> Response:
    make, model = lookup.maker(context, row, request.path_params.get("name", "")), pictures.model_of(row)
    looks = asked.of_query(model, request.query_params, repeated=("compare",))
    others = pictures.compared(request, row.name, lambda values: make(asked.validated(model, values)))
    shown = [pictures.Shown(make(looks), pictures.name_of(looks)), *others]
    return await drawn.answer(request, shown, looks, form, _cache(row))


async def _graph(context: ServiceContext, row: Scheme | Bound, request: Request) -> Response:
    make = lookup.maker(context, row, request.path_params.get("name", ""))
    call = make(asked.of_query(graphs.model_of(row), request.query_params))
    return await graphs.answer(request, context.tables, row.name, call, _cache(row))


async def _rotate(context: ServiceContext, request: Request) -> Response:
    wanted = await asked.of_body(rotation.ROTATE, request)
    return await _tensors(context, request, rotation.rotate(wanted), wanted)


async def _rotate_of_a_model(context: ServiceContext, request: Request) -> Response:
    owner = lookup.owner(context, request.path_params["name"])
    wanted = await asked.of_body(rotation.ROTATE_OF_A_MODEL, request)
    return await _tensors(context, request, rotation.rotate_of_a_model(owner, wanted), wanted)


async def _convert(context: ServiceContext, request: Request) -> Response:
    wanted = await asked.of_body(rotation.CONVERT, request)
    return await _tensors(context, request, rotation.convert(wanted), wanted)


async def _tensors(context: ServiceContext, request: Request, call: Call, wanted: Any) -> Response:
    form = answers.wanted(wanted, request, dtype=rotation.dtype_of(call, wanted))
    return await answers.answer(request, context.tables, call, form, None)


def _cache(row: Scheme | Bound) -> str:
    return answers.FOREVER if isinstance(row, Scheme) else answers.ASK_AGAIN
