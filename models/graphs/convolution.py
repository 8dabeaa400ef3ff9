"""Emits convolutions over packed rows, each within its own sequence."""

import numpy as np

from models.graphs.builder import GraphBuilder
from models.recipes.steps import Convolution


def sequence_numbers(builder: GraphBuilder, starts: str) -> str:
    """Emit the number of each row's sequence, int64 [N], by the first row of each."""
    zero, one = builder.constant(np.array([0])), builder.constant(np.array([1]))
    zeros = builder.op("Expand", zero, builder.op("Shape", "mask"))
    marks = builder.op("ScatterElements", zeros, starts, builder.op("Expand", one, builder.op("Shape", starts)))
    return builder.op("CumSum", marks, builder.scalar(0, np.int64))


def convolved(builder: GraphBuilder, step: Convolution, x: str, sequences: str) -> str:
    """Emit the convolution of rows x [N, d]; rows of other sequences count as 0."""
    moved = _moved(builder, step, x, sequences)
    bias = [builder.weight(step.bias)] if step.bias else []
    weight = builder.weight(step.weight)
    if not step.by_channel:
        flat = builder.op("Transpose", weight, perm=[0, 2, 1])  # as the rows lie side by side
        flat = builder.op("Reshape", flat, builder.constant(np.array([0, -1])))
        return builder.op("Gemm", builder.op("Concat", *moved, axis=1), flat, *bias, transB=1)
    total = ""
    for number, rows in enumerate(moved):
        column = builder.op("Gather", weight, builder.scalar(number, np.int64), axis=2)  # (d, 1)
        term = builder.op("Mul", rows, builder.op("Reshape", column, builder.constant(np.array([-1]))))
        total = builder.op("Add", total, term) if total else term
    return builder.op("Add", total, *bias) if bias else total


def _moved(builder: GraphBuilder, step: Convolution, x: str, sequences: str) -> list[str]:
    """Emit for each place of the kernel the row that it reads, 0 where that is of another sequence."""
    right, axis = step.size - 1 - step.left, builder.constant(np.array([0]))
    padded = builder.op("Pad", x, builder.constant(np.array([step.left, 0, right, 0])))
    marks = builder.op("Pad", sequences, builder.constant(np.array([step.left, right])), builder.scalar(-1, np.int64))
    count = builder.op("Shape", sequences)
    moved = []
    for number in range(step.size):
        start = builder.constant(np.array([number]))
        bounds = start, builder.op("Add", start, count), axis
        same = builder.op("Equal", builder.op("Slice", marks, *bounds), sequences)
        column = builder.op("Unsqueeze", same, builder.constant(np.array([1])))
        moved.append(builder.op("Where", column, builder.op("Slice", padded, *bounds), builder.scalar(0.0)))
    return moved
