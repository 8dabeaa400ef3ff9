"""Computes the steps of models/vision in numpy float64: the reference for every exported image graph."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.positions.rope.axial import tabulate_axial
from models.recipes.positional_encodings import EVERY_LAYER
from models.recipes.sentence_modules import Dense
from models.recipes.steps import LayerNorm, Recipe, RMSNorm
from models.reference.attention import Turns
from models.reference.interpreter import ACTIVATIONS, encode, rowwise
from models.reference.sentence_modules import apply
from models.vision.image_spec import Image
from models.vision.resample import resized
from models.vision.steps import (
    AddGrid,
    AddRows,
    AddToRow,
    AttentionPool,
    Convolve,
    Insert,
    Patchify,
    Project,
    Steps,
    TakeRow,
    VectorSteps,
)

Rows = NDArray[np.float64]
Weights = Mapping[str, NDArray[Any]]


def outputs(steps: Steps, weights: Weights, feeds: Mapping[str, NDArray[Any]]) -> dict[str, Rows]:
    """Return what `run` computes from a graph's inputs, given by name."""
    values = feeds["input_features" if isinstance(steps[0], Convolve) else "pixel_values"]
    rows, columns = feeds["grid"].tolist() if "grid" in feeds else (0, 0)
    return run(steps, weights, values, (rows, columns))


def encoded(image: Image, blocks: Recipe, weights: Weights, feeds: Mapping[str, NDArray[Any]]) -> dict[str, Rows]:
    """Return what a whole tower computes from its graphs' inputs, given by name.

    Args:
        image: the tower's input layer, and the steps to an image's vector.
        blocks: the steps of all blocks; empty: only the input layer is computed.
        weights: tensors by name, of any float dtype.
        feeds: inputs by name, as the graphs take them.

    Returns:
        The outputs of `run`, last_hidden_state of the same shape and, where there is a vector, image_embedding
        [batch, width], of flattened patches [1, width].

    Source: transformers 5.23: CLIPVisionModel, SiglipVisionModel, torch 2.13: nn.MultiheadAttention.
    """
    named = outputs(image.steps, weights, feeds)
    if not blocks:
        return named
    x = named["input_embeddings"]
    images = x[None] if x.ndim == 2 else x  # (B, R, d)
    count, rows = images.shape[:2]
    packed = images.reshape(count * rows, -1)
    turns = _turns(image, feeds, count, rows)
    mask, lengths = np.ones(len(packed), np.bool_), np.full(count, rows)
    hidden = encode(blocks, weights, packed, mask, lengths, turns=turns).reshape(images.shape)
    named["last_hidden_state"] = hidden.reshape(x.shape)
    if image.vector:
        named["image_embedding"] = _vectors(image.vector, weights, hidden)
    return named


def _turns(image: Image, feeds: Mapping[str, NDArray[Any]], count: int, rows: int) -> dict[str, Turns]:
    """Return the rotation of the rows of `count` images; those before the patches do not rotate."""
    if (axial := image.axial) is None:
        return {}
    grid = image.patches(*feeds["pixel_values"].shape[-2:])
    table = tabulate_axial(axial.kind, axial.head_dim, grid=grid, theta=axial.theta, arithmetic="parity").outputs
    before = (rows - grid[0] * grid[1], 0), (0, 0)
    cos, sin = (
        np.tile(np.pad(table[name].whole().astype(np.float64), before, constant_values=fill), (count, 1))
        for name, fill in (("cos", 1.0), ("sin", 0.0))
    )
    return {EVERY_LAYER: (axial.layout, cos, sin)}


def _vectors(steps: VectorSteps, weights: Weights, x: Rows) -> Rows:
    rows = x
    for step in steps:
        match step:
            case TakeRow(row):
                x = rows[:, row]
            case AddToRow(row, feed_forward):
                x = rows[:, row] + rowwise(feed_forward, weights, x) - x
            case AttentionPool():
                x = _attention_pooled(step, weights, x)
            case Dense():
                x = apply(step, weights, x)
            case _:
                x = rowwise(step, weights, x)
    return x


def _attention_pooled(step: AttentionPool, weights: Weights, x: Rows) -> Rows:
    probe, weight, bias = (np.asarray(weights[name], np.float64) for name in (step.probe, step.weight, step.bias))
    read = [x, x] if step.query else [probe.reshape(1, -1), x, x]
    parts = zip(read, np.split(weight, len(read)), np.split(bias, len(read)), strict=True)
    *own, key, value = (rows @ matrix.T + added for rows, matrix, added in parts)
    query = rowwise(step.query, weights, probe.reshape(1, -1)) if step.query else own[0]
    heads = (step.heads, -1)
    query = query.reshape(*heads)  # (heads, w)
    key, value = (rows.reshape(*rows.shape[:2], *heads) for rows in (key, value))  # (B, R, heads, w)
    scores = np.einsum("hw,brhw->bhr", query, key) / np.sqrt(query.shape[1])
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    mixed = np.einsum("bhr,brhw->bhw", shares, value).reshape(len(x), -1)
    return rowwise(step.output, weights, mixed)


