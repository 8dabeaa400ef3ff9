"""Runs the works of a batch on one graph of a model: joined, run once, and split again."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import Card
from models.recipes.graph_names import ONE_ROW
from service.embedding.outputs.classes import ROW_OF_EACH
from service.embedding.outputs.sparse import with_sparse
from service.embedding.tokenize.packing import (
    Packed,
    Pixels,
    Rows,
    Work,
    feeds,
    join,
    rectangle,
    rectangles,
    split,
    unpad,
)
from service.runtime.engine import Engine

EXACT_TOKENS = 8192  # of a padded batch on CPU: a larger one may change bits (models/graphs/attention.py)

Run = Callable[[list[Any]], list[Rows]]


def run_of(engine: Engine, card: Card, name: str, max_tokens: int, heads: Engine | None = None) -> Run:
    """Return what runs the works of a batch on one graph.

    Args:
        heads: runs the heads of hidden states; None: `engine` does.
    """
    graph = card.graphs[name]
    if graph.layout == "image":
        return _image_runner(engine, name)
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

    def run(works: list[Work[Packed]]) -> list[Rows]:
        single = len(works) == 1
        packed = works[0].packed if single else join([work.packed for work in works])
        outputs = works[0].outputs if single else _outputs(works)
        if graph.layout == "padded":
            arrays = engine.run(name, rectangle(packed, graph.inputs, card.pad_id or 0), outputs)
            arrays = [array if array.ndim == 2 else unpad(array, packed.lengths) for array in map(_widened, arrays)]
        else:
            arrays = engine.run(name, feeds(packed, graph.inputs), outputs)
        return [dict(zip(outputs, arrays, strict=True))] if single else _rows_of_each(works, outputs, arrays)

    return partial(_by_form, run) if card.row_graphs else run


def _by_form(run: Run, works: list[Work[Packed]]) -> list[Rows]:
    """Run works for one row and works for all rows by themselves: these are two graphs, each with bits of its own."""
    if len({ONE_ROW in work.outputs for work in works}) == 1:
        return run(works)
    rows: list[Rows] = [{} for _ in works]
    for one_row in (True, False):
        members = [index for index, work in enumerate(works) if (ONE_ROW in work.outputs) == one_row]
        for index, found in zip(members, run([works[index] for index in members]), strict=True):
            rows[index] = found
    return rows


def _widened(array: NDArray[Any]) -> NDArray[Any]:
    """Return an output of an adopted graph, which may be float16, as float32."""
    return array.astype(np.float32, copy=False)


def _by_length(run: Run, max_tokens: int) -> Run:
    """Return `run` for groups of works of like length, so that their padded rectangle is within the budget."""

    def run_groups(works: list[Work[Packed]]) -> list[Rows]:
        if len(works) == 1:
            return run(works)
        groups = rectangles([work.packed.tokens for work in works], max_tokens)
        if len(groups) == 1:
            return run(works)
        rows: list[Rows] = [{} for _ in works]
        for group in groups:
            for index, each in zip(group, run([works[index] for index in group]), strict=True):
                rows[index] = each
        return rows

    return run_groups


def _outputs(works: list[Work[Packed]]) -> tuple[str, ...]:
    """Return the outputs that any of the works requests."""
    return tuple(dict.fromkeys(name for work in works for name in work.outputs))


def _rows_of_each(works: list[Work[Packed]], outputs: tuple[str, ...], arrays: list[NDArray[Any]]) -> list[Rows]:
    tokens = [work.packed.tokens for work in works]
    texts = [len(work.packed.lengths) for work in works]
    parts = [
        split(array, texts if name in (*ROW_OF_EACH, ONE_ROW) else tokens)
        for name, array in zip(outputs, arrays, strict=True)
    ]
    return [dict(zip(outputs, each, strict=True)) for each in zip(*parts, strict=True)]


# ---- images


def _image_runner(engine: Engine, graph: str) -> Run:
    """Return the function a batcher runs: images of one size and outputs together, flattened patches one by one."""

    def run(works: list[Work[Pixels]]) -> list[Rows]:
        results: list[Rows] = [{} for _ in works]
        for indices in _groups(works):
            for index, rows in zip(
                indices, _run_images(engine, graph, [works[index] for index in indices]), strict=True
            ):
                results[index] = rows
        return results

    return run


def _groups(works: Sequence[Work[Pixels]]) -> list[list[int]]:
    """Return the indices of works that one run of the graph can serve."""
    groups: dict[Any, list[int]] = {}
    for index, work in enumerate(works):
        name, array = next(iter(work.packed.feeds.items()))
        place = index if _is_flat(work) else None
        groups.setdefault((place, name, array.shape, work.outputs), []).append(index)
    return list(groups.values())


def _is_flat(work: Work[Pixels]) -> bool:
    """Return whether its patches come flattened: the graph has no batch then."""
    return "pixel_values" in work.packed.feeds and work.packed.feeds["pixel_values"].ndim == 2


def _run_images(engine: Engine, graph: str, works: list[Work[Pixels]]) -> list[Rows]:
    feeds, outputs = works[0].packed.feeds, works[0].outputs
    if _is_flat(works[0]):
        return [dict(zip(outputs, engine.run(graph, feeds, outputs), strict=True))]
    stacked = {name: np.stack([work.packed.feeds[name] for work in works]) for name in feeds}
    arrays = engine.run(graph, stacked, outputs)
    return [dict(zip(outputs, each, strict=True)) for each in zip(*arrays, strict=True)]
