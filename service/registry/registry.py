"""The models by name; they are loaded, replaced and unloaded while others are served.

A request holds the model it began with. After a replacement, later requests get the new model, and the old one is freed
with the last request that holds it.
"""

import asyncio
import difflib
import logging
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from models.errors import ModelError
from service import machine
from service.embedding.model import Model
from service.errors import BadRequest, ModelRequired, NotFound, StartError, UnknownModel
from service.observability.metric_store import Key
from service.observability.metrics import Metrics
from service.registry import store, warmup
from service.registry.further_names import LATEST, claims
from service.registry.loading import load_model, of_task
from service.registry.on_demand import OnDemand, Residencies, not_loaded
from service.registry.shared_changes import SharedChanges
from service.registry.store import check_name, quote_names, shortened
from service.settings import Settings

WARMUP_SECONDS = 120.0  # seconds for the warm-up of a new model, whose files may come from a slow disk
DEFAULT_VARIABLE = "INLAY_DEFAULT_MODEL"
LONGEST_COMPARED = 64  # characters of an unknown name that similar names are looked up for
Kind = Callable[[Model], bool]  # whether a model is of a kind, such as a reranker
log = logging.getLogger(__name__)


class ModelState(NamedTuple):
    """One model of the store.

    Args:
        reason: why it is not served, or why the store's present version of it is not; else empty.
    """

    name: str
    ready: bool
    reason: str


