"""Positional encodings over HTTP: /positions/... of any parameters, and the same of a model under /models/{name}/..."""

from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from service.context import Parts
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
from service.protocols.inlay.positions.endpoint import Answer, Endpoint
from service.protocols.inlay.positions.model_schemes import BOUND, Bound
from service.protocols.inlay.positions.schemes import SCHEMES, Scheme
from service.protocols.inlay.positions.table_call import Call

PURE, OF_A_MODEL = "/positions", "/models/{name}"
TENSORS_ONLY = ("POST",)


def routes(parts: Parts) -> APIRouter:
    """Every route of positions; openapi.py describes them."""
    drawn = pictures.Pictures(parts.tables)
    found: list[BaseRoute] = [
        _route(parts, PURE, _json(listing.schemes()), ("GET",)),
        _route(parts, f"{PURE}/presets", _json(listing.presets()), ("GET",)),
        _route(parts, f"{PURE}/rope/rotate", partial(_rotate, parts), TENSORS_ONLY),
        _route(parts, f"{PURE}/rope/convert", partial(_convert, parts), TENSORS_ONLY),
        _route(parts, f"{OF_A_MODEL}/rope/rotate", partial(_rotate_of_a_model, parts), TENSORS_ONLY),
    ]
    for prefix, rows in ((PURE, SCHEMES), (OF_A_MODEL, BOUND)):
        for name, row in rows.items():
            found.append(_route(parts, f"{prefix}/{name}", partial(_table, parts, row), row.methods))
            found += [
                _route(parts, f"{prefix}/{name}.{form}", partial(_picture, parts, drawn, row, form), ("GET",))
                for form in pictures.MEDIA_TYPES
                if "GET" in row.methods and pictures.drawable(name)
            ]
            if "GET" in row.methods and graphs.emitted(name):
                found.append(_route(parts, f"{prefix}/{name}.onnx", partial(_graph, parts, row), ("GET",)))
    return APIRouter(routes=found)


def _route(parts: Parts, path: str, answer: Answer, methods: tuple[str, ...]) -> Route:
    return Route(path, Endpoint(path, answer, parts), methods=list(methods), include_in_schema=False)


def _json(document: bytes) -> Answer:
    async def answer(request: Request) -> Response:
        return Response(document, media_type="application/json")

    return answer


async def _table(parts: Parts, row: Scheme | Bound, request: Request) -> Response:
    make = lookup.maker(parts, row, request.path_params.get("name", ""))
    if request.method == "POST":
        wanted, cache = await asked.of_body(row.parameters, request, parts.intake), None
    else:
        wanted, cache = asked.of_query(row.parameters, request.query_params), _cache(row)
    return await answers.answer(request, parts.tables, make(wanted), answers.wanted(wanted, request), cache)


async def _picture(
    parts: Parts, drawn: pictures.Pictures, row: Scheme | Bound, form: str, request: Request
) -> Response:
    make, model = lookup.maker(parts, row, request.path_params.get("name", "")), pictures.model_of(row)
    looks = asked.of_query(model, request.query_params, repeated=("compare",))
    others = pictures.compared(request, row.name, lambda values: make(asked.validated(model, values)))
    shown = [pictures.Shown(make(looks), pictures.name_of(looks)), *others]
    return await drawn.answer(request, shown, looks, form, _cache(row))


async def _graph(parts: Parts, row: Scheme | Bound, request: Request) -> Response:
    make = lookup.maker(parts, row, request.path_params.get("name", ""))
    call = make(asked.of_query(graphs.model_of(row), request.query_params))
    return await graphs.answer(request, parts.tables, row.name, call, _cache(row))


async def _rotate(parts: Parts, request: Request) -> Response:
    wanted = await asked.of_body(rotation.ROTATE, request, parts.intake)
    return await _tensors(parts, request, rotation.rotate(wanted), wanted)


async def _rotate_of_a_model(parts: Parts, request: Request) -> Response:
    owner = lookup.owner(parts, request.path_params["name"])
    wanted = await asked.of_body(rotation.ROTATE_OF_A_MODEL, request, parts.intake)
    return await _tensors(parts, request, rotation.rotate_of_a_model(owner, wanted), wanted)


async def _convert(parts: Parts, request: Request) -> Response:
    wanted = await asked.of_body(rotation.CONVERT, request, parts.intake)
    return await _tensors(parts, request, rotation.convert(wanted), wanted)


async def _tensors(parts: Parts, request: Request, call: Call, wanted: Any) -> Response:
    form = answers.wanted(wanted, request, dtype=rotation.dtype_of(call, wanted))
    return await answers.answer(request, parts.tables, call, form, None)


def _cache(row: Scheme | Bound) -> str:
    return answers.FOREVER if isinstance(row, Scheme) else answers.ASK_AGAIN
