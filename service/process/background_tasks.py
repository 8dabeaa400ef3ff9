"""Tasks that run beside requests: watching the model store and trimming memory."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from service.context import ServiceContext
from service.process.memory_trimmer import MemoryTrimmer
from service.registry.store_watcher import StoreWatcher

log = logging.getLogger(__name__)


@asynccontextmanager
async def background_tasks(context: ServiceContext, *others: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run all background tasks, and the `others`, while the block lasts; log one that ends before."""
    settings, registry, runs = context.settings, context.registry, [*others]
    runs.append(MemoryTrimmer(registry, context.metrics, lambda: context.admission.active).run())
    if settings.watch_store:
        runs.append(StoreWatcher(registry, settings.store, settings.models).run(settings.watch_store))
    tasks = [asyncio.create_task(run, name=getattr(run, "__qualname__", None)) for run in runs]
    for task in tasks:
        task.add_done_callback(_log_end)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _log_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        log.critical(
            "the background task %s ended and is not started again: restart this process",
            task.get_name(),
            exc_info=task.exception(),
        )
