"""Resizing along two axes as torch does it, in numpy float64: each axis a matrix of weights. Knows no image, no model.

source  torch 2.13 `interpolate(align_corners=False)`, its upsample kernels: without antialias, border rows stand for
        what lies beyond them and the cubic has a = -0.75; with it, the filter grows with the scale, rows beyond the
        border count nothing, weights are normalised and the cubic has a = -0.5. Where antialias leaves one column and
        the rows change too, torch's CPU kernel gives other values than itself one axis at a time; this is the latter
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def _cubic(distance: Matrix, a: float) -> Matrix:
    x = np.abs(distance)
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
    return np.where(x <= 1.0, near, np.where(x < 2.0, far, 0.0))


def _hat(distance: Matrix) -> Matrix:
    return np.maximum(1.0 - np.abs(distance), 0.0)


@dataclass(frozen=True, slots=True)
class Resize:
    """One way to resize.

    kernel     weights by distance in source rows
    taps       source rows that a target row reads at scale 1
    antialias  the filter grows with the scale when there are fewer target rows
    corners    the first and last rows of both meet (align_corners)
    onnx       the attributes of ONNX's Resize that say the same
    """

    kernel: Callable[[Matrix], Matrix]
    taps: int
    antialias: bool
    corners: bool
    onnx: dict[str, Any]


CUBIC: dict[str, Any] = {"mode": "cubic", "cubic_coeff_a": -0.75, "coordinate_transformation_mode": "half_pixel"}
LINEAR: dict[str, Any] = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
SMOOTH: dict[str, Any] = {"antialias": 1, "exclude_outside": 1}
ALIGNED: dict[str, Any] = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
RESIZES: dict[str, Resize] = {
    "bicubic": Resize(lambda x: _cubic(x, -0.75), 4, False, False, CUBIC),
    "bicubic_antialias": Resize(lambda x: _cubic(x, -0.5), 4, True, False, CUBIC | SMOOTH | {"cubic_coeff_a": -0.5}),
    "bilinear_antialias": Resize(_hat, 2, True, False, LINEAR | SMOOTH),
    "bilinear_corners": Resize(_hat, 2, False, True, ALIGNED),
}


@lru_cache(maxsize=256)
def weights(resize: str, source: int, target: int) -> Matrix:
    """[target, source]: what every source row gives to every target row; rows sum to 1."""
    row = RESIZES[resize]
    if row.antialias:
        return _filtered(row, source, target)
    places = _places(row, source, target)
    found = np.zeros((target, source))
    for offset in range(1 - row.taps // 2, row.taps // 2 + 1):
        tap = np.floor(places) + offset
        np.add.at(found, (np.arange(target), np.clip(tap, 0, source - 1).astype(np.int64)), row.kernel(places - tap))
    return found


def _places(row: Resize, source: int, target: int) -> Matrix:
    rows = np.arange(target, dtype=np.float64)
    found: Matrix = (
        rows * ((source - 1) / max(target - 1, 1)) if row.corners else (rows + 0.5) * (source / target) - 0.5
    )
    return found


def _filtered(row: Resize, source: int, target: int) -> Matrix:
    scale = source / target
    stretch = max(scale, 1.0)
    centre = (np.arange(target)[:, None] + 0.5) * scale
    reach = row.taps / 2 * stretch
    rows = np.arange(source)[None]
    # the rows torch lets a filter see: from int(centre - reach + 0.5) to int(centre + reach + 0.5)
    seen = (rows >= np.floor(np.maximum(centre - reach + 0.5, 0.0))) & (rows < np.floor(centre + reach + 0.5))
    found = np.where(seen, row.kernel((rows - centre + 0.5) / stretch), 0.0)
    total: Matrix = found / found.sum(axis=1, keepdims=True)
    return total


def resized(grid: NDArray[Any], resize: str, rows: int, columns: int) -> Matrix:
    """A grid [..., h, w] as [..., rows, columns], float64."""
    down = weights(resize, grid.shape[-2], rows)
    across = weights(resize, grid.shape[-1], columns)
    found: Matrix = down @ grid.astype(np.float64) @ across.T
    return found
