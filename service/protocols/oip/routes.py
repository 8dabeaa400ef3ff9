"""The Open Inference Protocol over HTTP: health, metadata, statistics, inference, model repository."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from service.embedding.model import Model
from service.errors import InlayError
from service.http.formats import JSON, OCTETS
from service.http.response import Response, json_response
from service.http.routes import Answer, Handler, Need, Request, RequestBody, Route, RouteGroup
from service.http.validation_errors import parse_json, validated
from service.http.worker_threads import inline_or_in_thread
from service.protocols.inlay.tags import OIP, OIP_REPOSITORY
from service.protocols.oip import bodies
from service.protocols.oip.bodies import EXAMPLES, InferRequest, InferResponse, TensorDescription
from service.protocols.oip.data_plane import DataPlane, Verb
from service.protocols.oip.errors import OipError, render_error
from service.protocols.oip.metadata import model_config, model_metadata, server_metadata

PREFIX = "/v2"
MODEL = f"{PREFIX}/models/{{name}}"
REPOSITORY = f"{PREFIX}/repository"
PATH_EXAMPLES = {"version": "1"}
CONTROL = Need(what="a server started with INLAY_MODEL_CONTROL=explicit", status=501)
BINARY: Mapping[str, Any] = {
    "type": "string",
    "format": "binary",
    "description": "JSON, then raw tensors as they are listed; Inference-Header-Content-Length has the JSON's bytes.",
}
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


def _object(**properties: Any) -> Mapping[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties}


BOOLEAN, TEXT = {"type": "boolean"}, {"type": "string"}
TEXTS = {"type": "array", "items": TEXT}
TENSORS = {"type": "array", "items": TensorDescription.model_json_schema()}
SERVER = _object(name=TEXT, version=TEXT, extensions=TEXTS)
LIVE, READY, MODEL_READY = _object(live=BOOLEAN), _object(ready=BOOLEAN), _object(name=TEXT, ready=BOOLEAN)
METADATA = _object(name=TEXT, versions=TEXTS, platform=TEXT, inputs=TENSORS, outputs=TENSORS)
STATISTICS = _object(model_stats={"type": "array", "items": {"type": "object"}})
STATE = {"enum": ["READY", "UNAVAILABLE"]}
INDEX = {"type": "array", "items": _object(name=TEXT, version=TEXT, state=STATE, reason=TEXT)}


def routes(plane: DataPlane) -> RouteGroup:
    """Return the routes under /v2."""
    rows = (*_probe_routes(plane), *_metadata_routes(plane), *_infer_routes(plane), *_repository_routes(plane))
    return RouteGroup(rows, render_error, (PREFIX,), (OipError, JSON))


def _probe_routes(plane: DataPlane) -> list[Route]:
    async def live(request: Request) -> Response:
        return json_response({"live": True})

    async def ready(request: Request) -> Response:
        return _probed(await plane.why_not_ready(), {"ready": True})

    probe = partial(_rows, verb="GET", tag=OIP, admitted=False, probe=True, needs_key=False)
    return [
        *probe("oip_live", live, "The process answers", LIVE, f"{PREFIX}/health/live"),
        *probe("oip_ready", ready, "New requests are served", READY, f"{PREFIX}/health/ready"),
    ]


def _metadata_routes(plane: DataPlane) -> list[Route]:
    async def server(request: Request) -> Response:
        return json_response(server_metadata(plane.context.version, plane.context.settings))

    def of_model(document: Callable[[Model], dict[str, Any]]) -> Handler:
        async def handler(request: Request) -> Response:
            return json_response(document(plane.model(*_named(request))))

        return handler

    async def model_ready(request: Request) -> Response:
        document = {"name": plane.model(*_named(request)).card.name, "ready": True}
        return _probed(await plane.why_not_ready(), document)

    async def statistics(request: Request) -> Response:
        unknown: dict[str, Any] = {"batch_stats": [], "memory_usage": []}  # batches are shared by all protocols
        return json_response({"model_stats": [entry | unknown for entry in plane.statistics(*_named(request))]})

    about_server, about_model = "What this server is and which extensions it has", "The tensors a model takes and gives"
    about_statistics, about_config = "What was answered over this protocol, by model", "The same in Triton's words"
    get, stats = partial(_rows, verb="GET", tag=OIP, admitted=False), (f"{PREFIX}/models/stats", *_both("/stats"))
    return [
        *get("oip_server", server, about_server, SERVER, PREFIX),
        *get("oip_statistics", statistics, about_statistics, STATISTICS, *stats),
        *get("oip_model", of_model(model_metadata), about_model, METADATA, *_both("")),
        *get("oip_model_ready", model_ready, "The model answers", MODEL_READY, *_both("/ready")),
        *get("oip_config", of_model(model_config), about_config, {"type": "object"}, *_both("/config")),
    ]


def _probed(error: InlayError | None, document: dict[str, Any]) -> Response:
    """Return a probe's response; a negative one is not counted as an error."""
    return render_error(error) if error else json_response(document)


