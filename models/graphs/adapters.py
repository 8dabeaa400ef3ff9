"""Emits LoRA adapters: the term that each token's task adds to a matrix product or to a table's row.

The adapters of all tasks are in one product: x @ A.T of all tasks, times `scale` where the column is of the token's
task and times 0 elsewhere, @ B.T of all tasks. So tokens of different tasks, and of none, share a run, and a row has
the same bits in each. A token without a task gets 0 added.
"""

import numpy as np

from models.graphs.builder import GraphBuilder
from models.recipes.extra_inputs import TASKS
from models.recipes.steps import Adapter


def adapted(builder: GraphBuilder, adapter: Adapter, x: str, y: str) -> str:
    """Emit y and what the adapter of a matrix adds for rows x [N, inputs], [N, outputs].

    The product with A is emitted once for matrices that share it (the query, key and value of a fused matrix).
    """

    def low() -> str:
        every = builder.op("Gemm", x, builder.weight(adapter.lora_a), transB=1)
        return builder.op("Mul", every, _factors(builder, adapter))

    return _raised(builder, adapter, builder.shared((adapter.lora_a, x), low), y)


def adapted_rows(builder: GraphBuilder, adapter: Adapter, rows: str, index: str, count: int) -> str:
    """Emit the rows of a table and what its adapter adds to them.

    Args:
        builder: builder of the graph.
        adapter: adapter of the table.
        rows: [N, d] or [1, d].
        index: numbers of the rows.
        count: rows of the table.
    """
    task = builder.op("Max", TASKS, builder.scalar(0, np.int64))
    place = builder.op("Add", builder.op("Mul", task, builder.scalar(count, np.int64)), index)
    low = builder.op("Gather", builder.weight(adapter.lora_a), place)  # (N, rank)
    every = builder.op("Tile", low, builder.ints(1, adapter.tasks))  # (N, tasks * rank)
    return _raised(builder, adapter, builder.op("Mul", every, _factors(builder, adapter)), rows)


def _raised(builder: GraphBuilder, adapter: Adapter, low: str, y: str) -> str:
    return builder.op("Gemm", low, builder.weight(adapter.lora_b), y, transB=1)


def _factors(builder: GraphBuilder, adapter: Adapter) -> str:
    """Emit `scale` in the columns of each token's task and 0 in others, [N, tasks * rank]."""

    def factors() -> str:
        by_task = np.repeat(np.eye(adapter.tasks + 1, adapter.tasks, -1, np.float32), adapter.rank, axis=1)
        table = builder.constant(by_task * np.float32(adapter.scale))  # its first row is of no task
        return builder.op("Gather", table, builder.op("Add", TASKS, builder.scalar(1, np.int64)))

    return builder.shared((adapter.tasks, adapter.rank, adapter.scale), factors)
