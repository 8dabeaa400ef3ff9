"""Sinusoidal positions as ONNX, in either arithmetic, in the layouts of models/positions/sinusoidal.py.

- sinusoid: positions int64 [tokens] -> table float32 [tokens, dim]
- sinusoid_grid: cells int64 [tokens, 2], row and column -> table float32 [tokens, dim]
"""

from typing import Any

import numpy as np

from models.graphs.builder import GraphBuilder
from models.graphs.positions import rope
from models.positions.arithmetic import Arithmetic
from models.positions.sinusoidal import (
    GRID_AXIS,
    THETA,
    Sinusoid,
    checked_axis,
    checked_kind,
    columns,
    frequencies,
    powers,
)


def sinusoid(
    kind: str,
    dim: int,
    *,
    arithmetic: Arithmetic = "exact",
    theta: float = THETA,
    offset: int = 0,
    zero_row: int | None = None,
) -> Any:
    """Return the rows of any positions as a ModelProto; the parameters are those of sinusoidal.tabulate.

    In parity, the graph keeps the float32 frequencies bit for bit.

    Raises:
        BadEncoding: a parameter is unknown or out of range.
    """
    row = checked_kind(kind, dim, theta)
    builder = GraphBuilder({})
    column = builder.op("Unsqueeze", "positions", builder.ints(-1))
    if offset:
        column = builder.op("Add", column, builder.scalar(offset, np.int64))
    table = _rows(builder, row, dim, float(theta), arithmetic, column)
    if zero_row is not None:
        table = _with_zero_row(builder, table, column, zero_row)
    return _model(builder, "sinusoid", {"positions": ("INT64", ("tokens",))}, table, dim)


def sinusoid_grid(dim: int, *, order: str = "hw", arithmetic: Arithmetic = "exact", theta: float = THETA) -> Any:
    """Return the rows of a grid's cells as a ModelProto; a cell with a negative row or column (CLS) is all zero.

    The parameters are those of sinusoidal.tabulate_grid.

    Raises:
        BadEncoding: a parameter is unknown or out of range.
    """
    axis_dim = checked_axis(dim, order, theta)
    builder = GraphBuilder({})
    halves = []
    for axis in ("hw".index(name) for name in order):
        column = builder.op("Gather", "cells", builder.ints(axis), axis=1)  # [tokens, 1]
        halves.append(_rows(builder, GRID_AXIS, axis_dim, float(theta), arithmetic, column))
    table = builder.op("Concat", *halves, axis=-1)
    lowest = builder.op("ReduceMin", "cells", builder.ints(-1), keepdims=1)
    outside = builder.op("Less", lowest, builder.scalar(0, np.int64))
    table = builder.op("Where", outside, builder.scalar(0.0), table)
    return _model(builder, "sinusoid_grid", {"cells": ("INT64", ("tokens", 2))}, table, dim)


def rows(builder: GraphBuilder, kind: str, dim: int, positions: str, zero_row: int | None = None) -> str:
    """Add nodes for float32 [tokens, dim] of int64 positions [tokens], exact; zero_row as in `sinusoid`."""
    column = builder.op("Unsqueeze", positions, builder.ints(-1))
    table = _rows(builder, checked_kind(kind, dim, THETA), dim, THETA, "exact", column)
    return table if zero_row is None else _with_zero_row(builder, table, column, zero_row)


def _with_zero_row(builder: GraphBuilder, table: str, column: str, zero_row: int) -> str:
    empty = builder.op("Equal", column, builder.scalar(zero_row, np.int64))
    return builder.op("Where", empty, builder.scalar(0.0), table)


def _model(builder: GraphBuilder, name: str, inputs: Any, table: str, dim: int) -> Any:
    return builder.model(name, inputs, {"table": (table, "FLOAT", ("tokens", dim))})


def _rows(builder: GraphBuilder, row: Sinusoid, dim: int, theta: float, arithmetic: Arithmetic, column: str) -> str:
    """Emit float32 [tokens, dim] of int64 positions [tokens, 1]."""
    if arithmetic == "parity" and row.steps in ("float64_quotient", "float64_product"):
        sine, cosine = _double_waves(builder, row, dim, theta, column)
    else:
        cosine, sine = rope.cos_sin(builder, frequencies(row, dim, theta, arithmetic), column)
    return _arranged(builder, row, dim, sine, cosine)


def _double_waves(builder: GraphBuilder, row: Sinusoid, dim: int, theta: float, column: str) -> tuple[str, str]:
    divisors, position = powers(row, dim, theta), builder.cast(column, "DOUBLE")
    if row.steps == "float64_quotient":
        angle = builder.op("Div", position, builder.constant(divisors))
    else:
        angle = builder.op("Mul", position, builder.constant(1.0 / divisors))
    sine, cosine = (builder.cast(builder.op(function, angle), "FLOAT") for function in ("Sin", "Cos"))
    return sine, cosine


def _arranged(builder: GraphBuilder, row: Sinusoid, dim: int, sine: str, cosine: str) -> str:
    """Emit sines, cosines and, where needed, a zero, in the order of the row's columns."""
    place = columns(row, dim)
    joined, width = builder.op("Concat", sine, cosine, axis=-1), 2 * place.sines
    order = np.full(dim, width)  # the zero column, behind sines and cosines
    order[place.sin] = np.arange(place.sines)
    order[place.cos] = place.sines + np.arange(place.cosines)
    if width in order:
        joined, width = builder.op("Pad", joined, builder.ints(0, 0, 0, 1)), width + 1
    if np.array_equal(order, np.arange(width)):
        return joined
    return builder.op("Gather", joined, builder.constant(order), axis=1)
