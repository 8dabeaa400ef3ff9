"""Gradients of an input layer's tensors, from the gradient of its output.

The chain rule is applied to a recipe, step by step backwards, in numpy float64. A table's gradient is sparse: only rows
that were looked up have one. Round passes gradients unchanged, as a cast does in torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.errors import BadQuery
from models.recipes.extra_inputs import ATTENDED, MASKED
from models.recipes.steps import (
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
from models.reference import interpreter

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
Weights = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SparseRows:
    """The sparse, coalesced gradient of a table.

    Attributes:
        indices: int64 [n], ascending.
        rows: float64 [n, d]; the gradient of all other rows is zero.
    """

    indices: Ids
    rows: Floats


@dataclass(frozen=True, slots=True)
class Packed:
    """The input of an input layer: one entry per token, with all sequences concatenated.

    Attributes:
        ids: int64 [N].
        positions: int64 [N].
        types: int64 [N]; None: the model reads none.
        mask: bool [N]; None: no token is masked.
        extras: the inputs that models/recipes/extra_inputs.py fills, by name.
    """

    ids: Ids
    positions: Ids
    types: Ids | None = None
    mask: NDArray[np.bool_] | None = None
    extras: Mapping[str, Ids] = field(default_factory=dict)


@dataclass(slots=True)
class _Gradients:
    """The gradients so far: looked-up rows of each table and gradients of other tensors."""

    recipe: Recipe
    weights: Weights
    packed: Packed
    lookups: dict[str, list[tuple[Ids, Floats]]] = field(default_factory=dict)
    parameters: dict[str, Floats] = field(default_factory=dict)

    def add_lookup(self, table: str, index: Ids, gradient: Floats) -> None:
        self.lookups.setdefault(table, []).append((index, gradient))

    def add_parameter(self, name: str | None, gradient: Floats) -> None:
        if name is not None:
            self.parameters[name] = gradient


def backward(
    recipe: Recipe, weights: Weights, packed: Packed, upstream: Floats, padding: Mapping[str, int]
) -> tuple[dict[str, SparseRows], dict[str, Floats]]:
    """Return the gradients of an input layer's tables, and those of its norms and projections.

    Args:
        recipe: the steps of the input layer.
        weights: tensors by the names in the recipe.
        packed: input of the layer.
        upstream: [N, d], the gradient of the loss with respect to the last step's output.
        padding: table -> the row without gradient, as padding_idx in torch; it is not among the indices.

    Returns:
        both by tensor name; a table that is read twice (GPT-2's segments) has one gradient, the sum.

    Raises:
        BadQuery: a step has no backward implementation.
    """
    gradients, gradient = _Gradients(recipe, weights, packed), upstream
    for step_index in reversed(range(len(recipe))):
        gradient = _step(step_index, gradient, gradients)
    tables = {name: _coalesced(name, gradients, padding.get(name)) for name in gradients.lookups}
    return tables, gradients.parameters


def sum_by_index(parts: list[tuple[Ids, Floats]]) -> SparseRows:
    """Return rows with the same index summed, indices ascending."""
    index = np.concatenate([indices for indices, _ in parts])
    rows = np.concatenate([part_rows for _, part_rows in parts])
    if not len(index):
        return SparseRows(index, rows)
    order = np.argsort(index, kind="stable")
    indices, starts = np.unique(index[order], return_index=True)
    return SparseRows(indices, np.add.reduceat(rows[order], starts, axis=0))


def _coalesced(name: str, gradients: _Gradients, padding: int | None) -> SparseRows:
    parts = gradients.lookups[name]
    if padding is not None:
        parts = [(index[index != padding], rows[index != padding]) for index, rows in parts]
    return sum_by_index(parts)


def _input_of(step_index: int, gradients: _Gradients) -> Floats:
    """Return the input of a step: the reference's output of the steps before it."""
    packed = gradients.packed
    rows = interpreter.run(
        gradients.recipe[:step_index],
        gradients.weights,
        packed.ids,
        packed.positions,
        packed.types,
        packed.mask,
        packed.extras,
    )
    return rows["input_embeddings"]


def _step(step_index: int, gradient: Floats, gradients: _Gradients) -> Floats:
    """Return the gradient of a step's input."""
    packed, step = gradients.packed, gradients.recipe[step_index]
    match step:
        case Embed(table):
            gradients.add_lookup(table, packed.ids, gradient)
        case AddType(table) if packed.types is not None:
            gradients.add_lookup(table, packed.types, gradient)
        case AddPosition(table):
            gradients.add_lookup(table, packed.positions, gradient)
        case AddIndexed(table):
            index = _index(step, packed)
            gradients.add_lookup(table, index[index >= 0], gradient[index >= 0])
        case MaskRows() if packed.mask is not None:
            return gradient * packed.mask[:, None]
        case TokenDropout():
            return gradient * _dropout(step, packed)
        case Scale(factor):
            return gradient * factor
        case Linear() | LayerNorm() | RMSNorm():
            return _backward_weighted(step, _input_of(step_index, gradients), gradient, gradients)
        case AddType() | AddSinusoid() | MaskRows() | Round():
            pass
        case _:
            raise BadQuery(f"gradients through the step {type(step).__name__} of this input layer are not supported")
    return gradient


def _backward_weighted(
    step: Linear | LayerNorm | RMSNorm, x: Floats, gradient: Floats, gradients: _Gradients
) -> Floats:
    """Return the gradient of the input of a step that has weights."""
    match step:
        case Linear(weight, bias):
            gradients.add_parameter(weight, gradient.T @ x)
            gradients.add_parameter(bias, gradient.sum(axis=0))
            return np.asarray(gradient @ _whole(gradients.weights, weight))
        case LayerNorm(weight, bias, eps):
            gradients.add_parameter(bias, gradient.sum(axis=0))
            centred = x - x.mean(axis=1, keepdims=True)
            return _backward_norm(centred, weight, eps, gradient, gradients, centre=True)
        case RMSNorm(weight, eps):
            return _backward_norm(x, weight, eps, gradient, gradients, centre=False)


def _backward_norm(
    x: Floats, weight: str | None, eps: float, gradient: Floats, gradients: _Gradients, *, centre: bool
) -> Floats:
    """Return the gradient of x (centred where the norm centres): y = n * weight, n = x / sqrt(mean(x^2) + eps)."""
    root = np.sqrt((x**2).mean(axis=1, keepdims=True) + eps)
    normed = x / root
    gradients.add_parameter(weight, (gradient * normed).sum(axis=0))
    if weight is not None:
        gradient = gradient * _whole(gradients.weights, weight)
    inner = gradient - normed * (gradient * normed).mean(axis=1, keepdims=True)
    if centre:
        inner = inner - gradient.mean(axis=1, keepdims=True)
    return np.asarray(inner / root)


def _whole(weights: Weights, name: str) -> Floats:
    return np.asarray(weights[name][:]).astype(np.float64)


def _index(step: AddIndexed, packed: Packed) -> Ids:
    """Return the row that each token reads; -1: none."""
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
