"""Loading a model from its exported folder: card, engine, tokenizer and a batcher for each graph."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache, partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.artifacts import card as cards
from models.artifacts import weights
from models.artifacts.card import Card
from models.errors import ModelError
from models.recipes.graph_names import ONE_ROW
from service.embedding import images, output_plan
from service.embedding.model import Model, PlanMaker, Rows, Work
from service.embedding.output_plan import ROW_OF_EACH, Plan
from service.embedding.packing import feeds, join, rectangle, rectangles, split, unpad
from service.embedding.sparse_vectors import with_sparse
from service.embedding.tokenization import Tokenizer
from service.errors import StartError
from service.observability.metrics import Metrics
from service.registry import store
from service.registry.engine_choice import choose
from service.runtime.engine import Choice, Engine
from service.scheduling.batcher import Batcher
from service.scheduling.fair_queue import FairQueue
from service.settings import Settings, available_memory

INLINE_VALUES = 200_000  # output values a run may make on the event loop: about 0.4 ms
BATCH_VALUES = 4_000_000  # output values of one row-wise batch: 16 MB
ENCODER_TOKENS = {"cpu": 512, "openvino": 1024, "cuda": 16384}
TWICE_SHARE = 16  # of a worker's memory: a model up to this size has its encoder's weights in memory twice
EXACT_TOKENS = 8192  # of a padded batch on CPU: a larger one may change bits (models/graphs/attention.py)
MAX_READS = 5  # of a folder that is replaced by a new export while it is read

Run = Callable[[list[Any]], list[Rows]]


def load_model(folder: Path, settings: Settings, threads: int, metrics: Metrics) -> Model:
    """Return the model of an exported folder, all of it of one export even if the folder is replaced meanwhile.

    Args:
        threads: of ONNX Runtime, for graphs that contain attention.

    Raises:
        StartError, models.errors.ModelError: in one line, it cannot be served.
    """
    for _ in range(MAX_READS):
        before = _inode(folder)
        try:
            model = read_model(folder, settings, threads, metrics)
        except (StartError, ModelError, OSError) as error:
            if _inode(folder) != before:
                continue
            if isinstance(error, OSError):
                raise StartError(f"{folder} cannot be read: {error}; mend that, or leave the model out") from error
            raise
        if _inode(folder) == before:
            return model
    raise StartError(f"{folder} was replaced {MAX_READS} times while it was read: load it again once it stays the same")


def _inode(folder: Path) -> int:
    """Return the folder's inode, by which a folder that replaced it differs; raise StartError if there is no folder."""
    try:
        return folder.stat().st_ino
    except FileNotFoundError:
        raise StartError(f"{folder} is gone, though the store listed it: put it back, or leave it out") from None


def read_model(folder: Path, settings: Settings, threads: int, metrics: Metrics) -> Model:
    """Return the model in an exported folder, with a batcher for each of its graphs."""
    version = store.export_version(folder)  # first: if the folder is replaced later, the version differs from the files
    card = replace(cards.read(folder), name=folder.name)  # a renamed folder is a renamed model
    if settings.max_input_tokens:
        card = replace(card, max_tokens=min(card.max_tokens or settings.max_input_tokens, settings.max_input_tokens))
    tokenizer = _tokenizer(folder / card.tokenizer, card) if card.tokenizer else None
    engine, choice = choose(folder, card, tokenizer, settings, threads, partial(_onnx, folder, settings, threads))
    batchers = {name: _batcher(engine, choice, card, name, settings, metrics) for name in card.graphs}
    tables = (*([card.weights] if card.weights else []), *(card.linked or {}))
    mapped = frozenset(_map_ahead(folder / name) for name in tables)
    tensors = weights.tensors(folder, card)
    if choice.engine != "onnx":  # others run the whole encoder
        card = replace(card, row_graphs=None)
    return Model(card, engine, tokenizer, batchers, _plans(card), tensors, version, mapped, choice=choice)


def _plans(card: Card) -> PlanMaker:
    """Return what makes the plans of a model and keeps them."""
    most, kept = len(card.outputs) + 1, lru_cache(maxsize=256)(partial(output_plan.make, card))

    def plan(outputs: tuple[str, ...], *options: Any) -> Plan:
        if len(outputs) > most:  # a caller may repeat them a million times
            outputs = tuple(dict.fromkeys(outputs))
        return kept(outputs, *options)

    return plan


