"""The Open Inference Protocol over HTTP: health, metadata, statistics, inference, model repository."""

from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from service.http import openapi_data
from service.http.formats import JSON, OCTETS
from service.http.openapi_data import reference
from service.http.response import Response, json_response
from service.http.routes import Answer, Handler, Need, Request, RequestBody, Route, RouteGroup, binary
from service.http.validation_errors import parse_json, validated
from service.http.worker_threads import inline_or_in_thread
from service.protocols.inlay.openapi_parts import OIP, OIP_REPOSITORY
from service.protocols.oip import bodies
from service.protocols.oip.bodies import InferRequest
from service.protocols.oip.data_plane import DataPlane, Verb
from service.protocols.oip.errors import OipError, render_error

PREFIX, REPOSITORY = "/v2", "/v2/repository"
MODEL, VERSION = "/v2/models/{name}", "/v2/models/{name}/versions/{version}"
CONTROL = Need("a server started with INLAY_MODEL_CONTROL=explicit", 501)
BINARY = binary("JSON, then raw tensors as they are listed; Inference-Header-Content-Length has the JSON's bytes.")
DATA = openapi_data.read(__package__)
STRICT = ConfigDict(strict=True)
Body = TypeVar("Body", bound=BaseModel)


class IndexRequest(BaseModel):
    """Which models to list."""

    model_config = STRICT
    ready: bool = Field(False, description="true or false; true: the loaded ones alone")


class ChangeRequest(BaseModel):
    """The body of a request to load or unload a model."""

    model_config = STRICT
    parameters: dict[str, Any] | None = Field(None, description="an object")


def routes(plane: DataPlane) -> RouteGroup:
    """Return the routes under /v2."""
    rows = [*_descriptions(plane), *_inference(plane), *_repository(plane)]
    return RouteGroup(rows, render_error, (PREFIX,), (OipError, JSON), schemas=DATA.schemas)


def _rows(name: str, paths: tuple[str, ...], handler: Handler, about: str, schema: str, **others: Any) -> list[Route]:
    """Return a row for each path; `schema` names that of the answer, `others` are further fields of Route."""
    row = partial(Route, handler=handler, summary=about, examples={"version": "1"}, verb=others.pop("verb", "POST"))
    content = {JSON: reference(schema)} | ({OCTETS: BINARY} if others.get("vectors") else {})
    names = [name, *[f"{name}_{number}" for number in range(1, len(paths))]]
    answers, others = {200: Answer(content=content)}, {"tag": OIP} | others
    return [row(path=path, name=name, answers=answers, **others) for path, name in zip(paths, names, strict=True)]


def _descriptions(plane: DataPlane) -> list[Route]:
    def get(method: str, name: str, about: str, *paths: str, probe: bool = False) -> list[Route]:
        async def handler(request: Request) -> Response:
            document = plane.describe(method, *_named(request))
            error = await plane.why_not_ready() if method.endswith("Ready") else None
            return render_error(error) if error else json_response(document)  # a probe's error is not counted as one

        others = {"verb": "GET", "admitted": False, "probe": probe, "needs_key": not probe}
        return _rows(name, paths, handler, about, method, **others)

    stats = "/v2/models/stats", f"{MODEL}/stats", f"{VERSION}/stats"
    return [
        *get("ServerLive", "oip_live", "The process answers", "/v2/health/live", probe=True),
        *get("ServerReady", "oip_ready", "New requests are served", "/v2/health/ready", probe=True),
        *get("ServerMetadata", "oip_server", "What this server is and which extensions it has", PREFIX),
        *get("ModelStatistics", "oip_statistics", "What was answered over this protocol, by model", *stats),
        *get("ModelMetadata", "oip_model", "The tensors a model takes and gives", MODEL, VERSION),
        *get("ModelReady", "oip_model_ready", "The model answers", f"{MODEL}/ready", f"{VERSION}/ready"),
        *get("ModelConfig", "oip_config", "The same in Triton's words", f"{MODEL}/config", f"{VERSION}/config"),
    ]


def _inference(plane: DataPlane) -> list[Route]:
    async def answer(request: Request) -> Response:
        name, version = _named(request)
        plane.model(name, version)
        inference = await bodies.read(request.body, request.head.headers)
        reserve = partial(plane.context.budget.reserve, context=request.context)
        return await bodies.respond(await plane.infer(name, version, inference, request.context), reserve)

    body = RequestBody(model=InferRequest, examples=DATA.examples["infer"], other={OCTETS: BINARY})
    about, paths = "Token ids or texts → vectors", (f"{MODEL}/infer", f"{VERSION}/infer")
    return _rows("oip_infer", paths, answer, about, "InferResponse", body=body, vectors=True)


def _repository(plane: DataPlane) -> list[Route]:
    async def index(request: Request) -> Response:
        return json_response(await plane.index((await _optional(IndexRequest, request)).ready))

    def change(verb: Verb, about: str) -> list[Route]:
        async def handler(request: Request) -> Response:
            name = request.parameters["name"]
            await plane.change(verb, name, (await _optional(ChangeRequest, request)).parameters or {})
            return json_response({"name": name, verb: True})

        body = RequestBody(model=ChangeRequest, examples={"empty": {}}, required=False)
        path, schema = f"{REPOSITORY}/models/{{name}}/{verb}", f"RepositoryModel{verb.title()}"
        return _rows(
            f"oip_{verb}", (path,), handler, about, schema, body=body, need=CONTROL, changes_state=True, **managed
        )

    managed = {"tag": OIP_REPOSITORY, "management": True}
    about = "Every model of the store, and whether it is loaded"
    body = RequestBody(model=IndexRequest, examples={"ready": {"ready": True}}, required=False)
    path = (f"{REPOSITORY}/index",)
    return [
        *_rows("oip_index", path, index, about, "RepositoryIndex", body=body, admitted=False, **managed),
        *change("load", "Serve the store's present version of a model"),
        *change("unload", "Stop serving a model"),
    ]


def _named(request: Request) -> tuple[str, str]:
    """Return the model's name and version in a path; empty if the path has none."""
    return request.parameters.get("name", ""), request.parameters.get("version", "")


async def _optional(model: type[Body], request: Request) -> Body:
    """Return a body that may be left out."""

    def read(body: bytes) -> Body:
        return validated(model, parse_json(body) if body.strip() else {})

    return await inline_or_in_thread(len(request.body), read, request.body)
