"""The routes of positional encodings: /positions/... of any parameters, /models/{name}/... of a model's own."""

import asyncio
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import orjson
from pydantic import BaseModel

from models.graphs.positions.catalog import GRAPHS, graph
from service.context import ServiceContext
from service.embedding.position_tables import TableCall, as_bad_parameters
from service.http.formats import JSON, OCTETS
from service.http.response import Response
from service.http.routes import Answer, Handler, Request, Route, Schema, binary
from service.protocols.inlay.parsing import from_body, from_query, query_values
from service.protocols.inlay.positions import rotation
from service.protocols.inlay.positions.descriptions import preset_list, scheme_list
from service.protocols.inlay.positions.model_schemes import (
    MODEL_SCHEMES,
    AnyScheme,
    call_maker,
    find_model,
)
from service.protocols.inlay.positions.parameters import (
    ConvertParameters,
    ModelRotateParameters,
    RotateParameters,
    TensorOptions,
)
from service.protocols.inlay.positions.plots import (
    DOCUMENT,
    FIGURE_DOCUMENT,
    PICTURE_TYPES,
    Plots,
    is_drawable,
    parse_source,
    plot_schema,
    source_schema,
)
from service.protocols.inlay.positions.responses import (
    BINARY_TABLES,
    FOREVER,
    REVALIDATE,
    is_held,
    table_answer,
    table_form,
    table_response,
    tensor_route,
)
from service.protocols.inlay.positions.schemes import SCHEMES, Scheme

TAG = "positions"
TAG_DESCRIPTION = "Positional encodings: of any parameters, and those of a model."
HELD = Answer(description="The client's copy is current.")
RANGES = {
    206: Answer(description="The bytes of a Range.", content=BINARY_TABLES),
    304: HELD,
    416: Answer(description="The range begins behind the last byte."),
}


def routes(context: ServiceContext) -> list[Route]:
    """Return the lists of schemes and presets, and the routes of every scheme."""
    rows = [
        _list_route("", _scheme_list(), "Every scheme, its parameters and plots"),
        _list_route("/presets", _preset_list(), "RoPE configurations by name, with their sources"),
        *_tensor_routes(context),
    ]
    model_calls = partial(call_maker, context)
    pictures = Plots(context.tables, context.budget, model_calls)
    documents = Plots(context.tables, context.budget, model_calls)  # they do not wait for pictures
    schemes: list[AnyScheme] = [*SCHEMES.values(), *MODEL_SCHEMES.values()]
    for row in schemes:
        rows += _table_routes(context, row)
        if "GET" in row.methods and is_drawable(row.name):
            rows += [_plot_route(context, pictures, row, extension) for extension in PICTURE_TYPES]
            rows.append(_plot_route(context, documents, row, DOCUMENT))
        if "GET" in row.methods and row.name in GRAPHS:
            rows.append(_graph_route(context, row))
    return rows


def _path(row: AnyScheme, suffix: str = "") -> str:
    return f"{'/positions' if isinstance(row, Scheme) else '/models/{name}'}/{row.name}{suffix}"


def _operation(row: AnyScheme, verb: str, suffix: str = "") -> str:
    of_model = "" if isinstance(row, Scheme) else "_of_a_model"
    return f"{verb}_{row.name}{suffix}{of_model}".replace("-", "_")


def _cache_control(row: AnyScheme) -> str:
    return FOREVER if isinstance(row, Scheme) else REVALIDATE


def _maker(context: ServiceContext, row: AnyScheme, request: Request) -> Callable[[Any], TableCall]:
    return call_maker(context, row, request.parameters.get("name", ""))


# ---- tables


def _table_routes(context: ServiceContext, row: AnyScheme) -> list[Route]:
    async def get(request: Request) -> Response:
        make_call = _maker(context, row, request)
        parameters = from_query(row.parameters, request)
        form = table_form(request, parameters, parameters.dtype)
        return await table_response(request, context.tables, make_call(parameters), form, _cache_control(row))

    async def post(request: Request) -> Response:
        make_call = _maker(context, row, request)
        parameters = await from_body(row.parameters, request)
        form = table_form(request, parameters, parameters.dtype)
        return await table_response(request, context.tables, make_call(parameters), form)

    by_post = tensor_route(_path(row), post, _operation(row, "post"), row.summary, row.parameters, tag=TAG)
    if "GET" not in row.methods:
        return [by_post]
    answers = {200: table_answer(), **RANGES}
    return [_get_route(_path(row), get, _operation(row, "get"), row.summary, row.parameters, answers), by_post]


