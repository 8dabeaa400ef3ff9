"""Computes a recipe in numpy float64: the reference for every exported graph. It favours clarity over speed."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from models.positions import sinusoidal
from models.recipes.extra_inputs import ATTENDED, MASKED, TASKS
from models.recipes.positional_encodings import RopeTable
from models.recipes.steps import (
    GELU_BOUND,
    KEPT_IN_TRAINING,
    LAPLACE_MEAN,
    LAPLACE_WIDTH,
    LEAKY_SLOPE,
    Activation,
    Adapter,
    AddIndexed,
    AddPosition,
    AddSinusoid,
    AddType,
    Attention,
    Collect,
    ConvolvedInput,
    Decode,
    Embed,
    Experts,
    FeedForward,
    LatentAttention,
    LayerNorm,
    Linear,
    MaskRows,
    Multiply,
    Norm,
    Parallel,
    PerLayerInput,
    PlaceImages,
    Recipe,
    RMSNorm,
    Round,
    Scale,
    ShortConvolution,
    Step,
    TokenDropout,
)
from models.reference import attention
from models.reference.convolution import convolved

Rows = NDArray[np.float64]
Turns = attention.Turns
Ids = NDArray[np.int64]
Weights = Mapping[str, NDArray[Any]]

_erf = np.vectorize(math.erf, otypes=[np.float64])  # numpy has none, and scipy is no dependency

ACTIVATIONS: dict[Activation, Callable[[Rows], Rows]] = {
    "gelu": lambda x: 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0))),
    "gelu_tanh": lambda x: 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0.0),
    "silu": lambda x: x / (1.0 + np.exp(-x)),
    "quick_gelu": lambda x: x / (1.0 + np.exp(-1.702 * x)),
    "squared_relu": lambda x: np.maximum(x, 0.0) ** 2,
    "identity": lambda x: x,
    "tanh": np.tanh,
    "leaky_relu": lambda x: np.where(x < 0, LEAKY_SLOPE * x, x),
    "elu": lambda x: np.where(x < 0, np.expm1(np.minimum(x, 0.0)), x),
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "gelu_clipped": lambda x: np.clip(ACTIVATIONS["gelu"](x), -GELU_BOUND, GELU_BOUND),
    "hardswish": lambda x: x * np.clip(x + 3.0, 0.0, 6.0) / 6.0,
    "laplace": lambda x: 0.5 * (1.0 + _erf((x - LAPLACE_MEAN) / LAPLACE_WIDTH)),
    "mish": lambda x: x * np.tanh(np.logaddexp(0.0, x)),
    "relu6": lambda x: np.clip(x, 0.0, 6.0),
    "sqrtsoftplus": lambda x: np.sqrt(np.logaddexp(0.0, x)),
}

UNSCALED, WHOLE = "unscaled_embeddings", "input_embeddings"


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
    x = np.zeros((len(ids), 0))
    for step in recipe if types is not None else [step for step in recipe if not isinstance(step, AddType)]:
        match step:
            case Embed() | AddType() | AddPosition() | AddSinusoid():
                index = {Embed: ids, AddType: types}.get(type(step), positions)
                name, rows = _component(step, weights, index, extras)
                outputs[name] = rows
                x = rows if isinstance(step, Embed) else x + rows
            case AddIndexed(table, index, columns):
                x = x + _indexed(weights, table, extras[index], columns)
            case TokenDropout(mask_id):
                x = _token_dropout(x, ids != mask_id, extras[MASKED], extras[ATTENDED])
            case MaskRows():
                x = x if mask is None else x * mask[:, None]
            case _:
                x, outputs = rowwise(step, weights, x), _scaled(outputs, step, weights)
    return outputs | {WHOLE: x}


def _scaled(outputs: dict[str, Rows], step: Step, weights: Weights) -> dict[str, Rows]:
    """Return the looked-up rows behind a Scale or a Round, and as they were before a Scale that is `outside`."""
    if not isinstance(step, Scale | Round):
        return outputs
    unscaled = {name: rows for name, rows in outputs.items() if name == UNSCALED}
    if isinstance(step, Scale) and step.outside:
        unscaled[UNSCALED] = outputs["token_embeddings"]
    return {name: rowwise(step, weights, rows) for name, rows in outputs.items()} | unscaled


def _component(
    step: Embed | AddType | AddPosition | AddSinusoid, weights: Weights, index: Any, extras: Mapping[str, Ids]
) -> tuple[str, Rows]:
    """Return the output name of a step, and its rows by the ids, types or positions that it reads."""
    match step:
        case Embed(table, adapter):
            return "token_embeddings", _rows(weights, table, index, adapter, extras)
        case AddType(table, adapter):
            return "token_type_embeddings", _rows(weights, table, index, adapter, extras)
        case AddPosition(table):
            return "position_embeddings", _rows(weights, table, index)
        case AddSinusoid(kind, dim, zero_row):
            waves = sinusoidal.tabulate(kind, dim, index, zero_row=zero_row)
            return "position_embeddings", waves.outputs["table"].whole()


def per_layer(recipe: Recipe, weights: Weights, ids: Ids) -> Rows:
    """Return the embeddings each layer has of its own; an id beyond their table reads row 0.

    Returns:
        float64 [N, layers * d_pl].

    Source: transformers 5.23: Gemma3nTextModel.get_per_layer_inputs.
    """
    rows = len(next(weights[step.table] for step in recipe if isinstance(step, Embed)))
    return run(recipe, weights, np.where(ids < rows, ids, 0), ids, None)[WHOLE]


def encode(
    encoder: Recipe,
    weights: Weights,
    rows: Rows,
    mask: NDArray[np.bool_],
    lengths: Ids,
    positions: Ids | None = None,
    ropes: Mapping[str, RopeTable] | None = None,
    tasks: Ids | None = None,
    images: tuple[Ids, NDArray[Any]] | None = None,
    turns: Mapping[str, Turns] | None = None,
    windows: Ids | None = None,
    ids: Ids | None = None,
) -> Rows:
    """Return the output of the blocks for packed sequences.

    Args:
        encoder: the steps of all blocks.
        weights: tensors by the names in the steps, of any float dtype.
        rows: float64 [N, d], input_embeddings of `run`.
        mask: bool [N]; a False row is not attended to, but has an output; all False in a sequence counts as all True.
        lengths: int64 [B], summing to N.
        positions: int64 [N], by which attention rotates; None: none does.
        ropes: the tables of these rotations, by name.
        tasks: int64 [N], by which adapters add; -1 and None: they do not.
        images: the inputs `places` int64 [N, 4] and `image_rows` [M, columns], of a model that places images; by these
            places, not by `positions`, its attention rotates.
        turns: cos and sin of rotations that are no table of `ropes`, by name.
        windows: int64 [W], summing to N, the rows of each window that windowed attention stays in.
        ids: int64 [N], which a Decode reads.

    Returns:
        float64 [N, d].
    """
    if images is not None:
        positions = images[0][:, :3]
    blocks = _Blocks(weights, mask, lengths, positions, ropes or {}, tasks, turns or {}, windows)
    mean: Any = 0.0
    first = encoded = rows
    for step in encoder:
        match step:
            case Decode(own, start):
                encoded = rows
                rows = run(own, weights, _shifted(_known(ids), lengths, start), _known(positions), None)[WHOLE]
            case Collect(share, last):
                mean = mean + share * rows
                rows = mean if last else rows
            case ShortConvolution():
                rows = rows + _short_convolution(step, weights, rows, mask, lengths)
            case ConvolvedInput(convolution, activation):
                rows = rows + ACTIVATIONS[activation](convolved(convolution, weights, first, lengths))
            case MaskRows():
                rows = rows * mask[:, None]
            case PlaceImages(part):
                rows = _with_images(part, rows, images)
            case Attention():
                rows = rows + blocks.attended(step, rows, encoded)
            case PerLayerInput():
                rows = rows + _per_layer_input(step, weights, rows, first)
            case Parallel(mixing, feed_forward):
                rows = rows + blocks.attended(mixing, rows, encoded) + _feed_forward(feed_forward, weights, rows, tasks)
            case _:
                rows = rowwise(step, weights, rows, tasks)
    return rows


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The inputs of the attention of all blocks; arguments as for `encode`."""

    weights: Weights
    mask: NDArray[np.bool_]
    lengths: Ids
    positions: Ids | None
    ropes: Mapping[str, RopeTable]
    tasks: Ids | None
    turns: Mapping[str, Turns]
    windows: Ids | None

    def attended(self, step: Attention, x: Rows, encoded: Rows) -> Rows:
        """Return the term that an attention step adds to rows."""
        read = self._rowwise(step.norm, x) if step.norm else x
        key, value = (self._rowwise(linear, encoded if step.across else read) for linear in (step.key, step.value))
        query = self._rowwise(step.query, read)
        lengths = self.windows if step.windowed and self.windows is not None else self.lengths
        turns = self.turns.get(step.rotation or "")
        if step.rotation and turns is None:
            turns = attention.turns_of(self.ropes[step.rotation], _known(self.positions), self.lengths)
        heads = attention.mixed(
            step, (query, key, value), self.mask, lengths, self._rowwise, partial(_whole, self.weights), turns
        )
        result = self._rowwise(step.output, self._rowwise(step.mixed_norm, heads) if step.mixed_norm else heads)
        added = step.factor * (self._rowwise(step.closing, result) if step.closing else result)
        return self._rowwise(step.sum_norm, x + added) if step.sum_norm else added

    def _rowwise(self, step: Norm | Linear | Multiply, x: Rows) -> Rows:
        return rowwise(step, self.weights, x, self.tasks)


