"""The models being served, by name; loaded, exchanged and let go while others are served. Knows no protocol.

A request holds the model it began with, so an exchange loses nobody: later requests get the new one, and the old one
goes with the last that holds it.
"""

import asyncio
import difflib
import logging
import weakref
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from models import card as cards
from models.errors import ModelError
from service import cores, memory, model, trial
from service.errors import BadRequest, NotFound, StartError
from service.metrics import Metrics
from service.model import Model, Rows, Work
from service.settings import Settings

__all__ = ["Catalog", "Model", "Rows", "State", "Work", "folders", "open_catalog"]

LONGEST_SHOWN = 80  # characters of a name that is refused
Opens = Callable[[Path], Model]
log = logging.getLogger(__name__)


class State(NamedTuple):
    """What is known of one model of the store.

    reason   why it is not served, or why what is served is not the store's present version; else empty
    """

    name: str
    ready: bool
    reason: str


class Catalog:
    """Models by name. All but `states` and `get` belongs to the event loop's thread.

    models        those being served: a view that follows every motion, so it may be kept; a model of it may not
    default_name  answers requests that name no model, while it is loaded; None: every request must name one
    """

    def __init__(
        self, models: Mapping[str, Model], default_name: str | None, store: Path, opens: Opens, metrics: Metrics
    ) -> None:
        self._served = dict(models)
        self.models: Mapping[str, Model] = MappingProxyType(self._served)
        self.default_name = default_name
        self._store = store
        self._opens = opens
        self._metrics = metrics
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
            raise NotFound(f"no model {name!r} here; loaded: {_listed(self.models)}{hint}")
        return self.models[name]

    def _no_default(self) -> str:
        if not self.models:
            return "no model is loaded: load one first"
        why = f"the default model {self.default_name!r} is not loaded"
        if self.default_name is None:
            why = "this server holds several models" if len(self.models) > 1 else "this server has no default model"
        return f'{why}: send "model", one of {_listed(self.models)}'

    async def load(self, name: str) -> None:
        """Serve the store's present version of a model: open it aside, try it, and put it in the place of what serves.

        name     of one folder of the store
        raises   NotFound; BadRequest in one line where it cannot be served: what was served before goes on
        """
        await self._exported(_checked(name))
        await self._in_turn(name, self._loaded)

    async def unload(self, name: str) -> None:
        """Stop serving a model; requests already taken are finished.

        raises   NotFound naming what is loaded
        """
        self.get(_checked(name))
        await self._in_turn(name, self._unloaded)

    def states(self) -> list[State]:
        """Every model of the store and every one served, by name; reads the store's folder."""
        served, reasons = set(self.models), dict(self._reasons)
        names = sorted({*_exported(self._store), *served})
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
        found = await asyncio.to_thread(_exported, self._store)
        if name not in found:
            raise NotFound(f"the store holds no model {name!r}; it holds {_listed(found)}")
        return found[name]

    async def _loaded(self, name: str) -> None:
        folder = await self._exported(name)
        try:
            ready = await asyncio.to_thread(self._opens, folder)
            await trial.passes(ready)
        except Exception as error:
            raise self._not_loaded(name, error) from error
        self._reasons.pop(name, None)
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
        self._watch(self.get(name))
        del self._served[name]
        self._reasons[name] = "unloaded"
        self._metrics.unloaded(name)
        log.info("%s is unloaded", name)


def _after(loop: asyncio.AbstractEventLoop) -> None:
    """Called as a model goes, in whatever thread held it last: its parts are freed only after this returns."""
    with suppress(RuntimeError):  # the loop is closed: so is the process, almost
        loop.call_soon_threadsafe(loop.run_in_executor, None, memory.give_back)


def open_catalog(settings: Settings, metrics: Metrics) -> Catalog:
    """Load the models of the store that the settings name.

    raises   StartError or models.errors.ModelError in one line if one cannot be served
    """
    chosen = folders(settings)
    threads = settings.threads or max(1, cores.available() // settings.workers)
    opens = partial(model.opened, settings=settings, threads=threads, metrics=metrics)
    models = {name: opens(folder) for name, folder in chosen.items()}
    for name, found in models.items():
        metrics.loaded(name, found.card.bytes, found.batchers)
    if settings.default_model and settings.default_model not in models:
        raise StartError(f"default model {settings.default_model!r} is not loaded; loaded: {_listed(models)}")
    default = settings.default_model or (next(iter(models)) if len(models) == 1 else None)
    return Catalog(models, default, settings.store, opens, metrics)


def folders(settings: Settings) -> dict[str, Path]:
    """The folder of each model the settings name.

    raises   StartError if the store is missing or empty, or holds no such model
    """
    store = settings.store
    if not store.is_dir():
        raise StartError(
            f"model store {store} does not exist: export a model with "
            f"`python -m models export CHECKPOINT {store / 'NAME'}` or set INLAY_STORE"
        )
    found = _exported(store)
    if not found:
        raise StartError(
            f"model store {store} holds no model: export one with `python -m models export CHECKPOINT {store / 'NAME'}`"
        )
    if missing := [name for name in settings.models if name not in found]:
        raise StartError(f"model store {store} holds no {_listed(missing)}; it holds {_listed(found)}")
    return {name: found[name] for name in settings.models or found}


def _exported(store: Path) -> dict[str, Path]:
    """The exported models of a store by the names of their folders; a dot begins the name of an export cut short."""
    return {
        folder.name: folder
        for folder in sorted(store.iterdir())
        if not folder.name.startswith(".") and (folder / cards.FILE_NAME).is_file()
    }


def _checked(name: str) -> str:
    """The name, which touches no file: it is looked up among those that the store lists.

    raises   NotFound for what is no name of a folder
    """
    if not name or name.startswith(".") or any(character in name for character in "/\\\0"):
        raise NotFound(f"{name[:LONGEST_SHOWN]!r} names no model: send the name of one folder of the store")
    return name


def _listed(names: Any) -> str:
    return ", ".join(repr(name) for name in names) or "none"
