"""Checks readiness by a forward pass through every loaded model, or by the proof that one succeeded just now.

Probes come often, so a verdict holds for a second, and a busy graph whose runs succeed is not run again for a probe.
"""

import asyncio
import logging
from collections.abc import Mapping
from time import perf_counter

from service.embedding.model import Model
from service.errors import Overloaded, StartError, Unavailable
from service.registry import warmup

VERDICT_SECONDS = 1.0
PROOF_SECONDS = 5.0  # a run that succeeded within them proves that a busy graph works
WARMUP_SECONDS = 3.0  # seconds for one forward pass; a probe rarely waits longer
log = logging.getLogger(__name__)


class Readiness:
    """Checks whether the loaded models answer, and keeps the verdict for a second.

    Attributes:
        fault: why a model failed the last check; None: all answered.
    """

    def __init__(self, models: Mapping[str, Model]) -> None:
        self._models = models
        self._checked_at = -VERDICT_SECONDS
        self.fault: str | None = None
        self._checking: asyncio.Task[None] | None = None

    async def check(self) -> None:
        """Raise Unavailable, naming a model that does not answer; concurrent calls share one check."""
        if perf_counter() - self._checked_at >= VERDICT_SECONDS:
            if self._checking is None:
                self._checking = asyncio.create_task(self._check_models())
            await asyncio.shield(self._checking)
        if self.fault:
            raise Unavailable(self.fault)

    async def _check_models(self) -> None:
        try:
            faults = await asyncio.gather(*map(_fault_of, list(self._models.values())))
            before, self.fault = self.fault, next(filter(None, faults), None)
            self._checked_at = perf_counter()
            if self.fault and self.fault != before:
                log.error("not ready: %s", self.fault)
        finally:
            self._checking = None


async def _fault_of(model: Model) -> str | None:
    if _works(model):
        return None
    try:
        await warmup.warm_up_within(model, WARMUP_SECONDS)
    except Overloaded:
        return f"{model.card.name} is full and has finished nothing for {PROOF_SECONDS:g} s"
    except StartError as error:
        return str(error)
    return None


def _works(model: Model) -> bool:
    """Return whether a graph has queued work, and every such graph has finished some just now."""
    since = perf_counter() - PROOF_SECONDS
    busy = [batcher for batcher in model.batchers.values() if batcher.waiting_items]
    return bool(busy) and all(batcher.succeeded_at is not None and batcher.succeeded_at > since for batcher in busy)
