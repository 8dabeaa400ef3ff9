"""The protocol's operations, shared by REST and gRPC: inference, readiness, statistics, the model repository."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter, time
from typing import Any

from service.context import ServiceContext
from service.embedding.model import Model
from service.errors import InlayError, NotFound, Unsupported
from service.protocols.oip.infer import outputs_of, padded_bytes, parameters_of, request_of
from service.protocols.oip.shared_memory import Regions
from service.protocols.oip.tensors import SHOWN_CHARACTERS, Tensor
from service.request_context import RequestContext, StageTimes
from service.scheduling import deadlines

VERSION = "1"  # of every model
DEPENDENTS = "unload_dependents"  # no model here has any


class DataPlane:
    """The state of the protocol in one process, and its operations.

    Attributes:
        context: the service.
        regions: shared memory that clients have registered.
    """

    def __init__(self, context: ServiceContext) -> None:
        self.context = context
        self.regions = Regions(enabled=context.settings.shared_memory)
        self._counts: dict[str, Counts] = {}

    async def infer(
        self,
        name: str,
        version: str,
        inputs: Sequence[Tensor],
        parameters: Mapping[str, Any],
        outputs: Sequence[str],
        call: RequestContext,
    ) -> tuple[str, list[Tensor]]:
        """Return the name of the model that answered, and its output tensors in the order of `outputs`.

        Args:
            name: "" for the default model.
            version: "" for the one version.
            parameters: of the request.
            outputs: names; empty: the model's default output.
        """
        card = self.model(name, version).card
        started = perf_counter()
        try:
            read = parameters_of(parameters)
            prepared = request_of(card, inputs, read, outputs, self.context.settings)
            if read.timeout:
                call = call.within(started + read.timeout / 1e6)
            async with deadlines.within(call.deadline):
                result = await self.context.embedder.embed(prepared.request, call)
            self.context.budget.reserve(padded_bytes(result, prepared), call)
            tensors = outputs_of(result, prepared)
        except Exception:
            self._counts_of(card.name).fail.add(perf_counter() - started)
            raise
        self._succeeded(card.name, len(prepared.request.inputs), perf_counter() - started, result.times)
        return result.model, tensors

    def model(self, name: str, version: str = "") -> Model:
        """Return a loaded model; raise NotFound where there is none, or none of that version."""
        model = self.context.registry.get(name)
        if version not in ("", VERSION):
            shown = version[:SHOWN_CHARACTERS]
            raise NotFound(f"{model.card.name} has no version {shown!r}", allowed=f"it has {VERSION!r}")
        return model

    async def is_ready(self) -> bool:
        """Return whether new requests are served."""
        try:
            await self.context.check_ready()
        except InlayError:
            return False
        return True

    # ---- statistics, on the event loop's thread alone

    def statistics(self, name: str = "", version: str = "") -> list[dict[str, Any]]:
        """Return Triton's `model_stats` of one model, or of all that are loaded."""
        names = [self.model(name, version).card.name] if name else list(self.context.registry.models)
        return [self._counts_of(model_name).document(model_name) for model_name in names]

    def _counts_of(self, model: str) -> "Counts":
        return self._counts.setdefault(model, Counts())

    def _succeeded(self, model: str, sequences: int, seconds: float, times: StageTimes) -> None:
        counts = self._counts_of(model)
        counts.sequences += sequences
        counts.last_ms = int(time() * 1000)
        counts.success.add(seconds)
        counts.queue.add(times.queue)
        counts.compute_input.add(times.tokenization)
        counts.compute_infer.add(times.inference)

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
        self._check_control(repository)
        if parameters:
            raise Unsupported(
                f"parameter {next(iter(parameters))[:SHOWN_CHARACTERS]!r} of a load is not supported",
                allowed="models are served as they were exported to the store",
                remedy="leave it out",
            )
        await self.context.registry.load(name)

    async def unload(self, name: str, parameters: Mapping[str, Any], repository: str = "") -> None:
        """Stop serving a model.

        Raises:
            Unsupported: the operator has not allowed it, or parameters came.
        """
        self._check_control(repository)
        if others := parameters.keys() - {DEPENDENTS}:
            shown = min(others)[:SHOWN_CHARACTERS]
            raise Unsupported(f"parameter {shown!r} of an unload is not supported", remedy="leave it out")
        await self.context.registry.unload(name)

    def _check_control(self, repository: str) -> None:
        _check_repository(repository)
        if self.context.settings.model_control != "explicit":
            raise Unsupported(
                "loading and unloading is off", remedy="the operator switches it on with INLAY_MODEL_CONTROL=explicit"
            )


def _check_repository(name: str) -> None:
    if name:
        shown = name[:SHOWN_CHARACTERS]
        raise Unsupported(f"repository_name is {shown!r}", allowed="this server has one store", remedy="leave it out")


@dataclass(slots=True)
class Duration:
    """How many times something happened, and how long that took together."""

    count: int = 0
    ns: int = 0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.count += 1
        self.ns += int(seconds * 1e9)


@dataclass(slots=True)
class Counts:
    """What one model answered over this protocol since the process began."""

    sequences: int = 0
    last_ms: int = 0
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)

    def document(self, model: str) -> dict[str, Any]:
        """Return one entry of Triton's `model_stats`: inference_count is sequences, execution_count requests.

        Batches are shared by all protocols, so none are counted here.
        """
        names = ("success", "fail", "queue", "compute_input", "compute_infer")
        durations = {name: getattr(self, name) for name in names}
        durations |= dict.fromkeys(("compute_output", "cache_hit", "cache_miss"), Duration())
        return {
            "name": model,
            "version": VERSION,
            "last_inference": self.last_ms,
            "inference_count": self.sequences,
            "execution_count": self.success.count,
            "inference_stats": {
                name: {"count": duration.count, "ns": duration.ns} for name, duration in durations.items()
            },
            "batch_stats": [],
            "memory_usage": [],
        }
