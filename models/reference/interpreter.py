"""Computes a recipe in numpy float64: the reference for every exported graph. It favours clarity over speed."""

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from models.families.extra_inputs import ATTENDED, MASKED
from models.families.recipe import (
    KEPT_IN_TRAINING,
    Activation,
    AddIndexed,
    AddPosition,
    AddSinusoid,
    AddType,
    Attention,
    Embed,
    FeedForward,
    LayerNorm,
    Linear,
    MaskRows,
    Recipe,
    RMSNorm,
    Round,
    Scale,
    ScoreBias,
    Step,
    TokenDropout,
)
from models.positions import sinusoidal
from models.positions.buckets import t5_bucket

Rows = NDArray[np.float64]
Ids = NDArray[np.int64]
Weights = Mapping[str, NDArray[Any]]

_erf = np.vectorize(math.erf, otypes=[np.float64])  # numpy has none, and scipy is no dependency

ACTIVATIONS: dict[Activation, Callable[[Rows], Rows]] = {
    "gelu": lambda x: 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0))),
    "gelu_tanh": lambda x: 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0.0),
    "silu": lambda x: x / (1.0 + np.exp(-x)),
}


def run(
    recipe: Recipe,
    weights: Weights,
    ids: Ids,
    positions: Ids,
    types: Ids | None,
    mask: NDArray[np.bool_] | None = None,
    extras: Mapping[str, Ids] | None = None,
) -> dict[str, Rows]:
    """Return every output of the input layer, for packed rows.

    Args:
        recipe: the steps of the input layer.
        weights: tensors by the names in the recipe, of any float dtype.
        ids, positions, types: int64 [N]; types None leaves the type step out.
        mask: bool [N], False for a masked token; None: none is.
        extras: extra inputs by name, int64 [N] or [N, columns].

    Returns:
        float64 [N, d] by name: input_embeddings; token_embeddings, token_type_embeddings and position_embeddings where
        the recipe has them (the looked-up rows, scaled where a Scale follows them); unscaled_embeddings where that
        Scale is `outside`.
    """
    extras = extras or {}
    outputs: dict[str, Rows] = {}
    unscaled: dict[str, Rows] = {}
    x = np.zeros((len(ids), 0))
    for step in recipe:
        match step:
            case Embed(table):
                x = outputs["token_embeddings"] = _rows(weights, table, ids)
            case AddType(table) if types is not None:
                outputs["token_type_embeddings"] = _rows(weights, table, types)
                x = x + outputs["token_type_embeddings"]
            case AddType():
                pass
            case AddPosition(table):
                outputs["position_embeddings"] = _rows(weights, table, positions)
                x = x + outputs["position_embeddings"]
            case AddSinusoid(kind, dim, zero_row):
                waves = sinusoidal.tabulate(kind, dim, positions, zero_row=zero_row)
                outputs["position_embeddings"] = waves.outputs["table"].whole()
                x = x + outputs["position_embeddings"]
            case AddIndexed(table, index, columns):
                x = x + _indexed(weights, table, extras[index], columns)
            case TokenDropout(mask_id):
                x = _token_dropout(x, ids != mask_id, extras[MASKED], extras[ATTENDED])
            case MaskRows():
                x = x if mask is None else x * mask[:, None]
            case Scale() | Round():
                if isinstance(step, Scale) and step.outside:
                    unscaled["unscaled_embeddings"] = outputs["token_embeddings"]
                x = _rowwise(step, weights, x)
                outputs = {name: _rowwise(step, weights, rows) for name, rows in outputs.items()}
            case _:
                x = _rowwise(step, weights, x)
    return outputs | unscaled | {"input_embeddings": x}


def per_layer(recipe: Recipe, weights: Weights, ids: Ids) -> Rows:
    """Return the embeddings each layer has of its own; an id beyond their table reads row 0.

    Returns:
        float64 [N, layers * d_pl].

    Source: transformers 5.23: Gemma3nTextModel.get_per_layer_inputs.
    """
    rows = len(next(weights[step.table] for step in recipe if isinstance(step, Embed)))
    return run(recipe, weights, np.where(ids < rows, ids, 0), ids, None)["input_embeddings"]


