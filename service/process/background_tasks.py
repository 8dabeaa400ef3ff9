"""What a process does besides answering: follow the store and its fellow workers, give memory back. Decides nothing."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from service.embedding.pipeline import Encoder
from service.observability.metrics import Metrics
from service.process.memory_trimmer import MemoryTrimmer
from service.registry.store_watcher import Watch
from service.settings import Settings

log = logging.getLogger(__name__)


@asynccontextmanager
async def background_tasks(
    settings: Settings, encoder: Encoder, metrics: Metrics, *others: Coroutine[Any, Any, None]
) -> AsyncIterator[None]:
    """All of them, and the `others`, while the block lasts."""
    catalog, runs = encoder.catalog, [*others]
    runs.append(MemoryTrimmer(catalog, metrics, lambda: encoder.door.inside).run())
    if settings.watch_store:
        runs.append(Watch(catalog, settings.store, settings.models).run(settings.watch_store))
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
