"""Statistics of a table of vectors (lengths, duplicates, directions, singular values), and the cost of each step.

The table is read block by block, once for its rows and twice for its spectrum; no array is [V, V] or a second table.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from models.recipes import cost
from models.recipes.steps import Recipe, tensors
from models.tables.quantization import RowSource
from models.tables.row_blocks import Check, blocks, never_cancel

Floats = NDArray[np.float64]
BINS = 50
MAX_LISTED = 100  # how many ids, and groups of ids, are listed
ENERGIES = (0.5, 0.9, 0.99)
EFFECTIVE_RANK = (
    "exp(-sum p ln p) with p = singular values / their sum (Roy and Vetterli 2007, The effective rank, EUSIPCO); "
    "of the table itself, its mean not subtracted"
)
GRAM_VALUES = 2**23  # values of a block of rows that is multiplied with itself: 64 MB


@dataclass(frozen=True, slots=True)
class RowFacts:
    """Statistics of the rows of a table.

    Attributes:
        least: shortest length of a row.
        mean: mean length.
        most: longest length.
        deviation: standard deviation of the lengths.
        edges: edges of the histogram of lengths: bins of equal width from the shortest to the longest.
        counts: rows in each bin.
        zero_rows: number of rows of zeros.
        zero_ids: the first MAX_LISTED of them.
        duplicate_groups: number of groups of bitwise equal rows, without rows of zeros.
        duplicate_rows: number of rows in these groups.
        duplicate_ids: the first MAX_LISTED groups.
        mean_cosine: of two different nonzero rows: 0 where directions are spread evenly, 1 where all are the same; None
            with fewer than two.
        mean_length: length of the mean of all rows.
    """

    least: float
    mean: float
    most: float
    deviation: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    zero_rows: int
    zero_ids: tuple[int, ...]
    duplicate_groups: int
    duplicate_rows: int
    duplicate_ids: tuple[tuple[int, ...], ...]
    mean_cosine: float | None
    mean_length: float


@dataclass(frozen=True, slots=True)
class Spectrum:
    """Singular values of a table.

    Attributes:
        singular_values: the largest first.
        reliable_above: smaller singular values are rounding errors: they come from a Gram matrix, which squares them.
        effective_rank: see EFFECTIVE_RANK; 0 for a table of zeros.
        energy_ranks: fraction of the sum of squares -> how many singular values reach it.
    """

    singular_values: tuple[float, ...]
    reliable_above: float
    effective_rank: float
    energy_ranks: Mapping[float, int]


def row_facts(table: RowSource, check: Check = never_cancel) -> RowFacts:
    """Return lengths (in float64), rows of zeros, equal rows and mean direction of a finite table [V, d].

    Args:
        table: [V, d], finite.
        check: called between blocks; it raises to cancel.
    """
    count, width = table.shape
    lengths, places = np.empty(count), defaultdict[bytes, list[int]](list)  # of rows, by the digest of their values
    total, directions = np.zeros(width), np.zeros(width)
    for start, rows in blocks(table, np.float64, check):
        block_rows = slice(start, start + len(rows))
        lengths[block_rows] = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        for place, row in enumerate(rows, start):
            places[blake2b(row.data, digest_size=16).digest()].append(place)
        total += rows.sum(axis=0)
        directions += np.divide(1.0, lengths[block_rows], out=np.zeros(len(rows)), where=lengths[block_rows] > 0) @ rows
    zeros = np.flatnonzero(lengths == 0)
    groups = [group for group in places.values() if len(group) > 1 and lengths[group[0]] > 0]
    counts, edges = np.histogram(lengths, BINS)
    return RowFacts(
        least=float(lengths.min()),
        mean=float(lengths.mean()),
        most=float(lengths.max()),
        deviation=float(lengths.std()),
        edges=tuple(edges.tolist()),
        counts=tuple(counts.tolist()),
        zero_rows=len(zeros),
        zero_ids=tuple(zeros[:MAX_LISTED].tolist()),
        duplicate_groups=len(groups),
        duplicate_rows=sum(map(len, groups)),
        duplicate_ids=tuple(tuple(group[:MAX_LISTED]) for group in groups[:MAX_LISTED]),
        mean_cosine=_mean_cosine(directions, count - len(zeros)),
        mean_length=float(np.linalg.norm(total / count)),
    )


def _mean_cosine(directions: Floats, count: int) -> float | None:
    """Return the mean cosine of pairs of rows from the sum of their directions; None: there is no pair."""
    return float((directions @ directions - count) / (count * (count - 1))) if count > 1 else None


def spectrum(table: RowSource, check: Check = never_cancel) -> Spectrum:
    """Return the singular values of a finite table [V, d], min(V, d) of them.

    They are the square roots of the eigenvalues of table.T @ table, summed over blocks of rows in float64, so those
    below about 1e-8 of the largest are lost to rounding.
    """
    count, width = table.shape
    gram, part = np.zeros((width, width)), np.empty((width, width))
    peak = _largest_magnitude(table, check)
    for _, rows in blocks(table, np.float64, check, values=max(GRAM_VALUES, width)):
        rows = rows / peak  # so that no square overflows
        gram += np.matmul(rows.T, rows, out=part)
    check()
    squares = np.linalg.eigvalsh(gram)[::-1][: min(count, width)].clip(min=0.0)
    values: Floats = np.sqrt(squares) * peak
    return Spectrum(
        tuple(values.tolist()),
        float(values[0] * np.sqrt(width * np.finfo(np.float64).eps)),
        effective_rank(values),
        {share: _energy_rank(squares, share) for share in ENERGIES},
    )


def effective_rank(singular_values: Floats) -> float:
    """Return exp of the entropy of the normalised singular values: from 1 to their number; 0 if all are 0."""
    total = singular_values.sum()
    if total == 0:
        return 0.0
    shares = singular_values[singular_values > 0] / total
    return float(np.exp(-(shares * np.log(shares)).sum()))


def _energy_rank(squares: Floats, share: float) -> int:
    if squares[0] == 0:
        return 0
    summed = np.cumsum(squares)
    return int(np.searchsorted(summed, share * summed[-1]) + 1)


def _largest_magnitude(table: RowSource, check: Check) -> float:
    """Return the largest absolute value of the table; 1 where all are 0."""
    most = 0.0
    for _, rows in blocks(table, np.float32, check):
        most = max(most, float(rows.max(initial=0.0)), -float(rows.min(initial=0.0)))
    return most or 1.0


@dataclass(frozen=True, slots=True)
class Component:
    """The cost of one step of a recipe.

    Attributes:
        step: name of the step.
        tensors: names of the tensors that it reads.
        parameters: number of values in those that no earlier step reads.
        bytes: size on disk.
        flops_per_token: operations per token; a multiply and an add count as two.
    """

    step: str
    tensors: tuple[str, ...]
    parameters: int
    bytes: int
    flops_per_token: int


def components(
    recipe: Recipe, shapes: Mapping[str, tuple[int, ...]], sizes: Mapping[str, int], width: int
) -> tuple[Component, ...]:
    """Return the cost of every step of a recipe; a tensor that is read twice counts at its first use.

    Args:
        recipe: the steps.
        shapes: shape of every tensor of the recipe.
        sizes: bytes on disk of every tensor.
        width: width of the rows that the first step returns.
    """
    parts: list[Component] = []
    seen: set[str] = set()
    for place, step in enumerate(recipe):
        names = tensors((step,))
        new = [name for name in names if name not in seen]
        seen.update(names)
        up_to, before = (cost.flops_per_token(recipe[:end], shapes, width) for end in (place + 1, place))
        parameters = sum(int(np.prod(shapes[name])) for name in new)
        size = sum(sizes[name] for name in new)
        parts.append(Component(type(step).__name__, names, parameters, size, up_to - before))
    return tuple(parts)
