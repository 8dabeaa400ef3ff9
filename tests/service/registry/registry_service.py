"""A registry and the embedding pipeline over it, without a server, and the models of its store."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models.artifacts.export import export
from service.embedding.pipeline import EmbeddingPipeline
from service.embedding.ranking import Ranks, Reading, Scorer
from service.embedding.requests import EmbedOptions, Text
from service.observability.metrics import Metrics
from service.registry.registry import open_registry
from service.request_context import RequestContext
from service.scheduling.memory_budget import MemoryBudget
from service.settings import Settings
from tests.embed_requests import embed_request
from tests.golden_cases import write_tiny_bert


def write(store: Path, name: str, seed: int = 0) -> None:
    """Export a sentence encoder to the store; the seed decides its weights."""
    export(write_tiny_bert(store.parent / f"checkpoint-{seed}", pooling="mean", seed=seed), store / name)


class Service:
    """The loaded models of a store, and the pipeline that embeds with them."""

    def __init__(self, store: Path, **changes: Any) -> None:
        settings = Settings(store=store, **{"device": "cpu", "threads": 1, **changes})
        self.registry = open_registry(settings, Metrics())
        self.pipeline = EmbeddingPipeline(self.registry, settings)

    async def rank(self, query: str, texts: Sequence[str], name: str | None = None, **fields: Any) -> Ranks:
        """Return the scores of texts with a query; `fields` are Reading's, how texts are cut, and a `context`."""
        context = fields.pop("context", None) or RequestContext()
        scorer = Scorer(self.pipeline, MemoryBudget(1 << 30), Settings())
        pairs = [(query, text) for text in texts]
        cut = {"truncate": fields.pop("truncate", None), "truncation_direction": fields.pop("direction", "right")}
        options = EmbedOptions(**cut)
        return await scorer.score(self.registry.get(name), pairs, context, Reading(options, **fields))

    async def vector(self, name: str | None = "a") -> bytes:
        """Return the embedding of a text."""
        (output,) = (await self.pipeline.embed(embed_request([Text("hello world")], name))).outputs
        return output.rows.tobytes()


async def fresh_vector(store: Path, name: str | None = None) -> bytes:
    """Return the embedding that a service started now computes with one model of the store."""
    return await Service(store, models=(name,) if name else ()).vector(name)
