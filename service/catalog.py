"""The models being served, by name: card, engine, tokenizer and one batcher a graph. Knows no protocol."""

import difflib
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from models import card as cards
from models.card import Card, Graph
from models.storage import weights
from service import cores, images
from service.batcher import Batcher
from service.engines import Engine
from service.errors import BadRequest, NotFound, StartError
from service.flatten import Packed, feeds, join, rectangle, split, unpad
from service.metrics import Metrics
from service.plan import POOLED, Plan, make
from service.settings import Settings
from service.tokens import Tokenizer

INLINE_VALUES = 200_000  # output values a run may make on the event loop: about 0.4 ms
BATCH_VALUES = 4_000_000  # output values of one row-wise batch: 16 MB
ENCODER_TOKENS = {"cpu": 512, "cuda": 16384}


class Work(NamedTuple):
    """Packed sequences of one caller and the outputs it wants of one graph."""

    packed: Packed
    outputs: tuple[str, ...]


Rows = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Model:
    """A model that is ready to serve; `plan` is plan.make for its card, remembering its answers.

    weights   its tensors, mapped; quantised tables dequantise the rows they are asked for
    """

    card: Card
    engine: Engine
    tokenizer: Tokenizer | None
    batchers: dict[str, Batcher[Work, Rows]]
    plan: Callable[[tuple[str, ...], str | None, bool | None, int | None, str], Plan]
    weights: Mapping[str, Any] = field(default_factory=dict)


class Catalog:
    """Models by name.

    default   answers requests that name no model; None: every request must name one
    """

    def __init__(self, models: dict[str, Model], default: Model | None) -> None:
        self.models = models
        self.default = default

    def get(self, name: str | None) -> Model:
        """The model of that name, or the default.

        raises   NotFound naming the nearest known model; BadRequest if none was named and there is no default
        """
        if not name:
            if self.default is None:
                raise BadRequest(f'this server holds several models: send "model", one of {_listed(self.models)}')
            return self.default
        if name not in self.models:
            near = difflib.get_close_matches(name, self.models, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise NotFound(f"no model {name!r} here; loaded: {_listed(self.models)}{hint}")
        return self.models[name]


def open_catalog(settings: Settings, metrics: Metrics) -> Catalog:
    """Load the models of the store that the settings name.

    raises   StartError or models.errors.ModelError in one line if one cannot be served
    """
    chosen = folders(settings)
    threads = settings.threads or max(1, cores.available() // settings.workers)
    models = {name: _load(folder, settings, threads, metrics) for name, folder in chosen.items()}
    if settings.default_model and settings.default_model not in models:
        raise StartError(f"default model {settings.default_model!r} is not loaded; loaded: {_listed(models)}")
    default = settings.default_model or (next(iter(models)) if len(models) == 1 else None)
    return Catalog(models, models[default] if default else None)


def folders(settings: Settings) -> dict[str, Path]:
    """The folder of each model the settings name.

    raises   StartError if the store is missing or empty, or holds no such model
    """
    store = settings.store
    if not store.is_dir():
        raise StartError(
            f"model store {store} does not exist: export a model with "
            f"`python -m models export CHECKPOINT {store / 'NAME'}` or set INLAY_STORE"
        )
    found = {
        folder.name: folder
        for folder in sorted(store.iterdir())
        if not folder.name.startswith(".") and (folder / cards.FILE_NAME).is_file()  # a dot: an export cut short
    }
    if not found:
        raise StartError(
            f"model store {store} holds no model: export one with `python -m models export CHECKPOINT {store / 'NAME'}`"
        )
    if missing := [name for name in settings.models if name not in found]:
        raise StartError(f"model store {store} holds no {_listed(missing)}; it holds {_listed(found)}")
    return {name: found[name] for name in settings.models or found}


def _load(folder: Path, settings: Settings, threads: int, metrics: Metrics) -> Model:
    card = replace(cards.read(folder), name=folder.name)  # a renamed folder is a renamed model
    engine = _engine(folder, card, settings, threads)
    tokenizer = _tokenizer(folder / card.tokenizer, card) if card.tokenizer else None
    batchers = {name: _batcher(engine, card, name, settings, metrics) for name in card.graphs}
    metrics.loaded(card.name, card.bytes)
    _read_ahead(folder, card)
    planned = lru_cache(maxsize=256)(partial(make, card))
    return Model(card, engine, tokenizer, batchers, planned, weights.tensors(folder, card))


def _tokenizer(path: Path, card: Card) -> Tokenizer:
    characters = card.static.max_characters if card.static else None
    return Tokenizer(path, card.max_tokens, characters, card.static is not None, segments=card.types == "zeros")


def _engine(folder: Path, card: Card, settings: Settings, threads: int) -> Engine:
    if settings.engine == "reference":
        from service.engines import reference

        return reference.load(folder, card, settings.device, threads)
    from service.engines import onnx

    return onnx.load(folder, card, settings.device, threads)


def _batcher(engine: Engine, card: Card, name: str, settings: Settings, metrics: Metrics) -> Batcher[Work, Rows]:
    graph = card.graphs[name]
    if graph.mixes_rows and not graph.averages:
        budget = settings.max_batch_tokens or ENCODER_TOKENS["cuda" if engine.device == "cuda" else "cpu"]
        inline = 0
    else:
        budget = max(1, BATCH_VALUES // card.hidden_size)
        inline = INLINE_VALUES // card.hidden_size if engine.device == "cpu" else 0
    return Batcher(
        _runner(engine, card, name, graph),
        max_batch_cost=budget,
        max_inline_cost=inline,
        max_queue_cost=settings.max_queue_tokens,
        executor=ThreadPoolExecutor(1, thread_name_prefix=f"{card.name}-{name}"),
        observe=metrics.runs(card.name, name),
    )


def _runner(engine: Engine, card: Card, name: str, graph: Graph) -> Any:
    if graph.layout == "image":
        return images.runner(engine, name)

    def run_packed(works: list[Work]) -> list[Rows]:
        packed, outputs = join([work.packed for work in works]), _wanted(works)
        arrays = engine.run(name, feeds(packed, graph.inputs), outputs)
        return _shared(works, outputs, arrays)

    def run_padded(works: list[Work]) -> list[Rows]:
        packed, outputs = join([work.packed for work in works]), _wanted(works)
        arrays = engine.run(name, rectangle(packed, graph.inputs, card.pad_id or 0), outputs)
        rows = [array if array.ndim == 2 else unpad(array, packed.lengths) for array in arrays]
        return _shared(works, outputs, rows)

    return run_padded if graph.layout == "padded" else run_packed


def _wanted(works: list[Work]) -> tuple[str, ...]:
    if len(works) == 1:
        return works[0].outputs
    return tuple(dict.fromkeys(name for work in works for name in work.outputs))


def _shared(works: list[Work], outputs: tuple[str, ...], arrays: list[NDArray[Any]]) -> list[Rows]:
    tokens = [work.packed.tokens for work in works]
    texts = [len(work.packed.lengths) for work in works]
    parts = [split(array, texts if name == POOLED else tokens) for name, array in zip(outputs, arrays, strict=True)]
    return [dict(zip(outputs, own, strict=True)) for own in zip(*parts, strict=True)]


def _read_ahead(folder: Path, card: Card) -> None:
    """Ask the kernel to page the tables in, so that the first requests find them warm; returns at once."""
    for name in (*([card.weights] if card.weights else []), *(card.linked or {})):
        with (folder / name).open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)


def _listed(names: Any) -> str:
    return ", ".join(repr(name) for name in names)
