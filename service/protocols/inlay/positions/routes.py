"""The routes of positional encodings: /positions/... for any parameters, /models/{name}/... for a model."""

from collections.abc import Callable
from functools import partial
from typing import Any

from models.graphs.positions.catalog import GRAPHS, graph
from service.context import ServiceContext
from service.embedding.position_tables import TableCall, as_bad_parameters
from service.heavy.lane import run_beside
from service.http.formats import JSON, OCTETS
from service.http.response import Response
from service.http.routes import Answer, Request, Route, binary
from service.protocols.inlay.openapi_parts import DATA
from service.protocols.inlay.parsing import from_body, from_query, query_values
from service.protocols.inlay.positions.plots import (
    DOCUMENT,
    FIGURE_TYPES,
    PICTURE_TYPES,
    USUAL_LENGTHS,
    figure_parameters,
    figure_response,
    is_drawable,
    parse_source,
)
from service.protocols.inlay.positions.responses import (
    FOREVER,
    REVALIDATE,
    table_answer,
    table_form,
    table_response,
    tensor_route,
)
from service.protocols.inlay.positions.schemes import (
    MODEL_SCHEMES,
    SCHEMES,
    Scheme,
    call_maker,
)

HELD = Answer(description="The client's copy is current.")


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


def _operation(row: Scheme, verb: str, suffix: str = "") -> str:
    of_model = "_of_a_model" if row.of_model else ""
    return f"{verb}_{row.name}{suffix}{of_model}".replace("-", "_")


def _tag(row: Scheme, answer: str) -> str:
    return f"positions of a model: {answer}" if row.of_model else f"positions: {answer}"


def _cache_control(row: Scheme) -> str:
    return REVALIDATE if row.of_model else FOREVER


def _maker(context: ServiceContext, row: Scheme, request: Request) -> Callable[[Any], TableCall]:
    return call_maker(context, row, request.parameters.get("name", ""))


# ---- tables


def _table_routes(context: ServiceContext, row: Scheme) -> list[Route]:
    handler = partial(_answer, context, row)
    by_post = tensor_route(
        row.path,
        handler,
        _operation(row, "post"),
        row.summary,
        row.parameters,
        tag=_tag(row, "numbers"),
        examples={"table": row.example},
        need=row.need,
    )
    if "GET" not in row.methods:
        return [by_post]
    by_get = Route(
        verb="GET",
        path=row.path,
        handler=handler,
        name=_operation(row, "get"),
        summary=row.summary,
        tag=by_post.tag,
        query=row.parameters,
        examples=row.example,
        need=row.need,
        answers={200: table_answer(), 304: HELD},
    )
    return [by_get, by_post]


async def _answer(context: ServiceContext, row: Scheme, request: Request) -> Response:
    """Return the table that a request's parameters stand for; its model is found before they are read."""
    make_call, posted = _maker(context, row, request), request.head.verb == "POST"
    sent = await from_body(row.parameters, request) if posted else from_query(row.parameters, request)
    form, cache_control = table_form(request, sent), None if posted else _cache_control(row)
    return await table_response(request, context.tables, make_call(sent), form, cache_control)


def _drawn_example(row: Scheme) -> dict[str, Any]:
    """Return a row's example without the lengths that its figures and graphs need not be told."""
    return {name: value for name, value in row.example.items() if name not in USUAL_LENGTHS}


# ---- pictures and graphs


def _plot_route(context: ServiceContext, row: Scheme, extension: str) -> Route:
    async def handler(request: Request) -> Response:
        make_call = _maker(context, row, request)
        return await figure_response(context, row, extension, request, make_call, _cache_control(row))

    content = {JSON: DATA.parts["figure"]} if extension == DOCUMENT else {PICTURE_TYPES[extension]: binary()}
    return Route(
        verb="GET",
        path=f"{row.path}.{extension}",
        handler=handler,
        name=_operation(row, "draw", f"_{extension}"),
        summary=f"{row.summary}, a figure's numbers" if extension == DOCUMENT else f"{row.summary}, drawn",
        tag=_tag(row, "figures as JSON" if extension == DOCUMENT else "pictures"),
        query=figure_parameters(row, extension),
        examples=_drawn_example(row),
        need=row.need,
        answers={200: Answer(description="The figure.", content=content), 304: HELD},
    )


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

    file = Answer(description="The graph, of any positions and lengths.", content={OCTETS: binary()})
    return Route(
        verb="GET",
        path=f"{row.path}.onnx",
        handler=handler,
        name=_operation(row, "graph"),
        summary=f"{row.summary}, as an ONNX graph",
        tag=_tag(row, "ONNX graphs"),
        query=figure_parameters(row),
        examples=_drawn_example(row),
        need=row.need,
        answers={200: file, 304: HELD},
    )
