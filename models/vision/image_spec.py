"""What a card says of a model that reads images: its steps, what may go in, and how pixels are made of a picture."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.vision.families import Feed
from models.vision.preprocessor import Preprocessor
from models.vision.preprocessor import from_json as preprocessor_from_json
from models.vision.steps import AddGrid, Patchify, Steps
from models.vision.steps import from_json as steps_from_json


@dataclass(frozen=True, slots=True)
class AxialRope:
    """How a tower's attention turns with rows and columns: what positions/rope/axial.py is asked for.

    kind     a row of AXIAL
    merge    patches come in blocks of merge x merge
    """

    kind: str
    head_dim: int
    theta: float
    merge: int


@dataclass(frozen=True, slots=True)
class Image:
    """The part of a card that the routes of images read.

    feed     pixels [channels, height, width], patches [rows, width] or features [bins, frames]
    width    channels of a pixel, values of a flattened patch, bins of a frame
    patch    side of a patch; 1 for features
    frames   how many frames the model takes, features alone
    fixed    the one [height, width] it takes; None: any, the positions are resized
    preprocessor  how a picture becomes pixels; None: the checkpoint does not say, and only tensors go in
    axial    how the attention turns with a patch's place; None: it does not
    """

    steps: Steps
    feed: Feed
    width: int
    patch: int
    frames: int | None
    fixed: tuple[int, int] | None
    preprocessor: Preprocessor | None
    axial: AxialRope | None = None

    @property
    def takes_grid(self) -> bool:
        """Whether flattened patches need their rows and columns beside them."""
        return self.feed == "patches" and any(isinstance(step, AddGrid) for step in self.steps)

    @property
    def merge(self) -> int:
        """Patches come in blocks of merge x merge."""
        return next((step.merge for step in self.steps if isinstance(step, AddGrid)), 1)

    def patches(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of patches of pixels of this size."""
        first = self.steps[0]
        if isinstance(first, Patchify) and first.padded:
            return -(-height // self.patch), -(-width // self.patch)
        return height // self.patch, width // self.patch

    @property
    def reads_pictures(self) -> bool:
        """Whether a picture can become pixels."""
        return self.preprocessor is not None


def from_json(data: Mapping[str, Any]) -> Image:
    """The inverse of dataclasses.asdict with steps as steps.to_json gives them; KeyError or TypeError otherwise."""
    made = data["preprocessor"] and preprocessor_from_json(data["preprocessor"])
    fixed = data["fixed"] and tuple(data["fixed"])
    axial = data["axial"] and AxialRope(**data["axial"])
    parts = {"steps": steps_from_json(data["steps"]), "preprocessor": made, "fixed": fixed, "axial": axial}
    return Image(**dict(data) | parts)