def _infer_routes(plane: DataPlane) -> list[Route]:
    async def answer(request: Request) -> Response:
        name, version = _named(request)
        plane.model(name, version)
        inference = await bodies.read(request.body, request.headers)
        reserve = partial(plane.context.budget.reserve, context=request.context)
        return await bodies.respond(await plane.infer(name, version, inference, request.context), reserve)

    body = RequestBody(model=InferRequest, examples=EXAMPLES, other={OCTETS: BINARY})
    about, paths = "Token ids or texts → vectors", _both("/infer")
    return _rows("oip_infer", answer, about, InferResponse, *paths, verb="POST", tag=OIP, body=body, vectors=True)


def _repository_routes(plane: DataPlane) -> list[Route]:
    async def index(request: Request) -> Response:
        return json_response(await plane.index((await _optional(IndexRequest, request)).ready))

    def change(verb: Verb, about: str) -> list[Route]:
        async def handler(request: Request) -> Response:
            name = request.parameters["name"]
            await plane.change(verb, name, (await _optional(ChangeRequest, request)).parameters or {})
            return json_response({"name": name, verb: True})

        body = RequestBody(model=ChangeRequest, examples={"empty": {}}, required=False)
        answer, path = _object(name=TEXT, **{verb: BOOLEAN}), f"{REPOSITORY}/models/{{name}}/{verb}"
        return rows(f"oip_{verb}", handler, about, answer, path, body=body, need=CONTROL, changes_state=True)

    about_index = "Every model of the store, and whether it is loaded"
    which = RequestBody(model=IndexRequest, examples={"ready": {"ready": True}}, required=False)
    rows = partial(_rows, verb="POST", tag=OIP_REPOSITORY, management=True)
    return [
        *rows("oip_index", index, about_index, INDEX, f"{REPOSITORY}/index", body=which, admitted=False),
        *change("load", "Serve the store's present version of a model"),
        *change("unload", "Stop serving a model"),
    ]


def _rows(
    name: str,
    handler: Handler,
    summary: str,
    answer: type[BaseModel] | Mapping[str, Any],
    *paths: str,
    **options: Any,
) -> list[Route]:
    """Return a row for each path; `options` are further fields of Route."""
    content = {JSON: answer} | ({OCTETS: BINARY} if options.get("vectors") else {})
    made = partial(
        Route, handler=handler, summary=summary, examples=PATH_EXAMPLES, answers={200: Answer(content=content)}
    )
    return [
        made(path=path, name=f"{name}_{number}" if number else name, **options) for number, path in enumerate(paths)
    ]


def _both(path: str) -> tuple[str, str]:
    """Return the path of a model, and that of one of its versions."""
    return f"{MODEL}{path}", f"{MODEL}/versions/{{version}}{path}"


def _named(request: Request) -> tuple[str, str]:
    """Return the model's name and version in a path; empty if the path has none."""
    return request.parameters.get("name", ""), request.parameters.get("version", "")


async def _optional(model: type[Body], request: Request) -> Body:
    """Return a body that may be left out."""

    def read(body: bytes) -> Body:
        return validated(model, parse_json(body) if body.strip() else {})

    return await inline_or_in_thread(len(request.body), read, request.body)
