"""What app.py hands to every protocol. Holds; does nothing."""

from dataclasses import dataclass, field

from service.catalog import Catalog
from service.encoder import Encoder
from service.metrics import Metrics
from service.settings import Settings
from service.tables import Tables


class Life:
    """Whether this process serves; told by app.py, asked by every protocol."""

    def __init__(self) -> None:
        self.started = False
        self.stopping = False

    @property
    def ready(self) -> bool:
        """New requests are welcome."""
        return self.started and not self.stopping


@dataclass(frozen=True, slots=True)
class Parts:
    """The service behind the protocols."""

    settings: Settings
    encoder: Encoder
    metrics: Metrics
    version: str
    tables: Tables
    life: Life = field(default_factory=Life)

    @property
    def catalog(self) -> Catalog:
        """The models being served."""
        return self.encoder.catalog
