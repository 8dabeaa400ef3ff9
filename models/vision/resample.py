"""Resizing along two axes as torch does it, in numpy float64, with one matrix of weights per axis.

Source: torch 2.13 `interpolate(align_corners=False)` and its upsample kernels. Without antialias, border rows are
repeated beyond the border and the cubic has a = -0.75. With antialias, the filter grows with the scale, rows beyond the
border have no weight, weights are normalised and the cubic has a = -0.5. Where antialias leaves one column and the rows
change too, torch's CPU kernel differs from its own result one axis at a time; this module gives the latter.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
KEPT_VALUES = 4096  # of a matrix; 256 of them take at most 8 MiB


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

    Attributes:
        kernel: weight by distance in source rows.
        taps: source rows that a target row reads at scale 1.
        antialias: whether the filter grows with the scale when there are fewer target rows.
        corners: whether the first and last rows of source and target coincide (align_corners).
        onnx: the attributes of the equivalent ONNX Resize.
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


def weights(resize: str, source: int, target: int) -> Matrix:
    """Return [target, source]: the weight of every source row in every target row; rows sum to 1.

    Args:
        resize: a row of RESIZES.
        source: number of source rows.
        target: number of target rows.
    """
    return (_weights if source * target <= KEPT_VALUES else _weights.__wrapped__)(resize, source, target)


@lru_cache(maxsize=256)
def _weights(resize: str, source: int, target: int) -> Matrix:
    row = RESIZES[resize]
    if row.antialias:
        return _filtered(row, source, target)
    places = _places(row, source, target)
    matrix = np.zeros((target, source))
    for offset in range(1 - row.taps // 2, row.taps // 2 + 1):
        tap = np.floor(places) + offset
        np.add.at(matrix, (np.arange(target), np.clip(tap, 0, source - 1).astype(np.int64)), row.kernel(places - tap))
    return matrix


def _places(row: Resize, source: int, target: int) -> Matrix:
    rows = np.arange(target, dtype=np.float64)
    matrix: Matrix = (
        rows * ((source - 1) / max(target - 1, 1)) if row.corners else (rows + 0.5) * (source / target) - 0.5
    )
    return matrix


def _filtered(row: Resize, source: int, target: int) -> Matrix:
    scale = source / target
    stretch = max(scale, 1.0)
    centre = (np.arange(target)[:, None] + 0.5) * scale
    reach = row.taps / 2 * stretch
    rows = np.arange(source)[None]
    # the rows that torch's filter reads: from int(centre - reach + 0.5) to int(centre + reach + 0.5)
    visible = (rows >= np.floor(np.maximum(centre - reach + 0.5, 0.0))) & (rows < np.floor(centre + reach + 0.5))
    matrix = np.where(visible, row.kernel((rows - centre + 0.5) / stretch), 0.0)
    total: Matrix = matrix / matrix.sum(axis=1, keepdims=True)
    return total


def resized(grid: NDArray[Any], resize: str, rows: int, columns: int) -> Matrix:
    """Return a grid [..., h, w] resized to [..., rows, columns], float64; `resize` is a row of RESIZES."""
    down = weights(resize, grid.shape[-2], rows)
    across = weights(resize, grid.shape[-1], columns)
    matrix: Matrix = down @ grid.astype(np.float64) @ across.T
    return matrix
