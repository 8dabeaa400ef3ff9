"""inference.GRPCInferenceService: decodes, delegates, encodes. Refuses in Triton's status codes."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from proto import open_inference_pb2 as pb
from service.context import ServiceContext
from service.error_status import OIP_GRPC, STATUSES
from service.errors import BadRequest, InlayError, Unsupported
from service.grpc.methods import (
    Service,
    answering,
    guarded,
    serialise,
    streams,
    unary,
)
from service.protocols.oip import metadata as described
from service.protocols.oip import repository
from service.protocols.oip.infer import VERSION, infer, model_of
from service.protocols.oip.rpc_tensors import (
    Reply,
    response,
    stream_response,
    tensors_of,
    values_of,
    wanted_of,
)
from service.protocols.oip.shared_memory import check_on, no_cuda
from service.protocols.oip.tensors import raw_of

NAME = "inference.GRPCInferenceService"
PROBES = ("ServerLive", "ServerReady", "ModelReady")
WANTS_LAST = "triton_enable_empty_final_response"
Answers = Callable[[ServiceContext, Any], Awaitable[Any]]
Failed = tuple[str, InlayError]  # the id of a stream's request, and what it met


def service(context: ServiceContext) -> Service:
    """inference.GRPCInferenceService."""
    handlers = {name: _method(context, name, kind, answer) for name, kind, answer in METHODS}
    handlers["ModelInfer"] = _method(context, "ModelInfer", pb.ModelInferRequest, _infer, response)
    handlers["ModelStreamInfer"] = _stream(context)
    return Service(NAME, handlers, status_of=oip_status, probes=PROBES)


def oip_status(error: InlayError) -> str:
    """The gRPC status that Triton gives for what HTTP calls so."""
    row = STATUSES[error.code]
    return OIP_GRPC.get(row.oip, row.grpc)


def _method(context: ServiceContext, name: str, kind: Any, answer: Answers, write: Callable[[Any], bytes] = serialise) -> Any:
    return unary(answering(context.metrics, name, partial(answer, context), oip_status), kind, write)


def _stream(context: ServiceContext) -> Any:
    async def one(request: pb.ModelInferRequest | InlayError) -> Reply | Failed:
        found = await guarded(context.metrics, "ModelStreamInfer", partial(_infer, context), request, oip_status)
        if isinstance(request, InlayError):
            return "", request
        if isinstance(found, InlayError):
            return request.id, found
        wants = request.parameters[WANTS_LAST].bool_param if WANTS_LAST in request.parameters else False
        return found._replace(last=wants)

    return streams(one, pb.ModelInferRequest, _stream_answer)


def _stream_answer(answer: Reply | Failed) -> bytes:
    if isinstance(answer, Reply):
        return stream_response(answer)
    id_, error = answer
    failed = pb.ModelStreamInferResponse(error_message=error.message, infer_response=pb.ModelInferResponse(id=id_))
    return serialise(failed)


async def _infer(context: ServiceContext, request: pb.ModelInferRequest) -> Reply:
    settings, regions = context.settings, context.regions
    inputs, wanted = tensors_of(request, settings, regions), wanted_of(request, settings)
    names = [each.name for each in wanted]
    parameters = values_of(request.parameters) if request.parameters else {}
    model, tensors = await infer(context, request.model_name, request.model_version, inputs, parameters, names)
    lent = {}
    for tensor, (name, place) in zip(tensors, wanted, strict=False):
        if place:
            raw = raw_of(tensor)
            regions.write(place, raw)
            lent[name] = place._replace(byte_size=len(raw))
    return Reply(model, request.id, tensors, lent)


async def _live(context: ServiceContext, request: Any) -> pb.ServerLiveResponse:
    return pb.ServerLiveResponse(live=True)


async def _ready(context: ServiceContext, request: Any) -> pb.ServerReadyResponse:
    return pb.ServerReadyResponse(ready=await _serves(context))


async def _model_ready(context: ServiceContext, request: Any) -> pb.ModelReadyResponse:
    """False for what is not loaded, as Triton answers; an unknown version too."""
    try:
        model_of(context, request.name, request.version)
    except InlayError:
        return pb.ModelReadyResponse(ready=False)
    return pb.ModelReadyResponse(ready=await _serves(context))


async def _serves(context: ServiceContext) -> bool:
    try:
        await context.check_ready()
    except InlayError:
        return False
    return True


async def _server(context: ServiceContext, request: Any) -> pb.ServerMetadataResponse:
    return pb.ServerMetadataResponse(**described.server(context.version, context.settings))


async def _model(context: ServiceContext, request: Any) -> pb.ModelMetadataResponse:
    return pb.ModelMetadataResponse(**described.model(model_of(context, request.name, request.version)))


async def _config(context: ServiceContext, request: Any) -> pb.ModelConfigResponse:
    return pb.ModelConfigResponse(config=described.config(model_of(context, request.name, request.version)))


async def _statistics(context: ServiceContext, request: Any) -> pb.ModelStatisticsResponse:
    chosen = [model_of(context, request.name, request.version)] if request.name else context.registry.models.values()
    told = [context.statistics.document(model.card.name, VERSION) for model in chosen]
    known = pb.ModelStatistics.DESCRIPTOR.fields_by_name
    return pb.ModelStatisticsResponse(
        model_stats=[{name: value for name, value in each.items() if name in known} for each in told]
    )


async def _index(context: ServiceContext, request: Any) -> pb.RepositoryIndexResponse:
    return pb.RepositoryIndexResponse(models=await repository.index(context, request.ready, request.repository_name))


async def _load(context: ServiceContext, request: Any) -> pb.RepositoryModelLoadResponse:
    repository_name, name = _named(request)
    await repository.load(context, name, values_of(request.parameters), repository_name)
    return pb.RepositoryModelLoadResponse(model_name=name, isLoaded=True)


async def _unload(context: ServiceContext, request: Any) -> pb.RepositoryModelUnloadResponse:
    repository_name, name = _named(request)
    await repository.unload(context, name, values_of(request.parameters), repository_name)
    return pb.RepositoryModelUnloadResponse(model_name=name, isUnloaded=True)


def _named(request: Any) -> tuple[str, str]:
    """Repository and model: KServe's clients send the model where Triton's send the repository."""
    if request.model_name:
        return request.repository_name, request.model_name
    if not request.repository_name:
        raise BadRequest("model_name is empty: send the name of one folder of the store")
    return "", request.repository_name


async def _regions(context: ServiceContext, request: Any) -> pb.SystemSharedMemoryStatusResponse:
    check_on(context.settings)
    found = context.regions.status(request.name)
    fields = ("name", "key", "offset", "byte_size")
    return pb.SystemSharedMemoryStatusResponse(
        regions={
            region.name: pb.SystemSharedMemoryStatusResponse.RegionStatus(
                **{name: getattr(region, name) for name in fields}
            )
            for region in found
        }
    )


async def _register(context: ServiceContext, request: Any) -> pb.SystemSharedMemoryRegisterResponse:
    check_on(context.settings)
    context.regions.register(request.name, request.key, request.offset, request.byte_size)
    return pb.SystemSharedMemoryRegisterResponse()


async def _unregister(context: ServiceContext, request: Any) -> pb.SystemSharedMemoryUnregisterResponse:
    check_on(context.settings)
    context.regions.unregister(request.name)
    return pb.SystemSharedMemoryUnregisterResponse()


async def _cuda(context: ServiceContext, request: Any) -> Any:
    raise no_cuda()


async def _tracing(context: ServiceContext, request: Any) -> Any:
    raise Unsupported("this server writes no traces: GET /metrics tells what its requests took, by stage")


async def _logging(context: ServiceContext, request: Any) -> Any:
    raise Unsupported("what is logged is not changed over the protocol: the operator sets INLAY_LOG_LEVEL")


METHODS: tuple[tuple[str, Any, Answers], ...] = (
    ("ServerLive", pb.ServerLiveRequest, _live),
    ("ServerReady", pb.ServerReadyRequest, _ready),
    ("ModelReady", pb.ModelReadyRequest, _model_ready),
    ("ServerMetadata", pb.ServerMetadataRequest, _server),
    ("ModelMetadata", pb.ModelMetadataRequest, _model),
    ("ModelConfig", pb.ModelConfigRequest, _config),
    ("ModelStatistics", pb.ModelStatisticsRequest, _statistics),
    ("RepositoryIndex", pb.RepositoryIndexRequest, _index),
    ("RepositoryModelLoad", pb.RepositoryModelLoadRequest, _load),
    ("RepositoryModelUnload", pb.RepositoryModelUnloadRequest, _unload),
    ("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest, _regions),
    ("SystemSharedMemoryRegister", pb.SystemSharedMemoryRegisterRequest, _register),
    ("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest, _unregister),
    ("CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest, _cuda),
    ("CudaSharedMemoryRegister", pb.CudaSharedMemoryRegisterRequest, _cuda),
    ("CudaSharedMemoryUnregister", pb.CudaSharedMemoryUnregisterRequest, _cuda),
    ("TraceSetting", pb.TraceSettingRequest, _tracing),
    ("LogSettings", pb.LogSettingsRequest, _logging),
)
"""Every method of one request and one answer but ModelInfer, which writes its own bytes."""