def _short_convolution(
    step: ShortConvolution, weights: Weights, x: Rows, mask: NDArray[np.bool_], lengths: Ids
) -> Rows:
    read = rowwise(step.norm, weights, x) * mask[:, None]
    b, c, z = np.split(_project(step.input, weights, read), 3, axis=1)
    return _project(step.output, weights, c * convolved(step.convolution, weights, b * z, lengths))


def _with_images(part: int, x: Rows, images: tuple[Ids, NDArray[Any]] | None) -> Rows:
    """Return rows with those of images at their tokens, or with these added."""
    if images is None:
        raise ValueError("a model that places images needs their places and rows")
    flags, rows = images[0][:, 3].astype(bool), images[1][:, part * x.shape[1] : (part + 1) * x.shape[1]]
    x = x.copy()
    x[flags] = rows + (x[flags] if part else 0.0)
    return x


def _known(numbers: Ids | None) -> Ids:
    if numbers is None:
        raise ValueError("attention that rotates needs positions, and a decoder ids too")
    return numbers


def _shifted(ids: Ids, lengths: Ids, start: int) -> Ids:
    """Return the ids of each sequence behind `start` and without its last."""
    moved = np.roll(ids, 1)
    moved[np.cumsum(lengths) - lengths] = start
    return moved


