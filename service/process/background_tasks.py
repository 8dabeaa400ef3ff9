"""What a process does besides answering: follow the store and its fellow workers, give memory back. Decides nothing."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from service.context import ServiceContext
from service.process.memory_trimmer import MemoryTrimmer
from service.registry.store_watcher import Watch

log = logging.getLogger(__name__)


@asynccontextmanager
async def background_tasks(
    context: ServiceContext, *others: Coroutine[Any, Any, None]
) -> AsyncIterator[None]:
    """All of them, and the `others`, while the block lasts."""
    settings, registry, runs = context.settings, context.registry, [*others]
    runs.append(MemoryTrimmer(registry, context.metrics, lambda: context.admission.active).run())
    if settings.watch_store:
        runs.append(Watch(registry, settings.store, settings.models).run(settings.watch_store))
    tasks = [asyncio.create_task(run, name=getattr(run, "__qualname__", None)) for run in runs]
    for task in tasks:
        task.add_done_callback(_tell)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _tell(ended: asyncio.Task[None]) -> None:
    if not ended.cancelled():
        log.critical(
            "%s ended and is not begun again: start this process anew", ended.get_name(), exc_info=ended.exception()
        )
