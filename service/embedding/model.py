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


class Models(Protocol):
    """The loaded models by name."""

    def get(self, name: str | None) -> Model:
        """Return the model that answers to that name, or the default model.

        Raises:
            NotFound: no such model is loaded.
            BadRequest: none was named and there is no default.
        """
        ...
