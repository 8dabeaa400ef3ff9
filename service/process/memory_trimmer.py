"""Returns memory to the system that long batches and large requests left in ONNX Runtime's arenas and in the heap.

An arena keeps what its longest run needed (from the heap alone, 8 texts of 300 words take 1.3 times as long), and glibc
keeps what was freed. Giving it back costs the next requests their page faults, so it is done only where the process has
grown, or has other models: when no request is served, else once a minute.
"""

import asyncio
import gc
import math
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from service import machine
from service.errors import Overloaded, StartError
from service.observability.process_stats import private_bytes
from service.registry import warmup
from service.registry.registry import ModelRegistry

BUSY_SECONDS = 60.0  # seconds between two returns of memory while requests are served
GROWTH_BYTES = 4 * 2**20  # of private memory, since it was given back
RUN_SECONDS = 5.0  # for a model's run; where it takes longer, the next run gives back


class MemoryTrimmer:
    """Returns memory at each look.

    Args:
        registry: the models being served.
        active: returns the number of requests being served.
        private: returns the bytes that no other process shares.
        clock: returns seconds.
    """

    def __init__(
        self,
        registry: ModelRegistry,
        active: Callable[[], int],
        private: Callable[[], float] = private_bytes,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._registry, self._active, self._private, self._clock = registry, active, private, clock
        self._lowest_bytes = -math.inf  # lowest private bytes since memory was returned with no request being served
        self._trimmed = -math.inf
        self._versions: list[str] = []  # of the models at the last look: glibc keeps one that is gone

    async def look(self) -> None:
        """Return memory if there is some, and no request is served or the last return is long ago."""
        busy = bool(self._active())
        if busy and self._clock() - self._trimmed < BUSY_SECONDS:
            return
        versions = [model.version for model in self._registry.models.values()]
        if versions != self._versions:
            self._versions, self._lowest_bytes = versions, -math.inf
        if not self._private() - self._lowest_bytes < GROWTH_BYTES:
            await self._trim()
            self._trimmed = self._clock()
            if not busy:  # what requests held meanwhile is freed after them, and makes nothing grow
                self._lowest_bytes = self._private()
        self._lowest_bytes = min(self._lowest_bytes, self._private())

    async def _trim(self) -> None:
        for model in list(self._registry.models.values()):
            await asyncio.to_thread(model.engine.shrink)
            with suppress(Overloaded, StartError):  # readiness reports it; other runs shrink as well
                await warmup.warm_up_within(model, RUN_SECONDS, every_session=True)
        gc.collect()  # some milliseconds: what was there at the start is frozen
        await asyncio.to_thread(machine.trim_heaps)
