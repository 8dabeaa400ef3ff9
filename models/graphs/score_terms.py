"""Emits what depends on the distance of query and key alone: windows and biases of scores, one matrix for all layers.

The matrix of a batch has a row for each of the first LONG places and twice as many columns as its longest sequence has
tokens: [i, longest + j] belongs to query i and key j, for j from -longest on. So every rectangle of scores, of a short
sequence or of a block of a long one, has its terms in a rectangle of the matrix.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.graphs.builder import GraphBuilder
from models.graphs.row_steps import emit_row_step
from models.recipes.score_terms import LONG, relative_rows, score_bias_buckets
from models.recipes.steps import Attention, Disentangled, DistanceBias, Linear, ScoreBias


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of the scores of one or several attention steps.

    Attributes:
        longest: int64 scalar, the length of the batch's longest sequence; empty where there are no terms, or where
            their matrices are those of a rectangle.
        added: float32 [1 or heads, rows, 2 * longest], what is added to scores, -inf where a row is not seen; None:
            nothing.
        relative: int64 [rows, 2 * longest], rows of a Disentangled's table; None: there is none.
    """

    longest: str
    added: str | None
    relative: str | None

    def slice(self, builder: GraphBuilder, value: str, rows: tuple[str, str], columns: tuple[str, str]) -> str:
        """Emit the rectangle of a matrix above for queries start to end and keys first to last, int64 [1] each."""
        (start, end), (first, last) = rows, columns
        shift = builder.op("Sub", builder.op("Reshape", self.longest, builder.ints(1)), start)
        begins = builder.op("Concat", builder.ints(0), builder.op("Add", first, shift), axis=0)
        ends = builder.op("Concat", builder.op("Sub", end, start), builder.op("Add", last, shift), axis=0)
        return builder.op("Slice", value, begins, ends, builder.ints(-2, -1))


def terms_of(builder: GraphBuilder, step: Attention, slots: str = "") -> Terms:
    """Emit the terms of an attention step; with `slots` those of a rectangle, [.., slots, slots]."""
    if step.bias is None and step.left is None and step.right is None:
        return Terms("", None, None)
    longest = "" if slots else builder.op("ReduceMax", "lengths", keepdims=0)
    one, zero = builder.scalar(1, np.int64), builder.scalar(0, np.int64)
    count = slots or builder.op("Min", longest, builder.scalar(LONG, np.int64))
    rows = builder.op("Range", zero, count, one)
    columns = rows if slots else builder.op("Range", builder.op("Neg", longest), longest, one)
    distances = builder.op("Sub", columns, builder.op("Unsqueeze", rows, builder.ints(1)))
    seen = _seen(builder, step, distances)
    bias = relative = None
    match step.bias:
        case ScoreBias():
            bias = _score_bias(builder, step.bias, distances)
        case DistanceBias(slopes):
            column = builder.constant(-np.array(slopes, np.float32)[:, None, None])
            bias = builder.op("Mul", column, builder.cast(builder.op("Abs", distances), "FLOAT"))
        case Disentangled(reach=reach):
            strip = relative_rows(step.bias, np.arange(reach, -reach - 1, -1))  # by key less query
            relative = _strip(builder, strip, reach, distances)
    if seen is None:
        added = bias
    elif bias is None:
        hidden = builder.op("Where", seen, builder.scalar(0.0), builder.scalar(-np.inf))
        added = builder.op("Unsqueeze", hidden, builder.ints(0))
    else:
        added = builder.op("Where", seen, bias, builder.scalar(-np.inf))
    return Terms(longest, added, relative)


def _seen(builder: GraphBuilder, step: Attention, distances: str) -> str | None:
    """Emit whether a key at each distance is seen; None: every one is."""
    bounds = []
    if step.left is not None:
        bounds.append(builder.op("GreaterOrEqual", distances, builder.scalar(-step.left, np.int64)))
    if step.right is not None:
        bounds.append(builder.op("LessOrEqual", distances, builder.scalar(step.right, np.int64)))
    return builder.op("And", *bounds) if len(bounds) == 2 else bounds[0] if bounds else None


def _score_bias(builder: GraphBuilder, bias: ScoreBias, distances: str) -> str:
    buckets = _strip(builder, score_bias_buckets(bias, np.arange(-bias.reach, bias.reach + 1)), bias.reach, distances)
    return builder.op("Transpose", builder.op("Gather", builder.weight(bias.table), buckets), perm=[2, 0, 1])


def _strip(builder: GraphBuilder, values: NDArray[np.int64], reach: int, distances: str) -> str:
    """Emit the value for each distance, of values for -reach to reach; distances beyond count as these."""
    bound = builder.scalar(reach, np.int64)
    near = builder.op("Clip", distances, builder.op("Neg", bound), bound)
    return builder.op("Gather", builder.constant(values), builder.op("Add", near, bound))


def relative_matrices(
    builder: GraphBuilder, bias: Disentangled, heads: int, project: Callable[[Linear, str], str]
) -> tuple[str | None, str | None]:
    """Emit the factors of queries and keys, float32 [2 span, heads, w] each; None for one that is left out.

    They do not depend on the input: ONNX Runtime computes them when the session opens. `project` emits what a Linear
    step gives.
    """
    relative = builder.weight(bias.relative)
    if bias.unprojected:
        relative = builder.op("Pad", relative, builder.ints(1, 0, 0, 0))  # no distance reads row 0
        relative = builder.op("Unsqueeze", relative, builder.ints(1))
        each = builder.op("Expand", relative, builder.ints(1, heads, 1))
        return each, each if bias.unprojected == "qk" else None
    relative = emit_row_step(builder, bias.norm, relative) if bias.norm else relative
    shape = builder.ints(2 * bias.span, heads, -1)
    by_query, by_key = (
        builder.op("Reshape", project(linear, relative), shape) if linear else None for linear in (bias.key, bias.query)
    )
    return by_query, by_key
