"""The Open Inference Protocol over HTTP: health, metadata, statistics, inference, shared memory, model repository."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from service.errors import Unavailable
from service.http.formats import JSON, OCTETS
from service.http.response import Response, json_response
from service.http.routes import Answer, Handler, Need, Request, RequestBody, Route, RouteGroup
from service.http.validation_errors import parse_json, validated
from service.http.worker_threads import inline_or_in_thread
from service.protocols.inlay.tags import OIP, OIP_MEMORY, OIP_REPOSITORY
from service.protocols.oip import bodies, metadata
from service.protocols.oip.bodies import EXAMPLES, InferRequest, InferResponse, TensorDescription
from service.protocols.oip.data_plane import DataPlane
from service.protocols.oip.errors import OipError, render_error
from service.protocols.oip.shared_memory import Size, no_cuda

PREFIX = "/v2"
MODEL = f"{PREFIX}/models/{{name}}"
VERSIONED = f"{MODEL}/versions/{{version}}"
SYSTEM = f"{PREFIX}/systemsharedmemory"
CUDA = f"{PREFIX}/cudasharedmemory"
REGION = "region/{region}"
REPOSITORY = f"{PREFIX}/repository"
PATH_EXAMPLES = {"version": "1", "region": "vectors"}
SHARED_MEMORY = Need(what="a server started with INLAY_SHARED_MEMORY=true", status=501)
NO_CUDA = Need(what="CUDA shared memory, which Inlay does not support", status=501)
CONTROL = Need(what="a server started with INLAY_MODEL_CONTROL=explicit", status=501)
BINARY: Mapping[str, Any] = {
    "type": "string",
    "format": "binary",
    "description": "JSON, then raw tensors as they are listed; Inference-Header-Content-Length has the JSON's bytes.",
}
STRICT = ConfigDict(strict=True)
Body = TypeVar("Body", bound=BaseModel)


class ServerMetadata(BaseModel):
    """The server's name, version and protocol extensions."""

    name: str
    version: str
    extensions: list[str]


class Live(BaseModel):
    """The process answers."""

    live: bool


class Ready(BaseModel):
    """New requests are served."""

    ready: bool


class ModelReady(BaseModel):
    """The model answers."""

    name: str
    ready: bool


class ModelMetadata(BaseModel):
    """The tensors that a model takes and gives."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorDescription]
    outputs: list[TensorDescription]


class ModelStatistics(BaseModel):
    """Triton's statistics of each model."""

    model_stats: list[dict[str, Any]]


class RegionRequest(BaseModel):
    """A region of shared memory to register."""

    model_config = STRICT
    key: Annotated[str, Field(description="a string: the name of a shared memory object, as shm_open takes it")]
    offset: Size = 0
    byte_size: Size


class RegionStatus(RegionRequest):
    """A registered region."""

    name: str


class IndexRequest(BaseModel):
    """Which models are listed."""

    model_config = STRICT
    ready: Annotated[bool, Field(description="true or false; true: the loaded ones alone")] = False


class MoveRequest(BaseModel):
    """The body of a request to load or unload a model."""

    model_config = STRICT
    parameters: Annotated[dict[str, Any] | None, Field(description="an object")] = None


class IndexEntry(BaseModel):
    """A model of the store, and whether it is loaded."""

    name: str
    version: str
    state: Literal["READY", "UNAVAILABLE"]
    reason: str


class Loaded(BaseModel):
    """The model that was loaded."""

    name: str
    load: bool


class Unloaded(BaseModel):
    """The model that was unloaded."""

    name: str
    unload: bool


def routes(plane: DataPlane) -> RouteGroup:
    """Return everything under /v2."""
    rows = (*_metadata_routes(plane), *_infer_routes(plane), *_shared_memory_routes(plane), *_repository_routes(plane))
    return RouteGroup(rows, render_error, (PREFIX,), (OipError, JSON))