def _get_route(
    path: str,
    handler: Handler,
    name: str,
    summary: str,
    query: type[BaseModel] | Schema | None,
    answers: Mapping[int, Answer],
) -> Route:
    return Route(
        verb="GET", path=path, handler=handler, name=name, summary=summary, tag=TAG, query=query, answers=answers
    )


# ---- pictures and graphs


def _plot_route(context: ServiceContext, plots: Plots, row: AnyScheme, extension: str) -> Route:
    async def handler(request: Request) -> Response:
        make_call = _maker(context, row, request)
        return await plots.respond(request, row, make_call, extension, _cache_control(row))

    content = {JSON: FIGURE_DOCUMENT} if extension == DOCUMENT else {PICTURE_TYPES[extension]: binary()}
    answers = {200: Answer(description="The figure.", content=content), 304: HELD}
    path, name = _path(row, f".{extension}"), _operation(row, "draw", f"_{extension}")
    summary = f"{row.summary}, a figure's numbers" if extension == DOCUMENT else f"{row.summary}, drawn"
    return _get_route(path, handler, name, summary, plot_schema(row, extension), answers)


def _graph_route(context: ServiceContext, row: AnyScheme) -> Route:
    """Return GET {scheme}.onnx: the ONNX graph that computes a scheme for any positions, cached."""

    async def handler(request: Request) -> Response:
        call = _maker(context, row, request)(parse_source(row, query_values(request)))
        etag = call.etag("onnx")
        headers = ((b"etag", etag.encode()), (b"cache-control", _cache_control(row).encode()))
        if is_held(request, etag):
            return Response((), headers, 304)
        body = context.tables.cached(etag)
        if body is None:
            with as_bad_parameters():
                body = memoryview(await asyncio.to_thread(graph, row.name, call.arguments))
            context.tables.cache(etag, body)
        name = b'attachment; filename="%b.onnx"' % row.name.encode()
        return Response((body,), (*headers, (b"content-disposition", name), (b"content-type", OCTETS.encode())))

    file = Answer(description="The graph, of any positions and lengths.", content={OCTETS: binary()})
    summary, answers = f"{row.summary}, as an ONNX graph", {200: file, 304: HELD}
    return _get_route(_path(row, ".onnx"), handler, _operation(row, "graph"), summary, source_schema(row), answers)


# ---- tensors in, tensors out


def _tensor_routes(context: ServiceContext) -> list[Route]:
    async def respond(request: Request, call: TableCall, options: TensorOptions) -> Response:
        form = table_form(request, options, rotation.dtype_of(call, options))
        return await table_response(request, context.tables, call, form)

    async def rotate(request: Request) -> Response:
        parameters = await from_body(RotateParameters, request)
        return await respond(request, rotation.rotate(parameters), parameters)

    async def rotate_by_model(request: Request) -> Response:
        model = find_model(context, request.parameters["name"])
        parameters = await from_body(ModelRotateParameters, request)
        return await respond(request, rotation.rotate_by_model(model, parameters), parameters)

    async def convert(request: Request) -> Response:
        parameters = await from_body(ConvertParameters, request)
        return await respond(request, rotation.convert(parameters), parameters)

    turned, converted = "q and k turned by their positions", "Weights of q or k for another layout"
    rows: tuple[tuple[str, Handler, str, str, type[TensorOptions]], ...] = (
        ("/positions/rope/rotate", rotate, "rotate_tensors", turned, RotateParameters),
        ("/positions/rope/convert", convert, "convert_tensors", converted, ConvertParameters),
        ("/models/{name}/rope/rotate", rotate_by_model, "rotate_tensors_of_a_model", turned, ModelRotateParameters),
    )
    return [tensor_route(*row, tag=TAG) for row in rows]


# ---- lists


def _list_route(path: str, body: bytes, summary: str) -> Route:
    async def handler(request: Request) -> Response:
        return Response((body,), ((b"content-type", b"application/json"),))

    answers = {200: Answer(description="The list.", content={JSON: {"type": "object"}})}
    return _get_route(f"/positions{path}", handler, "list_presets" if path else "list_schemes", summary, None, answers)


@cache
def _scheme_list() -> bytes:
    return orjson.dumps({"schemes": scheme_list()})


@cache
def _preset_list() -> bytes:
    return orjson.dumps({"presets": preset_list()})
