"""What a table of vectors looks like: lengths, copies, directions, singular values; and what each step costs.

One pass over the table for its rows, one for its spectrum, a block at a time. Never [V, V], never a second table.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.artifacts.quantization import RowSource
from models.families import cost
from models.families.recipe import Recipe, tensors
from models.tables.row_blocks import BLOCK_VALUES, Check, blocks, floats, go_on

Floats = NDArray[np.float64]
BINS = 50
LIST_HINT = 100  # ids, and groups of them, that are named
ENERGIES = (0.5, 0.9, 0.99)
EFFECTIVE_RANK = (
    "exp(-sum p ln p) with p = singular values / their sum (Roy and Vetterli 2007, The effective rank, EUSIPCO); "
    "of the table as it is, no mean taken off"
)
_GRAM_VALUES = 2**23  # of a block of rows that is multiplied with itself: 64 MB
_SEED = 0x1A7


@dataclass(frozen=True, slots=True)
class RowFacts:
    """What one pass over the rows finds.

    - duplicates: groups of rows equal bit for bit, zeros aside: groups, rows in them, and the first groups.

    Attributes:
        edges, counts: the histogram of the rows' lengths, bins of one width from the shortest to the longest.
        zero_rows: rows of zeros alone: how many, and the first of them.
        mean_cosine: of two different rows with a length: 0 where directions are spread evenly, 1 where all are the
            same.
        mean_length: of the mean of all rows.
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
    """Singular values of a table, the largest first.

    Attributes:
        reliable_above: singular values below it are rounding: they come from a Gram matrix, which squares them.
        effective_rank: see EFFECTIVE_RANK; 0 for a table of zeros.
        energy_ranks: share of the squared sum -> how many singular values make it up.
    """

    singular_values: tuple[float, ...]
    reliable_above: float
    effective_rank: float
    energy_ranks: Mapping[float, int]


def row_facts(table: RowSource, *, bins: int = BINS, check: Check = go_on) -> RowFacts:
    """Lengths in float64, rows of zeros, equal rows and mean direction of a finite table [V, d]."""
    count, width = table.shape
    lengths, hashes = np.empty(count), np.empty(count, np.uint64)
    total, directions = np.zeros(width), np.zeros(width)
    factors = np.random.default_rng(_SEED).integers(0, 2**64, width, np.uint64) | np.uint64(1)
    for start, rows in blocks(table, np.float64, check):
        own = slice(start, start + len(rows))
        lengths[own] = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        hashes[own] = np.einsum("ij,j->i", rows.view(np.uint64), factors)
        total += rows.sum(axis=0)
        directions += np.divide(1.0, lengths[own], out=np.zeros(len(rows)), where=lengths[own] > 0) @ rows
    zeros = np.flatnonzero(lengths == 0)
    groups = _equal_rows(table, hashes, lengths, check)
    pointed = count - len(zeros)
    cosine = (directions @ directions - pointed) / (pointed * (pointed - 1)) if pointed > 1 else None
    counts, edges = np.histogram(lengths, bins)
    return RowFacts(
        least=float(lengths.min()),
        mean=float(lengths.mean()),
        most=float(lengths.max()),
        deviation=float(lengths.std()),
        edges=tuple(edges.tolist()),
        counts=tuple(counts.tolist()),
        zero_rows=len(zeros),
        zero_ids=tuple(zeros[:LIST_HINT].tolist()),
        duplicate_groups=len(groups),
        duplicate_rows=sum(map(len, groups)),
        duplicate_ids=tuple(tuple(group[:LIST_HINT].tolist()) for group in groups[:LIST_HINT]),
        mean_cosine=None if cosine is None else float(cosine),
        mean_length=float(np.linalg.norm(total / count)),
    )


def _equal_rows(table: RowSource, hashes: NDArray[np.uint64], lengths: Floats, check: Check) -> list[NDArray[np.int64]]:
    """Groups of equal rows with a length, by their first; equal hashes are looked at again."""
    kept = np.flatnonzero(lengths > 0)
    order = kept[np.argsort(hashes[kept], kind="stable")]
    bounds = np.flatnonzero(np.diff(hashes[order])) + 1
    groups: list[NDArray[np.int64]] = []
    for alike in np.split(order, bounds):
        while len(alike) > 1:
            check()
            same = _equal_to(table, alike)
            if same.sum() > 1:
                groups.append(alike[same])
            alike = alike[~same]
    return sorted(groups, key=lambda group: int(group[0]))


def _equal_to(table: RowSource, alike: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of some rows are the first of them."""
    first = floats(table[alike[:1]], np.float64).view(np.uint64)
    step = max(1, BLOCK_VALUES // table.shape[1])
    parts = [alike[start : start + step] for start in range(0, len(alike), step)]
    return np.concatenate([(floats(table[part], np.float64).view(np.uint64) == first).all(axis=1) for part in parts])


def spectrum(table: RowSource, check: Check = go_on) -> Spectrum:
    """Singular values of a finite table [V, d], min(V, d) of them.

    They are the roots of the eigenvalues of table.T @ table, summed over blocks of rows in float64: so those below
    about 1e-8 of the largest are lost to rounding.
    """
    count, width = table.shape
    gram, part = np.zeros((width, width)), np.empty((width, width))
    peak = _peak(table, check)
    for _, rows in blocks(table, np.float64, check, values=max(_GRAM_VALUES, width)):
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
    """exp of the entropy of the singular values taken as shares: from 1 to how many there are; 0 if all are 0."""
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


def _peak(table: RowSource, check: Check) -> float:
    """The largest value of the table, whatever its sign; 1 where all are 0."""
    most = 0.0
    for _, rows in blocks(table, np.float32, check):
        most = max(most, float(rows.max(initial=0.0)), -float(rows.min(initial=0.0)))
    return most or 1.0


@dataclass(frozen=True, slots=True)
class Component:
    """One step of a recipe: the tensors it reads, their size, operations a token (a multiply and an add are two)."""

    step: str
    tensors: tuple[str, ...]
    parameters: int
    bytes: int
    flops_per_token: int


def components(
    recipe: Recipe, shapes: Mapping[str, tuple[int, ...]], sizes: Mapping[str, int], width: int
) -> tuple[Component, ...]:
    """Every step by itself; a tensor read twice counts where it is read first.

    Args:
        shapes, sizes: of every tensor of the recipe: its shape, its bytes on disk.
    """
    found: list[Component] = []
    seen: set[str] = set()
    for place, step in enumerate(recipe):
        names = tensors((step,))
        new = [name for name in names if name not in seen]
        seen.update(names)
        until, before = (cost.flops_per_token(recipe[:end], shapes, width) for end in (place + 1, place))
        parameters = sum(int(np.prod(shapes[name])) for name in new)
        size = sum(sizes[name] for name in new)
        found.append(Component(type(step).__name__, names, parameters, size, until - before))
    return tuple(found)
