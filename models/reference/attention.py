"""Attention of a recipe in numpy float64: the reference of models/graphs/attention.py."""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from models.positions.rope.angles import cos_sin
from models.positions.rope.frequencies import frequencies
from models.positions.rope.rotation import rotate
from models.recipes.positional_encodings import RopeTable
from models.recipes.score_terms import MASKED, relative_rows, score_bias_buckets
from models.recipes.steps import Attention, Disentangled, DistanceBias, HeadNorms, Linear, Norm, ScoreBias

Rows = NDArray[np.float64]
Ids = NDArray[np.int64]
Turns = tuple[str, Rows, Rows]  # the layout of a rotation, and cos and sin of each row
Rowwise = Callable[[Norm | Linear, Rows], Rows]  # a step that maps each row by itself, with its weights
Table = Callable[[str], Rows]  # a tensor by its name


def mixed(
    step: Attention,
    values: tuple[Rows, Rows, Rows],
    mask: NDArray[np.bool_],
    lengths: Ids,
    rowwise: Rowwise,
    table: Table,
    turns: Turns | None,
) -> Rows:
    """Return the results of all heads for packed sequences, side by side.

    Args:
        step: the attention.
        values: query [N, heads * w], key and value [N, key_heads * w].
        mask: bool [N].
        lengths: int64 [B], sum N.
        rowwise, table: what reads the step's weights.
        turns: None: queries and keys are not rotated.

    Returns:
        float64 [N, heads * w].
    """
    query, key, value = values
    width = query.shape[-1] // step.heads
    key_heads = step.key_heads or step.heads
    query = _placed(query, step.heads, step.query_norm, step, rowwise, turns)  # (N, heads, w)
    key = _placed(key, key_heads, step.key_norm, step, rowwise, turns)
    value = _by_head(value, key_heads, step.value_norm, step, rowwise)
    key, value = (np.repeat(rows, step.heads // key_heads, axis=1) for rows in (key, value))
    result = np.empty_like(query)
    for start, end in pairwise(np.concatenate([[0], np.cumsum(lengths)])):
        span = slice(start, end)
        q, k, v = (rows[span].swapaxes(0, 1) for rows in (query, key, value))  # (heads, n, w)
        factor = width**-0.5 if step.scale is None else step.scale
        scores = factor * (q @ k.swapaxes(1, 2)) + _bias(step, q, k, factor, rowwise, table)
        if step.cap is not None:
            scores = step.cap * np.tanh(scores / step.cap)
        result[span] = (_shares(scores, step, mask[span]) @ v).swapaxes(0, 1)
    return result.reshape(len(query), -1)


def turns_of(table: RopeTable, positions: Ids, lengths: Ids) -> Turns:
    """Return the layout of a RoPE table, and cos and sin of each position, by the length of its own sequence.

    Positions int64 [N, 3] are those by time, row and column.
    """
    if positions.ndim == 2:
        axes = np.array(table.turns_with or [0] * len(table.inverse_frequency))
        angles = positions[:, axes].astype(np.float32) * np.array(table.inverse_frequency, np.float32)
        wide = angles.astype(np.float64)  # of the float32 angles that the graph computes
        return table.layout, table.attention_factor * np.cos(wide), table.attention_factor * np.sin(wide)
    parts = np.split(positions, np.cumsum(lengths)[:-1])
    values = [cos_sin(frequencies(table.rope, "parity", len(part)), part) for part in parts]
    cos, sin = (np.concatenate(rows).astype(np.float64) for rows in zip(*values, strict=True))
    return table.layout, cos, sin


def _placed(
    rows: Rows, heads: int, norm: Norm | HeadNorms | None, step: Attention, rowwise: Rowwise, turns: Turns | None
) -> Rows:
    """Return queries or keys by head, with their norm and rotated, in the step's order."""
    rows = _by_head(rows, heads, None if step.norms_behind else norm, step, rowwise)
    rows = _rotated(rows, *turns) if turns else rows
    return _by_head(rows.reshape(len(rows), -1), heads, norm, step, rowwise) if step.norms_behind else rows


def _by_head(rows: Rows, heads: int, norm: Norm | HeadNorms | None, step: Attention, rowwise: Rowwise) -> Rows:
    if isinstance(norm, HeadNorms):
        split = np.split(rows, heads, axis=1)
        return np.stack([rowwise(own, part) for own, part in zip(norm.heads, split, strict=True)], axis=1)
    if norm and step.norm_of == "heads":
        rows = rowwise(norm, rows)
    rows = rows.reshape(len(rows), heads, -1)
    return rowwise(norm, rows) if norm and step.norm_of == "head" else rows


def _rotated(rows: Rows, layout: str, cos: Rows, sin: Rows) -> Rows:
    return rotate(rows.swapaxes(0, 1), cos, sin, layout).swapaxes(0, 1)


def _bias(step: Attention, query: Rows, key: Rows, factor: float, rowwise: Rowwise, table: Table) -> Rows | float:
    """Return the terms added to the scores, [heads, n, n] or broadcast to it."""
    places = np.arange(query.shape[1])
    distances = places - places[:, None]  # key less query
    match step.bias:
        case ScoreBias():
            by_head: Rows = np.moveaxis(table(step.bias.table)[score_bias_buckets(step.bias, distances)], -1, 0)
            return by_head
        case DistanceBias(slopes):
            falling: Rows = -np.array(slopes)[:, None, None] * np.abs(distances)
            return falling
        case Disentangled():
            return factor * _disentangled(step.bias, query, key, relative_rows(step.bias, -distances), rowwise, table)
    return 0.0


def _disentangled(
    bias: Disentangled, query: Rows, key: Rows, rows: Ids, rowwise: Rowwise, table: Table
) -> Rows | float:
    relative = table(bias.relative)
    relative = rowwise(bias.norm, relative) if bias.norm else relative
    heads, _, width = query.shape
    total: Rows | float = 0.0
    if bias.unprojected:
        relative = np.tile(np.pad(relative, ((1, 0), (0, 0))), heads)  # no distance reads row 0
    for linear, values, turned in ((bias.key, query, False), (bias.query, key, True)):
        if linear is not None or ("k" if turned else "q") in bias.unprojected:
            projected = relative if linear is None else rowwise(linear, relative)
            by_head = projected.reshape(-1, heads, width)  # (2 span, heads, w)
            products = np.einsum("hnw,rhw->hnr", values, by_head)
            index = np.broadcast_to(rows.T if turned else rows, (heads, *rows.shape))
            taken = np.take_along_axis(products, index, axis=2)
            total = total + (taken.swapaxes(1, 2) if turned else taken)
    return total


def _shares(scores: Rows, step: Attention, mask: NDArray[np.bool_]) -> Rows:
    """Return softmax of the scores over what each row may attend to."""
    places = np.arange(scores.shape[-1])
    distances = places - places[:, None]
    seen = (distances >= -(math.inf if step.left is None else step.left)) & (
        distances <= (math.inf if step.right is None else step.right)
    )
    scores = np.where(seen, scores + np.where(mask if mask.any() else True, 0.0, MASKED), -np.inf)
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: Rows = scores / scores.sum(axis=-1, keepdims=True)
    return shares
