"""The Open Inference Protocol over HTTP: health, metadata, statistics, inference, model repository."""

from functools import partial
from typing import Any

from pydantic import BaseModel, Field

from service.errors import Unavailable
from service.http import openapi_data
from service.http.formats import JSON
from service.http.response import Response, json_response
from service.http.routes import Request, Route, RouteGroup
from service.http.validation_errors import Body, body_of
from service.http.worker_threads import inline_or_in_thread
from service.protocols.oip import bodies
from service.protocols.oip.bodies import InferRequest
from service.protocols.oip.data_plane import DataPlane, Verb
from service.protocols.oip.errors import OipError, render_error

PREFIX, REPOSITORY = "/v2", "/v2/repository"
MODEL, VERSION = "/v2/models/{name}", "/v2/models/{name}/versions/{version}"
DATA = openapi_data.read(__package__)


class IndexRequest(BaseModel, strict=True):
    """Which models to list."""

    ready: bool = Field(False, description="true or false; true: the loaded ones alone")


class ChangeRequest(BaseModel, strict=True):
    """The body of a request to load or unload a model."""

    parameters: dict[str, Any] | None = Field(None, description="an object")


def routes(plane: DataPlane) -> RouteGroup:
    """Return the routes under /v2."""
    rows = [*_descriptions(plane), *_inference(plane), *_repository(plane)]
    return RouteGroup(rows, render_error, (PREFIX,), (OipError, JSON), data=DATA)


def _descriptions(plane: DataPlane) -> list[Route]:
    def get(method: str, *paths: str, probe: bool = False) -> list[Route]:
        async def handler(request: Request) -> Response:
            try:
                return json_response(await plane.describe(method, **request.parameters))
            except Unavailable as error:  # a probe's error is not counted as one
                return render_error(error.without_frames())

        return [Route("GET", path, handler, admitted=False, probe=probe, needs_key=not probe) for path in paths]

    return [
        *get("ServerLive", "/v2/health/live", probe=True),
        *get("ServerReady", "/v2/health/ready", probe=True),
        *get("ServerMetadata", PREFIX),
        *get("ModelStatistics", "/v2/models/stats", f"{MODEL}/stats", f"{VERSION}/stats"),
        *get("ModelMetadata", MODEL, VERSION),
        *get("ModelReady", f"{MODEL}/ready", f"{VERSION}/ready"),
        *get("ModelConfig", f"{MODEL}/config", f"{VERSION}/config"),
    ]


def _inference(plane: DataPlane) -> list[Route]:
    async def answer(request: Request) -> Response:
        plane.model(**request.parameters)
        header = request.head.headers.get(bodies.JSON_BYTES_HEADER)
        inference = await inline_or_in_thread(len(request.body), bodies.read, request.body, header)
        reserve = partial(plane.context.budget.reserve, context=request.context)
        return await bodies.respond(await plane.infer(inference, request.context, **request.parameters), reserve)

    return [Route("POST", f"{path}/infer", answer, bodies=(InferRequest,), vectors=True) for path in (MODEL, VERSION)]


def _repository(plane: DataPlane) -> list[Route]:
    async def index(request: Request) -> Response:
        return json_response(await plane.index((await _optional(IndexRequest, request)).ready))

    def change(verb: Verb) -> Route:
        async def handler(request: Request) -> Response:
            name = request.parameters["name"]
            await plane.change(verb, name, (await _optional(ChangeRequest, request)).parameters or {})
            return json_response({"name": name, verb: True})

        path = f"{REPOSITORY}/models/{{name}}/{verb}"
        return Route("POST", path, handler, bodies=(ChangeRequest,), changes_state=True, management=True)

    listing = Route("POST", f"{REPOSITORY}/index", index, bodies=(IndexRequest,), admitted=False, management=True)
    return [listing, change("load"), change("unload")]


async def _optional(model: type[Body], request: Request) -> Body:
    """Return a body that may be left out."""
    return await inline_or_in_thread(len(request.body), body_of, request.body.strip() or b"{}", model)
