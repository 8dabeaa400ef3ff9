"""While more comes than can be done, requests that arrive no longer interrupt a run: they are looked at by the handful.

Each that arrives wakes the event loop, which takes the core from the run under way and finds its own data gone from
the caches. Linux lets a thread of SCHED_BATCH wait until another has used its slice, a few milliseconds (sched(7)): at
four times the load that one core can bear, that is 3 % of the core. The event loop's thread is one of these then, and
at no other time: short runs lose by it (a third of the speed over gRPC, 32 calls of 16 ids).
"""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

from service.registry.registry import Catalog

EVERY_SECONDS = 0.25
TASKS = Path("/proc/self/task")


async def run(catalog: Catalog, seconds: float = EVERY_SECONDS) -> None:
    """Look every so many seconds whether it is so, for ever; of the thread that runs this."""
    calm = yields = False
    while True:
        await asyncio.sleep(seconds)
        if overloaded(catalog) == calm:
            continue
        calm = not calm
        with suppress(OSError, AttributeError):  # forbidden, or another system: every request interrupts
            if calm:
                yields = _yielding()
            elif yields:
                _usual()


def overloaded(catalog: Catalog) -> bool:
    """Whether any graph of any model is."""
    return any([batcher.overloaded for model in catalog.models.values() for batcher in model.batchers.values()])


def _yielding() -> bool:
    """False where another policy was chosen: whoever did that had a reason."""
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    return True


def _usual() -> None:
    """For every thread: one that is started inherits the policy of the thread that starts it."""
    for task in TASKS.iterdir():
        with suppress(ProcessLookupError):
            if os.sched_getscheduler(int(task.name)) == os.SCHED_BATCH:
                os.sched_setscheduler(int(task.name), os.SCHED_OTHER, os.sched_param(0))
