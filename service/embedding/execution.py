"""Runs the parts of a job on the graphs of its model, and reduces their arrays to what its kinds of output need.

The works of a batch, of several requests, are joined, run once and split again.
"""

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import Card
from models.recipes.graph_names import ONE_ROW
from service.embedding.model import Model
from service.embedding.outputs.kind import ROW_OF_EACH, Graphs, Job, Plan, not_finite
from service.embedding.outputs.sparse import with_sparse
from service.embedding.requests import Output
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
from service.errors import BadInput
from service.request_context import RequestContext
from service.runtime.engine import Engine
from service.scheduling.callers import ItemTimes

EXACT_TOKENS = 8192  # of a padded batch on CPU: a larger one may change bits (models/graphs/attention.py)

Run = Callable[[list[Any]], list[Rows]]
Parts = Mapping[int, Packed] | Mapping[int, Pixels]
Queued = list[tuple[int, "asyncio.Future[Rows]"]]  # the number of a part, and its rows of one graph


async def run(model: Model, job: Job, parts: Parts, context: RequestContext, admitted: bool = False) -> ItemTimes:
    """Fill `job.rows` for every part; return the seconds that the parts waited and ran.

    Args:
        parts: the parts by the number of the input; a plan that is whole has one part, number 0, for all inputs.
        admitted: the queues have room for them already.

    Raises:
        InlayError: a queue has no room, or a run failed; what is still queued is dropped.
    """
    plan, times = job.plan, ItemTimes(context.caller)
    if plan.random:
        context.random_weights = True
    indices: Sequence[int] = list(parts) if plan.typed else range(len(job.rows))
    waiting = indices
    if plan.typed:
        queued = _schedule(model, plan, parts, times, context, admitted)
        waiting = await _gather(model.card.name, job, queued, indices)
    for kind in plan.completing:
        if left := waiting if kind is plan.early else indices:
            await asyncio.to_thread(kind.complete, job, left)
    return times


async def _gather(model: str, job: Job, queued: Queued, indices: Sequence[int]) -> Sequence[int]:
    """Add the reduced rows of every part to the job; if one fails or the caller leaves, drop the queued ones.

    Returns:
        the parts that the plan's early kind has still to complete; without one, all parts.
    """
    plan = job.plan
    early, waiting, held = plan.early, list[int](), 0
    queued.reverse()
    try:
        while queued:
            index, future = queued.pop()  # the future holds the rows of its whole batch
            rows = await future
            if plan.whole:  # rows of a table, which were checked when it was exported
                job.rows[index] |= rows
                continue
            if plan.reduces_in_thread:
                kept = await asyncio.to_thread(reduce, model, job, index, rows)
            else:
                kept = reduce(model, job, index, rows)
            job.rows[index] |= kept
            if early and early.name in kept:
                waiting.append(index)
                held += len(kept[early.name])
                if held >= early.held_rows:
                    await asyncio.to_thread(early.complete, job, waiting)
                    waiting, held = [], 0
    except BaseException:
        _drop(queued)
        raise
    return waiting if early else indices


def reduce(model: str, job: Job, index: int, rows: Rows) -> Rows:
    """Return the rows of one input, reduced to what the kinds of a plan need, and checked.

    Hidden states that nothing else needs are so not kept until the rows of all inputs have come.

    Raises:
        EngineFailure: a value is not finite.
    """
    for name, array in rows.items():
        if not np.isfinite(array).all():
            raise not_finite(model, name, index)
    if ONE_ROW in rows:  # pooled by the graph
        return {kind.name: rows[ONE_ROW] for kind in job.plan.kinds}
    kept: Rows = {}
    for kind in job.plan.kinds:
        if kind.source in rows:
            kept |= kind.reduce(job, index, rows)
    return kept


async def finish(job: Job) -> tuple[Output, ...]:
    """Return the outputs of a job in the order of its plan."""
    return tuple(
        [
            await asyncio.to_thread(kind.finish, job) if kind.finishes_in_thread else kind.finish(job)
            for kind in job.plan.kinds
        ]
    )


def _schedule(
    model: Model, plan: Plan, parts: Parts, times: ItemTimes, context: RequestContext, admitted: bool
) -> Queued:
    """Queue every part for each of its graphs; if one graph has no room, cancel those queued already."""
    queued: Queued = []
    try:
        optional = model.card.types == "optional"
        for graphs, indices in _by_graphs(model.card, plan, parts) if optional else [(plan.typed, list(parts))]:
            for graph, outputs in graphs.items():
                works = [Work(parts[index], outputs) for index in indices]
                costs = [work.packed.tokens for work in works]
                futures = model.batchers[graph].submit(
                    works, costs, times, context.deadline, admitted, context.staggered
                )
                queued += zip(indices, futures, strict=True)
    except BaseException:
        _drop(queued)
        raise
    return queued


