"""The rows of a table nearest to a vector, and the vector of an analogy, in float64. Memory is one float per row."""

from collections.abc import Collection, Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from models.errors import BadQuery
from models.tables.quantization import RowSource
from models.tables.row_blocks import Check, blocks, never_cancel

Measure = Literal["cosine", "dot", "euclidean"]
MEASURES: tuple[str, ...] = get_args(Measure)
Vector = NDArray[np.float64]


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
    if measure == "cosine" and _length(query) == 0:
        raise BadQuery("the vector has length 0, so it has no cosine: send another, or another measure")
    scores = np.empty(table.shape[0])
    for start, rows in blocks(table, np.float64, check):
        scores[start : start + len(rows)] = _scores(rows, query, measure)
    kept = np.setdiff1d(np.arange(len(scores)), list(exclude))
    order = kept[np.lexsort((kept, -scores[kept]))][:top_k]
    return [(int(row), float(scores[row])) for row in order]


def _check_vector(vector: Vector, width: int) -> None:
    if vector.shape != (width,):
        raise BadQuery(f"the vector has shape {list(vector.shape)}; the table's rows have {width} values")
    if not (np.abs(vector) <= np.finfo(np.float32).max).all():
        raise BadQuery("the vector holds a value that is not a number or beyond float32")


def _length(vector: Vector) -> float:
    peak = float(np.abs(vector).max(initial=0.0))
    return peak * float(np.linalg.norm(vector / peak)) if peak else 0.0


def _scores(rows: NDArray[np.float64], query: Vector, measure: str) -> Vector:
    """Return the scores of rows; einsum, not a BLAS product, gives equal rows equal scores at any index."""
    if measure == "euclidean":
        difference = rows - query
        return np.asarray(0.0 - np.sqrt(np.einsum("ij,ij->i", difference, difference)))  # never -0.0
    dots: Vector = np.einsum("ij,j->i", rows, query)
    if measure == "dot":
        return dots
    sizes = np.sqrt(np.einsum("ij,ij->i", rows, rows)) * _length(query)
    return np.asarray(np.clip(np.divide(dots, sizes, out=np.zeros_like(dots), where=sizes > 0), -1.0, 1.0))
