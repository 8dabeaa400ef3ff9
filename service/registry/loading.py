"""Loads a model from its exported folder: card, engine, tokenizer and a batcher for each graph."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from models.artifacts import weights
from models.artifacts.card import Card, RowGraphs
from models.artifacts.hash_checks import check_changed, check_hashes
from models.errors import ModelError
from service.embedding.execution import run_of
from service.embedding.model import Model
from service.embedding.outputs.image import is_of_images
from service.embedding.outputs.plan import planner
from service.embedding.tokenize.packing import Rows, Work
from service.embedding.tokenize.tokenizer import Tokenizer
from service.errors import StartError
from service.observability.metrics import Metrics
from service.registry import store
from service.registry.engine_choice import choose
from service.runtime.engine import Choice, Engine
from service.scheduling.batcher import Batcher
from service.scheduling.fair_queue import FairQueue
from service.settings import Settings, available_memory

LOOP_SECONDS = 8e-3  # of an input that is alone, on the event loop: a hop to a thread and back takes it 0.5 ms
INLINE_VALUES = 200_000  # output values a run may make on the event loop: about 0.4 ms
BATCH_VALUES = 4_000_000  # output values of one row-wise batch: 16 MB
ENCODER_TOKENS = {"cpu": 512, "openvino": 1024, "cuda": 16384}
TWICE_SHARE = 16  # models up to 1/16 of a worker's memory have their encoder's weights in memory twice
MAX_READS = 5  # attempts to read a folder that is replaced by new exports meanwhile


def load_model(folder: Path, settings: Settings, threads: int, metrics: Metrics) -> Model:
    """Return the model of an exported folder, whole even if the folder is replaced while it is read.

    Args:
        threads: threads of ONNX Runtime for graphs that contain attention.

    Raises:
        StartError, models.errors.ModelError: the model cannot be served; one line.
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
    """Return the folder's inode, which changes when the folder is replaced; raise StartError if there is none."""
    try:
        return folder.stat().st_ino
    except FileNotFoundError:
        raise StartError(f"{folder} is gone, though the store listed it: put it back, or leave it out") from None


def read_model(folder: Path, settings: Settings, threads: int, metrics: Metrics) -> Model:
    """Return the model in an exported folder, with a batcher for each of its graphs.

    The hashes of its files are checked in a thread beside: 90 MB take 70 ms, less than the sessions that are made
    meanwhile.
    """
    version = store.export_version(folder)  # first: if the folder is replaced later, the version differs from the files
    card = store.read_card(folder, settings)
    if settings.verify == "off":
        return _opened(folder, card, version, settings, threads, metrics)
    with ThreadPoolExecutor(1, thread_name_prefix="verify") as thread:
        check = thread.submit(check_changed if settings.verify == "changed" else check_hashes, folder, card)
        try:
            return _opened(folder, card, version, settings, threads, metrics)
        finally:
            check.result()  # what it raises says more than an error of a library that read a damaged file


def _opened(folder: Path, card: Card, version: str, settings: Settings, threads: int, metrics: Metrics) -> Model:
    tokenizer = _tokenizer(folder / card.tokenizer, card) if card.tokenizer else None
    engine, choice = choose(folder, card, tokenizer, settings, threads, partial(_onnx, folder, settings, threads))
    batchers = {name: _batcher(engine, choice, card, name, settings, metrics) for name in card.graphs}
    mapped = frozenset([_map_ahead(folder / card.weights)] if card.weights else [])
    tensors = weights.tensors(folder, card)
    if choice.engine != "onnx":  # others run the whole encoder
        card = replace(card, row_graphs=None)
    if choice.pooling:
        card = replace(card, row_graphs=RowGraphs(choice.pooling, dict.fromkeys(card.graphs, "")))
    return Model(
        card,
        engine,
        tokenizer,
        batchers,
        planner(card, engine, tensors),
        tensors,
        version,
        mapped,
        choice=choice,
        reads_images=is_of_images(card),
    )


def of_task(model: Model, task: str) -> Model:
    """Return a loaded model as it answers to `NAME:TASK`: with another default task, in the same engine and queues."""
    card = replace(model.card, default_task=task)
    return replace(model, card=card, plan=planner(card, model.engine, model.weights))


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
        characters,
        may_be_empty=card.empty_texts,
        segments=card.types == "zeros" and card.reads_segments,
        filling=filling,
        words=card.static.words if card.static else None,
    )


def _onnx(folder: Path, settings: Settings, threads: int, card: Card, device: str = "") -> Engine:
    from service.runtime import onnx

    size = sum(file.bytes for file in card.files.values())
    twice = size <= available_memory() // settings.workers // TWICE_SHARE
    gpu = 0 if settings.gpus == ("all",) else int(settings.gpus[0])
    where, room = device or settings.device, settings.prepacked_bytes
    return onnx.load(folder, card, where, threads, settings.gpu_memory_bytes, twice, room, gpu)


def encoder_tokens(engine: Engine, choice: Choice) -> int:
    """Return the tokens of one encoder batch if the settings do not say: what a core runs in about 70 ms."""
    return ENCODER_TOKENS["cuda" if engine.device == "cuda" else "openvino" if choice.engine == "openvino" else "cpu"]


def _batcher(
    engine: Engine, choice: Choice, card: Card, name: str, settings: Settings, metrics: Metrics
) -> Batcher[Work[Any], Rows]:
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
            settings.bulk_share,
        ),
        runs=runs,
        run_alone=run_of(engine.alone, card, name, budget, engine) if graph.attends and engine.alone else None,
        max_batch_cost=budget,
        max_inline_cost=inline,
        inline_seconds=LOOP_SECONDS if engine.device == "cpu" else 0.0,
        stuck_seconds=settings.stuck_seconds,
        new_executor=partial(ThreadPoolExecutor, runs + 1, thread_name_prefix=f"{card.name}-{name}"),
        observe=metrics.runs(card.name, name),
        count_failed=metrics.counter("inlay_run_failures", card.name, name),
        count_stuck=metrics.counter("inlay_stuck_runs", card.name, name),
    )
