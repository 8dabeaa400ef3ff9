"""inference.GRPCInferenceService: the Open Inference Protocol over gRPC, with Triton's status codes."""

from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from proto import open_inference_pb2 as pb
from service.errors import InlayError, ModelRequired, Unsupported
from service.grpc.methods import Method, Service, serialize
from service.protocols.oip import metadata
from service.protocols.oip.data_plane import DataPlane
from service.protocols.oip.errors import grpc_status, message_of
from service.protocols.oip.rpc_tensors import (
    Answer,
    input_tensors,
    requested_outputs,
    response,
    stream_response,
    values_of,
)
from service.protocols.oip.shared_memory import no_cuda
from service.protocols.oip.tensors import raw_of
from service.request_context import RequestContext

EMPTY_FINAL_RESPONSE = "triton_enable_empty_final_response"


def service(plane: DataPlane) -> Service:
    """Return inference.GRPCInferenceService."""
    own = Handlers(plane)
    rows: tuple[tuple[str, Any, Any], ...] = (
        ("ServerMetadata", pb.ServerMetadataRequest, own.server_metadata),
        ("ModelMetadata", pb.ModelMetadataRequest, own.model_metadata),
        ("ModelConfig", pb.ModelConfigRequest, own.model_config),
        ("ModelStatistics", pb.ModelStatisticsRequest, own.model_statistics),
        ("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest, own.regions),
        ("SystemSharedMemoryRegister", pb.SystemSharedMemoryRegisterRequest, own.register),
        ("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest, own.unregister),
        ("CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest, own.cuda),
        ("CudaSharedMemoryRegister", pb.CudaSharedMemoryRegisterRequest, own.cuda),
        ("CudaSharedMemoryUnregister", pb.CudaSharedMemoryUnregisterRequest, own.cuda),
        ("TraceSetting", pb.TraceSettingRequest, own.trace_setting),
        ("LogSettings", pb.LogSettingsRequest, own.log_settings),
    )
    probes: tuple[tuple[str, Any, Any], ...] = (
        ("ServerLive", pb.ServerLiveRequest, own.server_live),
        ("ServerReady", pb.ServerReadyRequest, own.server_ready),
        ("ModelReady", pb.ModelReadyRequest, own.model_ready),
    )
    infer: dict[str, Any] = {"request": pb.ModelInferRequest, "handler": own.infer, "admitted": True}
    managed: dict[str, Any] = {"admitted": True, "management": True}
    return Service(
        name="inference.GRPCInferenceService",
        methods=(
            *[Method(name=name, request=request, handler=handler) for name, request, handler in rows],
            *[Method(name=name, request=request, handler=handler, probe=True) for name, request, handler in probes],
            Method(name="RepositoryIndex", request=pb.RepositoryIndexRequest, handler=own.index, management=True),
            Method(name="RepositoryModelLoad", request=pb.RepositoryModelLoadRequest, handler=own.load, **managed),
            Method(
                name="RepositoryModelUnload", request=pb.RepositoryModelUnloadRequest, handler=own.unload, **managed
            ),
            Method(name="ModelInfer", serialize=response, **infer),
            Method(
                name="ModelStreamInfer",
                serialize=_stream_answer,
                kind="bidirectional",
                error_answer=_stream_error,
                **infer,
            ),
        ),
        status_of=grpc_status,
        message_of=message_of,
    )


def _stream_answer(answer: Answer | bytes) -> bytes:
    return answer if isinstance(answer, bytes) else stream_response(answer)


def _stream_error(request: pb.ModelInferRequest | None, error: InlayError) -> bytes:
    """Return the answer to a request that failed: its message and, where it could be read, the request's id."""
    named = pb.ModelInferResponse(id="" if request is None else request.id)
    return serialize(pb.ModelStreamInferResponse(error_message=message_of(error), infer_response=named))


class Handlers:
    """The handlers of every method."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane

    async def infer(self, request: pb.ModelInferRequest, call: RequestContext) -> Answer:
        """Run a model; outputs go to shared memory where the request says so."""
        regions = self._plane.regions
        inputs, outputs = input_tensors(request, regions), requested_outputs(request, regions)
        parameters = values_of(request.parameters) if request.parameters else {}
        names = [output.name for output in outputs]
        model, tensors = await self._plane.infer(
            request.model_name, request.model_version, inputs, parameters, names, call
        )
        places = {
            name: regions.write(place, raw_of(tensor))
            for tensor, (name, place) in zip(tensors, outputs, strict=False)
            if place
        }
        return Answer(model, request.id, tensors, places, parameters.get(EMPTY_FINAL_RESPONSE) is True, call.truncated)

    async def server_live(self, request: Any, call: RequestContext) -> pb.ServerLiveResponse:
        """Return that the process is alive."""
        return pb.ServerLiveResponse(live=True)

    async def server_ready(self, request: Any, call: RequestContext) -> pb.ServerReadyResponse:
        """Return whether new requests are served."""
        return pb.ServerReadyResponse(ready=await self._plane.is_ready())

    async def model_ready(self, request: pb.ModelReadyRequest, call: RequestContext) -> pb.ModelReadyResponse:
        """Return whether a model answers; False for one that is not loaded, as Triton does."""
        try:
            self._plane.model(request.name, request.version)
        except InlayError:
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=await self._plane.is_ready())

    async def server_metadata(self, request: Any, call: RequestContext) -> pb.ServerMetadataResponse:
        """Return the server's name, version and extensions."""
        context = self._plane.context
        return pb.ServerMetadataResponse(**metadata.server(context.version, context.settings))

    async def model_metadata(self, request: pb.ModelMetadataRequest, call: RequestContext) -> pb.ModelMetadataResponse:
        """Return the tensors that a model takes and gives."""
        model = self._plane.model(request.name, request.version)
        return pb.ModelMetadataResponse(**metadata.model_metadata(model))

    async def model_config(self, request: pb.ModelConfigRequest, call: RequestContext) -> pb.ModelConfigResponse:
        """Return a model's configuration in Triton's format."""
        return pb.ModelConfigResponse(config=metadata.model_config(self._plane.model(request.name, request.version)))

    async def model_statistics(
        self, request: pb.ModelStatisticsRequest, call: RequestContext
    ) -> pb.ModelStatisticsResponse:
        """Return Triton's statistics of the requests answered over this protocol, by model."""
        known = pb.ModelStatistics.DESCRIPTOR.fields_by_name
        statistics = self._plane.statistics(request.name, request.version)
        return pb.ModelStatisticsResponse(
            model_stats=[{name: value for name, value in model.items() if name in known} for model in statistics]
        )

    async def index(self, request: pb.RepositoryIndexRequest, call: RequestContext) -> pb.RepositoryIndexResponse:
        """Return every model of the store."""
        return pb.RepositoryIndexResponse(models=await self._plane.index(request.ready, request.repository_name))

    async def load(
        self, request: pb.RepositoryModelLoadRequest, call: RequestContext
    ) -> pb.RepositoryModelLoadResponse:
        """Serve the store's present version of a model."""
        return pb.RepositoryModelLoadResponse(model_name=await _exchange(self._plane.load, request), isLoaded=True)

    async def unload(
        self, request: pb.RepositoryModelUnloadRequest, call: RequestContext
    ) -> pb.RepositoryModelUnloadResponse:
        """Stop serving a model."""
        name = await _exchange(self._plane.unload, request)
        return pb.RepositoryModelUnloadResponse(model_name=name, isUnloaded=True)

    async def regions(
        self, request: pb.SystemSharedMemoryStatusRequest, call: RequestContext
    ) -> pb.SystemSharedMemoryStatusResponse:
        """Return the registered regions."""
        kind = pb.SystemSharedMemoryStatusResponse.RegionStatus
        regions = self._plane.regions.status(request.name)
        return pb.SystemSharedMemoryStatusResponse(regions={region["name"]: kind(**region) for region in regions})

    async def register(
        self, request: pb.SystemSharedMemoryRegisterRequest, call: RequestContext
    ) -> pb.SystemSharedMemoryRegisterResponse:
        """Open a region."""
        self._plane.regions.register(request.name, request.key, request.offset, request.byte_size)
        return pb.SystemSharedMemoryRegisterResponse()

    async def unregister(
        self, request: pb.SystemSharedMemoryUnregisterRequest, call: RequestContext
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        """Close a region, or all."""
        self._plane.regions.unregister(request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    async def cuda(self, request: Any, call: RequestContext) -> NoReturn:
        """Raise Unsupported."""
        raise no_cuda()

    async def trace_setting(self, request: Any, call: RequestContext) -> NoReturn:
        """Raise Unsupported."""
        raise Unsupported("this server writes no traces", remedy="GET /metrics tells what its requests took, by stage")

    async def log_settings(self, request: Any, call: RequestContext) -> NoReturn:
        """Raise Unsupported."""
        remedy = "the operator sets INLAY_LOG_LEVEL"
        raise Unsupported("what is logged is not changed over the protocol", remedy=remedy)


async def _exchange(change: Callable[[str, dict[str, Any], str], Awaitable[None]], request: Any) -> str:
    """Load or unload the model of a request and return its name; KServe's clients send it as `model_name`."""
    name: str = request.model_name or request.repository_name  # Triton's clients send the model as the repository
    if not name:
        raise ModelRequired("is empty", field=("model_name",), remedy="send the name of one folder of the store")
    await change(name, values_of(request.parameters), request.repository_name if request.model_name else "")
    return name
