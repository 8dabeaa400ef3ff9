"""The numbers that curves are drawn from: score over distance, similarity, error, buckets. Draws nothing."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from models.errors import BadEncoding
from models.plots.sampling import (
    Float64s,
    Int64s,
    rows_at,
    spaced,
)
from models.plots.subject import Subject, Waves
from models.positions.table import Output, Positions

SIMILARITY_ROWS = 512  # up to here every pair of rows is compared
ANCHORS = 8
ERROR_ROWS = 480
ERROR_BINS = 96
DECAY_POINTS = 1500  # distances on a linear axis; more than that are drawn as means of bins
DECAY_SAMPLES = 9600
DECAY_BINS = 320
AT_ONCE = 2**20  # values held at a time
NEAR = 600  # distances of which every one is looked at


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """y over x with the extremes around it, all [n]; low and high are y itself where nothing was gathered."""

    x: NDArray[Any]
    y: Float64s
    low: Float64s
    high: Float64s


def score(waves: Waves, distances: Int64s) -> Float64s:
    """The mean attention score of two equal random vectors of length 1, their rotations `distances` positions apart.

    returns  [n]: A^2 sum_i cos(m w_i) / (r/2)
    source   the mean over the sphere of q^T R(m) q; Su et al. 2021, arXiv:2104.09864, section 3.4.3
    """
    block = max(1, AT_ONCE // len(waves.inverse_frequency))
    found = [
        np.cos(np.multiply.outer(distances[start : start + block].astype(np.float64), waves.inverse_frequency)).mean(1)
        for start in range(0, len(distances), block)
    ]
    return np.asarray(np.concatenate(found) * waves.attention_factor**2)


def decay(waves: Waves, most: int, axis: Literal["linear", "log"]) -> Band:
    """`score` at distances 0 (log: 1) .. most; where they are many, mean and extremes of bins."""
    if most <= DECAY_POINTS:
        distances = np.arange(1 if axis == "log" and most else 0, most + 1)
        found = score(waves, distances)
        return Band(distances, found, found, found)
    samples = max(2 * DECAY_BINS, min(DECAY_SAMPLES, 4 * AT_ONCE // len(waves.inverse_frequency)))
    if axis == "log":
        distances = spaced(most, samples)
        edges = np.geomspace(1, most + 1, DECAY_BINS + 1)
    else:
        steps = np.random.default_rng(0).random(samples)  # uneven, or fast channels would alias to slow ones
        distances = np.unique(((np.arange(samples) + steps) * (most / samples)).astype(np.int64))
        edges = np.linspace(0, most + 1, DECAY_BINS + 1)
    return binned(distances, score(waves, distances), edges)


def binned(x: NDArray[Any], y: Float64s, edges: Float64s) -> Band:
    """Mean and extremes of y in each bin of x that has any; x sorted, y [n]. The x of a bin is the mean of its own."""
    place = np.searchsorted(x, edges)
    starts = np.unique(place[:-1][np.diff(place) > 0])
    counts = np.diff(np.append(starts, len(x)))
    centre, mean = (np.add.reduceat(np.asarray(each, np.float64), starts) / counts for each in (x, y))
    return Band(centre, mean, np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts))


def similarity(output: Output, axis: Literal["linear", "log"]) -> Band:
    """Cosine of the angle between rows by how many rows lie between: mean and extremes over pairs.

    raises  BadEncoding for fewer than two rows

    Every pair of up to SIMILARITY_ROWS rows; of more, ANCHORS rows with others at logarithmically spaced distances.
    """
    if output.count < 2:
        raise BadEncoding("similarity over distance needs two rows or more; the table has one")
    if output.count <= similarity_rows(output):
        first = 1 if axis == "log" else 0
        cosines = cosine_matrix(rows_at(output, np.arange(output.count)))
        diagonals = [np.diagonal(cosines, distance) for distance in range(first, len(cosines))]
        distances = np.arange(first, len(cosines))
        mean, low, high = (np.array([take(each) for each in diagonals]) for take in (np.mean, np.min, np.max))
        return Band(distances, mean, low, high)
    most = output.count // 2
    distances = spaced(most, 120) if axis == "log" else np.unique(np.linspace(0, most, 120).astype(np.int64))
    starts = np.linspace(0, output.count - 1 - most, ANCHORS).astype(np.int64)
    anchors = _unit(rows_at(output, starts))
    found = np.stack(
        [_unit(rows_at(output, start + distances)) @ row for start, row in zip(starts, anchors, strict=True)]
    )
    return Band(distances, found.mean(axis=0), found.min(axis=0), found.max(axis=0))


def similarity_rows(output: Output) -> int:
    """How many rows are compared with each other at most: fewer where they are very wide."""
    return max(64, min(SIMILARITY_ROWS, 8 * AT_ONCE // output.width))


def cosine_matrix(rows: Float64s) -> Float64s:
    """Cosine of the angle between every two rows, float64 [n, n]; a row of zeros is at right angles to all."""
    unit = _unit(rows)
    return np.asarray(unit @ unit.T)


def _unit(rows: Float64s) -> Float64s:
    length = np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.asarray(rows / np.where(length == 0, 1.0, length))


def error(subject: Subject) -> Band:
    """The largest difference between the table and its twin, over channels and outputs, by position.

    Of up to ERROR_ROWS positions, spaced logarithmically; then mean and extremes of bins. Position 0 is left out.
    raises  BadEncoding without a twin, or with no position above 0
    """
    if (twin := subject.twin) is None:
        raise BadEncoding(
            f"{subject.label}: the error figure compares exact with parity; the table came without its twin"
        )
    count = min(output.count for output in subject.table.outputs.values())
    positions, indices = _spread(subject.row_positions(count))
    if len(indices) == 0:
        raise BadEncoding(f"{subject.label}: the error figure needs positions above 0")
    worst = np.zeros(len(indices))
    for name, output in subject.table.outputs.items():
        block = max(1, AT_ONCE // output.width)
        for start in range(0, len(indices), block):
            part = slice(start, start + block)
            apart = np.abs(rows_at(output, indices[part]) - rows_at(twin.outputs[name], indices[part]))
            worst[part] = np.maximum(worst[part], apart.max(axis=1))
    if len(positions) <= ERROR_BINS:
        return Band(positions, worst, worst, worst)
    return binned(positions, worst, np.geomspace(positions[0], positions[-1] + 1, ERROR_BINS + 1))


def _spread(positions: Positions) -> tuple[Int64s, Int64s]:
    """Up to ERROR_ROWS positions above 0, ascending and spaced logarithmically, and the rows they stand in."""
    if isinstance(positions, range):
        ascending = positions if positions.step > 0 else positions[::-1]
        wanted = spaced(ascending[-1], ERROR_ROWS, max(ascending[0], 1))
        index = np.unique(np.clip((wanted - ascending.start) // ascending.step, 0, len(ascending) - 1))
        found = ascending.start + index * ascending.step
        rows = index if positions.step > 0 else len(positions) - 1 - index
    else:
        order = np.argsort(positions, kind="stable")
        wanted = spaced(int(positions.max()), ERROR_ROWS, max(int(positions.min()), 1))
        index = np.unique(np.clip(np.searchsorted(positions[order], wanted), 0, len(positions) - 1))
        rows, found = order[index], positions[order[index]]
    return found[found > 0], rows[found > 0]


def by_distance(output: Output, queries: Positions, lead: int = 0) -> tuple[Int64s, Float64s]:
    """Values of [..., S, K] by how far key j stands from its query, read from the first and the last query alone.

    lead     which of the leading [S, K] grids
    returns  key - query, ascending, and the value there; near ones all, far ones spaced logarithmically
    """
    queries_count, keys = output.shape[-2:]
    found: dict[int, float] = {}
    for query in sorted({0, queries_count - 1}):
        row = lead * queries_count + query
        values = np.asarray(output.rows(row, row + 1)[0], np.float64)
        relative = _near_and_far(-int(queries[query]), keys - 1 - int(queries[query]))
        found |= dict(zip(relative.tolist(), values[relative + int(queries[query])].tolist(), strict=True))
    ascending = np.array(sorted(found))
    return ascending, np.array([found[each] for each in ascending.tolist()])


def _near_and_far(least: int, most: int) -> Int64s:
    """least .. most: up to NEAR from 0 all of them, beyond that about as many again on each side."""
    parts = [np.arange(max(least, -NEAR), min(most, NEAR) + 1)]
    if least < -NEAR:
        parts.append(-spaced(-least, NEAR, max(NEAR, -most)))
    if most > NEAR:
        parts.append(spaced(most, NEAR, max(NEAR, least)))
    return np.unique(np.concatenate(parts))