def _whole(weights: Weights, name: str) -> Rows:
    return np.asarray(weights[name][:], np.float64)


def _rows(
    weights: Weights,
    table: str,
    index: Ids,
    adapter: Adapter | None = None,
    extras: Mapping[str, Ids] | None = None,
) -> Rows:
    rows: Rows = weights[table][index].astype(np.float64)
    if adapter is None:
        return rows
    tasks = (extras or {})[TASKS]
    low = weights[adapter.lora_a][np.maximum(tasks, 0) * len(weights[table]) + index].astype(np.float64)
    return rows + _of_tasks(adapter, weights, tasks, lambda task, chosen: low[chosen])


def _of_tasks(adapter: Adapter, weights: Weights, tasks: Ids, low: Callable[[int, NDArray[np.bool_]], Rows]) -> Rows:
    """Return the term that an adapter adds to each row; `low` returns the factors of a task's B for its rows."""
    lora_b = _whole(weights, adapter.lora_b)
    added = np.zeros((len(tasks), len(lora_b)))
    for task in range(adapter.tasks):
        chosen = tasks == task
        of_task = lora_b[:, task * adapter.rank : (task + 1) * adapter.rank]
        added[chosen] = adapter.scale * (low(task, chosen) @ of_task.T)
    return added


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


def rowwise(step: Step, weights: Weights, x: Rows, tasks: Ids | None = None) -> Rows:
    """Return the result of a step that maps each row [..., d] by itself; TypeError for any other step."""
    match step:
        case Scale(factor):
            return x * factor
        case Round(dtype):
            narrow: Any = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
            return x.astype(np.float32).astype(narrow).astype(np.float64)
        case Linear():
            return _project(step, weights, x, tasks)
        case Multiply(weight):
            return x * weights[weight].astype(np.float64)
        case LayerNorm(weight, bias, eps, offset):
            centred = x - x.mean(axis=-1, keepdims=True)
            normed: Rows = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
            return normed * (_vector(weights, weight, 1.0 - offset) + offset) + _vector(weights, bias, 0.0)
        case RMSNorm(weight, eps, offset):
            root: Rows = np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)
            return x / root * (_vector(weights, weight, 1.0 - offset) + offset)
        case FeedForward():
            return x + _feed_forward(step, weights, x, tasks)
        case Experts():
            return x + _experts(step, weights, x)
        case LatentAttention():
            return x + _latent_attention(step, weights, x)
    raise TypeError(f"{type(step).__name__} does not map a row to a row")


