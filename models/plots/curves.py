"""The numbers of curves: score over distance, similarity, error, buckets."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from models.errors import BadEncoding
from models.plots.sampling import Float64s, Int64s, rows_at, spaced
from models.plots.subject import Subject, Waves
from models.positions.table import Output, Positions

SIMILARITY_ROWS = 512  # up to this number of rows, every pair is compared
ANCHORS = 8
ERROR_ROWS = 480
ERROR_BINS = 96
DECAY_POINTS = 1500  # distances on a linear axis; more than that are drawn as means of bins
DECAY_SAMPLES = 9600
DECAY_BINS = 320
BLOCK_VALUES = 2**20  # values held at a time
NEAR_DISTANCES = 600  # up to this distance, every one is read


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """y over x with the extremes around it.

    Attributes:
        x: [n], ascending.
        y: [n].
        low: [n]; equal to y where points were not binned.
        high: [n], likewise.
    """

    x: NDArray[Any]
    y: Float64s
    low: Float64s
    high: Float64s


def score(waves: Waves, distances: Int64s) -> Float64s:
    """Return the mean attention score of two equal random unit vectors that stand `distances` positions apart.

    Returns:
        [n]: A^2 sum_i cos(m w_i) / (r/2).

    Source: the mean over the sphere of q^T R(m) q; Su et al. 2021, arXiv:2104.09864, section 3.4.3.
    """
    block = max(1, BLOCK_VALUES // len(waves.inverse_frequency))
    values = [
        np.cos(np.multiply.outer(distances[start : start + block].astype(np.float64), waves.inverse_frequency)).mean(1)
        for start in range(0, len(distances), block)
    ]
    return np.asarray(np.concatenate(values) * waves.attention_factor**2)


def decay(waves: Waves, max_distance: int, axis: Literal["linear", "log"]) -> Band:
    """Return `score` at distances 0 (log: 1) .. max_distance; more than DECAY_POINTS are binned."""
    if max_distance <= DECAY_POINTS:
        distances = np.arange(1 if axis == "log" and max_distance else 0, max_distance + 1)
        values = score(waves, distances)
        return Band(distances, values, values, values)
    samples = max(2 * DECAY_BINS, min(DECAY_SAMPLES, 4 * BLOCK_VALUES // len(waves.inverse_frequency)))
    if axis == "log":
        distances = spaced(max_distance, samples)
        edges = np.geomspace(1, max_distance + 1, DECAY_BINS + 1)
    else:
        steps = np.random.default_rng(0).random(samples)  # uneven, or fast channels would alias to slow ones
        distances = np.unique(((np.arange(samples) + steps) * (max_distance / samples)).astype(np.int64))
        edges = np.linspace(0, max_distance + 1, DECAY_BINS + 1)
    return binned(distances, score(waves, distances), edges)


def binned(x: NDArray[Any], y: Float64s, edges: Float64s) -> Band:
    """Return mean and extremes of y in each non-empty bin of x; the x of a bin is the mean of its points.

    Args:
        x: [n], sorted.
        y: [n].
        edges: edges of the bins, ascending.
    """
    place = np.searchsorted(x, edges)
    starts = np.unique(place[:-1][np.diff(place) > 0])
    counts = np.diff(np.append(starts, len(x)))
    centre, mean = (np.add.reduceat(np.asarray(each, np.float64), starts) / counts for each in (x, y))
    return Band(centre, mean, np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts))


def similarity(output: Output, axis: Literal["linear", "log"]) -> Band:
    """Return the cosine of the angle between rows by their distance: mean and extremes over pairs.

    With up to SIMILARITY_ROWS rows, every pair is compared; with more, ANCHORS rows with those at 120 distances.

    Raises:
        BadEncoding: fewer than two rows.
    """
    if output.count < 2:
        raise BadEncoding("similarity over distance needs two rows or more; the table has one")
    if output.count <= similarity_rows(output):
        first = 1 if axis == "log" else 0
        cosines = cosine_matrix(rows_at(output, np.arange(output.count)))
        diagonals = [np.diagonal(cosines, distance) for distance in range(first, len(cosines))]
        distances = np.arange(first, len(cosines))
        mean, low, high = (
            np.array([statistic(diagonal) for diagonal in diagonals]) for statistic in (np.mean, np.min, np.max)
        )
        return Band(distances, mean, low, high)
    max_distance = output.count // 2
    distances = (
        spaced(max_distance, 120) if axis == "log" else np.unique(np.linspace(0, max_distance, 120).astype(np.int64))
    )
    starts = np.linspace(0, output.count - 1 - max_distance, ANCHORS).astype(np.int64)
    anchors = _unit(rows_at(output, starts))
    values = np.stack(
        [_unit(rows_at(output, start + distances)) @ row for start, row in zip(starts, anchors, strict=True)]
    )
    return Band(distances, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def similarity_rows(output: Output) -> int:
    """Return up to how many rows every pair is compared: fewer where rows are very wide."""
    return max(64, min(SIMILARITY_ROWS, 8 * BLOCK_VALUES // output.width))


def cosine_matrix(rows: Float64s) -> Float64s:
    """Return the cosine of the angle between every two rows, float64 [n, n]; 0 for a row of zeros."""
    unit = _unit(rows)
    return np.asarray(unit @ unit.T)


def _unit(rows: Float64s) -> Float64s:
    length = np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.asarray(rows / np.where(length == 0, 1.0, length))


def error(subject: Subject) -> Band:
    """Return the largest difference between the table and its twin, over channels and outputs, by position.

    It reads up to ERROR_ROWS positions above 0, spaced logarithmically, and bins them.

    Raises:
        BadEncoding: the subject has no twin, or no position above 0.
    """
    if (twin := subject.twin) is None:
        raise BadEncoding(f"{subject.label}: the error figure compares exact with parity; the table has no twin")
    count = min(output.count for output in subject.table.outputs.values())
    positions, indices = _spread(subject.row_positions(count))
    if len(indices) == 0:
        raise BadEncoding(f"{subject.label}: the error figure needs positions above 0")
    worst = np.zeros(len(indices))
    for name, output in subject.table.outputs.items():
        block = max(1, BLOCK_VALUES // output.width)
        for start in range(0, len(indices), block):
            part = slice(start, start + block)
            differences = np.abs(rows_at(output, indices[part]) - rows_at(twin.outputs[name], indices[part]))
            worst[part] = np.maximum(worst[part], differences.max(axis=1))
    if len(positions) <= ERROR_BINS:
        return Band(positions, worst, worst, worst)
    return binned(positions, worst, np.geomspace(positions[0], positions[-1] + 1, ERROR_BINS + 1))


def _spread(positions: Positions) -> tuple[Int64s, Int64s]:
    """Return up to ERROR_ROWS positions above 0, ascending, spaced logarithmically, and the indices of their rows."""
    if isinstance(positions, range):
        ascending = positions if positions.step > 0 else positions[::-1]
        targets = spaced(ascending[-1], ERROR_ROWS, max(ascending[0], 1))
        index = np.unique(np.clip((targets - ascending.start) // ascending.step, 0, len(ascending) - 1))
        chosen = ascending.start + index * ascending.step
        rows = index if positions.step > 0 else len(positions) - 1 - index
    else:
        order = np.argsort(positions, kind="stable")
        targets = spaced(int(positions.max()), ERROR_ROWS, max(int(positions.min()), 1))
        index = np.unique(np.clip(np.searchsorted(positions[order], targets), 0, len(positions) - 1))
        rows, chosen = order[index], positions[order[index]]
    return chosen[chosen > 0], rows[chosen > 0]


def by_distance(output: Output, queries: Positions, lead: int = 0) -> tuple[Int64s, Float64s]:
    """Return the values of [..., S, K] by the distance of key and query, read from the first and the last query.

    Args:
        output: the array.
        queries: positions of the queries.
        lead: index of the [S, K] grid.

    Returns:
        key - query, ascending, and the values; up to NEAR_DISTANCES all, beyond that spaced logarithmically.
    """
    queries_count, keys = output.shape[-2:]
    value_at: dict[int, float] = {}
    for query in sorted({0, queries_count - 1}):
        row = lead * queries_count + query
        values = np.asarray(output.rows(row, row + 1)[0], np.float64)
        relative = _near_and_far(-int(queries[query]), keys - 1 - int(queries[query]))
        value_at |= dict(zip(relative.tolist(), values[relative + int(queries[query])].tolist(), strict=True))
    ascending = np.array(sorted(value_at))
    return ascending, np.array([value_at[distance] for distance in ascending.tolist()])


def _near_and_far(minimum: int, max_distance: int) -> Int64s:
    """Return every distance up to NEAR_DISTANCES, and beyond that about as many again on each side, logarithmically."""
    parts = [np.arange(max(minimum, -NEAR_DISTANCES), min(max_distance, NEAR_DISTANCES) + 1)]
    if minimum < -NEAR_DISTANCES:
        parts.append(-spaced(-minimum, NEAR_DISTANCES, max(NEAR_DISTANCES, -max_distance)))
    if max_distance > NEAR_DISTANCES:
        parts.append(spaced(max_distance, NEAR_DISTANCES, max(NEAR_DISTANCES, minimum)))
    return np.unique(np.concatenate(parts))
