"""The inputs of an image tower in front of a decoder: patches by windows, and their places."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.positions.rope.axial import Grid
from models.vision.image_spec import ImageTokens
from models.vision.preprocess import Prepared


def tower_feeds(spec: ImageTokens, prepared: Prepared) -> dict[str, NDArray[Any]]:
    """Return the inputs of the tower's graph for one image.

    Returns:
        pixel_values float32 [rows, f] and places int64 [rows, 2], the row and column of each patch, both by windows;
        mask bool [rows]; lengths int64 [windows], patches of each; order int64 [tokens], where the blocks lie; grid
        int64 [2] if the tower's learned positions are resized to it.
    """
    assert prepared.grid is not None
    height, width = prepared.grid
    count = height * width
    places = Grid(height, width, spec.merge).patches(0, count).T
    order, lengths = windows((height // spec.merge, width // spec.merge), spec.window)
    size = spec.merge**2
    by_window = (order[:, None] * size + np.arange(size)).reshape(-1)
    feeds = {
        "pixel_values": np.ascontiguousarray(prepared.values[by_window]),
        "places": np.ascontiguousarray(places[by_window]),
        "mask": np.ones(count, np.bool_),
        "lengths": lengths * size,
        "order": np.argsort(order),
    }
    return feeds | ({"grid": np.array(prepared.grid, np.int64)} if spec.image.takes_grid else {})


def windows(grid: tuple[int, int], side: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the order of a grid's cells by windows of side x side, and the number of cells of each window.

    Args:
        grid: rows and columns.
        side: of a window; those at the lower and right edge may be smaller. 0: the grid is one window.

    Source: transformers 5.23, vision_utils.get_vision_window_index.
    """
    row, column = np.indices(grid).reshape(2, -1) // (side or max(grid))
    window = row * (int(column.max()) + 1) + column
    return np.argsort(window, kind="stable"), np.bincount(window)
