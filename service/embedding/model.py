"""One model ready to serve: its card, engine, tokenizer and a batcher for each graph."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from models.artifacts.card import Card
from service.embedding.outputs.kind import Planner
from service.embedding.tokenize.packing import Rows, Work
from service.embedding.tokenize.tokenizer import Tokenizer
from service.runtime.engine import Choice, Engine
from service.scheduling.batcher import Batcher


@dataclass(slots=True, eq=False)
class Residency:
    """How long a model that is loaded on demand stays in memory.

    Args:
        size: bytes of its files, which count against the budget.
        keep_seconds: seconds after its last request in which it stays.
        pinned: it is never unloaded.

    Attributes:
        used_at: when a request for it last came, or was seen running.
        loaded_at: when it was loaded.
        load_seconds: how long that took.
    """

    size: int
    keep_seconds: float
    pinned: bool = False
    used_at: float = 0.0
    loaded_at: float = 0.0
    load_seconds: float = 0.0


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Model:
    """A model that is ready to serve.

    A model is not closed: each request holds a reference to the model it uses, and the sessions, threads and mapped
    files are freed with the last reference.

    Args:
        plan: returns the plan of a request's options.
        weights: the mapped tensors; quantized tables dequantize the rows that are read.
        version: `registry.store.export_version` of the folder it was read from.
        mapped: name and inode of each file that is mapped and not read.
        reads_images: whether inputs are images instead of texts and token ids.
        choice: the engine that runs the encoder, and why.
        residency: of a model that is loaded on demand; without batchers it is not loaded.
    """

    card: Card
    engine: Engine
    tokenizer: Tokenizer | None
    batchers: dict[str, Batcher[Work[Any], Rows]]
    plan: Planner
    weights: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""
    mapped: frozenset[tuple[str, int]] = frozenset()
    choice: Choice = field(default_factory=Choice)
    reads_images: bool = False
    residency: Residency | None = None

    @property
    def busy(self) -> bool:
        """Whether requests for it are queued, being tokenized or running."""
        return any([batcher.busy for batcher in self.batchers.values()])


class Models(Protocol):
    """The loaded models by name."""

    def get(self, name: str | None) -> Model:
        """Return the model that answers to that name, or the default model.

        Raises:
            NotFound: no such model is loaded.
            BadRequest: none was named and there is no default.
        """
        ...
