"""The protocol's operations, shared by REST and gRPC: inference, metadata, statistics, the model repository."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from time import perf_counter, time
from typing import Any, Literal

from models.artifacts.card import Card
from service.context import ServiceContext
from service.embedding.model import Model
from service.embedding.ranking import reads_pairs, text_activation
from service.embedding.requests import EmbedOptions
from service.errors import NotFound, Unsupported
from service.protocols.inlay.needs import reads_images
from service.protocols.oip.infer import outputs_of, padded_bytes, request_of
from service.protocols.oip.messages import SHOWN_CHARACTERS, VERSION, Answer, Inference
from service.request_context import RequestContext
from service.scheduling import deadlines

DURATIONS = "success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss"
Verb = Literal["load", "unload"]
NAME = "inlay"
EXTENSIONS = ("binary_tensor_data", "model_configuration", "statistics", "parameters")
TOKENS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
Document = dict[str, Any]


class DataPlane:
    """The state of the protocol in one process, and its operations.

    Where they take a model's name and version, "" is the default model and its one version.

    Attributes:
        context: the service.
        extensions: those of the protocol that it has.
    """

    def __init__(self, context: ServiceContext) -> None:
        self.context = context
        explicit = context.settings.model_control == "explicit"
        self.extensions = [*EXTENSIONS, *["model_repository"] * explicit]
        self._statistics = defaultdict[str, Document](_no_statistics)

    async def infer(self, inference: Inference, call: RequestContext, name: str, version: str = "") -> Answer:
        """Return the answer to a request, and count the request in the model's statistics."""
        self.model(name, version)
        card, settings, started = self.context.registry.get(name).card, self.context.settings, perf_counter()
        try:
            allowed = [tensor["name"] for tensor in input_tensors(card)]
            request, places = request_of(card, inference, settings, allowed)
            if inference.parameters.priority > 1:  # 1 is Triton's highest, 0 its default
                call.make_bulk()
            if inference.parameters.timeout:
                call = call.within(started + inference.parameters.timeout / 1e6)
            async with deadlines.within(call.deadline):
                result = await self.context.embedder.embed(request, call)
            self.context.budget.reserve(padded_bytes(result, places, settings.max_answer_bytes), call)
            outputs = outputs_of(card, inference, result, places)
        except Exception:
            self._count(card.name, 0, fail=perf_counter() - started)
            raise
        stages = dict(zip(("compute_input", "queue", "compute_infer"), result.times, strict=True))
        self._count(card.name, len(request.inputs), success=perf_counter() - started, **stages)
        return Answer(result.model, inference, outputs, result.truncated)

    def model(self, name: str, version: str = "") -> Model:
        """Return a model, loaded or not; raise NotFound if there is none, or none of that version."""
        model = self.context.registry.described(name)
        if version not in ("", VERSION):
            shown = version[:SHOWN_CHARACTERS]
            raise NotFound(f"{model.card.name} has no version {shown!r}", allowed=f"it has {VERSION!r}")
        return model

    async def describe(self, method: str, name: str = "", version: str = "") -> Document:
        """Return the answer to a method of gRPC that describes the server or a model, or to its route.

        Raises:
            InlayError: the method asks whether new requests are served, and they would get this error.
        """
        documents: dict[str, Callable[[], Document]] = {
            "ServerLive": lambda: {"live": True},
            "ServerReady": lambda: {"ready": True},
            "ServerMetadata": lambda: {"name": NAME, "version": self.context.version, "extensions": self.extensions},
            "ModelReady": lambda: {"name": self.model(name, version).card.name, "ready": True},
            "ModelMetadata": lambda: model_metadata(self.model(name, version)),
            "ModelConfig": lambda: model_config(self.model(name, version)),
            "ModelStatistics": lambda: {"model_stats": self.statistics(name, version)},
        }
        document = documents[method]()
        if method.endswith("Ready"):
            await self.context.check_ready()
        return document

    def statistics(self, name: str, version: str) -> list[dict[str, Any]]:
        """Return Triton's statistics of one model, or of all that are served."""
        names = [self.model(name, version).card.name] if name else list(self.context.registry.offered)
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
        words = {True: "READY", False: "UNAVAILABLE"}
        return [
            {"name": state.name, "version": VERSION, "state": words[state.ready], "reason": state.reason}
            for state in states
            if state.ready or not only_ready
        ]

    async def change(self, verb: Verb, name: str, parameters: Mapping[str, Any], repository: str = "") -> None:
        """Serve the store's present version of a model, or stop serving it.

        Raises:
            Unsupported: the operator has not allowed it, or parameters came.
        """
        _check_repository(repository)
        if self.context.settings.model_control != "explicit":
            remedy = "the operator switches it on with INLAY_MODEL_CONTROL=explicit"
            raise Unsupported("loading and unloading is off", remedy=remedy)
        known, change, allowed = {"unload_dependents"}, "an unload", ""  # no model here has dependents
        if verb == "load":
            known, change, allowed = set(), "a load", "models are served as they were exported to the store"
        if unknown := min(parameters.keys() - known, default=None):
            received = f"parameter {unknown[:SHOWN_CHARACTERS]!r} of {change} is not supported"
            raise Unsupported(received, allowed=allowed, remedy="leave it out")
        await (self.context.registry.load if verb == "load" else self.context.registry.unload)(name)


