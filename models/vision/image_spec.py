"""Image, the part of a card that describes a vision model: its steps, its input and its image preprocessing."""

from dataclasses import dataclass

from models.positions.rope.frequencies import Rope
from models.recipes.positional_encodings import RopeTable
from models.vision.preprocessor_config import Preprocessor
from models.vision.steps import AddGrid, Feed, Patchify, Steps, VectorSteps


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
