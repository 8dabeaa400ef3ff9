"""The protocol's operations, shared by REST and gRPC: inference, metadata, statistics, the model repository."""

import asyncio
from collections.abc import Iterable, Mapping
from time import perf_counter, time
from typing import Any

from service.context import ServiceContext
from service.embedding.model import Model
from service.errors import InlayError, NotFound, Unsupported
from service.protocols.oip import metadata
from service.protocols.oip.infer import outputs_of, padded_bytes, request_of
from service.protocols.oip.messages import SHOWN_CHARACTERS, Answer, Inference
from service.protocols.oip.metadata import VERSION
from service.request_context import RequestContext, StageTimes
from service.scheduling import deadlines

DURATIONS = "success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss"
DEPENDENTS = "unload_dependents"  # no model here has any
EXPORTED = "models are served as they were exported to the store"


class DataPlane:
    """The state of the protocol in one process, and its operations.

    Where they take a model's name and version, "" is the default model and its one version.

    Attributes:
        context: the service.
    """

    def __init__(self, context: ServiceContext) -> None:
        self.context = context
        self._statistics: dict[str, Statistics] = {}

    async def infer(self, name: str, version: str, inference: Inference, call: RequestContext) -> Answer:
        """Return the answer to a request, which is counted in the model's statistics."""
        card, settings, started = self.model(name, version).card, self.context.settings, perf_counter()
        statistics = self._statistics_of(card.name)
        try:
            allowed = [tensor["name"] for tensor in metadata.input_tensors(card)]
            request, places = request_of(card, inference, settings, allowed)
            if inference.parameters.timeout:
                call = call.within(started + inference.parameters.timeout / 1e6)
            async with deadlines.within(call.deadline):
                result = await self.context.embedder.embed(request, call)
            self.context.budget.reserve(padded_bytes(result, places, settings.max_answer_bytes), call)
            outputs = outputs_of(card, inference, result, places)
        except Exception:
            statistics.add("fail", perf_counter() - started)
            raise
        statistics.answered(len(request.inputs), perf_counter() - started, result.times)
        return Answer(result.model, inference, outputs, result.truncated)

    def model(self, name: str, version: str = "") -> Model:
        """Return a loaded model; raise NotFound where there is none, or none of that version."""
        model = self.context.registry.get(name)
        if version not in ("", VERSION):
            shown = version[:SHOWN_CHARACTERS]
            raise NotFound(f"{model.card.name} has no version {shown!r}", allowed=f"it has {VERSION!r}")
        return model

    async def why_not_ready(self) -> InlayError | None:
        """Return the error that new requests would get; None: they are served."""
        try:
            await self.context.check_ready()
        except InlayError as error:
            return error.without_frames()
        return None

    def server(self, *_: str) -> dict[str, Any]:
        """Return the server's metadata."""
        return metadata.server(self.context.version, self.context.settings)

    def metadata(self, name: str, version: str) -> dict[str, Any]:
        """Return a model's metadata."""
        return metadata.model_metadata(self.model(name, version))

    def config(self, name: str, version: str) -> dict[str, Any]:
        """Return a model's configuration in Triton's format."""
        return metadata.model_config(self.model(name, version))

    def statistics(self, name: str = "", version: str = "") -> list[dict[str, Any]]:
        """Return Triton's `model_stats` of one model, or of all that are loaded."""
        names = [self.model(name, version).card.name] if name else list(self.context.registry.models)
        return [{"name": model, "version": VERSION} | self._statistics_of(model).document() for model in names]

    def _statistics_of(self, model: str) -> "Statistics":
        return self._statistics.setdefault(model, Statistics())

    # ---- the model repository: names of the store's folders, and nothing else that could reach a file

    async def index(self, only_ready: bool, repository: str = "") -> list[dict[str, str]]:
        """Return every model of the store by name, or the loaded ones alone."""
        _check_repository(repository)
        states = await asyncio.to_thread(self.context.registry.states)
        return [
            {
                "name": state.name,
                "version": VERSION,
                "state": "READY" if state.ready else "UNAVAILABLE",
                "reason": state.reason,
            }
            for state in states
            if state.ready or not only_ready
        ]

    async def load(self, name: str, parameters: Mapping[str, Any], repository: str = "") -> None:
        """Serve the store's present version of a model.

        Raises:
            Unsupported: the operator has not allowed it, or parameters came.
        """
        self._check_change("a load", parameters, repository, EXPORTED)
        await self.context.registry.load(name)

    async def unload(self, name: str, parameters: Mapping[str, Any], repository: str = "") -> None:
        """Stop serving a model.

        Raises:
            Unsupported: the operator has not allowed it, or parameters came.
        """
        self._check_change("an unload", parameters.keys() - {DEPENDENTS}, repository)
        await self.context.registry.unload(name)

    def _check_change(self, change: str, parameters: Iterable[str], repository: str, allowed: str = "") -> None:
        _check_repository(repository)
        if self.context.settings.model_control != "explicit":
            remedy = "the operator switches it on with INLAY_MODEL_CONTROL=explicit"
            raise Unsupported("loading and unloading is off", remedy=remedy)
        if name := min(parameters, default=None):
            received = f"parameter {name[:SHOWN_CHARACTERS]!r} of {change} is not supported"
            raise Unsupported(received, allowed=allowed, remedy="leave it out")


class Statistics:
    """What one model answered over this protocol since the process began, counted on the event loop's thread alone."""

    def __init__(self) -> None:
        self._sequences = self._last_ms = 0
        self._durations = {name: {"count": 0, "ns": 0} for name in DURATIONS}

    def add(self, duration: str, seconds: float) -> None:
        """Count one of DURATIONS."""
        self._durations[duration]["count"] += 1
        self._durations[duration]["ns"] += int(seconds * 1e9)

    def answered(self, sequences: int, seconds: float, times: StageTimes) -> None:
        """Count a request that was answered."""
        self._sequences += sequences
        self._last_ms = int(time() * 1000)
        self.add("success", seconds)
        self.add("queue", times.queue)
        self.add("compute_input", times.tokenization)
        self.add("compute_infer", times.inference)

    def document(self) -> dict[str, Any]:
        """Return what Triton's `model_stats` say of a model: inference_count is sequences, execution_count requests."""
        return {
            "last_inference": self._last_ms,
            "inference_count": self._sequences,
            "execution_count": self._durations["success"]["count"],
            "inference_stats": self._durations,
        }


def _check_repository(name: str) -> None:
    if name:
        shown = name[:SHOWN_CHARACTERS]
        raise Unsupported(f"repository_name is {shown!r}", allowed="this server has one store", remedy="leave it out")
