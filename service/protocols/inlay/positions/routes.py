"""The routes of positional encodings: /positions/... for any parameters, /models/{name}/... for a model."""

from collections.abc import Callable
from functools import partial
from typing import Any

from models.graphs.positions.catalog import GRAPHS, graph
from service.context import ServiceContext
from service.embedding.position_tables import TableCall, as_bad_parameters
from service.heavy.lane import run_beside
from service.http.formats import OCTETS
from service.http.response import Response
from service.http.routes import Request, Route
from service.protocols.inlay import DATA
from service.protocols.inlay.parsing import from_body, from_query, query_values
from service.protocols.inlay.positions.plots import (
    FIGURE_TYPES,
    USUAL_LENGTHS,
    figure_parameters,
    figure_response,
    is_drawable,
    parse_source,
)
from service.protocols.inlay.positions.responses import (
    FOREVER,
    REVALIDATE,
    media_type_of,
    table_response,
)
from service.protocols.inlay.positions.schemes import (
    MODEL_SCHEMES,
    SCHEMES,
    Scheme,
    call_maker,
)


def routes(context: ServiceContext) -> list[Route]:
    """Return the routes of every scheme."""
    rows: list[Route] = []
    for row in (*SCHEMES.values(), *MODEL_SCHEMES.values()):
        rows += _table_routes(context, row)
        if "GET" in row.methods and is_drawable(row.name):
            rows += [_plot_route(context, row, extension) for extension in FIGURE_TYPES]
        if "GET" in row.methods and row.name in GRAPHS:
            rows.append(_graph_route(context, row))
    return rows


def _described(row: Scheme, form: str) -> dict[str, Any]:
    """Return what the OpenAPI document says of a route of a row; `form` is one of "routes of a scheme" of DATA."""
    template: dict[str, Any] = DATA.parts["routes of a scheme"][form]
    of_figure = form not in ("get", "post")
    example = {name: each for name, each in row.example.items() if not (of_figure and name in USUAL_LENGTHS)}
    described = template | {
        "operationId": template["operationId"].format(row.name.replace("-", "_")) + "_of_a_model" * row.of_model,
        "summary": template["summary"].format(row.summary),
        "tag": f"positions{' of a model' * row.of_model}: {template['tag']}",
        "values": example,
        "examples": {"table": example},
    }
    return described | ({"needs": {"what": f"a model with {row.has}", "status": 404}} if row.of_model else {})


def _cache_control(row: Scheme) -> str:
    return REVALIDATE if row.of_model else FOREVER


def _maker(context: ServiceContext, row: Scheme, request: Request) -> Callable[[Any], TableCall]:
    return call_maker(context, row, request.parameters.get("name", ""))


# ---- tables


def _table_routes(context: ServiceContext, row: Scheme) -> list[Route]:
    handler, query = partial(_answer, context, row), row.parameters
    by_post = Route("POST", row.path, handler, bodies=(query,), operation=_described(row, "post"))
    by_get = Route("GET", row.path, handler, query=query, operation=_described(row, "get"))
    return [by_get, by_post] if "GET" in row.methods else [by_post]


async def _answer(context: ServiceContext, row: Scheme, request: Request) -> Response:
    """Return the table that a request's parameters stand for; its model is found before they are read."""
    make_call, posted = _maker(context, row, request), request.head.verb == "POST"
    sent = await from_body(row.parameters, request) if posted else from_query(row.parameters, request)
    media_type, cache_control = media_type_of(request, sent), None if posted else _cache_control(row)
    return await table_response(request, context.tables, make_call(sent), media_type, sent, cache_control)


# ---- pictures and graphs


def _plot_route(context: ServiceContext, row: Scheme, extension: str) -> Route:
    async def handler(request: Request) -> Response:
        make_call = _maker(context, row, request)
        return await figure_response(context, row, extension, request, make_call, _cache_control(row))

    query, operation = figure_parameters(row, extension), _described(row, extension)
    return Route("GET", f"{row.path}.{extension}", handler, query=query, operation=operation)


def _graph_route(context: ServiceContext, row: Scheme) -> Route:
    """Return GET {scheme}.onnx: the ONNX graph that computes a scheme for any positions, cached."""

    async def handler(request: Request) -> Response:
        call = _maker(context, row, request)(parse_source(row, query_values(request)))
        etag = call.etag("onnx")
        headers = ((b"etag", etag.encode()), (b"cache-control", _cache_control(row).encode()))
        if request.holds(etag):
            return Response((), headers, 304)
        body = context.tables.cached(etag)
        if body is None:
            with as_bad_parameters():
                body = memoryview(await run_beside(graph, row.name, call.arguments))
            context.tables.cache(etag, body)
        name = b'attachment; filename="%b.onnx"' % row.name.encode()
        return Response((body,), (*headers, (b"content-disposition", name), (b"content-type", OCTETS.encode())))

    return Route("GET", f"{row.path}.onnx", handler, query=figure_parameters(row), operation=_described(row, "onnx"))
