"""What app.py hands to every protocol. Holds; does nothing."""

from collections.abc import Callable
from dataclasses import dataclass, field

from service.embedding.pipeline import Encoder
from service.embedding.position_tables import Tables
from service.errors import Unavailable
from service.http.intake import Intake
from service.observability.metrics import Metrics
from service.observability.tracing import Tracing
from service.protocols.oip.model_statistics import Statistics
from service.protocols.oip.shared_memory import Regions
from service.registry.readiness import Readiness
from service.registry.registry import Catalog
from service.settings import Settings


class Life:
    """Whether this process serves; told by app.py, asked by every protocol."""

    def __init__(self) -> None:
        self.started = False
        self.stopping = False
        self.at_stop: list[Callable[[], None]] = []

    @property
    def ready(self) -> bool:
        """New requests are welcome."""
        return self.started and not self.stopping


@dataclass(frozen=True, slots=True)
class Parts:
    """The service behind the protocols.

    regions, statistics   of the Open Inference Protocol, over HTTP and gRPC alike
    """

    settings: Settings
    encoder: Encoder
    metrics: Metrics
    version: str
    tables: Tables
    readiness: Readiness
    intake: Intake
    life: Life = field(default_factory=Life)
    regions: Regions = field(default_factory=Regions)
    statistics: Statistics = field(default_factory=Statistics)
    tracing: Tracing | None = None

    async def refuse_unready(self) -> None:
        """Raise Unavailable while the service starts or stops, or a model does not answer."""
        if not self.life.ready:
            raise Unavailable("the service is stopping" if self.life.stopping else "the service is starting")
        await self.readiness.check()

    @property
    def catalog(self) -> Catalog:
        """The models being served."""
        return self.encoder.catalog