class ModelRegistry:
    """The loaded models by name. Everything but `states` and `get` belongs to the event loop's thread.

    Args:
        models: those to begin with.
        named_defaults: the first is the model of requests that name none, while it is loaded; of a route that needs a
            kind of model, such as a reranker, the first of that kind is. Empty: the only model that is loaded.
        folder: the store.
        load: opens one folder of the store; called in a thread.
        reasons: why models of the store are not among `models`, by name.
        aliases: own names by further names that the settings give.
        residencies: of models that are loaded on demand; None: all are loaded.
        waiting: those that their first requests load.

    Attributes:
        models: the loaded ones, a live view by own names; keep the view, not a model of it.
        offered: those that requests may name: the loaded ones, and those that their first requests load.
        further: these by the other names that they answer to.
        default: the model of requests that name none. It follows from the settings and from the models that are
            offered, never from the order in which they came, so a restart does not change it.
        on_demand: what loads models that are not loaded; None: all are.
        shared: what makes changes by request in all workers; None: this process serves alone.
    """

    on_demand: OnDemand | None = None
    shared: SharedChanges | None = None

    def __init__(
        self,
        models: Mapping[str, Model],
        named_defaults: Sequence[str],
        folder: Path,
        load: Callable[[Path], Model],
        metrics: Metrics,
        reasons: Mapping[str, str] = MappingProxyType({}),
        aliases: Mapping[str, str] = MappingProxyType({}),
        residencies: Residencies | None = None,
        waiting: Mapping[str, Model] = MappingProxyType({}),
    ) -> None:
        self._loaded, self._residencies = dict(models), residencies
        self._offered = self._loaded if residencies is None else {**models, **waiting}
        self.models: Mapping[str, Model] = MappingProxyType(self._loaded)
        self.offered: Mapping[str, Model] = MappingProxyType(self._offered)
        self.named_defaults = tuple(named_defaults)
        self._aliases = aliases
        self.default = self._find_default()
        self._find_further()
        self._store = folder
        self._open = load
        self._metrics = metrics
        self._unloaded_versions: dict[str, str] = {}  # of models unloaded on request though the store holds them
        self._reasons = dict(reasons)
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by name
        self._changes: set[asyncio.Task[None]] = set()
        for name in models:
            metrics.loaded(name)
        metrics.watch(self._gauges)

    def get(self, name: str | None, *kinds: Kind) -> Model:
        """Return the model that answers to a name, or the default model.

        Args:
            kinds: kinds of models that the caller's route needs, for requests that name none, the best first.

        Raises:
            NotFound: there is no such model.
            BadRequest: none was named and there is no default.
            ModelNotLoaded: it is loaded on demand, and is not.
        """
        model = self.described(name, *kinds)
        if self.on_demand is not None and (residency := model.residency) is not None:
            if not model.batchers:
                raise self.on_demand.missing(model.card.name)
            residency.used_at = self.on_demand.clock()
        return model

    def described(self, name: str | None, *kinds: Kind) -> Model:
        """Return what `get` does, loaded or not; raise as `get` does."""
        model = self.find(name) if name else self.default_of(*kinds) if kinds else self.default
        if model is None:
            raise self._not_found(name) if name else self._no_default()
        return model

    def find(self, name: str) -> Model | None:
        """Return the model that answers to a name, loaded or not; None if there is none.

        What follows a colon is one of the model's tasks, or Ollama's `latest`.
        """
        if model := self.offered.get(name) or self.further.get(name):
            return model
        stem, _, end = name.rpartition(":")
        model = self.offered.get(stem) or self.further.get(stem)
        if model is None or end == LATEST[1:]:
            return model
        return self.further.get(f"{model.card.name}:{end}") if stem in (*self.offered, *self._claims) else None

    def default_of(self, *kinds: Kind) -> Model | None:
        """Return the model of requests that name none on a route that needs a model of one of these kinds.

        It is the default model if it is of one; else the first named default of a kind, or its only loaded model, not
        counting those of random weights beside others; else the default model all the same.
        """
        if self.default is not None and any(is_of_kind(self.default) for is_of_kind in kinds):
            return self.default
        named = [self.offered[name] for name in self.named_defaults if name in self.offered]
        for is_of_kind in kinds:
            every = [model for model in self.offered.values() if is_of_kind(model)]
            fitting = [model for model in every if not model.card.random] or every
            chosen = [model for model in named if is_of_kind(model)] or fitting
            if chosen and (len(fitting) == 1 or chosen is not fitting):
                return chosen[0]
        return self.default

    def _not_found(self, name: str) -> NotFound:
        if several := self._claims.get(name.removesuffix(LATEST)):
            remedy = "send the name of one of them"
            return UnknownModel(f"{shortened(name)} may be any of {quote_names(several)}", remedy=remedy)
        known = [*self.offered, *self.further]
        similar = difflib.get_close_matches(name, known, 1) if len(name) <= LONGEST_COMPARED else []
        remedy = f"did you mean {similar[0]!r}?" if similar else ""
        return UnknownModel(
            f"no model {shortened(name)} here",
            allowed=f"{'served' if self.on_demand else 'loaded'}: {quote_names(self.offered)}",
            remedy=remedy,
        )

    def _no_default(self) -> BadRequest:
        if not self.offered:
            return ModelRequired("no model is loaded", remedy="load one first")
        remedy = f'send "model", one of {quote_names(self.offered)}, or set {DEFAULT_VARIABLE} where the server starts'
        return ModelRequired("is missing", field=("model",), allowed=self.default_fault(), remedy=remedy)

    def default_fault(self) -> str:
        """Return why requests must name a model; empty where there is a default model or no model at all."""
        if self.default is not None or not self.offered:
            return ""
        if self.named_defaults:
            return f"the default model {self.named_defaults[0]!r} is not loaded"
        return "this server holds several models and none is the default"

    def _find_default(self) -> Model | None:
        if self.named_defaults:
            return self.offered.get(self.named_defaults[0])
        return next(iter(self.offered.values())) if len(self.offered) == 1 else None

    def _find_further(self) -> None:
        self._claims = claims({name: model.card for name, model in self.offered.items()}, self._aliases)
        of_tasks = {f"{name}:{task}": of_task(m, task) for name, m in self.offered.items() for task in m.card.tasks}
        self.further = of_tasks | {name: self.offered[own[0]] for name, own in self._claims.items() if len(own) == 1}

    def _update_names(self) -> None:
        """Find names and the default again after the loaded models changed; log another default, or the lack of one."""
        self._find_further()
        before, self.default = self.default, self._find_default()
        if self.default and (before is None or before.card.name != self.default.card.name):
            log.info("requests that name no model now get %r", self.default.card.name)
        elif before and self.default is None and (fault := self.default_fault()):
            log.warning("requests that name no model are refused: %s; %s names one", fault, DEFAULT_VARIABLE)

    async def load(self, name: str) -> None:
        """Load the store's present version of a model in all workers; it replaces the version that is served.

        Raises:
            NotFound: the store holds no model of that name.
            BadRequest: the version cannot be served; the one served before stays.
        """
        await self._exported(check_name(name))
        await (self.load_here(name) if self.shared is None else self.shared.make("load", name))

    async def load_here(self, name: str) -> None:
        """Load the store's present version of a model in this process; raise as `load` does."""
        await (self.load_version if self.on_demand is None else self.on_demand.load)(name)

    async def load_version(self, name: str) -> None:
        """Load the store's present version of a model, whatever memory is left; raise as `load` does."""
        await self._in_order(name, self._load_now)

    def put_away(self, name: str) -> Model:
        """Unload a model that its next request loads again; return it, to be freed."""
        model = self._loaded.pop(name)
        assert model.residency is not None
        self._offered[name] = not_loaded(model.card, model.version, model.residency)
        self._update_names()
        log.info("%s is unloaded until it is needed", name)
        return model

    async def unload(self, name: str) -> None:
        """Stop serving a model in all workers; requests that were already admitted are finished.

        Raises:
            NotFound: it is not loaded.
        """
        if check_name(name) not in self.offered:
            raise self._not_found(name)
        await (self.unload_here(name) if self.shared is None else self.shared.make("unload", name))

    async def unload_here(self, name: str) -> None:
        """Stop serving a model in this process; raise NotFound if it is not loaded."""
        await self._in_order(name, self._unload_now)

    def seconds_left(self, model: Model) -> float:
        """Return the seconds that a loaded model stays if no request comes for it; infinity: it is never unloaded."""
        return math.inf if self.on_demand is None else self.on_demand.seconds_left(model)

    async def sync(self, name: str) -> None:
        """Load, replace or unload a model to match the store.

        A version that was unloaded on request stays unloaded.

        Raises:
            BadRequest: as `load` does.
        """
        await self._in_order(name, self._sync_now)

    def _gauges(self) -> dict[Key, float]:
        """Return the gauges of the loaded models and their queues."""
        gauges: dict[Key, float] = {}
        for name, model in self.models.items():
            gauges |= {("inlay_model_bytes", name): model.card.bytes, ("inlay_model_workers", name): 1}
            for graph, batcher in model.batchers.items():
                gauges["inlay_queue_tokens", name, graph] = batcher.waiting_cost
                gauges["inlay_queue_items", name, graph] = batcher.waiting_items
        return gauges

    def states(self) -> list[ModelState]:
        """Return every model that is in the store or loaded, by name; reads the store's folder."""
        loaded, reasons = set(self.models), dict(self._reasons)
        offered = set(self.offered) - loaded
        names = sorted({*store.exports(self._store), *loaded, *offered})
        return [
            ModelState(name, name in loaded, reasons.get(name, "" if name in loaded else why))
            for name in names
            for why in ("its first request loads it" if name in offered else "not loaded",)
        ]

    async def _in_order(self, name: str, change: Callable[[str], Awaitable[None]]) -> None:
        """Make a change after earlier ones of the same name, and complete it even if the caller leaves."""

        async def locked() -> None:
            async with self._locks[name]:
                await change(name)

        task = asyncio.create_task(locked())
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        await asyncio.shield(task)  # it also retrieves an exception that comes after the caller left

    async def _exported(self, name: str) -> Path:
        folders = await asyncio.to_thread(store.exports, self._store)
        if name not in folders:
            received = f"the store holds no model {shortened(name)}"
            raise UnknownModel(received, allowed=f"it holds {quote_names(folders)}")
        return folders[name]

    async def _sync_now(self, name: str) -> None:
        folder = (await asyncio.to_thread(store.exports, self._store)).get(name)
        if folder is None:
            if name in self.offered:
                await self._unload_now(name)
            self._unloaded_versions.pop(name, None)
            self._reasons.pop(name, None)
            return
        model, version = self.offered.get(name), await asyncio.to_thread(store.export_version, folder)
        if model and model.version == version:
            self._reasons.pop(name, None)  # the reason why another version, now gone, could not be loaded
        elif self._unloaded_versions.get(name) != version:
            if self._residencies is None or name in self.models:
                await self._load_now(name)
            else:
                await self._offer_now(name, folder, self._residencies)

    async def _offer_now(self, name: str, folder: Path, residencies: Residencies) -> None:
        """Offer a new model, or a new version of one that is not loaded."""
        try:
            self._offered[name] = await asyncio.to_thread(residencies.offered, folder)
        except Exception as error:
            raise self._load_failed(name, error) from error
        self._reasons.pop(name, None)
        self._update_names()
        log.info("%s is there; its first request loads it", name)

    async def _load_now(self, name: str) -> None:
        folder = await self._exported(name)
        try:
            model = await asyncio.to_thread(self._open, folder)
            await warmup.warm_up_within(model, WARMUP_SECONDS)
        except Exception as error:
            raise self._load_failed(name, error) from error
        self._reasons.pop(name, None)
        self._unloaded_versions.pop(name, None)
        self._loaded[name] = self._offered[name] = model
        self._update_names()
        self._metrics.loaded(name)
        log.info("%s is loaded", name)

    def _load_failed(self, name: str, error: Exception) -> BadRequest:
        """Record why a model could not be loaded, and return the error for the caller, without the store's path."""
        if isinstance(error, StartError | ModelError):
            why = str(error)
        else:
            log.error("loading %s failed", name, exc_info=error)
            why = f"{type(error).__name__}: {error}"
        log.warning("%s is not loaded: %s", name, why)
        why = _without_path(why, self._store)
        self._reasons[name] = _reason(why)
        goes_on = "; the version loaded before goes on serving" if name in self.models else ""
        return BadRequest(f"{name} cannot be loaded: {why}{goes_on}")

    async def _unload_now(self, name: str) -> None:
        if (model := self.offered.get(name)) is None:
            raise self._not_found(name)
        self._unloaded_versions[name] = model.version
        for models in (self._loaded, self._offered):
            models.pop(name, None)
        self._update_names()
        self._reasons[name] = "unloaded"
        log.info("%s is unloaded", name)


