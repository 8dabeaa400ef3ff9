"""Computes an image tower in front of a decoder in numpy float64: the reference of models/graphs/image_rows.py."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.positions.rope.axial import AXIAL, axial_parts
from models.positions.rope.multi_axis import multi_axis_cos_sin
from models.recipes.positional_encodings import EVERY_LAYER
from models.reference import vision
from models.reference.interpreter import ACTIVATIONS, Rows, Weights, encode, rowwise
from models.vision.image_spec import ImageTokens
from models.vision.steps import Activate, Join, RowStep


def image_rows(spec: ImageTokens, weights: Weights, feeds: Mapping[str, NDArray[Any]]) -> Rows:
    """Return the rows of one image's tokens, float64 [tokens, parts * d], of the inputs that `tower_feeds` makes."""
    x = vision.outputs(spec.image.steps, weights, feeds)["input_embeddings"]
    x = x.reshape(-1, x.shape[-1])
    turns, whole = {}, np.array([len(x)])
    if axial := spec.image.axial:
        parts = axial_parts(AXIAL[axial.kind], axial.head_dim, axial.theta, "parity")
        cos, sin = (rows.astype(np.float64) for rows in multi_axis_cos_sin(parts, feeds["places"].T))
        turns = {EVERY_LAYER: (axial.table.layout, cos, sin)}
    mask = feeds.get("mask", np.ones(len(x), np.bool_))
    made, done = {}, 0
    for part in sorted(spec.parts, key=lambda part: part.behind):
        steps, done = spec.blocks[done : part.behind], part.behind
        x = encode(steps, weights, x, mask, whole, turns=turns, windows=feeds.get("lengths"))
        made[part] = _made(part.steps, weights, x)
    joined: Rows = np.concatenate([made[part] for part in spec.parts], axis=1)
    return joined[feeds["order"]] if "order" in feeds else joined


def _made(steps: tuple[RowStep, ...], weights: Weights, x: Rows) -> Rows:
    for step in steps:
        match step:
            case Join(count):
                x = x.reshape(-1, count * x.shape[1])
            case Activate(activation):
                x = ACTIVATIONS[activation](x)
            case _:
                x = rowwise(step, weights, x)
    return x
