"""The models being served, by name; loaded, exchanged and let go while others are served. Knows no protocol.

A request holds the model it began with, so an exchange loses nobody: later requests get the new one, and the old one
goes with the last that holds it.
"""

import asyncio
import difflib
import logging
import weakref
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from models.artifacts import card as cards
from models.artifacts.folder import check_hashes
from models.errors import ModelError
from service.embedding.model import Model
from service.errors import BadRequest, NotFound, StartError
from service.observability.metrics import Metrics
from service.process import cpu_count as cores
from service.process import memory
from service.registry import loading
from service.registry import warmup as trial
from service.registry.store import (
    checked,
    exported,
    folders,
    listed,
    version,
)
from service.settings import Settings

Opens = Callable[[Path], Model]
log = logging.getLogger(__name__)
TRIAL_SECONDS = 120.0  # in which a new model must have answered once: its files may come from a slow disk


class State(NamedTuple):
    """What is known of one model of the store.

    reason   why it is not served, or why what is served is not the store's present version; else empty
    """

    name: str
    ready: bool
    reason: str


class ModelRegistry:
    """Models by name. All but `states` and `get` belongs to the event loop's thread.

    models        those being served: a view that follows every motion, so it may be kept; a model of it may not
    default_name  answers requests that name no model, while it is loaded; None: every request must name one
    let_go        by name, the version that was unloaded on request though the store holds it
    """

    def __init__(
        self,
        models: Mapping[str, Model],
        default_name: str | None,
        store: Path,
        opens: Opens,
        metrics: Metrics,
    ) -> None:
        self._served = dict(models)
        self.models: Mapping[str, Model] = MappingProxyType(self._served)
        self.default_name = default_name
        self._store = store
        self._opens = opens
        self._metrics = metrics
        self._let_go: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # one a name: motions wait their turn
        self._motions: set[asyncio.Task[None]] = set()

    @property
    def default(self) -> Model | None:
        """The model that answers requests naming none."""
        return self.models.get(self.default_name) if self.default_name else None

    def get(self, name: str | None) -> Model:
        """The model of that name, or the default.

        raises   NotFound naming the nearest known model; BadRequest if none was named and there is no default
        """
        if not name:
            if (default := self.default) is None:
                raise BadRequest(self._no_default())
            return default
        if name not in self.models:
            near = difflib.get_close_matches(name, self.models, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise NotFound(f"no model {name!r} here; loaded: {listed(self.models)}{hint}")
        return self.models[name]

    def _no_default(self) -> str:
        if not self.models:
            return "no model is loaded: load one first"
        why = f"the default model {self.default_name!r} is not loaded"
        if self.default_name is None:
            why = "this server holds several models" if len(self.models) > 1 else "this server has no default model"
        return f'{why}: send "model", one of {listed(self.models)}'

    async def load(self, name: str) -> None:
        """Serve the store's present version of a model: open it aside, try it, and put it in the place of what serves.

        name     of one folder of the store
        raises   NotFound; BadRequest in one line where it cannot be served: what was served before goes on
        """
        await self.known(name)
        await self._in_turn(name, self._loaded)

    async def known(self, name: str) -> None:
        """Raise NotFound unless the store holds a model of that name."""
        await self._exported(checked(name))

    async def unload(self, name: str) -> None:
        """Stop serving a model; requests already taken are finished.

        raises   NotFound naming what is loaded
        """
        self.get(checked(name))
        await self._in_turn(name, self._unloaded)

    async def follow(self, name: str) -> None:
        """Serve what the store now holds under a name, every file of it with the hash that its card promises.

        Nothing where that version is served, or was unloaded on request. What the store holds no more is let go.

        raises   BadRequest as `load` does
        """
        await self._in_turn(name, self._followed)

    def states(self) -> list[State]:
        """Every model of the store and every one served, by name; reads the store's folder."""
        served, reasons = set(self.models), dict(self._reasons)
        names = sorted({*exported(self._store), *served})
        return [
            State(name, name in served, reasons.get(name, "" if name in served else "not loaded")) for name in names
        ]

    async def _in_turn(self, name: str, move: Callable[[str], Awaitable[None]]) -> None:
        """Move a model once earlier motions of its name are done; goes on to its end where the caller leaves."""

        async def motion() -> None:
            async with self._turns[name]:
                await move(name)

        def ended(task: asyncio.Task[None]) -> None:
            self._motions.discard(task)
            if not task.cancelled():
                task.exception()  # seen, though the caller left

        task = asyncio.create_task(motion())
        self._motions.add(task)
        task.add_done_callback(ended)
        await asyncio.shield(task)

    async def _exported(self, name: str) -> Path:
        found = await asyncio.to_thread(exported, self._store)
        if name not in found:
            raise NotFound(f"the store holds no model {name!r}; it holds {listed(found)}")
        return found[name]

    async def _followed(self, name: str) -> None:
        folder = (await asyncio.to_thread(exported, self._store)).get(name)
        if folder is None:
            if name in self.models:
                await self._unloaded(name)
            self._let_go.pop(name, None)
            self._reasons.pop(name, None)
            return
        served, held = self.models.get(name), await asyncio.to_thread(version, folder)
        if served and served.version == held:
            self._reasons.pop(name, None)  # of another version that was here for a while
        elif self._let_go.get(name) != held:
            await self._loaded(name, whole=True)

    async def _loaded(self, name: str, whole: bool = False) -> None:
        """Exchange a model; `whole` compares every file with its hash before."""
        folder = await self._exported(name)
        try:
            checked_version = await asyncio.to_thread(_whole, folder) if whole else None
            ready = await asyncio.to_thread(self._opens, folder)
            if checked_version not in (None, ready.version):
                raise StartError(f"{folder} was exchanged while it was checked")
            await trial.passes_within(ready, TRIAL_SECONDS)
        except Exception as error:
            raise self._not_loaded(name, error) from error
        self._reasons.pop(name, None)
        self._let_go.pop(name, None)
        self._watch(self.models.get(name))
        self._served[name] = ready
        self._metrics.loaded(name, ready.card.bytes, ready.batchers)
        log.info("%s is loaded", name)

    def _not_loaded(self, name: str, error: Exception) -> BadRequest:
        """Remember why, and say it; what no one foresaw is logged whole."""
        if not isinstance(error, StartError | ModelError):
            log.error("loading %s met a fault", name, exc_info=error)
        why = str(error) if isinstance(error, StartError | ModelError) else f"{type(error).__name__}: {error}"
        log.warning("%s is not loaded: %s", name, why)
        for place in (self._store.resolve(), self._store):  # the log alone says where the store lies
            why = why.replace(f"{place}/", "")
        self._reasons[name] = f"the store's version cannot be loaded: {why}"
        goes_on = "; the version loaded before goes on serving" if name in self.models else ""
        return BadRequest(f"{name} cannot be loaded: {why}{goes_on}")

    def _watch(self, leaving: Model | None) -> None:
        """Give its memory back to the system once the last request that holds the model is done."""
        if leaving is not None:
            loop = asyncio.get_running_loop()
            gone = weakref.finalize(leaving, _after, loop)
            gone.atexit = False

    async def _unloaded(self, name: str) -> None:
        leaving = self.get(name)
        self._watch(leaving)
        self._let_go[name] = leaving.version
        del self._served[name]
        self._reasons[name] = "unloaded"
        self._metrics.unloaded(name)
        log.info("%s is unloaded", name)


def _whole(folder: Path) -> str:
    """The version whose files are all there; raises BadCard."""
    found = version(folder)
    check_hashes(folder, cards.read(folder))
    return found


def _after(loop: asyncio.AbstractEventLoop) -> None:
    """Called as a model goes, in whatever thread held it last: its parts are freed only after this returns."""
    with suppress(RuntimeError):  # the loop is closed: so is the process, almost
        loop.call_soon_threadsafe(loop.run_in_executor, None, memory.trim)


def open_registry(settings: Settings, metrics: Metrics) -> ModelRegistry:
    """Load the models of the store that the settings name.

    One of several workers may be started long after the others, when a watched store has changed: the supervisor has
    checked the settings and named the default model once for all workers, so here a missing model is no error.

    Raises:
        StartError, models.errors.ModelError: in one line, a model cannot be served.
    """
    chosen = folders(settings) if settings.workers == 1 else _present(settings)
    threads = settings.threads or max(1, cores.available() // settings.workers)
    opens = partial(loading.opened, settings=settings, threads=threads, metrics=metrics)
    models = {name: opens(folder) for name, folder in chosen.items()}
    for name, found in models.items():
        metrics.loaded(name, found.card.bytes, found.batchers)
    default = default_name(settings, models) if settings.workers == 1 else settings.default_model
    return ModelRegistry(models, default, settings.store, opens, metrics)


def default_name(settings: Settings, names: Collection[str]) -> str | None:
    """Return the name of the default model: the one that is set, or the only one of `names`.

    Raises:
        StartError: the one that is set is not among `names`.
    """
    if settings.default_model and settings.default_model not in names:
        raise StartError(f"default model {settings.default_model!r} is not loaded; loaded: {listed(names)}")
    return settings.default_model or (next(iter(names)) if len(names) == 1 else None)


def _present(settings: Settings) -> dict[str, Path]:
    """Return the folders of the models that the settings name, as far as the store holds them now."""
    found = exported(settings.store) if settings.store.is_dir() else {}
    return {name: found[name] for name in settings.models or found if name in found}
