"""Polls the model store, and makes the registry load, replace and unload models as its folders change.

It uses stat, which works on network volumes where file notifications (inotify) do not. A folder is acted on once two
polls in a row found it alike: then it is no longer being written.
"""

import asyncio
import logging
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from service.errors import BadRequest
from service.registry import store
from service.registry.store import FileStamps

if TYPE_CHECKING:
    from service.registry.registry import ModelRegistry

log = logging.getLogger(__name__)


class StoreWatcher:
    """Keeps a registry in step with its store.

    Args:
        folder: the store.
        names: models to follow besides those that are loaded; empty: all.
    """

    def __init__(self, registry: "ModelRegistry", folder: Path, names: Collection[str] = ()) -> None:
        self._registry = registry
        self._folder = folder
        self._names = names
        self._seen: dict[str, FileStamps] | None = None
        self._synced: dict[str, FileStamps] = {}
        self._warning = ""

    async def poll(self) -> None:
        """Read the store once, and sync the changed models that have not changed again since the previous poll."""
        try:
            seen = await asyncio.to_thread(_stamps, self._folder)
        except OSError as error:
            self._warn_once(f"the store cannot be read, so nothing is unloaded: {error}")
            return
        if not seen and self._registry.models:
            self._warn_once("the store holds no model, as if its volume were lost, so nothing is unloaded")
            return
        before, self._seen = self._seen, seen
        if before is None:
            return
        for name in sorted({*seen, *before, *self._synced, *self._registry.models}):
            now = seen.get(name)
            if now == before.get(name) and (now is None or self._synced.get(name) != now):
                await self._sync(name, now)
        self._warning = ""

    async def _sync(self, name: str, now: FileStamps | None) -> None:
        if self._names and name not in self._names and name not in self._registry.models:
            return
        if now is None:
            self._synced.pop(name, None)
        else:
            self._synced[name] = now
        try:
            await self._registry.sync(name)
        except BadRequest:  # logged by the registry; tried again when the folder changes
            pass
        except OSError:  # the folder changed meanwhile, which the next poll sees
            self._synced.pop(name, None)

    def _warn_once(self, warning: str) -> None:
        """Log a lasting problem once."""
        if warning != self._warning:
            log.warning("watching the store: %s", warning)
        self._warning = warning


def _stamps(folder: Path) -> dict[str, FileStamps]:
    """Return the stamps of every exported folder; one that is removed meanwhile is left out."""
    folder_stamps = {name: store.file_stamps(path) for name, path in store.exports(folder).items()}
    return {name: stamps for name, stamps in folder_stamps.items() if stamps}
