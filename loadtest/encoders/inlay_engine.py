"""Inlay in the worker's own process: its pipeline with queues, batches, pooling and checks, without HTTP.

This module alone of the package imports the service.
"""

import asyncio
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from service.embedding.pipeline import EmbeddingPipeline
from service.embedding.requests import Cut, EmbedRequest, Ids, Text
from service.observability.metrics import Metrics
from service.registry.registry import open_registry
from service.settings import Settings


class Inlay:
    """One exported model with the default settings, on the cores of this process.

    Args:
        store: its folder.
        model: its name.
        settings: others than the defaults.
    """

    def __init__(self, store: str, model: str, **settings: str) -> None:
        chosen = Settings.model_validate({"store": Path(store), "models": (model,), "device": "cpu", **settings})
        registry = open_registry(chosen, Metrics())
        self._pipeline = EmbeddingPipeline(registry, chosen)
        self._tokenizer = registry.get(model).tokenizer
        self._loop = asyncio.new_event_loop()

    def prepare(self, texts: list[str]) -> list[Ids]:
        """Return the token ids."""
        assert self._tokenizer is not None
        encoded = self._tokenizer.encode({index: Text(text) for index, text in enumerate(texts)}, Cut())
        return [Ids(encoded[index].ids) for index in range(len(texts))]

    def embed(self, prepared: list[Ids]) -> NDArray[np.float32]:
        """Return the vectors of one request."""
        result = self._loop.run_until_complete(self._pipeline.embed(EmbedRequest(prepared)))
        rows: NDArray[np.float32] = result.outputs[0].rows
        return rows


class InlayOnIds(Inlay):
    """Inlay given token ids, for models without a tokenizer; a text is its ids in decimal."""

    def prepare(self, texts: list[str]) -> list[Ids]:
        """Return the token ids."""
        return [Ids(np.array(text.split(), np.int64)) for text in texts]
