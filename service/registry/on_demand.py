"""Loads models when requests need them, within a budget of memory, and unloads those that are not used.

A model counts with the bytes of its files, which are known before it is loaded. One is loaded at a time, in a thread;
requests for it wait in a bounded queue, and requests for others are served meanwhile. The least recently used model
makes room, never one that is pinned or that a request waits for or uses.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from models.artifacts.card import Card
from service import machine
from service.embedding.model import Model, Residency
from service.embedding.outputs.image import is_of_images
from service.embedding.outputs.plan import planner
from service.errors import BadRequest, EngineFailure, ModelNotLoaded, NotFound, StartError, Unavailable
from service.observability.metrics import Metrics
from service.registry import store
from service.settings import Settings

WAITING_PART = 4  # of the requests at a time may wait for models, so that requests for loaded ones find room
STAY = 4  # a model stays for this many times what its load took, so that loads take at most a fifth of the time
LEAST_STAY_SECONDS = 0.1
ROOM_SECONDS = 0.02  # seconds between looks whether a model has become idle that can make room
FAILED_SECONDS = 5.0  # seconds before a model that could not be loaded is tried again
LOOK_SECONDS = 1.0  # seconds between looks for models whose time is over


class Absent:
    """Stands for the engine of a model that is not loaded."""

    device, runs, alone = "not loaded", 0, None
    widths: Mapping[str, int] = {}

    def run(self, graph: str, feeds: Mapping[str, Any], outputs: Sequence[str]) -> list[Any]:
        """Raise EngineFailure."""
        raise EngineFailure("the model is not loaded")

    def shrink(self) -> None:
        """Free nothing."""


def not_loaded(card: Card, version: str, residency: Residency) -> Model:
    """Return a model as it is offered before its first request loads it: its names and its card."""
    plan, images = planner(card, Absent(), {}), is_of_images(card)
    return Model(card, Absent(), None, {}, plan, version=version, reads_images=images, residency=residency)


class Residencies:
    """Reads how long the models of a store stay in memory, as the settings say."""

    def __init__(self, settings: Settings, load: Callable[[Path], Model]) -> None:
        self._settings, self._load, self._pinned_bytes = settings, load, 0

    def load(self, folder: Path) -> Model:
        """Load a model, as one that may be unloaded again."""
        model = self._load(folder)
        return replace(model, residency=self._residency(model.card))

    def offered(self, folder: Path) -> Model:
        """Return a model of the store that is not loaded.

        Raises:
            StartError, ModelError: it cannot be served, or is larger than the budget beside those that are pinned.
        """
        version = store.export_version(folder)
        card = store.read_card(folder, self._settings)
        return not_loaded(card, version, self._residency(card))

    def pin(self, folders: Mapping[str, Path]) -> None:
        """Count the models that are pinned; raise StartError if together they are larger than the budget."""
        for name in folders.keys() & set(self._settings.pinned_models):
            self._pinned_bytes += self._residency(store.read_card(folders[name], self._settings)).size

    def _residency(self, card: Card) -> Residency:
        size, budget = sum([file.bytes for file in card.files.values()]), self._settings.model_memory_bytes
        pinned = card.name in self._settings.pinned_models
        if size + self._pinned_bytes > budget and not (pinned and self._pinned_bytes <= budget):
            beside = f" beside {self._pinned_bytes} of pinned models" if self._pinned_bytes else ""
            raise StartError(
                f"{card.name} has {size} bytes{beside}, and INLAY_MODEL_MEMORY_BYTES is {budget}: raise it, or leave "
                "the model out with INLAY_MODELS"
            )
        seconds = self._settings.keep_seconds
        return Residency(size, math.inf if pinned else seconds.get(card.name, seconds[""]), pinned)


class OnDemand:
    """Decides which models are in memory.

    Args:
        models: the loaded ones, a live view.
        offered: those that requests may name, loaded or not, a live view.
        load: loads a model whatever memory is left; raises BadRequest or NotFound.
        put_away: unloads a model that is loaded again when it is needed, and returns it.
        clock: seconds, of `Residency` too.
    """

    def __init__(
        self,
        models: Mapping[str, Model],
        offered: Mapping[str, Model],
        load: Callable[[str], Awaitable[None]],
        put_away: Callable[[str], Model],
        settings: Settings,
        metrics: Metrics,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._models, self._offered, self._load_version, self._put_away = models, offered, load, put_away
        self._metrics, self.clock = metrics, clock
        self._budget, self._wait_seconds = settings.model_memory_bytes, settings.max_queue_seconds
        self._most_waiting = max(1, settings.max_concurrent_requests // WAITING_PART)
        self._turn = asyncio.Lock()
        self._loads: dict[str, asyncio.Task[None]] = {}
        self._waiting: Counter[str] = Counter()  # requests by the model that they wait for
        self._failed: dict[str, tuple[float, str]] = {}  # until when a model is not tried again, and why
        metrics.watch(lambda: {("inlay_model_waiting",): self._waiting.total()})

    def missing(self, name: str) -> ModelNotLoaded:
        """Return the error of a request for a model that is not loaded, which loads it."""
        return ModelNotLoaded(f"{name} is not loaded", partial(self._wait, name))

    def seconds_left(self, model: Model) -> float:
        """Return the seconds that a loaded model stays if no request comes for it."""
        residency, now = model.residency, self.clock()
        if residency is None:
            return math.inf
        if model.busy:
            residency.used_at = now
        return residency.used_at + residency.keep_seconds - now

    async def keep(self, model: Model, seconds: float) -> None:
        """Let a model that is not pinned stay for so many seconds after its last request; 0: until it is idle."""
        if model.residency is not None and not model.residency.pinned:
            model.residency.keep_seconds = seconds
            if not seconds:
                await self.look()

    async def look(self) -> None:
        """Unload the models whose time is over."""
        for name in [*self._models]:
            model = self._models.get(name)  # it may have gone meanwhile
            if model is not None and self.seconds_left(model) <= 0 and self._is_idle(model):
                await self._evict(name, "keep_alive")

    async def load(self, name: str) -> None:
        """Load the store's present version of a model once there is room.

        Raises:
            BadRequest: it cannot be loaded.
            Unavailable: no request waits for it any more.
        """
        async with self._turn:
            await self._load_in_turn(name)

    async def _load_in_turn(self, name: str) -> None:
        offered = self._offered.get(name)
        if offered is not None and offered.residency is not None:
            await self._make_room(name, offered.residency.size)
        began = self.clock()
        await self._load_version(name)
        self._failed.pop(name, None)
        model = self._models.get(name)
        if model is not None and model.residency is not None:
            residency, now = model.residency, self.clock()
            residency.loaded_at, residency.used_at, residency.load_seconds = now, now, now - began
            self._metrics.load_took(name, now - began)
            await self._make_room(name, residency.size)  # its size was not known, or was another version's

    async def _wait(self, name: str) -> None:
        """Wait until a model is loaded; raise Unavailable if that cannot be, or too many requests wait."""
        until, why = self._failed.get(name, (0.0, ""))
        if self.clock() < until:
            raise _unavailable(why, until - self.clock())
        if (waiting := self._waiting.total()) >= self._most_waiting:
            raise _unavailable(f"{waiting} requests wait for models that are being loaded")
        self._waiting[name] += 1
        try:
            if name not in self._loads:
                task = self._loads[name] = asyncio.create_task(self._load_for_requests(name))
                task.add_done_callback(partial(self._ended, name))
            async with asyncio.timeout(self._wait_seconds):
                await asyncio.shield(self._loads[name])
        except TimeoutError:
            raise _unavailable(f"{name} could not be loaded within {self._wait_seconds:g} s, beside others") from None
        finally:
            self._waiting -= Counter((name,))  # without those that reach 0

    async def _load_for_requests(self, name: str) -> None:
        try:
            async with self._turn:
                if name in self._offered and name not in self._models:  # as it may be by now
                    await self._load_in_turn(name)
        except (BadRequest, NotFound) as error:
            self._failed[name] = self.clock() + FAILED_SECONDS, error.received
            raise _unavailable(error.received, FAILED_SECONDS) from error

    def _ended(self, name: str, task: "asyncio.Task[None]") -> None:
        del self._loads[name]
        if not task.cancelled():
            task.exception()  # so that one that no request awaits any more is not logged

    async def _make_room(self, name: str, size: int) -> None:
        """Unload models until another fits; raise Unavailable if none can be and no request waits for it any more."""
        while sum([each.residency.size for each in self._others(name) if each.residency]) + size > self._budget:
            if victim := self._least_recently_used(name):
                await self._evict(victim, "memory")
            elif name in self._loads and not self._waiting[name]:
                raise _unavailable(f"{name} is no longer waited for")
            else:
                await asyncio.sleep(ROOM_SECONDS)

    def _others(self, name: str) -> list[Model]:
        return [model for other, model in self._models.items() if other != name]

    def _least_recently_used(self, besides: str) -> str | None:
        """Return the name of the model that makes room; None while all are pinned or in use, or it was just loaded."""
        found = [
            (held.used_at, model.card.name, held.loaded_at + max(LEAST_STAY_SECONDS, STAY * held.load_seconds))
            for model in self._others(besides)
            if (held := model.residency) is not None and not held.pinned and self._is_idle(model)
        ]
        _, name, stays_until = min(found, default=(0.0, None, math.inf))
        return name if self.clock() >= stays_until else None

    def _is_idle(self, model: Model) -> bool:
        return not model.busy and not self._waiting[model.card.name]

    async def _evict(self, name: str, reason: str) -> None:
        freed = [self._put_away(name)]
        self._metrics.evicted(reason)
        await asyncio.to_thread(_free, freed)


def _free(models: list[Model]) -> None:
    """Free models, whose sessions take milliseconds to end, and give their memory back to the system."""
    models.clear()
    machine.trim_heaps()


def _unavailable(why: str, seconds: float | None = None) -> Unavailable:
    error = Unavailable(why, remedy="try again in a moment")
    error.retry_after = seconds
    return error
