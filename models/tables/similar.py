"""The rows of a table nearest to a vector, and the vector of an analogy.

Every row is scored in float32 with a bound on the rounding error; rows that may be among the nearest are scored again
in float64, so the result is that of float64 throughout. Memory is one float per row.
"""

from collections.abc import Collection, Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from models.errors import BadQuery
from models.tables.quantization import RowSource
from models.tables.row_blocks import Check, blocks, floats, never_cancel

Measure = Literal["cosine", "dot", "euclidean"]
MEASURES: tuple[str, ...] = get_args(Measure)
Vector = NDArray[np.float64]
_UNIT = 2.0**-24  # relative rounding error of float32
_TINY = 2.0**-126  # absolute error below its normal numbers
GATHERED_VALUES = 2**20  # values of candidates held in float64 at a time


def row_norms(table: RowSource, check: Check = never_cancel) -> NDArray[np.float32]:
    """Return the Euclidean length of every row, [V], summed in float64."""
    norms = np.empty(table.shape[0], np.float32)
    for start, rows in blocks(table, np.float64, check):
        norms[start : start + len(rows)] = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return norms


def combined(
    table: RowSource, positive: Sequence[Vector], negative: Sequence[Vector] = (), *, normalise: bool = False
) -> Vector:
    """Return sum(positive) - sum(negative): a - b + c is combined(positive=[a, c], negative=[b]).

    Args:
        table: [V, d]; only its width is read.
        positive: vectors [d].
        negative: vectors [d].
        normalise: whether each vector is first scaled to unit length, as in 3CosAdd (Levy and Goldberg 2014, CoNLL).

    Raises:
        BadQuery: a vector of another width, an infinite one, or one of length 0 that is to be normalised.
    """
    total = np.zeros(table.shape[1])
    for sign, vectors in ((1.0, positive), (-1.0, negative)):
        for vector in vectors:
            _check_vector(vector, table.shape[1])
            length = _length(vector) if normalise else 1.0
            if length == 0:
                raise BadQuery('a vector of length 0 has no direction: leave it out or send "normalize": false')
            total += sign * vector / length
    return total


def nearest(
    table: RowSource,
    norms: NDArray[np.float32],
    query: Vector,
    *,
    measure: str = "cosine",
    top_k: int = 10,
    exclude: Collection[int] = (),
    check: Check = never_cancel,
) -> list[tuple[int, float]]:
    """Return the best `top_k` rows as (row, score), best first; the lower row first where scores are equal.

    Args:
        table: [V, d] of float32, float16 or bfloat16, finite.
        norms: row_norms(table).
        query: [d].
        measure: cosine: in -1..1, 0 for a row of zeros. dot. euclidean: minus the distance.
        top_k: number of rows, 1 or more.
        exclude: rows to leave out.
        check: called between blocks; it raises to cancel.

    Raises:
        BadQuery: a query of another width, not finite or beyond float32, or a cosine with a vector of length 0.
    """
    _check_vector(query, table.shape[1])
    if measure not in MEASURES:
        raise BadQuery(f"measure is {measure!r}; it is one of {', '.join(MEASURES)}")
    length = _length(query)
    if measure == "cosine" and length == 0:
        raise BadQuery("the vector has length 0, so it has no cosine: send another, or another measure")
    low, high = _bounds(measure, _dots(table, query, length, check), norms, length, table.shape[1])
    excluded = np.fromiter(set(exclude), np.int64)
    low[excluded] = high[excluded] = -np.inf
    count = min(top_k, table.shape[0] - len(excluded))
    if count <= 0:
        return []
    least = np.partition(low, len(low) - count)[len(low) - count]
    candidates = np.flatnonzero(high >= least)
    scores = _exact(table, candidates, query, measure, check)
    order = np.lexsort((candidates, -scores))[:count]
    return [(int(candidates[place]), float(scores[place])) for place in order]


def _check_vector(vector: Vector, width: int) -> None:
    if vector.shape != (width,):
        raise BadQuery(f"the vector has shape {list(vector.shape)}; the table's rows have {width} values")
    if not (np.abs(vector) <= np.finfo(np.float32).max).all():
        raise BadQuery("the vector holds a value that is not a number or beyond float32")


def _length(vector: Vector) -> float:
    peak = float(np.abs(vector).max(initial=0.0))
    return peak * float(np.linalg.norm(vector / peak)) if peak else 0.0


def _dots(table: RowSource, query: Vector, length: float, check: Check) -> Vector:
    """Return every row times the query's direction, in float32."""
    direction = (query / (length or 1.0)).astype(np.float32)
    dots = np.empty(table.shape[0])
    for start, rows in blocks(table, np.float32, check):
        dots[start : start + len(rows)] = rows @ direction
    return dots


def _bounds(measure: str, dots: Vector, norms: NDArray[np.float32], length: float, width: int) -> tuple[Vector, Vector]:
    """Return lower and upper bounds of each row's score, given its float32 product with the direction.

    Source: |fl(x.y) - x.y| <= n u |x| |y| for any order of summation (Higham 2002, Accuracy and Stability, 3.1); eight
        more roundings for the direction's own, the norm's and the ones below.
    """
    sizes = norms.astype(np.float64)
    error = (width + 8) * (_UNIT * sizes + _TINY)
    if measure == "dot":
        return (dots - error) * length, (dots + error) * length
    if measure == "cosine":
        with np.errstate(divide="ignore", invalid="ignore"):
            low, high = (dots - error) / sizes, (dots + error) / sizes
        return np.where(sizes == 0, 0.0, low), np.where(sizes == 0, 0.0, high)
    squares = -(sizes**2) + 2 * length * dots - length**2
    slack = 2 * length * error + 8 * _UNIT * (sizes**2 + length**2)
    return squares - slack, squares + slack


def _exact(table: RowSource, candidates: NDArray[np.int64], query: Vector, measure: str, check: Check) -> Vector:
    """Return the scores of some rows in float64.

    einsum, not a BLAS product, gives equal rows equal scores at any index.
    """
    scores = np.empty(len(candidates))
    step = max(1, GATHERED_VALUES // table.shape[1])
    for start in range(0, len(candidates), step):
        check()
        rows = floats(table[candidates[start : start + step]], np.float64)
        scores[start : start + step] = _scores(rows, query, measure)
    return scores


def _scores(rows: NDArray[np.float64], query: Vector, measure: str) -> Vector:
    if measure == "euclidean":
        difference = rows - query
        return np.asarray(0.0 - np.sqrt(np.einsum("ij,ij->i", difference, difference)))  # never -0.0
    dots: Vector = np.einsum("ij,j->i", rows, query)
    if measure == "dot":
        return dots
    sizes = np.sqrt(np.einsum("ij,ij->i", rows, rows)) * _length(query)
    return np.asarray(np.clip(np.divide(dots, sizes, out=np.zeros_like(dots), where=sizes > 0), -1.0, 1.0))