def _by_graphs(card: Card, plan: Plan, parts: Parts) -> list[tuple[Graphs, Sequence[int]]]:
    """Return which parts run on which graphs, if sequences with and without segment ids differ."""
    groups: list[tuple[Graphs, Sequence[int]]] = []
    for index, part in parts.items():
        untyped = isinstance(part, Packed) and part.types is None
        if untyped and any(kind.name == "token_type_embeddings" for kind in plan.kinds):
            raise BadInput(
                "has no token_type_ids", field=("inputs", index), allowed=f"{card.name} then adds no segment rows"
            )
        groups.append((plan.plain if untyped else plan.typed, (index,)))
    return groups


def _drop(queued: Queued) -> None:
    for _, future in queued:
        future.cancel()


# ---- the works of a batch on one graph


def run_of(engine: Engine, card: Card, name: str, max_tokens: int, heads: Engine | None = None) -> Run:
    """Return what runs the works of a batch on one graph.

    Args:
        heads: runs the heads of hidden states; None: `engine` does.
    """
    graph = card.graphs[name]
    if graph.layout == "image":
        return _in_groups(partial(_run_images, engine, name), partial(_by_key, _image_form))
    run: Run = partial(_run_packed, engine, card, name)
    if card.row_graphs:  # graphs for one row and for all rows, each with bits of its own
        run = _in_groups(run, partial(_by_key, lambda index, work: ONE_ROW in work.outputs))
    if not graph.attends:
        return run
    most = 0 if graph.one_by_one else min(max_tokens, EXACT_TOKENS) if engine.device == "cpu" else max_tokens
    run = with_sparse(run, heads or engine, card)
    return _in_groups(run, lambda works: rectangles([work.packed.tokens for work in works], most))


def _in_groups(run: Run, groups_of: Callable[[list[Work[Any]]], list[list[int]]]) -> Run:
    """Return a function that runs a batch in groups of works, which `groups_of` returns as their indices."""

    def run_groups(works: list[Work[Any]]) -> list[Rows]:
        groups = [[0]] if len(works) == 1 else groups_of(works)
        if len(groups) == 1:
            return run(works)
        rows: list[Rows] = [{} for _ in works]
        for group in groups:
            for index, each in zip(group, run([works[index] for index in group]), strict=True):
                rows[index] = each
        return rows

    return run_groups


def _by_key(key: Callable[[int, Work[Any]], Hashable], works: list[Work[Any]]) -> list[list[int]]:
    """Return groups of works with equal keys."""
    groups: dict[Hashable, list[int]] = {}
    for index, work in enumerate(works):
        groups.setdefault(key(index, work), []).append(index)
    return list(groups.values())


def _run_packed(engine: Engine, card: Card, name: str, works: list[Work[Packed]]) -> list[Rows]:
    """Run the works of a batch as one run of a graph."""
    graph, single = card.graphs[name], len(works) == 1
    packed = works[0].packed if single else join([work.packed for work in works])
    outputs = works[0].outputs if single else tuple(dict.fromkeys(each for work in works for each in work.outputs))
    if graph.layout == "padded":
        arrays = engine.run(name, rectangle(packed, graph.inputs, card.pad_id or 0), outputs)
        wide = [array.astype(np.float32, copy=False) for array in arrays]  # an adopted graph may give float16
        arrays = [array if array.ndim == 2 else unpad(array, packed.lengths) for array in wide]
    else:
        arrays = engine.run(name, feeds(packed, graph.inputs), outputs)
    return [dict(zip(outputs, arrays, strict=True))] if single else _rows_of_each(works, outputs, arrays)


def _rows_of_each(works: list[Work[Packed]], outputs: tuple[str, ...], arrays: list[NDArray[Any]]) -> list[Rows]:
    tokens = [work.packed.tokens for work in works]
    texts = [len(work.packed.lengths) for work in works]
    parts = [
        split(array, texts if name in (*ROW_OF_EACH, ONE_ROW) else tokens)
        for name, array in zip(outputs, arrays, strict=True)
    ]
    return [dict(zip(outputs, each, strict=True)) for each in zip(*parts, strict=True)]


def _image_form(index: int, work: Work[Pixels]) -> Hashable:
    """Return what images of one run share: their size and outputs; others run alone."""
    name, array = next(iter(work.packed.feeds.items()))
    return index if _runs_alone(work) else (name, array.shape, work.outputs)


def _runs_alone(work: Work[Pixels]) -> bool:
    """Return whether its patches come flattened, or its rows leave the graph joined: the graph has no batch then."""
    return "pixel_values" in work.packed.feeds and work.packed.feeds["pixel_values"].ndim != 3


def _run_images(engine: Engine, graph: str, works: list[Work[Pixels]]) -> list[Rows]:
    """Run images of one form together."""
    feeds, outputs = works[0].packed.feeds, works[0].outputs
    if _runs_alone(works[0]):
        return [dict(zip(outputs, engine.run(graph, feeds, outputs), strict=True))]
    stacked = {name: np.stack([work.packed.feeds[name] for work in works]) for name in feeds}
    arrays = engine.run(graph, stacked, outputs)
    return [dict(zip(outputs, each, strict=True)) for each in zip(*arrays, strict=True)]