def _map_ahead(path: Path) -> tuple[str, int]:
    """Ask the kernel to read a table ahead, without waiting for it; return the name and inode of its file."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
        return path.name, os.fstat(file.fileno()).st_ino


def _tokenizer(path: Path, card: Card) -> Tokenizer:
    characters = card.static.max_characters if card.static else None
    filling = (card.filling.tokens, card.filling.token_id) if card.filling else None
    return Tokenizer(
        path,
        card.max_tokens,
        characters,
        may_be_empty=card.static is not None or not card.graphs,
        segments=card.types == "zeros" and card.reads_segments,
        filling=filling,
    )


def _onnx(folder: Path, settings: Settings, threads: int, card: Card) -> Engine:
    from service.runtime import onnx

    size = sum([file.stat().st_size for file in folder.iterdir()])
    twice = size <= available_memory() // settings.workers // TWICE_SHARE
    return onnx.load(folder, card, settings.device, threads, settings.gpu_memory_bytes, twice)


def encoder_tokens(engine: Engine, choice: Choice) -> int:
    """Return the tokens of one encoder batch, where the settings do not say: what a core runs in some 70 ms."""
    return ENCODER_TOKENS["cuda" if engine.device == "cuda" else "openvino" if choice.engine == "openvino" else "cpu"]


def _batcher(
    engine: Engine, choice: Choice, card: Card, name: str, settings: Settings, metrics: Metrics
) -> Batcher[Work, Rows]:
    graph = card.graphs[name]
    runs = 1
    if graph.attends:
        budget = settings.max_batch_tokens or encoder_tokens(engine, choice)
        inline, runs = 0, engine.runs
    else:
        budget = max(1, BATCH_VALUES // card.hidden_size)
        inline = INLINE_VALUES // card.hidden_size if engine.device == "cpu" else 0
    return Batcher(
        run_of(engine, card, name, budget),
        FairQueue(
            settings.max_queue_tokens,
            settings.max_queue_seconds,
            budget,
            max(1, 3 * settings.max_concurrent_requests // 4),  # the others are for callers with few
        ),
        runs=runs,
        run_alone=run_of(engine.alone, card, name, budget, engine) if graph.attends and engine.alone else None,
        max_batch_cost=budget,
        max_inline_cost=inline,
        stuck_seconds=settings.stuck_seconds,
        new_executor=partial(ThreadPoolExecutor, runs, thread_name_prefix=f"{card.name}-{name}"),
        observe=metrics.runs(card.name, name),
        count_failed=metrics.counter("inlay_run_failures", card.name, name),
        count_stuck=metrics.counter("inlay_stuck_runs", card.name, name),
        shared=attrgetter("shared") if graph.attends and graph.layout != "image" else lambda work: None,
    )


def run_of(engine: Engine, card: Card, name: str, max_tokens: int, heads: Engine | None = None) -> Run:
    """Return what runs the works of a batch on one graph.

    Args:
        heads: runs the heads of hidden states; None: `engine` does.
    """
    graph = card.graphs[name]
    if graph.layout == "image":
        return images.runner(engine, name)
    run = _runner(engine, card, name)
    if not graph.attends:
        return run
    run = with_sparse(run, heads or engine, card)
    if graph.one_by_one:
        return _by_length(run, 0)
    return _by_length(run, min(max_tokens, EXACT_TOKENS) if engine.device == "cpu" else max_tokens)


def _runner(engine: Engine, card: Card, name: str) -> Run:
    """Return the function that runs the works of a batch as one run of a graph."""
    graph = card.graphs[name]

    def run(works: list[Work]) -> list[Rows]:
        packed, outputs = join([work.packed for work in works]), _outputs(works)
        if graph.layout == "padded":
            arrays = engine.run(name, rectangle(packed, graph.inputs, card.pad_id or 0), outputs)
            arrays = [array if array.ndim == 2 else unpad(array, packed.lengths) for array in map(_widened, arrays)]
        else:
            arrays = engine.run(name, feeds(packed, graph.inputs), outputs)
        return _rows_of_each(works, outputs, arrays)

    return partial(_by_form, run) if card.row_graphs else run


def _by_form(run: Run, works: list[Work]) -> list[Rows]:
    """Run works for one row and works for all rows by themselves: these are two graphs, each with bits of its own."""
    if len({ONE_ROW in work.outputs for work in works}) == 1:
        return run(works)
    rows: list[Rows] = [{} for _ in works]
    for one_row in (True, False):
        own = [index for index, work in enumerate(works) if (ONE_ROW in work.outputs) == one_row]
        for index, found in zip(own, run([works[index] for index in own]), strict=True):
            rows[index] = found
    return rows


def _widened(array: NDArray[Any]) -> NDArray[Any]:
    """Return an output of an adopted graph, which may be float16, as float32."""
    return array.astype(np.float32, copy=False)


def _by_length(run: Run, max_tokens: int) -> Run:
    """Return `run` for groups of works of like length, so that their padded rectangle is within the budget."""

    def run_groups(works: list[Work]) -> list[Rows]:
        groups = rectangles([work.packed.tokens for work in works], max_tokens)
        if len(groups) == 1:
            return run(works)
        rows: list[Rows] = [{} for _ in works]
        for group in groups:
            for index, own in zip(group, run([works[index] for index in group]), strict=True):
                rows[index] = own
        return rows

    return run_groups


def _outputs(works: list[Work]) -> tuple[str, ...]:
    """Return the outputs that any of the works requests."""
    if len(works) == 1:
        return works[0].outputs
    return tuple(dict.fromkeys(name for work in works for name in work.outputs))


def _rows_of_each(works: list[Work], outputs: tuple[str, ...], arrays: list[NDArray[Any]]) -> list[Rows]:
    tokens = [work.packed.tokens for work in works]
    texts = [len(work.packed.lengths) for work in works]
    parts = [
        split(array, texts if name in (*ROW_OF_EACH, ONE_ROW) else tokens)
        for name, array in zip(outputs, arrays, strict=True)
    ]
    return [dict(zip(outputs, own, strict=True)) for own in zip(*parts, strict=True)]
