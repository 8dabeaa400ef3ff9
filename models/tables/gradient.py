"""Gradients of the tensors of an input layer, from the gradient of its output. Changes no weight and reads no file.

The chain rule through a recipe, step by step backwards, in numpy float64. A table's gradient is sparse: only rows that
were looked up have one. Rounding (Round) passes gradients as they are, as a cast does in torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.errors import BadQuery
from models.families.extra_inputs import ATTENDED, MASKED
from models.families.recipe import (
    KEPT_IN_TRAINING,
    AddIndexed,
    AddPosition,
    AddSinusoid,
    AddType,
    Embed,
    LayerNorm,
    Linear,
    MaskRows,
    Recipe,
    RMSNorm,
    Round,
    Scale,
    TokenDropout,
)
from models.reference import interpreter as reference

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
Weights = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SparseRows:
    """The gradient of a table, coalesced: `indices` int64 [n] rise, `rows` float64 [n, d]; other rows have zero."""

    indices: Ids
    rows: Floats


@dataclass(frozen=True, slots=True)
class Packed:
    """What an input layer read: one entry a token, sequences one below the other.

    Attributes:
        mask: bool [N]; None: no token is masked.
        extras: what extras.py fills, by name.
    """

    ids: Ids
    positions: Ids
    types: Ids | None = None
    mask: NDArray[np.bool_] | None = None
    extras: Mapping[str, Ids] = field(default_factory=dict)


@dataclass(slots=True)
class _Found:
    """What is known so far: looked-up rows of each table and gradients of other tensors."""

    recipe: Recipe
    weights: Weights
    packed: Packed
    lookups: dict[str, list[tuple[Ids, Floats]]] = field(default_factory=dict)
    parameters: dict[str, Floats] = field(default_factory=dict)

    def looked_up(self, table: str, index: Ids, gradient: Floats) -> None:
        self.lookups.setdefault(table, []).append((index, gradient))

    def parameter(self, name: str | None, gradient: Floats) -> None:
        if name is not None:
            self.parameters[name] = gradient


def backward(
    recipe: Recipe, weights: Weights, packed: Packed, upstream: Floats, padding: Mapping[str, int]
) -> tuple[dict[str, SparseRows], dict[str, Floats]]:
    """The gradients of an input layer's tensors: those of its tables, and those of its norms and projections.

    Args:
        weights: tensors by the names in the recipe.
        upstream: [N, d], the loss's gradient of the last step's output.
        padding: table -> the row that has no gradient, as padding_idx has it in torch: it is not among the indices.

    Returns:
        by tensor name; a table read twice (GPT-2's segments) has one gradient, the sum.

    Raises:
        BadQuery: a step that has no backward here.
    """
    found, gradient = _Found(recipe, weights, packed), upstream
    for place in reversed(range(len(recipe))):
        gradient = _step(place, gradient, found)
    tables = {name: _coalesced(name, found, padding.get(name)) for name in found.lookups}
    return tables, found.parameters


def added(parts: list[tuple[Ids, Floats]]) -> SparseRows:
    """Rows with the same index summed, indices rising."""
    index = np.concatenate([each for each, _ in parts])
    rows = np.concatenate([each for _, each in parts])
    if not len(index):
        return SparseRows(index, rows)
    order = np.argsort(index, kind="stable")
    indices, starts = np.unique(index[order], return_index=True)
    return SparseRows(indices, np.add.reduceat(rows[order], starts, axis=0))


def _coalesced(name: str, found: _Found, padding: int | None) -> SparseRows:
    parts = found.lookups[name]
    if padding is not None:
        parts = [(index[index != padding], rows[index != padding]) for index, rows in parts]
    return added(parts)


def _read_by(place: int, found: _Found) -> Floats:
    """What the step at that place reads: the reference's own output of the steps before it."""
    packed = found.packed
    rows = reference.run(
        found.recipe[:place], found.weights, packed.ids, packed.positions, packed.types, packed.mask, packed.extras
    )
    return rows["input_embeddings"]


def _step(place: int, gradient: Floats, found: _Found) -> Floats:
    """One step backward: the gradient of what it read."""
    packed, step = found.packed, found.recipe[place]
    match step:
        case Embed(table):
            found.looked_up(table, packed.ids, gradient)
        case AddType(table) if packed.types is not None:
            found.looked_up(table, packed.types, gradient)
        case AddPosition(table):
            found.looked_up(table, packed.positions, gradient)
        case AddIndexed(table):
            index = _index(step, packed)
            found.looked_up(table, index[index >= 0], gradient[index >= 0])
        case MaskRows() if packed.mask is not None:
            return gradient * packed.mask[:, None]
        case TokenDropout():
            return gradient * _dropout(step, packed)
        case Scale(factor):
            return gradient * factor
        case Linear() | LayerNorm() | RMSNorm():
            return _through(step, _read_by(place, found), gradient, found)
        case AddType() | AddSinusoid() | MaskRows() | Round():
            pass
        case _:
            raise BadQuery(f"the step {type(step).__name__} of this input layer has no backward here")
    return gradient


def _through(step: Linear | LayerNorm | RMSNorm, x: Floats, gradient: Floats, found: _Found) -> Floats:
    """A step with weights of its own."""
    match step:
        case Linear(weight, bias):
            found.parameter(weight, gradient.T @ x)
            found.parameter(bias, gradient.sum(axis=0))
            return np.asarray(gradient @ _whole(found.weights, weight))
        case LayerNorm(weight, bias, eps):
            found.parameter(bias, gradient.sum(axis=0))
            centred = x - x.mean(axis=1, keepdims=True)
            return _through_norm(centred, weight, eps, gradient, found, centre=True)
        case RMSNorm(weight, eps):
            return _through_norm(x, weight, eps, gradient, found, centre=False)


def _through_norm(
    x: Floats, weight: str | None, eps: float, gradient: Floats, found: _Found, *, centre: bool
) -> Floats:
    """y = n * weight with n = x / sqrt(mean(x^2) + eps); x already centred where the norm centres."""
    root = np.sqrt((x**2).mean(axis=1, keepdims=True) + eps)
    normed = x / root
    found.parameter(weight, (gradient * normed).sum(axis=0))
    if weight is not None:
        gradient = gradient * _whole(found.weights, weight)
    inner = gradient - normed * (gradient * normed).mean(axis=1, keepdims=True)
    if centre:
        inner = inner - gradient.mean(axis=1, keepdims=True)
    return np.asarray(inner / root)


def _whole(weights: Weights, name: str) -> Floats:
    return np.asarray(weights[name][:]).astype(np.float64)


def _index(step: AddIndexed, packed: Packed) -> Ids:
    """The row each token reads; -1: none."""
    values = packed.extras[step.index]
    if not step.columns:
        return values
    first, *rest = (values[:, column] for column in step.columns)
    return first - rest[0] if rest else first


def _dropout(step: TokenDropout, packed: Packed) -> Floats:
    masked, attended = packed.extras[MASKED], packed.extras[ATTENDED]
    left = np.where(attended == masked, 1, attended - masked)
    factor = KEPT_IN_TRAINING * attended / left * (packed.ids != step.mask_id)
    return np.asarray(factor)[:, None]
