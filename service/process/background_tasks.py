"""Tasks that run beside requests: watching the model store, trimming memory, keeping figures of the last hour."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from service.context import ServiceContext
from service.process.memory_trimmer import MemoryTrimmer
from service.registry import on_demand, shared_changes
from service.registry.store_watcher import StoreWatcher

LOOK_SECONDS = 5.0  # seconds between looks at the memory of this process
SAMPLE_LOOK_SECONDS = 0.5  # between looks whether the next sample of the last hour is due
log = logging.getLogger(__name__)


@asynccontextmanager
async def background_tasks(context: ServiceContext, *others: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run all background tasks, and `others`, while the block lasts; log a task that ends early."""
    settings, registry = context.settings, context.registry
    trimmer = MemoryTrimmer(registry, lambda: context.admission.active)
    runs = [*others, repeated(trimmer.look, LOOK_SECONDS, "giving memory back")]
    if registry.on_demand is not None:
        runs.append(repeated(registry.on_demand.look, on_demand.LOOK_SECONDS, "unloading models"))
    if registry.shared is not None:
        runs.append(repeated(registry.shared.look, shared_changes.LOOK_SECONDS, "following the other workers"))
    runs.append(repeated(context.metrics.look, SAMPLE_LOOK_SECONDS, "keeping the figures of the last hour"))
    if settings.watch_store:
        watcher = StoreWatcher(registry, settings.store, settings.models)
        runs.append(repeated(watcher.poll, settings.watch_store, "watching the store"))
    tasks = [asyncio.create_task(run, name=getattr(run, "__qualname__", None)) for run in runs]
    for task in tasks:
        task.add_done_callback(_log_end)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def repeated(look: Callable[[], Awaitable[None]], seconds: float, what: str) -> None:
    """Call `look` every `seconds` seconds until cancelled; a call that keeps failing is logged once."""
    before = ""
    while True:
        await asyncio.sleep(seconds)
        try:
            await look()
            before = ""
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
            if fault != before:
                log.exception("%s failed", what)
            before = fault


def _log_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        log.critical(
            "the background task %s ended and is not started again: restart this process",
            task.get_name(),
            exc_info=task.exception(),
        )
