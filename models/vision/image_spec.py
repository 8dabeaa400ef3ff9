"""Image and ImageTokens, the parts of a card that describe a vision model, and one in front of a decoder."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from models.positions.rope.frequencies import Rope
from models.recipes.positional_encodings import RopeTable
from models.recipes.steps import Recipe
from models.vision.preprocessor_config import Preprocessor
from models.vision.steps import AddGrid, Feed, Patchify, RowStep, Steps, VectorSteps


@dataclass(frozen=True, slots=True)
class AxialRope:
    """The axial RoPE of a tower's attention; the parameters of positions/rope/axial.py.

    Attributes:
        kind: a row of AXIAL.
        head_dim: channels of a head.
        theta: base of the frequencies.
        merge: patches come in blocks of merge x merge.
        layout: how channels are paired, a row of rotation.LAYOUTS.
    """

    kind: str
    head_dim: int
    theta: float
    merge: int
    layout: str = "half"

    @property
    def table(self) -> RopeTable:
        """How blocks rotate by it; the graph computes cos and sin from the image's grid."""
        return RopeTable(Rope(self.theta, self.head_dim), self.layout, None, None, 1.0, 1.0, (), (), "")


@dataclass(frozen=True, slots=True)
class Image:
    """The part of a card that the image routes read.

    Attributes:
        steps: steps from the input to the rows before the first block.
        feed: pixels [channels, height, width], patches [rows, width] or features [bins, frames].
        width: channels of a pixel, values of a flattened patch, bins of a frame.
        patch: side of a patch; 1 for features.
        frames: number of frames that the model takes (features only).
        fixed: the only (height, width) it takes; None: any, the positions are resized.
        preprocessor: how an image becomes pixels; None: the checkpoint does not say, so only tensors are accepted.
        axial: the axial RoPE of the attention; None: none.
        vector: steps from the rows behind the last block to the image's vector; empty: there is none.
        vector_width: width of this vector; 0: there is none.
        normalize: whether the vector is scaled to unit length unless the caller says otherwise.
    """

    steps: Steps
    feed: Feed
    width: int
    patch: int
    frames: int | None
    fixed: tuple[int, int] | None
    preprocessor: Preprocessor | None
    axial: AxialRope | None = None
    vector: VectorSteps = ()
    vector_width: int = 0
    normalize: bool = False

    @property
    def takes_grid(self) -> bool:
        """Whether flattened patches need the number of their rows and columns as a second input."""
        return self.feed == "patches" and any(isinstance(step, AddGrid) for step in self.steps)

    @property
    def merge(self) -> int:
        """The side of the blocks, merge x merge, in which patches are ordered."""
        return next((step.merge for step in self.steps if isinstance(step, AddGrid)), 1)

    def patches(self, height: int, width: int) -> tuple[int, int]:
        """Return the numbers of rows and columns of patches in pixels of this size."""
        first = self.steps[0]
        if isinstance(first, Patchify) and first.padded:
            return -(-height // self.patch), -(-width // self.patch)
        return height // self.patch, width // self.patch

    @property
    def reads_pictures(self) -> bool:
        """Whether the model accepts image files, not only tensors."""
        return self.preprocessor is not None


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

    The tower turns the patches of one image into a row for each of its tokens; the decoder reads these rows in the
    place of rows of its word table.

    Source: transformers 5.23, Qwen2VLModel, Qwen2_5_VLModel and Qwen3VLModel.

    Attributes:
        image: the tower's input layer, the preprocessor and the axial RoPE.
        blocks: steps of the tower's blocks.
        parts: parts of the rows of its tokens; the first replaces the rows of the word table, others are added behind
            the first, second, ... block of the decoder.
        width: width of a row of the decoder.
        window: side of a window in blocks of merge x merge patches; 0: attention has none.
        token_id: id of an image's tokens.
        before, after: ids around an image that is an input of its own.
        outside: numbers of tokens before and behind an image that the mean of its hidden states leaves out.
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
    outside: tuple[int, int] = (0, 0)
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
