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
        pixel_values float32 [1, channels, height, width] of a tower that reads pixels; of others pixel_values
        [rows, f] and places int64 [rows, 2], the row and column of each patch, both by windows;
        mask bool [rows]; lengths int64 [windows], patches of each; order int64 [tokens], where the blocks lie; grid
        int64 [2] if the tower's learned positions are resized to it.
    """
    if prepared.grid is None:
        return {"pixel_values": prepared.values[None]}
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


def blank(spec: ImageTokens, rows: int, columns: int) -> Prepared:
    """Return an image of so many rows and columns of tokens, all zeros; of a tower of one size, of this size."""
    image = spec.image
    grid = rows * spec.merge, columns * spec.merge
    if image.feed == "pixels":
        height, width = image.fixed or (grid[0] * image.patch, grid[1] * image.patch)
        return Prepared(np.zeros((image.width, height, width), np.float32), None)
    return Prepared(np.zeros((grid[0] * grid[1], image.width), np.float32), grid)
