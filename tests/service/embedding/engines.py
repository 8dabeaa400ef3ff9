"""Engines of loaded models that count what they compute, wait, and fail, for tests of the embedding pipeline."""

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from service.registry.registry import ModelRegistry


class Watched:
    """The engine of a model: counts the sequences of its runs, and can be held up or give NaN.

    Attributes:
        sequences: computed so far.
        entered: set when a run begins.
    """

    def __init__(self, registry: ModelRegistry, monkeypatch: pytest.MonkeyPatch, name: str | None = None) -> None:
        self.sequences = 0
        self.nan = False
        self.entered, self._go_on = asyncio.Event(), threading.Event()
        self._go_on.set()
        self._loop = asyncio.get_running_loop()
        engine = registry.get(name).engine
        self._run = engine.run
        monkeypatch.setattr(engine, "run", self._watched)

    def hold(self) -> None:
        """Let runs wait from now on."""
        self.entered.clear()
        self._go_on.clear()

    def let_go(self) -> None:
        """Let all runs go on."""
        self._go_on.set()

    def _watched(self, graph: str, feeds: dict[str, Any], outputs: tuple[str, ...]) -> list[Any]:
        self.sequences += len(feeds["lengths"])
        self._loop.call_soon_threadsafe(self.entered.set)
        assert self._go_on.wait(30)
        arrays = self._run(graph, feeds, outputs)
        return [np.full_like(array, np.nan) for array in arrays] if self.nan else arrays
