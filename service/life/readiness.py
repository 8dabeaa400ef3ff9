"""Whether this process answers truly: a real forward pass of every model, or proof that one was made just now.

Asked often, so a verdict holds for a second; and a busy graph whose runs succeed needs no further work to prove it.
"""

import asyncio
from collections.abc import Mapping
from time import perf_counter

from service.errors import Overloaded, StartError, Unavailable
from service.life import trial
from service.model import Model

FRESH_SECONDS = 1.0
PROOF_SECONDS = 5.0  # a run that succeeded within them vouches for a graph that is busy
TRIAL_SECONDS = 3.0  # of a forward pass; a probe's own patience is rarely longer


class Readiness:
    """The verdict on the models being served."""

    def __init__(self, models: Mapping[str, Model]) -> None:
        self._models = models
        self._judged_at = -FRESH_SECONDS
        self._fault: str | None = None
        self._judging: asyncio.Task[str | None] | None = None

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
            faults = [await _fault(model) for model in list(self._models.values())]
            self._fault = next(filter(None, faults), None)
            self._judged_at = perf_counter()
            return self._fault
        finally:
            self._judging = None


async def _fault(model: Model) -> str | None:
    if _proven(model):
        return None
    try:
        await asyncio.wait_for(trial.passes(model), TRIAL_SECONDS)
    except TimeoutError:
        return f"{model.card.name} gave no answer within {TRIAL_SECONDS:g} s"
    except Overloaded:
        return f"{model.card.name} is full and has finished nothing for {PROOF_SECONDS:g} s"
    except StartError as error:
        return str(error)
    return None


def _proven(model: Model) -> bool:
    """Work waits in a graph and some was done just now."""
    now = perf_counter()
    busy = [each for each in model.batchers.values() if each.waiting_items]
    done = [each.succeeded_at for each in model.batchers.values() if each.succeeded_at is not None]
    return bool(busy) and bool(done) and now - max(done) < PROOF_SECONDS
