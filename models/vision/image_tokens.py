"""ImageTokens: how a model that reads text reads images among its tokens, and the inputs of its image tower.

A tower turns the patches of one image into a row for each of its tokens; the decoder reads these rows in the place of
the rows of its word table. Source: transformers 5.23, Qwen2VLModel, Qwen2_5_VLModel and Qwen3VLModel.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from models.positions.rope.axial import Grid
from models.recipes.steps import Recipe
from models.vision.image_spec import Image
from models.vision.preprocess import Prepared
from models.vision.steps import RowStep


@dataclass(frozen=True, slots=True)
class ImagePart:
    """A part of the rows of an image's tokens; a decoder reads it before its first block, or behind a later one.

    Attributes:
        behind: number of the tower's steps behind which it is made.
        steps: steps from the rows of patches to it.
    """

    behind: int
    steps: tuple[RowStep, ...]


@dataclass(frozen=True, slots=True)
class ImageTokens:
    """The image tower of a model that reads text, and how images lie among its tokens.

    Attributes:
        image: the tower's input layer, the preprocessor and the axial RoPE.
        blocks: steps of the tower's blocks.
        parts: parts of the rows of its tokens; the first replaces the rows of the word table, others are added behind
            the first, second, ... block of the decoder.
        width: width of a row of the decoder.
        window: side of a window in blocks of merge x merge patches; 0: attention has none.
        token_id: id of an image's tokens.
        before, after: ids around an image that is an input of its own.
        numbering: grid: an image's tokens have positions by row and column, and the text behind it goes on from the
            largest; row: they are numbered like text.
    """

    image: Image
    blocks: Recipe
    parts: tuple[ImagePart, ...]
    width: int
    window: int
    token_id: int
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    numbering: Literal["grid", "row"] = "grid"

    @property
    def merge(self) -> int:
        """The side of a block of patches, which makes one token."""
        return self.image.axial.merge if self.image.axial else 1

    def tokens(self, grid: tuple[int, int]) -> int:
        """Return the number of tokens of an image with so many rows and columns of patches."""
        return grid[0] // self.merge * (grid[1] // self.merge)

    def ids(self, grid: tuple[int, int]) -> NDArray[np.int64]:
        """Return the ids of an input that is one image."""
        return np.array([*self.before, *[self.token_id] * self.tokens(grid), *self.after], np.int64)

    def places(self, grid: tuple[int, int]) -> NDArray[np.int64]:
        """Return the input `places` of these ids: int64 [n, 4]: time, row, column, whether an image gives the token."""
        rows, columns = grid[0] // self.merge, grid[1] // self.merge
        before, inside, start = len(self.before), rows * columns, 0
        total = before + inside + len(self.after)
        places = np.repeat(np.arange(total)[:, None], 4, axis=1)
        places[:, 3] = 0
        image = slice(before, before + inside)
        places[image, 3] = 1
        if self.numbering == "grid":
            start = before + max(rows, columns)
            places[image, :3] = before + np.stack(
                [np.zeros(inside, np.int64), *np.indices((rows, columns)).reshape(2, -1)], axis=1
            )
            places[before + inside :, :3] = (start + np.arange(len(self.after)))[:, None]
        return places


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