def _rows(
    verb: Literal["GET", "POST"],
    name: str,
    handler: Handler,
    summary: str,
    answer: type[BaseModel] | Mapping[str, Any] | None,
    *paths: str,
    body: RequestBody | None = None,
    probe: bool = False,
    admitted: bool = False,
    vectors: bool = False,
    management: bool = False,
    tag: str = OIP,
    need: Need | None = None,
) -> list[Route]:
    """Return a row for each path; `answer` None: the response has no body."""
    content: dict[str, Any] = {} if answer is None else {JSON: answer}
    if vectors:
        content[OCTETS] = BINARY
    return [
        Route(
            verb=verb,
            path=path,
            handler=handler,
            name=f"{name}_{number}" if number else name,
            summary=summary,
            tag=tag,
            examples=PATH_EXAMPLES,
            need=need,
            body=body,
            answers={200: Answer(description="Done." if answer is None else "The answer.", content=content)},
            needs_key=not probe,
            admitted=admitted,
            probe=probe,
            vectors=vectors,
            management=management,
        )
        for number, path in enumerate(paths)
    ]


def _metadata_routes(plane: DataPlane) -> list[Route]:
    context = plane.context

    async def server(request: Request) -> Response:
        return json_response(metadata.server(context.version, context.settings))

    async def live(request: Request) -> Response:
        return json_response({"live": True})

    async def ready(request: Request) -> Response:
        return await _ready(plane, {"ready": True})

    async def statistics(request: Request) -> Response:
        return json_response({"model_stats": plane.statistics(*_named(request))})

    async def model(request: Request) -> Response:
        return json_response(metadata.model_metadata(plane.model(*_named(request))))

    async def model_ready(request: Request) -> Response:
        return await _ready(plane, {"name": plane.model(*_named(request)).card.name, "ready": True})

    async def config(request: Request) -> Response:
        return json_response(metadata.model_config(plane.model(*_named(request))))

    stats = (f"{PREFIX}/models/stats", f"{MODEL}/stats", f"{VERSIONED}/stats")
    about_stats = "What was answered over this protocol, by model"
    anything = {"type": "object"}
    return [
        *_rows("GET", "oip_server", server, "What this server is and which extensions it has", ServerMetadata, PREFIX),
        *_rows("GET", "oip_live", live, "The process answers", Live, f"{PREFIX}/health/live", probe=True),
        *_rows("GET", "oip_ready", ready, "New requests are served", Ready, f"{PREFIX}/health/ready", probe=True),
        *_rows("GET", "oip_statistics", statistics, about_stats, ModelStatistics, *stats),
        *_rows("GET", "oip_model", model, "The tensors a model takes and gives", ModelMetadata, MODEL, VERSIONED),
        *_rows(
            "GET",
            "oip_model_ready",
            model_ready,
            "The model answers",
            ModelReady,
            f"{MODEL}/ready",
            f"{VERSIONED}/ready",
        ),
        *_rows(
            "GET",
            "oip_config",
            config,
            "The same in Triton's words",
            anything,
            f"{MODEL}/config",
            f"{VERSIONED}/config",
        ),
    ]


async def _ready(plane: DataPlane, document: Any) -> Response:
    """Return a probe's response; a negative one is not counted as an error."""
    try:
        await plane.context.check_ready()
    except Unavailable as error:
        return render_error(error)
    return json_response(document)


def _named(request: Request) -> tuple[str, str]:
    """Return the name and version in a path, empty where it has none."""
    return request.parameters.get("name", ""), request.parameters.get("version", "")


def _infer_routes(plane: DataPlane) -> list[Route]:
    async def infer(request: Request) -> Response:
        name, version = _named(request)
        plane.model(name, version)
        inference = await bodies.read(request.body, request.headers, plane.regions)
        outputs = [form.name for form in inference.outputs]
        model, tensors = await plane.infer(
            name, version, inference.inputs, inference.parameters, outputs, request.context
        )
        reserve = partial(plane.context.budget.reserve, context=request.context)
        return await bodies.respond(model, inference, tensors, plane.regions, reserve, request.context.truncated)

    body = RequestBody(model=InferRequest, examples=EXAMPLES, other={OCTETS: BINARY})
    paths = (f"{MODEL}/infer", f"{VERSIONED}/infer")
    about = "Token ids or texts → vectors"
    return _rows("POST", "oip_infer", infer, about, InferResponse, *paths, body=body, admitted=True, vectors=True)


