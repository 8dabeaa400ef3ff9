"""Vision RoPE over rows and columns: a tower is a row of AXIAL. Reads no image and rotates nothing.

Whole positions take the arithmetic of angles.py; DINOv3's, which are fractions of the image, make their own angles.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from models.errors import BadEncoding
from models.positions.rope.frequencies import Frequencies, Rope, frequencies
from models.positions.rope.multi_axis import Part, column_facts, cos_sin_outputs, multi_axis_cos_sin, subset
from models.positions.rope.table import Width
from models.positions.table import Arithmetic, Table, checked_positions

Array = NDArray[Any]
Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Axial:
    """One vision tower's table. With n = head_dim/2, each axis has n/2 frequencies and its own n/2 columns.

    axes      which of (row, column) turns the first half of the columns, which the second
    theta     what the models were trained with
    spectrum  each: both axes read theta^(-2j/n). shared: of theta^(-i/n) the even i go to the first axis, the odd to
              the second
    layout    how the rotation pairs channels
    first     the position of the first row and column
    centred   not the index k turns but the patch's centre in -1..1, (2k + 1)/count - 1, times 2 pi
    unrotated rows of angle 0 after the grid's
    merge     patches come in blocks of merge x merge, row by row within a block, as the model's merger reads them
    """

    axes: Literal["hw", "wh"]
    theta: float
    layout: str = "half"
    spectrum: Literal["each", "shared"] = "each"
    first: int = 0
    centred: bool = False
    unrotated: int = 0
    merge: int = 1
    source: str = ""
    note: str = ""


_QWEN = Axial("hw", 10000.0, merge=2, source="transformers 5.23 Qwen2VLVisionRotaryEmbedding and its copies")
AXIAL: dict[str, Axial] = {
    "qwen2_vl": _QWEN,
    "qwen2_5_vl": _QWEN,
    "qwen3_vl": _QWEN,
    "ernie4_5_vl_moe": _QWEN,
    "pixtral": Axial("hw", 10000.0, spectrum="shared", source="transformers 5.23 PixtralVisionRotaryEmbedding"),
    "gemma4": Axial(
        "wh",
        100.0,
        "half_per_axis",
        source="transformers 5.23 Gemma4VisionRotaryEmbedding",
        note="Gemma 4's image processor gives (x, y): what its rotary embedding names h is the column.",
    ),
    "llama4": Axial(
        "wh",
        10000.0,
        "interleaved",
        first=1,
        unrotated=1,
        source="transformers 5.23 Llama4VisionRotaryEmbedding",
        note="A grid's last row is the class token, which Llama 4 puts after the patches; its angles are 0.",
    ),
    "dinov3": Axial("hw", 100.0, centred=True, source="transformers 5.23 DINOv3ViTRopePositionEmbedding, not training"),
}


@dataclass(frozen=True, slots=True)
class Grid:
    """The patches of one image, in the order a model reads them."""

    height: int
    width: int
    merge: int = 1

    def patches(self, start: int, stop: int) -> Int64s:
        """Row and column of patches start to stop: int64 [2, stop - start]."""
        block, within = np.divmod(np.arange(start, stop), self.merge**2)
        row, column = np.divmod(block, self.width // self.merge)
        return np.asarray(np.stack(np.divmod(within, self.merge)) + self.merge * np.stack([row, column]))


def axial_named(kind: str) -> Axial:
    """A row of AXIAL; raises BadEncoding that names the known."""
    if kind not in AXIAL:
        raise BadEncoding(f"axial rope {kind!r} is not one of {', '.join(AXIAL)}")
    return AXIAL[kind]


def axial_parts(row: Axial, head_dim: int, theta: float | None, arithmetic: Arithmetic) -> tuple[Part, Part]:
    """The columns that turn with the row (axis 0) and with the column (axis 1), in the order of the table."""
    if head_dim < 4 or head_dim % 4:
        raise BadEncoding(f"a head of {head_dim} channels cannot be shared by two axes: it must be a multiple of 4")
    shared = row.spectrum == "shared"
    found = frequencies(Rope(row.theta if theta is None else theta, head_dim // (1 if shared else 2)), arithmetic)
    every = np.arange(head_dim // 4)
    first, second = (subset(found, 2 * every + slot) if shared else found for slot in (0, 1))
    return (
        Part("hw".index(row.axes[0]), every, first),
        Part("hw".index(row.axes[1]), every + len(every), second),
    )


def tabulate_axial(
    kind: str,
    head_dim: int,
    *,
    grid: tuple[int, int] | None = None,
    positions: Int64s | None = None,
    theta: float | None = None,
    merge: int | None = None,
    arithmetic: Arithmetic = "exact",
    table: Width = "single",
) -> Table:
    """cos and sin of a vision tower's patches.

    kind       a row of AXIAL
    head_dim   a multiple of 4; all of it rotates
    grid       patches (down, across), read in the model's own order; then come the kind's unrotated rows
    positions  instead of a grid, int64 [N, 2]: row and column of each patch. DINOv3 needs the grid besides
    theta      None: the kind's own
    merge      patches are read in blocks of merge x merge; None: the kind's own
    table      single: [N, head_dim/2]. duplicated: [N, head_dim], as the kind's layout pairs channels
    raises     BadEncoding, BadScaling
    source     AXIAL[kind].source
    """
    row = axial_named(kind)
    parts = axial_parts(row, head_dim, theta, arithmetic)
    patches, count, size = _patches(kind, row, grid, positions, merge)

    def both(start: int, stop: int) -> tuple[Array, Array]:
        where = patches(start, min(stop, count))
        still = np.zeros((2, stop - start - where.shape[1]), np.int64)
        if row.centred and size is not None:
            return centred_cos_sin(parts, where, size)
        return multi_axis_cos_sin(parts, np.concatenate([where + row.first, still], axis=1))

    unrotated = row.unrotated if positions is None else 0
    facts = column_facts(parts, ("height", "width")) | {"kind": kind, "head_dim": head_dim, "layout": row.layout}
    facts |= {"theta": row.theta if theta is None else theta, "formula": _formula(row), "table": table}
    facts |= {"grid": None if size is None else [size.height, size.width], "merge": size.merge if size else None}
    outputs = cos_sin_outputs(both, (count + unrotated,), parts, row.layout, table)
    return Table("axial_rope", arithmetic, outputs, facts, (row.note,) if row.note else ())


def _formula(row: Axial) -> str:
    spectrum = {"each": "theta^(-4j/head_dim) for each axis", "shared": "theta^(-2i/head_dim), even i and odd i"}
    step = f"(position + {row.first})" if row.first else "position"
    return f"{'2 pi ((2 index + 1)/count - 1)' if row.centred else step} * {spectrum[row.spectrum]}"


def _patches(
    kind: str, row: Axial, grid: tuple[int, int] | None, positions: Int64s | None, merge: int | None
) -> tuple[Callable[[int, int], Int64s], int, Grid | None]:
    """Where patches start to stop are, [2, ...]; how many there are; the grid if one is known."""
    size = None if grid is None else _grid(grid, row.merge if merge is None else merge)
    if positions is None:
        if size is None:
            raise BadEncoding(f"{kind} needs a grid (patches down, across) or the positions of the patches")
        return size.patches, size.height * size.width, size
    if positions.ndim != 2 or positions.shape[1] != 2:
        raise BadEncoding(f"positions are {list(positions.shape)}; they must be [patches, 2]: row and column of each")
    checked_positions(positions.ravel())
    if row.centred != (size is not None):
        need = "needs the grid beside the positions" if row.centred else "takes a grid or positions, not both"
        raise BadEncoding(f"{kind} {need}")
    if size is not None and (outside := (positions >= [size.height, size.width]).any(axis=1)).any():
        raise BadEncoding(f"patch {positions[outside][0].tolist()} is outside the grid of {size.height} x {size.width}")
    columns = np.ascontiguousarray(positions.T)
    return (lambda start, stop: columns[:, start:stop]), len(positions), size


def _grid(grid: tuple[int, int], merge: int) -> Grid:
    height, width = grid
    if min(height, width, merge) < 1 or height % merge or width % merge:
        raise BadEncoding(
            f"a grid of {height} x {width} patches cannot be read in blocks of {merge} x {merge}: both sides must be "
            "multiples of merge, 1 or more"
        )
    return Grid(height, width, merge)


def centred_cos_sin(parts: Sequence[Part], patches: Int64s, grid: Grid) -> tuple[Array, Array]:
    """cos and sin of 2 pi times each patch's centre, -1 to 1, times a frequency; angles stay within a turn each way."""
    angles = [_centred_angles(patches[part.axis], (grid.height, grid.width)[part.axis], part.found) for part in parts]
    joined = np.concatenate(angles, axis=-1)
    return np.cos(joined), np.sin(joined)


def _centred_angles(index: Int64s, count: int, found: Frequencies) -> Array:
    if found.arithmetic == "exact":
        return ((2 * index + 1 - count) / count)[:, None] * (2.0 * math.pi * found.inverse_frequency)
    one = np.float32(1.0)
    centres = (index.astype(np.float32) + one / 2) / np.float32(count)
    around = np.float32(2.0 * math.pi) * (2 * centres - one)
    return np.asarray(around[:, None] * found.inverse_frequency.astype(np.float32))
