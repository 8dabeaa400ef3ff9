"""Emits a mixture of experts, each over only the rows that chose it, so that a row costs only its own experts.

Rows are sorted by expert, split, computed and joined; then each row takes its results and adds them, the expert of the
highest score first. An expert that any row chose gets one row more: a product of a single row by a matrix that is not
packed has a kernel of its own, with other bits (ONNX Runtime 1.31).
"""

from collections.abc import Callable

import numpy as np

from models.graphs.builder import GraphBuilder
from models.graphs.row_steps import emit_row_step
from models.recipes.steps import Experts, FeedForward

_HIDDEN = -1e30  # in place of a score that does not count
Compute = Callable[[FeedForward, str], str]


def mixture(builder: GraphBuilder, step: Experts, rows: str, compute: Compute) -> str:
    """Return the results of the chosen experts for rows [N, d], weighted and added.

    Args:
        builder: builder of the graph.
        step: the mixture.
        rows: input of the router and the experts.
        compute: emits what an expert gives for rows.
    """
    scores = emit_row_step(builder, step.router, rows)  # [N, experts]
    count = builder.ints(step.chosen)
    highest = builder.op("TopK", scores, count, outputs=2)  # [N, chosen], the highest first
    best = f"{highest}.1"
    shares = _shares(builder, step, scores, highest, best)
    order, sizes = _order(builder, step, best)
    pair_rows = builder.op("Div", order, builder.scalar(step.chosen, np.int64))
    last = builder.op("Sub", builder.op("Shape", rows, start=0, end=1), builder.ints(1))
    sorted_rows = builder.op("Gather", rows, builder.op("Min", pair_rows, last))
    pieces = builder.op("Split", sorted_rows, sizes, outputs=len(step.experts) + 1, axis=0)
    results = [
        compute(expert, f"{pieces}.{number}" if number else pieces) for number, expert in enumerate(step.experts)
    ]
    joined = builder.op("Concat", *results, axis=0)
    total = ""
    for place, index in enumerate(_places(builder, step, order, best)):
        share = builder.op("Gather", shares, builder.ints(place), axis=1)  # [N, 1]
        part = builder.op("Mul", builder.op("Gather", joined, index), share)
        total = builder.op("Add", total, part) if total else part
    return builder.op("Add", total, builder.weight(step.bias)) if step.bias else total


def gated(builder: GraphBuilder, step: Experts, rows: str, shared: str) -> str:
    """Return the result of the shared expert, times the sigmoid of its gate.

    The sigmoid is the softmax over the gate and 0, which depends on the row alone: ONNX Runtime computes the last
    values of an elementwise Sigmoid, which fill no register, by another formula (1.31).
    """
    if step.shared_gate is None:
        return shared
    gate = emit_row_step(builder, step.shared_gate, rows)  # [N, 1]
    both = builder.op("Concat", gate, builder.op("Sub", gate, gate), axis=1)
    factor = builder.op("Gather", builder.op("Softmax", both, axis=1), builder.ints(0), axis=1)
    return builder.op("Mul", shared, factor)


def _shares(builder: GraphBuilder, step: Experts, scores: str, highest: str, best: str) -> str:
    """Emit the weights of each row's experts [N, chosen]."""
    if step.weights == "own":
        return builder.op("Softmax", highest, axis=1)
    if step.weights == "all":
        return builder.op("GatherElements", builder.op("Softmax", scores, axis=1), best, axis=1)
    columns = []
    for place in range(step.chosen):
        top, chosen = (builder.op("Gather", values, builder.ints(place), axis=1) for values in (highest, best))
        scale = builder.op("Max", builder.op("Abs", scores), top)
        reach = builder.op("Mul", scale, builder.scalar(2 * step.jitter))
        near = builder.op("LessOrEqual", builder.op("Sub", top, scores), reach)
        counted = builder.op("Where", near, scores, builder.scalar(_HIDDEN))
        columns.append(builder.op("ReduceMax", builder.op("Softmax", counted, axis=1), builder.ints(1)))
        numbers = builder.constant(np.arange(len(step.experts)))
        scores = builder.op("Where", builder.op("Equal", chosen, numbers), builder.scalar(_HIDDEN), scores)
    return builder.op("Concat", *columns, axis=1)


def _order(builder: GraphBuilder, step: Experts, best: str) -> tuple[str, str]:
    """Emit the pairs of a row and an expert, sorted by expert, and how many there are of each expert.

    Pair p is of row p // chosen. Behind them lie as many more pairs as there are experts: one for each expert that any
    row chose, the others sorted behind all, as if of an expert of their own.
    """
    experts = len(step.experts)
    pairs = builder.op("Reshape", best, builder.ints(-1, 1))
    numbers = builder.constant(np.arange(experts))
    is_own = builder.cast(builder.op("Equal", pairs, numbers), "INT64")  # [pairs, experts]
    counts = builder.op("ReduceSum", is_own, builder.ints(0), keepdims=0)
    chosen = builder.op("Min", counts, builder.ints(1))
    unused = builder.ints(experts)
    more = builder.op("Where", builder.cast(chosen, "BOOL"), numbers, unused)
    keys = builder.op("Concat", builder.op("Squeeze", pairs, builder.ints(1)), more, axis=0)
    left = builder.op("Sub", unused, builder.op("ReduceSum", chosen))
    sizes = builder.op("Concat", builder.op("Add", counts, chosen), left, axis=0)
    return _argsort(builder, keys), sizes


def _places(builder: GraphBuilder, step: Experts, order: str, best: str) -> list[str]:
    """Emit the place of the result of each row's first, second, ... expert, [N] each."""
    shape, columns = builder.op("Shape", best), builder.ints(1)
    pairs = builder.op("Slice", _argsort(builder, order), builder.ints(0), builder.op("ReduceProd", shape))
    by_row = builder.op("Reshape", pairs, shape)
    places = (builder.op("Gather", by_row, builder.ints(place), axis=1) for place in range(step.chosen))
    return [builder.op("Squeeze", place, columns) for place in places]


def _argsort(builder: GraphBuilder, keys: str) -> str:
    """Emit the places of keys in ascending order; of equal ones the first comes first."""
    ordered = builder.op("TopK", keys, builder.op("Shape", keys), outputs=2, largest=0)
    return f"{ordered}.1"