def _no_statistics() -> Document:
    """Return Triton's `model_stats` of no requests: inference_count is of sequences, execution_count of requests."""
    counts: Document = {"last_inference": 0, "inference_count": 0, "execution_count": 0}
    unknown: Document = {"batch_stats": [], "memory_usage": []}  # batches are shared by all protocols
    return {**counts, "inference_stats": {name: {"count": 0, "ns": 0} for name in DURATIONS}, **unknown}


def _check_repository(name: str) -> None:
    if name:
        shown = name[:SHOWN_CHARACTERS]
        raise Unsupported(f"repository_name is {shown!r}", allowed="this server has one store", remedy="leave it out")


# ---- what describes the server and its models, for JSON and protobuf alike


def model_metadata(model: Model) -> Document:
    """Return a model's metadata; -1 is any size. Ids are [B, T], with padding."""
    inputs = [] if reads_images(model) else input_tensors(model.card)
    tensors = {"inputs": inputs, "outputs": _output_tensors(model)}
    return {"name": model.card.name, "versions": [VERSION], "platform": NAME, **tensors}


def model_config(model: Model) -> Document:
    """Return the part of Triton's model configuration that applies; batches form by load, so it has no batch sizes."""
    card, described = model.card, model_metadata(model)
    kind = "KIND_GPU" if model.engine.device == "cuda" else "KIND_CPU"
    required = [] if card.tokenizer else ["input_ids"]
    return {
        "name": card.name,
        "platform": "",
        "backend": NAME,
        "max_batch_size": 0,
        "version_policy": {"latest": {"num_versions": 1}},
        "input": [_configured(tensor) | {"optional": tensor["name"] not in required} for tensor in described["inputs"]],
        "output": [_configured(tensor) for tensor in described["outputs"]],
        "instance_group": [{"name": card.name, "kind": kind, "count": 1}],
    }


def input_tensors(card: Card) -> list[Document]:
    """Return name, datatype and shape of each tensor of texts or token ids that a model takes."""
    texts = (["text", "text_pair"] if reads_pairs(card) else ["text"]) if card.tokenizer else []
    extras = [(extra.name, [extra.columns] * (extra.columns > 1)) for extra in card.extras if extra.sent]
    tokens = [*[(name, []) for name in TOKENS], *extras]
    return [
        *[_tensor(name, "BYTES", -1) for name in texts],
        *[_tensor(name, "INT64", -1, -1, *columns) for name, columns in tokens],
    ]


def _output_tensors(model: Model) -> list[Document]:
    """Return name, datatype and shape of each tensor that a model returns, in FP32 by default."""
    tensors, card = [], model.card
    for name in card.outputs:
        (kind,), width = model.plan(EmbedOptions((name,)), "").kinds, card.known_width(name) or -1
        shape = [-1] if kind.sparse else [-1, width] if kind.pooled else [-1, -1, width]
        tensors.append(_tensor(name, "FP32", *shape))
        if kind.sparse:
            tensors += [_tensor(f"{name}_indices", "INT32", -1), _tensor(f"{name}_lengths", "INT64", -1)]
    if text_activation(card):
        tensors.append(_tensor("scores", "FP32", -1, card.known_width(card.classifier_output) or -1))
    return [*tensors, _tensor("lengths", "INT64", -1)]


def _tensor(name: str, datatype: str, *shape: int) -> Document:
    return {"name": name, "datatype": datatype, "shape": list(shape)}


def _configured(tensor: Document) -> Document:
    kind = tensor["datatype"].replace("BYTES", "STRING")
    return {"name": tensor["name"], "data_type": f"TYPE_{kind}", "dims": tensor["shape"]}