def _project(linear: Linear, weights: Weights, x: Rows, tasks: Ids | None = None) -> Rows:
    product: Rows = x @ weights[linear.weight].astype(np.float64).T
    product = product + _vector(weights, linear.bias, 0.0)
    if linear.adapter is None or tasks is None:
        return product
    adapter = linear.adapter
    by_task = _whole(weights, adapter.lora_a).reshape(adapter.tasks, adapter.rank, -1)
    return product + _of_tasks(adapter, weights, tasks, lambda task, chosen: x[chosen] @ by_task[task].T)


def _feed_forward(step: FeedForward, weights: Weights, x: Rows, tasks: Ids | None = None) -> Rows:
    read = rowwise(step.norm, weights, x) if step.norm else x
    inner = _project(step.up, weights, read, tasks)
    activate = ACTIVATIONS[step.activation]
    inner = activate(_project(step.gate, weights, read, tasks)) * inner if step.gate else activate(inner)
    inner = rowwise(step.inner_norm, weights, inner) if step.inner_norm else inner
    result = _project(step.down, weights, inner, tasks)
    return step.factor * (rowwise(step.closing, weights, result) if step.closing else result)


def _latent_attention(step: LatentAttention, weights: Weights, x: Rows) -> Rows:
    latents = rowwise(step.latents_norm, weights, _whole(weights, step.latents))
    query, key, value = (
        _project(linear, weights, rows).reshape(len(rows), step.heads, -1).swapaxes(0, 1)  # (heads, rows, w)
        for linear, rows in ((step.query, rowwise(step.norm, weights, x)), (step.key, latents), (step.value, latents))
    )
    scores = step.head_width**-0.5 * query @ key.swapaxes(1, 2)
    shares = np.exp(scores - scores.max(axis=2, keepdims=True))
    mixed = shares / shares.sum(axis=2, keepdims=True) @ value
    return _project(step.output, weights, mixed.swapaxes(0, 1).reshape(len(x), -1))


def _per_layer_input(step: PerLayerInput, weights: Weights, x: Rows, first: Rows) -> Rows:
    scaled = rowwise(step.norm, weights, step.scale * _project(step.source, weights, first))
    inner = ACTIVATIONS[step.activation](_project(step.gate, weights, x)) * scaled
    return rowwise(step.closing, weights, _project(step.output, weights, inner))


def _experts(step: Experts, weights: Weights, x: Rows) -> Rows:
    read = rowwise(step.norm, weights, x) if step.norm else x
    scores = _project(step.router, weights, read)
    best = np.argsort(-scores, axis=1, kind="stable")[:, : step.chosen]
    shares = _shares(step, scores, best)
    result = np.zeros_like(x)
    for number, expert in enumerate(step.experts):
        rows, places = np.nonzero(best == number)
        result[rows] += shares[rows, places, None] * _feed_forward(expert, weights, read[rows])
    result = result + _vector(weights, step.bias, 0.0)
    if step.shared:
        shared = _feed_forward(step.shared, weights, read)
        gate = 1 / (1 + np.exp(-_project(step.shared_gate, weights, read))) if step.shared_gate else 1.0
        result = result + gate * shared
    return step.factor * (rowwise(step.closing, weights, result) if step.closing else result)


def _shares(step: Experts, scores: Rows, best: Ids) -> Rows:
    """Return the weight of each of a row's experts [N, chosen]."""
    if step.weights != "sparsemixer":
        raised = np.exp(np.take_along_axis(scores, best, axis=1) - scores.max(axis=1, keepdims=True))
        among = np.exp(scores - scores.max(axis=1, keepdims=True)) if step.weights == "all" else raised
        result: Rows = raised / among.sum(axis=1, keepdims=True)
        return result
    shares = []
    for place in range(step.chosen):
        highest = np.take_along_axis(scores, best[:, place : place + 1], axis=1)
        near = highest - scores <= 2 * step.jitter * np.maximum(np.abs(scores), highest)
        for before in range(place):
            near[np.arange(len(scores)), best[:, before]] = False
        shares.append(1 / np.where(near, np.exp(np.minimum(scores - highest, 0.0)), 0.0).sum(axis=1))
    return np.stack(shares, axis=1)