def _reason(why: str) -> str:
    return f"the store's version cannot be loaded: {why}"


def _without_path(why: str, folder: Path) -> str:
    """Return a message for callers, without the path of the store."""
    for place in (folder.resolve(), folder):
        why = why.replace(f"{place}/", "")
    return why


def open_registry(settings: Settings, metrics: Metrics) -> ModelRegistry:
    """Load the models of the store that the settings name.

    With several workers, one may be started long after the others, when a watched store has changed: the supervisor
    has checked the settings once for all workers, so here a missing model is no error. A model of a watched store that
    cannot be loaded and that the settings do not name is left out, as it is while the service runs.

    Raises:
        StartError, models.errors.ModelError: a model cannot be served; one line.
    """
    folders = store.configured_folders(settings, must_exist=settings.workers == 1)
    if settings.workers == 1:
        check_names(settings, folders)
    threads = settings.threads or max(1, machine.available_cpus() // settings.workers)
    load: Callable[[Path], Model] = partial(load_model, settings=settings, threads=threads, metrics=metrics)
    residencies = None
    if settings.load == "on-demand":
        import_module("service.runtime.onnx")  # its library takes 0.14 s of the processor: not in the first request
        residencies = Residencies(settings, load)
        residencies.pin(folders)
        load = residencies.load
    models, waiting, reasons = dict[str, Model](), dict[str, Model](), dict[str, str]()
    for name, folder in folders.items():
        try:
            if residencies is None or name in settings.pinned_models:
                models[name] = load(folder)
            else:
                waiting[name] = residencies.offered(folder)
        except (StartError, ModelError) as error:
            if not settings.watch_store or name in (*settings.models, *settings.default_model):
                raise
            log.warning("%s is not loaded: %s", name, error)  # as when it comes to a store that is watched
            reasons[name] = _reason(_without_path(str(error), settings.store))
    named = (*settings.default_model, *settings.models)
    names = named, settings.store, load, metrics, reasons, settings.model_of_alias
    registry = ModelRegistry(models, *names, residencies, waiting)
    if residencies is not None:
        changes = registry.load_version, registry.put_away
        registry.on_demand = OnDemand(registry.models, registry.offered, *changes, settings, metrics)
    return registry


def check_names(settings: Settings, names: Collection[str]) -> None:
    """Raise StartError if a setting names a model that is not among `names`, nor may come to a watched store."""
    named: dict[str, Iterable[str]] = {"DEFAULT_MODEL": settings.default_model, "PINNED_MODELS": settings.pinned_models}
    if not settings.watch_store:
        named |= {"ALIASES": settings.model_of_alias.values(), "KEEP_ALIVE": filter(None, settings.keep_seconds)}
    for variable, each in named.items():
        for name in each:
            if name not in names:
                raise StartError(
                    f"INLAY_{variable} names {name!r}, which is not served; served: {quote_names(names)}: name one of "
                    f"them there or with --{variable.lower().replace('_', '-')}"
                )
