"""One model ready to serve: its card, engine, tokenizer and a batcher for each graph."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

from numpy.typing import NDArray

from models.artifacts.card import Card
from service.embedding.outputs.plan import Plan
from service.embedding.tokenize.packing import Packed
from service.embedding.tokenize.tokenizer import Tokenizer
from service.runtime.engine import Choice, Engine
from service.scheduling.batcher import Batcher
from service.scheduling.shared_runs import SharedRun

Rows = dict[str, NDArray[Any]]


class Work(NamedTuple):
    """Packed sequences of one request, and the outputs requested of one graph.

    Args:
        shared: the run that it shares with equal works in flight; None: it runs by itself.
    """

    packed: Packed
    outputs: tuple[str, ...]
    shared: SharedRun[Rows] | None = None


PlanMaker = Callable[[tuple[str, ...], str | None, bool | None, int | None, str], Plan]
"""`output_plan.make` for one card, with a cache."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Model:
    """A model that is ready to serve.

    A model is not closed: each request holds a reference to the model it uses, and the sessions, threads and mapped
    files are freed with the last reference.

    Args:
        plan: `output_plan.make` for its card, with a cache.
        weights: its tensors, mapped; quantized tables dequantize the rows that are read.
        version: `registry.store.export_version` of the folder it was read from.
        mapped: name and inode of each file that is mapped and not read.
        shared_runs: of the sequences that are queued or run, by all that their results follow from.
        choice: which engine runs its encoder, and why.
    """

    card: Card
    engine: Engine
    tokenizer: Tokenizer | None
    batchers: dict[str, Batcher[Work, Rows]]
    plan: PlanMaker
    weights: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""
    mapped: frozenset[tuple[str, int]] = frozenset()
    shared_runs: WeakValueDictionary[Hashable, SharedRun[Rows]] = field(default_factory=WeakValueDictionary)
    choice: Choice = field(default_factory=Choice)

    def width(self, output: str) -> int:
        """Return the values in a row of an output."""
        return self.engine.widths.get(output, self.card.hidden_size)


class Models(Protocol):
    """The loaded models by name."""

    def get(self, name: str | None) -> Model:
        """Return the model of that name, or the default model.

        Raises:
            NotFound: no such model is loaded.
            BadRequest: none was named and there is no default.
        """
        ...