def encode(encoder: Recipe, weights: Weights, rows: Rows, mask: NDArray[np.bool_], lengths: Ids) -> Rows:
    """Return the output of the blocks for packed sequences.

    Args:
        encoder: the steps of all blocks.
        weights: tensors by the names in the steps, of any float dtype.
        rows: float64 [N, d], input_embeddings of `run`.
        mask: bool [N]; a False row is not attended to, but has an output; all False in a sequence counts as all True.
        lengths: int64 [B], summing to N.

    Returns:
        float64 [N, d].
    """
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    for step in encoder:
        if isinstance(step, Attention):
            rows = rows + _attend(step, weights, rows, mask, bounds)
        else:
            rows = _rowwise(step, weights, rows)
    return rows


def _rows(weights: Weights, table: str, index: Ids) -> Rows:
    return weights[table][index].astype(np.float64)


def _indexed(weights: Weights, table: str, extra: Ids, columns: tuple[int, ...]) -> Rows:
    index = extra[:, columns[0]] if columns else extra
    index = index - extra[:, columns[1]] if columns[1:] else index
    return np.where(index[:, None] >= 0, _rows(weights, table, np.maximum(index, 0)), 0.0)


def _token_dropout(x: Rows, kept: NDArray[np.bool_], masked: Ids, attended: Ids) -> Rows:
    """Return ESM's x * 0.88 / (1 - masked/attended), 0 for a sequence of <mask> alone (transformers divides by 0)."""
    left = np.where(attended == masked, 1, attended - masked)
    return x * (KEPT_IN_TRAINING * attended / left * kept)[:, None]


def _vector(weights: Weights, name: str | None, missing: float) -> Rows | float:
    return missing if name is None else weights[name].astype(np.float64)


def _rowwise(step: Step, weights: Weights, x: Rows) -> Rows:
    match step:
        case Scale(factor):
            return x * factor
        case Round(dtype):
            narrow: Any = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
            return x.astype(np.float32).astype(narrow).astype(np.float64)
        case Linear():
            return _project(step, weights, x)
        case LayerNorm(weight, bias, eps):
            centred = x - x.mean(axis=-1, keepdims=True)
            normed: Rows = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
            return normed * _vector(weights, weight, 1.0) + _vector(weights, bias, 0.0)
        case RMSNorm(weight, eps):
            root: Rows = np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)
            return x / root * _vector(weights, weight, 1.0)
        case FeedForward(up, down, activation, norm):
            inner = _project(up, weights, _rowwise(norm, weights, x) if norm else x)
            return x + _project(down, weights, ACTIVATIONS[activation](inner))
    raise TypeError(f"{type(step).__name__} does not map a row to a row")


def _project(linear: Linear, weights: Weights, x: Rows) -> Rows:
    product: Rows = x @ weights[linear.weight].astype(np.float64).T
    return product + _vector(weights, linear.bias, 0.0)


def _attend(step: Attention, weights: Weights, x: Rows, mask: NDArray[np.bool_], bounds: Ids) -> Rows:
    x = _rowwise(step.norm, weights, x) if step.norm else x
    query, key, value = (_project(linear, weights, x) for linear in (step.query, step.key, step.value))
    mixed = np.empty_like(query)
    for start, end in pairwise(bounds):
        own = slice(start, end)
        bias = _score_bias(step.bias, weights, end - start) if step.bias else 0.0
        mixed[own] = _mix(query[own], key[own], value[own], mask[own], step.heads, bias)
    return _project(step.output, weights, mixed)


def _score_bias(bias: ScoreBias, weights: Weights, length: int) -> Rows:
    """Return [heads, length, length]."""
    places = np.arange(length)
    buckets = t5_bucket(
        places - places[:, None],
        bidirectional=True,
        num_buckets=bias.buckets,
        max_distance=bias.reach,
        arithmetic="parity",
    )
    return np.moveaxis(_rows(weights, bias.table, buckets), -1, 0)


def _mix(query: Rows, key: Rows, value: Rows, mask: NDArray[np.bool_], heads: int, bias: Rows | float) -> Rows:
    q, k, v = (
        part.reshape(len(part), heads, -1).swapaxes(0, 1) for part in (query, key, value)
    )  # (heads, n, head_dim)
    scores = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1]) + bias  # (heads, n, n)
    scores = np.where(mask if mask.any() else True, scores, -np.inf)
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares = scores / scores.sum(axis=-1, keepdims=True)
    mixed: Rows = (shares @ v).swapaxes(0, 1).reshape(len(query), -1)
    return mixed
