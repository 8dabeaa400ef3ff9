"""The protocol's operations, shared by REST and gRPC: inference, metadata, statistics, the model repository."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from time import perf_counter, time
from typing import Any, Literal

from service.context import ServiceContext
from service.embedding.model import Model
from service.errors import InlayError, NotFound, Unsupported
from service.protocols.oip import metadata
from service.protocols.oip.infer import outputs_of, padded_bytes, request_of
from service.protocols.oip.messages import SHOWN_CHARACTERS, Answer, Inference
from service.protocols.oip.metadata import VERSION
from service.request_context import RequestContext
from service.scheduling import deadlines

DURATIONS = "success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss"
STAGES = "queue", "compute_input", "compute_infer"  # of DURATIONS: waiting, tokenisation, the engine
Verb = Literal["load", "unload"]
CHANGES: dict[Verb, tuple[str, set[str], str]] = {
    "load": ("a load", set(), "models are served as they were exported to the store"),
    "unload": ("an unload", {"unload_dependents"}, ""),  # no model here has any
}
"""How errors call each change of the repository, the parameters it takes, and what it is about others."""


class DataPlane:
    """The state of the protocol in one process, and its operations.

    Where they take a model's name and version, "" is the default model and its one version.

    Attributes:
        context: the service.
    """

    def __init__(self, context: ServiceContext) -> None:
        self.context = context
        self._statistics = defaultdict[str, dict[str, Any]](_no_statistics)

    async def infer(self, name: str, version: str, inference: Inference, call: RequestContext) -> Answer:
        """Return the answer to a request, and count the request in the model's statistics."""
        card, settings, started = self.model(name, version).card, self.context.settings, perf_counter()
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
            self._count(card.name, 0, fail=perf_counter() - started)
            raise
        stages = dict(zip(STAGES, (result.times.queue, result.times.tokenization, result.times.inference), strict=True))
        self._count(card.name, len(request.inputs), success=perf_counter() - started, **stages)
        return Answer(result.model, inference, outputs, result.truncated)

    def model(self, name: str, version: str = "") -> Model:
        """Return a loaded model; raise NotFound if there is none, or none of that version."""
        model = self.context.registry.get(name)
        if version not in ("", VERSION):
            shown = version[:SHOWN_CHARACTERS]
            raise NotFound(f"{model.card.name} has no version {shown!r}", allowed=f"it has {VERSION!r}")
        return model

    async def why_not_ready(self) -> InlayError | None:
        """Return the error that new requests would get; None if they are served."""
        try:
            await self.context.check_ready()
        except InlayError as error:
            return error.without_frames()
        return None

    def statistics(self, name: str, version: str) -> list[dict[str, Any]]:
        """Return Triton's statistics of one model, or of all that are loaded."""
        names = [self.model(name, version).card.name] if name else list(self.context.registry.models)
        return [{"name": model, "version": VERSION} | self._statistics[model] for model in names]

    def _count(self, model: str, sequences: int, **seconds: float) -> None:
        """Count a request in a model's statistics, on the event loop's thread.

        Args:
            sequences: that were answered; 0: the request failed.
            seconds: by names of DURATIONS.
        """
        statistics = self._statistics[model]
        if sequences:
            statistics["last_inference"] = int(time() * 1000)
            statistics["inference_count"] += sequences
            statistics["execution_count"] += 1
        for name, duration in seconds.items():
            statistics["inference_stats"][name]["count"] += 1
            statistics["inference_stats"][name]["ns"] += int(duration * 1e9)

    # ---- the model repository: names of the store's folders, and nothing else that could reach a file

    async def index(self, only_ready: bool, repository: str = "") -> list[dict[str, str]]:
        """Return every model of the store by name, or only the loaded ones."""
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

    async def change(self, verb: Verb, name: str, parameters: Mapping[str, Any], repository: str = "") -> None:
        """Serve the store's present version of a model, or stop serving it.

        Raises:
            Unsupported: the operator has not allowed it, or parameters came.
        """
        change, known, allowed = CHANGES[verb]
        _check_repository(repository)
        if self.context.settings.model_control != "explicit":
            remedy = "the operator switches it on with INLAY_MODEL_CONTROL=explicit"
            raise Unsupported("loading and unloading is off", remedy=remedy)
        if unknown := min(parameters.keys() - known, default=None):
            received = f"parameter {unknown[:SHOWN_CHARACTERS]!r} of {change} is not supported"
            raise Unsupported(received, allowed=allowed, remedy="leave it out")
        await (self.context.registry.load if verb == "load" else self.context.registry.unload)(name)


def _no_statistics() -> dict[str, Any]:
    """Return Triton's `model_stats` of no requests: inference_count is of sequences, execution_count of requests."""
    counts = {"last_inference": 0, "inference_count": 0, "execution_count": 0}
    return {**counts, "inference_stats": {name: {"count": 0, "ns": 0} for name in DURATIONS}}


def _check_repository(name: str) -> None:
    if name:
        shown = name[:SHOWN_CHARACTERS]
        raise Unsupported(f"repository_name is {shown!r}", allowed="this server has one store", remedy="leave it out")
