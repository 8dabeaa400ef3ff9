"""The rotation of a tower's attention by rows and columns, as a table that the interpreters of blocks read."""

from models.positions.rope.axial import AXIAL
from models.positions.rope.frequencies import Rope
from models.recipes.positional_encodings import RopeTable
from models.vision.image_spec import AxialRope


def rope_table(axial: AxialRope) -> RopeTable:
    """Return how queries and keys are rotated; cos and sin are made of the patches' places elsewhere."""
    rope = Rope(axial.theta, axial.head_dim)
    return RopeTable(rope, AXIAL[axial.kind].layout, None, None, 1.0, 1.0, (), (), "")