def _shared_memory_routes(plane: DataPlane) -> list[Route]:
    regions = plane.regions

    async def status(request: Request) -> Response:
        return json_response(regions.status(request.parameters.get("region")))

    async def register(request: Request) -> Response:
        regions.check_enabled()
        region = await inline_or_in_thread(len(request.body), _body_of, RegionRequest, request.body)
        regions.register(request.parameters["region"], region.key, region.offset, region.byte_size)
        return Response()

    async def unregister(request: Request) -> Response:
        regions.unregister(request.parameters.get("region"))
        return Response()

    async def cuda(request: Request) -> Response:
        raise no_cuda()

    regions_list = _list_of(RegionStatus)
    statuses = (f"{SYSTEM}/status", f"{SYSTEM}/{REGION}/status")
    registers = (f"{SYSTEM}/{REGION}/register",)
    unregisters = (f"{SYSTEM}/unregister", f"{SYSTEM}/{REGION}/unregister")
    cuda_statuses = (f"{CUDA}/status", f"{CUDA}/{REGION}/status")
    cuda_posts = (f"{CUDA}/unregister", f"{CUDA}/{REGION}/register", f"{CUDA}/{REGION}/unregister")
    body = RequestBody(model=RegionRequest, examples={"region": {"key": "/vectors", "byte_size": 4096}})
    rows = partial(_rows, tag=OIP_MEMORY, need=SHARED_MEMORY)
    none = partial(_rows, tag=OIP_MEMORY, need=NO_CUDA)
    return [
        *rows("GET", "oip_shared_memory_status", status, "The registered regions", regions_list, *statuses),
        *rows("POST", "oip_shared_memory_register", register, "Lend a region", None, *registers, body=body),
        *rows("POST", "oip_shared_memory_unregister", unregister, "Take a region back, or all", None, *unregisters),
        *none("GET", "oip_cuda_status", cuda, "Not supported", None, *cuda_statuses),
        *none("POST", "oip_cuda", cuda, "Not supported", None, *cuda_posts),
    ]


def _repository_routes(plane: DataPlane) -> list[Route]:
    async def index(request: Request) -> Response:
        return json_response(await plane.index((await _optional(IndexRequest, request)).ready))

    async def load(request: Request) -> Response:
        name = request.parameters["name"]
        await plane.load(name, (await _optional(MoveRequest, request)).parameters or {})
        return json_response({"name": name, "load": True})

    async def unload(request: Request) -> Response:
        name = request.parameters["name"]
        await plane.unload(name, (await _optional(MoveRequest, request)).parameters or {})
        return json_response({"name": name, "unload": True})

    model = f"{REPOSITORY}/models/{{name}}"
    about_index = "Every model of the store, and whether it is loaded"
    about_load = "Serve the store's present version of a model"
    which = RequestBody(model=IndexRequest, examples={"ready": {"ready": True}}, required=False)
    move = RequestBody(model=MoveRequest, examples={"empty": {}}, required=False)
    rows = partial(_rows, "POST", tag=OIP_REPOSITORY, management=True)
    moves = partial(rows, body=move, admitted=True, need=CONTROL)
    return [
        *rows("oip_index", index, about_index, _list_of(IndexEntry), f"{REPOSITORY}/index", body=which),
        *moves("oip_load", load, about_load, Loaded, f"{model}/load"),
        *moves("oip_unload", unload, "Stop serving a model", Unloaded, f"{model}/unload"),
    ]


async def _optional(model: type[Body], request: Request) -> Body:
    """Return a body that may be left out."""
    return await inline_or_in_thread(len(request.body), _body_of, model, request.body)


def _body_of(model: type[Body], body: bytes) -> Body:
    return validated(model, parse_json(body) if body.strip() else {})


def _list_of(model: type[BaseModel]) -> Mapping[str, Any]:
    return {"type": "array", "items": model.model_json_schema()}
