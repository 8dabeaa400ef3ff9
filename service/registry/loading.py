"""Loading a model from its exported folder: card, engine, tokenizer and a batcher for each graph."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from models.artifacts import card as cards
from models.artifacts import weights
from models.artifacts.card import Card, Graph
from models.errors import ModelError
from service.embedding import images
from service.embedding.model import Model, Rows, Work
from service.embedding.output_plan import POOLED, make
from service.embedding.packing import feeds, join, rectangle, rectangles, split, unpad
from service.embedding.tokenization import Tokenizer
from service.errors import StartError
from service.observability.metrics import Metrics
from service.registry import store
from service.runtime.engine import Engine
from service.scheduling.batcher import Batcher
from service.settings import Settings

INLINE_VALUES = 200_000  # output values a run may make on the event loop: about 0.4 ms
BATCH_VALUES = 4_000_000  # output values of one row-wise batch: 16 MB
ENCODER_TOKENS = {"cpu": 512, "cuda": 16384}
READS = 5  # of a folder that is exchanged for a new export meanwhile


def opened(folder: Path, settings: Settings, threads: int, metrics: Metrics) -> Model:
    """The model of an exported folder, all of it of one export, even where the folder is exchanged meanwhile.

    threads  of ONNX Runtime, for graphs that mix rows
    raises   StartError or models.errors.ModelError in one line if it cannot be served
    """
    for _ in range(READS):
        before = _identity(folder)
        try:
            found = _read(folder, settings, threads, metrics)
        except (StartError, ModelError, OSError) as error:
            if _identity(folder) != before:
                continue
            if isinstance(error, OSError):
                raise StartError(f"{folder} cannot be read: {error}; mend that, or leave the model out") from error
            raise
        if _identity(folder) == before:
            return found
    raise StartError(f"{folder} was exchanged {READS} times while it was read: load it again when it is still")


def _identity(folder: Path) -> int:
    """What another folder of the same name does not share; raises StartError where there is none."""
    try:
        return folder.stat().st_ino
    except FileNotFoundError:
        raise StartError(f"{folder} is gone, though the store listed it: put it back, or leave it out") from None


def _read(folder: Path, settings: Settings, threads: int, metrics: Metrics) -> Model:
    version = store.version(folder)  # before all else: what is read later may be newer, and is then read again
    card = replace(cards.read(folder), name=folder.name)  # a renamed folder is a renamed model
    if settings.max_input_tokens:
        card = replace(card, max_tokens=min(card.max_tokens or settings.max_input_tokens, settings.max_input_tokens))
    engine = _engine(folder, card, settings, threads)
    tokenizer = _tokenizer(folder / card.tokenizer, card) if card.tokenizer else None
    batchers = {name: _batcher(engine, card, name, settings, metrics) for name in card.graphs}
    _read_ahead(folder, card)
    planned = lru_cache(maxsize=256)(partial(make, card))
    tensors, mapped = weights.tensors(folder, card), frozenset(_mapped(folder, card))
    return Model(card, engine, tokenizer, batchers, planned, tensors, version, mapped)


def _tokenizer(path: Path, card: Card) -> Tokenizer:
    characters = card.static.max_characters if card.static else None
    return Tokenizer(path, card.max_tokens, characters, card.static is not None, segments=card.types == "zeros")


def _engine(folder: Path, card: Card, settings: Settings, threads: int) -> Engine:
    if settings.engine == "reference":
        from service.runtime import reference

        return reference.load(folder, card, settings.device, threads)
    from service.runtime import onnx

    return onnx.load(folder, card, settings.device, threads, settings.gpu_memory_bytes)


def _batcher(engine: Engine, card: Card, name: str, settings: Settings, metrics: Metrics) -> Batcher[Work, Rows]:
    graph = card.graphs[name]
    run = _runner(engine, card, name, graph)
    attends = graph.attends
    if attends:
        budget = settings.max_batch_tokens or ENCODER_TOKENS["cuda" if engine.device == "cuda" else "cpu"]
        inline = 0
    else:
        budget = max(1, BATCH_VALUES // card.hidden_size)
        inline = INLINE_VALUES // card.hidden_size if engine.device == "cpu" else 0
    return Batcher(
        _in_rectangles(run, budget) if attends and graph.layout != "image" else run,
        max_batch_cost=budget,
        max_inline_cost=inline,
        max_queue_cost=settings.max_queue_tokens,
        max_queue_seconds=settings.max_queue_seconds,
        stuck_seconds=settings.stuck_seconds,
        executor=ThreadPoolExecutor(1, thread_name_prefix=f"{card.name}-{name}"),
        observe=metrics.runs(card.name, name),
        count_failed=metrics.counter("inlay_run_failures", card.name, name),
        count_stuck=metrics.counter("inlay_stuck_runs", card.name, name),
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


def _in_rectangles(run: Callable[[list[Any]], list[Rows]], most: int) -> Callable[[list[Any]], list[Rows]]:
    """The same, run by run for works of like length, so that no padding passes the budget in tokens."""

    def runs(works: list[Any]) -> list[Rows]:
        groups = rectangles([work.packed.tokens for work in works], most)
        if len(groups) == 1:
            return run(works)
        rows: list[Rows] = [{} for _ in works]
        for group in groups:
            for index, own in zip(group, run([works[index] for index in group]), strict=True):
                rows[index] = own
        return rows

    return runs


def _wanted(works: list[Work]) -> tuple[str, ...]:
    if len(works) == 1:
        return works[0].outputs
    return tuple(dict.fromkeys(name for work in works for name in work.outputs))


def _shared(works: list[Work], outputs: tuple[str, ...], arrays: list[NDArray[Any]]) -> list[Rows]:
    tokens = [work.packed.tokens for work in works]
    texts = [len(work.packed.lengths) for work in works]
    parts = [split(array, texts if name == POOLED else tokens) for name, array in zip(outputs, arrays, strict=True)]
    return [dict(zip(outputs, own, strict=True)) for own in zip(*parts, strict=True)]


def _mapped(folder: Path, card: Card) -> Iterator[tuple[str, int]]:
    for name in _tables(card):
        yield Path(name).name, (folder / name).stat().st_ino


def _tables(card: Card) -> tuple[str, ...]:
    return (*([card.weights] if card.weights else []), *(card.linked or {}))


def _read_ahead(folder: Path, card: Card) -> None:
    """Ask the kernel to page the tables in, so that the first requests find them warm; returns at once."""
    for name in _tables(card):
        with (folder / name).open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