def run(steps: Steps, weights: Weights, values: NDArray[Any], grid: tuple[int, int] | None = None) -> dict[str, Rows]:
    """Return every output of the input layer.

    Args:
        steps: steps of the input layer.
        weights: tensors by name, of any float dtype.
        values: pixels [batch, channels, height, width], patches [rows, f] or features [batch, bins, frames].
        grid: rows and columns of flattened patches.

    Returns:
        float64 [batch, rows, d], for flattened patches [rows, d], by name: input_embeddings, patch_embeddings and
        position_embeddings where the steps have them.
    """
    flat = isinstance(steps[0], Project)
    x = values.astype(np.float64)
    x = x[None] if flat else x.swapaxes(1, 2) if isinstance(steps[0], Convolve) else x
    outputs: dict[str, Rows] = {}
    for step in steps:
        match step:
            case Patchify():
                x, grid = _patches(step, weights, x)
                outputs["patch_embeddings"] = x
            case Project(weight, bias):
                x = outputs["patch_embeddings"] = x @ weights[weight].astype(np.float64).T + _vector(weights, bias, 0.0)
            case Insert(table, at):
                rows = np.broadcast_to(weights[table].astype(np.float64), (len(x), *weights[table].shape))
                x = np.concatenate([x[:, :at], rows, x[:, at:]], axis=1)
            case AddGrid():
                assert grid is not None
                positions = _positions(step, weights, *grid)
                outputs["position_embeddings"] = np.broadcast_to(positions, (len(x), *positions.shape))
                x = x + positions
            case AddRows(table):
                positions = weights[table][: x.shape[1]].astype(np.float64)
                outputs["position_embeddings"] = np.broadcast_to(positions, (len(x), *positions.shape))
                x = x + positions
            case Convolve():
                x = _convolved(step, weights, x)
            case LayerNorm() | RMSNorm():
                x = rowwise(step, weights, x)
    outputs["input_embeddings"] = x
    return {name: np.ascontiguousarray(rows[0] if flat else rows) for name, rows in outputs.items()}


def _vector(weights: Weights, name: str | None, missing: float) -> Rows | float:
    return missing if name is None else weights[name].astype(np.float64)


def _patches(step: Patchify, weights: Weights, pixels: Rows) -> tuple[Rows, tuple[int, int]]:
    side, weight = step.patch, weights[step.weight].astype(np.float64)
    if step.padded:
        pixels = np.pad(pixels, ((0, 0), (0, 0), *((0, -size % side) for size in pixels.shape[2:])))
    rows, columns = (size // side for size in pixels.shape[2:])
    cut = pixels[:, :, : rows * side, : columns * side]
    cut = cut.reshape(len(cut), -1, rows, side, columns, side)  # (B, C, h, P, w, P)
    flat = cut.transpose(0, 2, 4, 1, 3, 5).reshape(len(cut), rows * columns, -1)  # (B, hw, CPP)
    projected: Rows = flat @ weight.reshape(len(weight), -1).T + _vector(weights, step.bias, 0.0)
    return projected, (rows, columns)


def _positions(step: AddGrid, weights: Weights, rows: int, columns: int) -> Rows:
    table = weights[step.table].astype(np.float64)
    source = table[step.extra :].reshape(step.rows, step.columns, -1).transpose(2, 0, 1)
    grid = resized(source, step.resize, rows, columns)  # (d, rows, columns)
    side = step.merge
    blocks = grid.reshape(len(grid), rows // side, side, columns // side, side).transpose(1, 3, 2, 4, 0)
    return np.concatenate([table[: step.extra], blocks.reshape(rows * columns, -1)])


def _convolved(step: Convolve, weights: Weights, x: Rows) -> Rows:
    weight = weights[step.weight].astype(np.float64)
    padded = np.pad(x, ((0, 0), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, 3, axis=1)[:, :: step.stride]  # (B, T, C, 3)
    flat = windows.reshape(*windows.shape[:2], -1)
    return ACTIVATIONS["gelu"](flat @ weight.reshape(len(weight), -1).T + _vector(weights, step.bias, 0.0))
