"""Whether this process answers truly: a real forward pass of every model, or proof that one was made just now.

Asked often, so a verdict holds for a second; and a busy graph whose runs succeed needs no further work to prove it.
"""

import asyncio
import logging
from collections.abc import Mapping
from time import perf_counter

from service.embedding.model import Model
from service.errors import Overloaded, StartError, Unavailable
from service.registry import warmup as trial

FRESH_SECONDS = 1.0
PROOF_SECONDS = 5.0  # a run that succeeded within them vouches for the graph, where it is busy
TRIAL_SECONDS = 3.0  # of a forward pass; a probe's own patience is rarely longer
log = logging.getLogger(__name__)


class Readiness:
    """The verdict on the models being served."""

    def __init__(self, models: Mapping[str, Model]) -> None:
        self._models = models
        self._judged_at = -FRESH_SECONDS
        self._fault: str | None = None
        self._judging: asyncio.Task[str | None] | None = None

    @property
    def fault(self) -> str | None:
        """What was wrong with a model when it was last judged; None: nothing."""
        return self._fault

    async def check(self) -> None:
        """Raise Unavailable, naming the model that does not answer."""
        if perf_counter() - self._judged_at >= FRESH_SECONDS:
            if self._judging is None:  # many probes, one judgement
                self._judging = asyncio.create_task(self._judge())
            await asyncio.shield(self._judging)
        if self._fault:
            raise Unavailable(self._fault)

    async def _judge(self) -> str | None:
        try:
            faults = await asyncio.gather(*map(_fault, list(self._models.values())))
            before, self._fault = self._fault, next(filter(None, faults), None)
            self._judged_at = perf_counter()
            if self._fault and self._fault != before:
                log.error("not ready: %s", self._fault)
            return self._fault
        finally:
            self._judging = None


async def _fault(model: Model) -> str | None:
    if _proven(model):
        return None
    try:
        await trial.passes_within(model, TRIAL_SECONDS)
    except Overloaded:
        return f"{model.card.name} is full and has finished nothing for {PROOF_SECONDS:g} s"
    except StartError as error:
        return str(error)
    return None


def _proven(model: Model) -> bool:
    """Work waits in some graph, and each in which it waits has done some just now."""
    since = perf_counter() - PROOF_SECONDS
    busy = [each for each in model.batchers.values() if each.waiting_items]
    return bool(busy) and all(each.succeeded_at is not None and each.succeeded_at > since for each in busy)
