"""Which rows, columns and distances of a table a figure looks at, so that none asks for more than it has pixels."""

import numpy as np
from numpy.typing import NDArray

from models.positions.table import Output

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]

MAX_CELLS = 768  # rows or columns of a lone grid: more than it has pixels in a picture 800 wide
LEAST_CELLS = 256
MAX_ROW_VALUES = 2**25  # computed for one grid, where rows are wide
LEAST_ROWS = 48


def evenly(count: int, most: int) -> Int64s:
    """Up to `most` of 0 .. count-1, evenly spread, the first and the last among them."""
    if count <= most:
        return np.arange(count)
    return np.linspace(0, count - 1, most).round().astype(np.int64)


def scattered(count: int, most: int) -> Int64s:
    """Up to `most` of 0 .. count-1: one from each of `most` equal stretches, at a place that looks random and is not.

    A wave that is faster than the stretches then looks like noise; taken evenly it would look like a slower wave.
    """
    if count <= most:
        return np.arange(count)
    edges = np.linspace(0, count, most + 1).astype(np.int64)
    shift = np.random.default_rng(most).random(most)
    return edges[:-1] + (shift * np.diff(edges)).astype(np.int64)


def spaced(most: int, points: int, first: int = 1) -> Int64s:
    """`first` .. most: all of them where few, else about `points`, evenly spread on a logarithmic axis."""
    if most - first < points:
        return np.arange(first, most + 1)
    spread = np.geomspace(max(first, 1), most, points).round().astype(np.int64)
    return np.unique(np.concatenate([[first], spread]))


def cells(columns: int) -> int:
    """Rows or columns of a grid that has `columns` - 1 others beside it."""
    return max(LEAST_CELLS, MAX_CELLS // columns)


def row_limit(output: Output, most: int) -> int:
    """How many rows of this output one grid may ask for."""
    return max(LEAST_ROWS, min(most, MAX_ROW_VALUES // output.width))


def rows_at(output: Output, indices: Int64s) -> Float64s:
    """These rows, float64 [len(indices), width]; neighbours are asked for together."""
    if len(indices) == 0:
        return np.empty((0, output.width))
    breaks = np.flatnonzero(np.diff(indices) != 1) + 1
    starts, stops = np.concatenate([[0], breaks]), np.concatenate([breaks, [len(indices)]])
    blocks = [output.rows(int(indices[a]), int(indices[b - 1]) + 1) for a, b in zip(starts, stops, strict=True)]
    return np.asarray(np.concatenate(blocks), np.float64)


def grid_at(output: Output, indices: Int64s, columns: Int64s) -> Float64s:
    """The cells of these rows and columns, float64; holds one whole row at a time where rows are wide."""
    if len(columns) == output.width:
        return rows_at(output, indices)
    return np.stack([np.asarray(output.rows(int(row), int(row) + 1)[0, columns], np.float64) for row in indices])


def note(drawn: int, count: int, what: str) -> tuple[str, ...]:
    """What a reader must know of a thinned axis; nothing where all was drawn."""
    return () if drawn >= count else (f"{drawn:,} of {count:,} {what}",)
