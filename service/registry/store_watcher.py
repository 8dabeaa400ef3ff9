"""Keeps what is served at what the store holds, by looking at it now and then. Loads nothing itself: the catalog does.

Looking is by stat, which network volumes answer truly where their notifications (inotify) are silent, and a store is
small. What two looks in a row find alike is no longer being written, so it is acted on, once.
"""

import asyncio
import logging
from collections.abc import Collection
from pathlib import Path

from service.errors import BadRequest
from service.registry import store
from service.registry.registry import ModelRegistry
from service.registry.store import Stamps

log = logging.getLogger(__name__)


class Watch:
    """The folders of a store and what was done about each.

    names   that are followed, besides what is served; empty: all
    """

    def __init__(self, catalog: ModelRegistry, folder: Path, names: Collection[str] = ()) -> None:
        self._catalog = catalog
        self._folder = folder
        self._names = names
        self._seen: dict[str, Stamps] | None = None
        self._done: dict[str, Stamps | None] = {}
        self._trouble = ""

    async def run(self, seconds: float) -> None:
        """Look every so many seconds, for ever."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.look()
            except Exception as error:  # what no one foresaw must not end the watch
                self._tell(f"{type(error).__name__}: {error}")

    async def look(self) -> None:
        """Look once, and act on what has come to rest since."""
        try:
            seen = await asyncio.to_thread(_stamps, self._folder)
        except OSError as error:
            self._tell(f"the store cannot be read, so nothing is unloaded: {error}")
            return
        if not seen and self._catalog.models:
            self._tell("the store holds no model, as where its volume is lost, so nothing is unloaded")
            return
        before, self._seen = self._seen, seen
        if before is None:
            return
        for name in sorted({*seen, *before, *self._done, *self._catalog.models}):
            now = seen.get(name)
            if now == before.get(name) and (now is None or self._done.get(name) != now):
                await self._follow(name, now)
        self._trouble = ""

    async def _follow(self, name: str, now: Stamps | None) -> None:
        if self._names and name not in self._names and name not in self._catalog.models:
            return
        if now is None:
            self._done.pop(name, None)
        else:
            self._done[name] = now
        try:
            await self._catalog.follow(name)
        except BadRequest:  # told and remembered by the catalog; tried again when the folder changes
            pass
        except OSError:  # it changed meanwhile, which the next look sees
            self._done.pop(name, None)

    def _tell(self, trouble: str) -> None:
        """One line for a trouble that lasts."""
        if trouble != self._trouble:
            log.warning("watching the store: %s", trouble)
        self._trouble = trouble


def _stamps(folder: Path) -> dict[str, Stamps]:
    """Of every exported folder; one that vanishes meanwhile is none."""
    found = {name: store.stamps(path) for name, path in store.exported(folder).items()}
    return {name: stamps for name, stamps in found.items() if stamps}
