"""Returns memory to the system that long batches left in ONNX Runtime's arenas and in the heap.

An arena keeps what its longest run needed, and glibc keeps what was freed. A run that shrinks costs the next one its
page faults, so memory is given back only where the process has grown: when no request is served, else once a minute.
What requests held while it was given back is freed after them and makes nothing grow: it is given back once they end.
"""

import asyncio
import gc
import math
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from service import machine
from service.errors import Overloaded, StartError
from service.observability.metrics import Metrics
from service.observability.process_stats import private_bytes
from service.registry import warmup
from service.registry.registry import ModelRegistry

BUSY_SECONDS = 60.0  # seconds between two returns of memory while requests are served
GROWTH_BYTES = 4 * 2**20  # of private memory, since it was given back
RUN_SECONDS = 5.0  # for a model's run; where it takes longer, the next run gives back
MAPPED_SECONDS = 15.0  # seconds between looks at the mapped files


class MemoryTrimmer:
    """Returns memory at each look, and reports the mapped bytes of each model to the metrics.

    Args:
        registry: the models being served.
        metrics: receives the mapped bytes of each model.
        active: returns the number of requests being served.
        private: returns the bytes that no other process shares.
        clock: returns seconds.
    """

    def __init__(
        self,
        registry: ModelRegistry,
        metrics: Metrics,
        active: Callable[[], int],
        private: Callable[[], float] = private_bytes,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._registry = registry
        self._metrics = metrics
        self._active = active
        self._private = private
        self._clock = clock
        self._lowest_bytes = -math.inf  # lowest private bytes since memory was returned
        self._trimmed = -math.inf
        self._held = False  # whether requests were served when memory was returned
        self._reported = -math.inf

    async def look(self) -> None:
        """Return memory if the process has grown, and no request is served or the last return is long ago."""
        if self._clock() - self._reported >= MAPPED_SECONDS:
            self._reported = self._clock()
            await self._report()
        if self._active() and self._clock() - self._trimmed < BUSY_SECONDS:
            return
        left = self._held and not self._active()
        if left or not self._private() - self._lowest_bytes < GROWTH_BYTES:
            self._held = bool(self._active())
            await self._trim()
            self._trimmed = self._clock()
            self._lowest_bytes = self._private()
        self._lowest_bytes = min(self._lowest_bytes, self._private())

    async def _trim(self) -> None:
        for model in list(self._registry.models.values()):
            model.engine.shrink()
            with suppress(Overloaded, StartError):  # readiness reports it; other runs shrink as well
                await warmup.warm_up_within(model, RUN_SECONDS, every_session=True)
        gc.collect()  # some milliseconds: what was there at the start is frozen
        await asyncio.to_thread(machine.trim_heaps)

    async def _report(self) -> None:
        mappings = await asyncio.to_thread(machine.mapped_files)
        for name, model in self._registry.models.items():
            self._metrics.resident(name, machine.mapped_of(model.mapped, mappings).resident)
