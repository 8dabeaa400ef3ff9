"""The service that app.py builds and every protocol uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from service.errors import Unavailable

if TYPE_CHECKING:  # it holds these parts and calls two of them; app.py makes them
    from service.embedding.images import Images
    from service.embedding.outputs.rows import RowLookup
    from service.embedding.pipeline import EmbeddingPipeline
    from service.embedding.position_tables import Tables
    from service.embedding.ranking import Scorer
    from service.embedding.word_table import TableComputations
    from service.observability.metrics import Metrics
    from service.observability.tracing import Tracing
    from service.registry.readiness import Readiness
    from service.registry.registry import ModelRegistry
    from service.scheduling.admission import AdmissionController
    from service.scheduling.memory_budget import MemoryBudget
    from service.settings import Settings


class Lifecycle:
    """Whether this process serves; app.py sets it, every protocol reads it."""

    def __init__(self) -> None:
        self.started = False
        self.draining = False
        self.stopping = False
        self.on_stop: list[Callable[[], None]] = []

    @property
    def ready(self) -> bool:
        """Whether clients should send new requests; a draining process still serves them."""
        return self.started and not (self.draining or self.stopping)


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """The parts of the service that handlers use.

    Args:
        embedder: embeds texts and token ids.
        images: embeds images.
        lookup: answers requests for rows of token ids that arrive together.
        tables: streams positional tables and keeps finished ones.
        admission: counts the requests being served.
        budget: bounds the memory of the requests being computed and answered.
        scorer: scores texts and pairs of texts.
        computations: runs computations on word tables and output heads.
    """

    settings: Settings
    registry: ModelRegistry
    embedder: EmbeddingPipeline
    images: Images
    lookup: RowLookup
    admission: AdmissionController
    metrics: Metrics
    version: str
    tables: Tables
    readiness: Readiness
    budget: MemoryBudget
    scorer: Scorer
    computations: TableComputations
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    tracing: Tracing | None = None

    async def check_ready(self) -> None:
        """Raise Unavailable while the service starts or stops, or if a model does not answer."""
        if not self.lifecycle.ready:
            raise Unavailable("the service is stopping" if self.lifecycle.started else "the service is starting")
        await self.readiness.check()
