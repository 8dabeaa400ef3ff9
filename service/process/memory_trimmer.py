"""Gives memory back that long batches left in ONNX Runtime's arenas and in the heap. Runs no request.

An arena keeps what its longest run needed, and glibc keeps what was freed. A run that shrinks costs the next one its
page faults, so it is done where the process has grown: as soon as nobody is being served, else once a minute.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from service.errors import Overloaded, StartError
from service.observability import process_stats as process
from service.observability.metrics import Metrics
from service.process import memory
from service.registry import warmup as trial
from service.registry.registry import Catalog

EVERY_SECONDS = 5.0
BUSY_SECONDS = 60.0  # between two times that memory is given back while requests are served
GROWTH_BYTES = 4 * 2**20  # of private memory, since it was given back
PATIENCE_SECONDS = 5.0  # with a model's run; where it takes longer, the next run gives back
TOLD_SECONDS = 15.0  # between looks at the mapped files
log = logging.getLogger(__name__)


class MemoryTrimmer:
    """Looks now and then whether memory can be given back, and tells the metrics what each model has mapped.

    inside    how many requests are being served
    private   bytes that this process shares with none
    clock     seconds
    """

    def __init__(
        self,
        catalog: Catalog,
        metrics: Metrics,
        inside: Callable[[], int],
        private: Callable[[], float] = process.private_bytes,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._catalog = catalog
        self._metrics = metrics
        self._inside = inside
        self._private = private
        self._clock = clock
        self._level = -math.inf
        self._given = -math.inf
        self._told = -math.inf

    async def run(self, seconds: float = EVERY_SECONDS) -> None:
        """Look every so many seconds, for ever."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.look()
            except Exception:  # what no one foresaw must not end it
                log.exception("giving memory back met a fault")

    async def look(self) -> None:
        """Give back if the process has grown, and work pauses or has not paused for long."""
        if self._clock() - self._told >= TOLD_SECONDS:
            self._told = self._clock()
            await self._tell()
        if self._inside() and self._clock() - self._given < BUSY_SECONDS:
            return
        if not self._private() - self._level < GROWTH_BYTES:
            await self._give_back()
            self._given = self._clock()
            self._level = self._private()
        self._level = min(self._level, self._private())

    async def _give_back(self) -> None:
        for model in list(self._catalog.models.values()):
            model.engine.shrink()
            with suppress(Overloaded, StartError):  # readiness tells; and whoever fills the queue shrinks
                await trial.passes_within(model, PATIENCE_SECONDS)
        await asyncio.to_thread(memory.give_back)

    async def _tell(self) -> None:
        found = await asyncio.to_thread(memory.mappings)
        for name, model in self._catalog.models.items():
            self._metrics.resident(name, memory.of(model.mapped, found).resident)
