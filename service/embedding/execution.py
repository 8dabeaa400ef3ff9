"""Runs the parts of a job on the graphs of its model, and makes of their arrays what its kinds of output keep."""

import asyncio
from collections.abc import Hashable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from models.artifacts.card import Card
from models.recipes.graph_names import ONE_ROW
from service.embedding.model import Model
from service.embedding.outputs.kind import Graphs, Job, Plan, check_finite
from service.embedding.requests import Output
from service.embedding.tokenize.packing import Packed, Pixels, Rows, Work
from service.errors import BadInput
from service.request_context import RequestContext
from service.scheduling.batcher import SharedRun
from service.scheduling.fair_queue import ItemTimes

Parts = Mapping[int, Packed] | Mapping[int, Pixels]
Queued = list[tuple[int, "asyncio.Future[Rows]"]]  # the number of a part, and its rows of one graph


async def run(model: Model, job: Job, parts: Parts, context: RequestContext, admitted: bool = False) -> ItemTimes:
    """Fill `job.rows` for every part; return the times that the parts waited and ran.

    Args:
        parts: by the number of the input, or one of number 0 for all inputs of a plan that is whole.
        admitted: the queues have room for them already.

    Raises:
        InlayError: a queue has no room, or a run failed; what is still queued is dropped.
    """
    plan, times = job.plan, ItemTimes(context.caller)
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
    """Add what is kept of the rows of every part to the job; if one fails or the caller leaves, drop the queued ones.

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
            if plan.slow and any([kind.reduces_slowly(job, index, rows) for kind in plan.slow]):
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
    """Return what the kinds of a plan keep of the rows of one input, which are checked.

    Hidden states that nothing else needs are so not kept until the rows of all inputs have come.

    Raises:
        EngineFailure: a value is not finite.
    """
    check_finite(model, rows, index)
    if ONE_ROW in rows:  # pooled by the graph
        return {kind.name: rows[ONE_ROW] for kind in job.plan.kinds}
    kept: Rows = {}
    for kind in job.plan.kinds:
        if kind.source in rows:
            kept |= kind.reduce(job, index, rows)
    return kept


async def finish(job: Job) -> tuple[Output, ...]:
    """Return the outputs of a job in the order of its plan."""
    outputs: list[Output] = []
    for kind in job.plan.kinds:
        slow = kind.finishes_in_thread and kind.finishes_slowly(job)
        outputs.append(await asyncio.to_thread(kind.finish, job) if slow else kind.finish(job))
    return tuple(outputs)


def _schedule(
    model: Model, plan: Plan, parts: Parts, times: ItemTimes, context: RequestContext, admitted: bool
) -> Queued:
    """Queue every part at each of its graphs; if one graph has no room, cancel those queued already."""
    queued: Queued = []
    try:
        optional = model.card.types == "optional"
        for graphs, indices in _by_graphs(model.card, plan, parts) if optional else [(plan.typed, list(parts))]:
            for graph, outputs in graphs.items():
                works, answered = _works(model, plan, graph, outputs, [parts[index] for index in indices], context)
                costs = [work.packed.tokens for work in works]
                futures = model.batchers[graph].submit(
                    works, costs, times, context.deadline, admitted, context.staggered
                )
                queued += [(index, futures[number]) for index, number in zip(indices, answered, strict=True)]
                times.joined += len(answered) - len(works)
    except BaseException:
        _drop(queued)
        raise
    return queued


def _by_graphs(card: Card, plan: Plan, parts: Parts) -> list[tuple[Graphs, Sequence[int]]]:
    """Return which parts run on which graphs, where sequences with and without segment ids differ."""
    groups: list[tuple[Graphs, Sequence[int]]] = []
    for index, part in parts.items():
        untyped = isinstance(part, Packed) and part.types is None
        if untyped and any(kind.name == "token_type_embeddings" for kind in plan.kinds):
            raise BadInput(
                "has no token_type_ids", field=("inputs", index), allowed=f"{card.name} then adds no segment rows"
            )
        groups.append((plan.plain if untyped else plan.typed, (index,)))
    return groups


def _works(
    model: Model,
    plan: Plan,
    graph: str,
    outputs: tuple[str, ...],
    parts: Sequence[Packed | Pixels],
    context: RequestContext,
) -> tuple[list[Work[Any]], Sequence[int]]:
    """Return the works of some parts on one graph, equal ones once, and the number of each part's work.

    A work shares its run with equal ones in flight, over whatever protocol they came. With API keys only works of the
    same key share one, so that no time tells a caller what another one sends.
    """
    works: list[Work[Any]] = []
    places: dict[Hashable, int] = {}
    answered: list[int] = []
    for part in parts:
        if plan.whole or not isinstance(part, Packed):  # rows of a table cost less than the comparison
            answered.append(len(works))
            works.append(Work(part, outputs))
            continue
        key = _key(context.key_name, graph, outputs, part)
        if key not in places:
            places[key] = len(works)
            works.append(Work(part, outputs, model.shared_runs.setdefault(key, SharedRun())))
        answered.append(places[key])
    return works, answered


def _key(key_name: str, graph: str, outputs: tuple[str, ...], part: Packed) -> Hashable:
    """Return all that the rows of a sequence follow from, its arrays as a hash, and the API key of its caller."""
    ids, positions, types, mask, _, extras = part
    arrays = (ids, positions, types, mask, *(extras.values() if extras else ()))
    digest = sha256(b"".join([values.tobytes() for values in arrays if values is not None])).digest()
    return key_name, graph, outputs, types is None, mask is None, *(extras or ()), digest


def _drop(queued: Queued) -> None:
    for _, future in queued:
        future.cancel()
