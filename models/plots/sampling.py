"""Which rows, columns and distances of a table a figure reads, so that it computes no more than it has pixels."""

import numpy as np
from numpy.typing import NDArray

from models.positions.table import Output

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]

MAX_CELLS = 768  # rows or columns of a single grid: more than its pixels in a picture 800 wide
MIN_CELLS = 256
MAX_ROW_VALUES = 2**25  # computed for one grid, where rows are wide
MIN_ROWS = 48


def evenly(count: int, limit: int) -> Int64s:
    """Return up to `limit` of 0 .. count-1, evenly spaced, including the first and the last."""
    if count <= limit:
        return np.arange(count)
    return np.linspace(0, count - 1, limit).round().astype(np.int64)


def scattered(count: int, limit: int) -> Int64s:
    """Return up to `limit` of 0 .. count-1: one from each of `limit` equal intervals, at a pseudo-random place.

    A wave that is faster than the intervals then looks like noise; evenly spaced samples would alias it to a slower
    wave.
    """
    if count <= limit:
        return np.arange(count)
    edges = np.linspace(0, count, limit + 1).astype(np.int64)
    shift = np.random.default_rng(limit).random(limit)
    return edges[:-1] + (shift * np.diff(edges)).astype(np.int64)


def spaced(limit: int, points: int, first: int = 1) -> Int64s:
    """Return `first` .. limit: all if they are few, else about `points`, evenly spaced on a logarithmic axis."""
    if limit - first < points:
        return np.arange(first, limit + 1)
    spread = np.geomspace(max(first, 1), limit, points).round().astype(np.int64)
    return np.unique(np.concatenate([[first], spread]))


def cell_limit(columns: int) -> int:
    """Return the largest number of rows or columns of each of `columns` grids side by side."""
    return max(MIN_CELLS, MAX_CELLS // columns)


def row_limit(output: Output, limit: int) -> int:
    """Return how many rows of this output one grid may read."""
    return max(MIN_ROWS, min(limit, MAX_ROW_VALUES // output.width))


def rows_at(output: Output, indices: Int64s) -> Float64s:
    """Return these rows, float64 [len(indices), width]; consecutive rows are computed together."""
    if len(indices) == 0:
        return np.empty((0, output.width))
    breaks = np.flatnonzero(np.diff(indices) != 1) + 1
    starts, stops = np.concatenate([[0], breaks]), np.concatenate([breaks, [len(indices)]])
    blocks = [output.rows(int(indices[a]), int(indices[b - 1]) + 1) for a, b in zip(starts, stops, strict=True)]
    return np.asarray(np.concatenate(blocks), np.float64)


def grid_at(output: Output, indices: Int64s, columns: Int64s) -> Float64s:
    """Return the cells of these rows and columns, float64; it holds one whole row at a time where rows are wide."""
    if len(columns) == output.width:
        return rows_at(output, indices)
    return np.stack([np.asarray(output.rows(int(row), int(row) + 1)[0, columns], np.float64) for row in indices])


def sampling_note(drawn: int, count: int, what: str) -> tuple[str, ...]:
    """Return a note that only `drawn` of `count` were drawn; () where all were."""
    return () if drawn >= count else (f"{drawn:,} of {count:,} {what}",)
