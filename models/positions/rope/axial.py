"""Vision RoPE over the rows and columns of image patches; each vision tower is a row of AXIAL.

Whole positions use the arithmetic of angles.py; DINOv3's positions are fractions of the image and have their own
angles.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from models.errors import BadEncoding
from models.positions.arithmetic import Arithmetic, Frequencies
from models.positions.rope.frequencies import Rope, frequencies
from models.positions.rope.multi_axis import AxisColumns, column_facts, each_of, multi_axis_cos_sin, subset
from models.positions.rope.rotation import Width
from models.positions.rope.table import cos_sin_outputs
from models.positions.table import Table, checked_name, checked_positions

Array = NDArray[Any]
Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Axial:
    """One vision tower's table. With n = head_dim/2, each axis has n/2 frequencies and its own n/2 columns.

    Attributes:
        axes: hw: the patch's row turns the first half of the table's columns, its column the second half. wh: swapped.
        theta: base that the models were trained with.
        spectrum: each: both axes use theta^(-2j/n). shared: of theta^(-i/n), even i go to the first axis, odd i to the
            second.
        layout: how the rotation pairs channels, a row of rotation.LAYOUTS.
        first: position of the first row and column.
        centred: the angle is 2 pi times the patch's centre in -1..1, (2k + 1)/count - 1, not its index k.
        stretched: positions are index * stretched / count, so that every grid spans that of training; 0: the index.
        unrotated: number of rows of angle 0 after the grid's.
        merge: patches come in blocks of merge x merge, row by row within a block, as the model's merger reads them.
        source: the class whose table this matches.
        note: a sentence for the reader of a table.
    """

    axes: Literal["hw", "wh"]
    theta: float
    layout: str = "half"
    spectrum: Literal["each", "shared"] = "each"
    first: int = 0
    centred: bool = False
    stretched: int = 0
    unrotated: int = 0
    merge: int = 1
    source: str = ""
    note: str = ""

    @property
    def by_grid(self) -> bool:
        """Whether angles depend on the size of the grid."""
        return self.centred or self.stretched > 0


_ROWS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
AXIAL: dict[str, Axial] = {name: Axial(**row) for name, row in _ROWS.items()}
"""The rows of axial.json, by the model type of the tower's checkpoint."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The patches of one image, in the order in which a model reads them.

    Attributes:
        height: patches down.
        width: patches across.
        merge: they come in blocks of merge x merge.
    """

    height: int
    width: int
    merge: int = 1

    def patches(self, start: int, stop: int) -> Int64s:
        """Return row and column of patches start to stop: int64 [2, stop - start]."""
        block, within = np.divmod(np.arange(start, stop), self.merge**2)
        row, column = np.divmod(block, self.width // self.merge)
        return np.asarray(np.stack(np.divmod(within, self.merge)) + self.merge * np.stack([row, column]))


def axial_parts(
    row: Axial, head_dim: int, theta: float | None, arithmetic: Arithmetic
) -> tuple[AxisColumns, AxisColumns]:
    """Return the columns that turn with the patch's row (axis 0) and with its column (axis 1), in table order.

    Args:
        row: the tower.
        head_dim: channels of a head, a multiple of 4.
        theta: base of the frequencies; None: the tower's own.
        arithmetic: exact or parity.

    Raises:
        BadEncoding: head_dim is not a multiple of 4.
        BadScaling: theta is not above 1.
    """
    if head_dim < 4 or head_dim % 4:
        raise BadEncoding(f"a head of {head_dim} channels cannot be shared by two axes: it must be a multiple of 4")
    shared = row.spectrum == "shared"
    freqs = frequencies(Rope(row.theta if theta is None else theta, head_dim // (1 if shared else 2)), arithmetic)
    every = np.arange(head_dim // 4)
    first, second = (subset(freqs, 2 * every + slot) if shared else freqs for slot in (0, 1))
    return (
        AxisColumns("hw".index(row.axes[0]), every, first),
        AxisColumns("hw".index(row.axes[1]), every + len(every), second),
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
    """Return cos and sin of a vision tower's patches as a Table.

    Args:
        kind: a row of AXIAL.
        head_dim: a multiple of 4; all of it rotates.
        grid: patches (down, across), read in the model's own order; then come the kind's unrotated rows.
        positions: instead of a grid, int64 [N, 2]: row and column of each patch. DINOv3 also needs the grid.
        theta: above 1; None: the kind's own.
        merge: patches are read in blocks of merge x merge; None: the kind's own.
        arithmetic: exact or parity.
        table: single: [N, head_dim/2]. duplicated: [N, head_dim], as the kind's layout pairs channels.

    Returns:
        a Table with outputs `cos` and `sin`.

    Raises:
        BadEncoding: an unknown kind, or sizes, a grid or positions that do not fit it.
        BadScaling: theta is not above 1.

    Source: AXIAL[kind].source.
    """
    row = AXIAL[checked_name("axial rope", kind, AXIAL)]
    parts = axial_parts(row, head_dim, theta, arithmetic)
    patches, count, known_grid = _patches(kind, row, grid, positions, merge)

    def block(start: int, stop: int) -> tuple[Array, Array]:
        rotated = patches(start, min(stop, count))  # [2, n]
        unrotated_rows = np.zeros((2, stop - start - rotated.shape[1]), np.int64)
        if row.by_grid and known_grid is not None:
            return grid_cos_sin(row, parts, rotated, known_grid)
        return multi_axis_cos_sin(parts, np.concatenate([rotated + row.first, unrotated_rows], axis=1))

    unrotated = row.unrotated if positions is None else 0
    facts = column_facts(parts, ("height", "width")) | {"kind": kind, "head_dim": head_dim, "layout": row.layout}
    facts |= {"theta": row.theta if theta is None else theta, "formula": _formula(row), "table": table}
    facts |= {"grid": [known_grid.height, known_grid.width] if known_grid else None}
    facts |= {"merge": known_grid.merge if known_grid else None}
    outputs = cos_sin_outputs(each_of(block), (count + unrotated, head_dim // 2), table, row.layout)
    return Table("axial_rope", arithmetic, outputs, facts, (row.note,) if row.note else ())


def _formula(row: Axial) -> str:
    spectrum = {"each": "theta^(-4j/head_dim) for each axis", "shared": "theta^(-2i/head_dim), even i and odd i"}
    step = f"(position + {row.first})" if row.first else "position"
    step = f"{row.stretched} index/count" if row.stretched else step
    return f"{'2 pi ((2 index + 1)/count - 1)' if row.centred else step} * {spectrum[row.spectrum]}"


def _patches(
    kind: str, row: Axial, grid: tuple[int, int] | None, positions: Int64s | None, merge: int | None
) -> tuple[Callable[[int, int], Int64s], int, Grid | None]:
    """Return a function for row and column of patches start to stop, [2, ...]; their number; the grid, if known."""
    known_grid = None if grid is None else _grid(grid, row.merge if merge is None else merge)
    if positions is None:
        if known_grid is None:
            raise BadEncoding(f"{kind} needs a grid (patches down, across) or the positions of the patches")
        return known_grid.patches, known_grid.height * known_grid.width, known_grid
    if positions.ndim != 2 or positions.shape[1] != 2:
        raise BadEncoding(f"positions are {list(positions.shape)}; they must be [patches, 2]: row and column of each")
    checked_positions(positions.ravel())
    if row.by_grid != (known_grid is not None):
        need = "needs the grid as well as the positions" if row.by_grid else "takes a grid or positions, not both"
        raise BadEncoding(f"{kind} {need}")
    if known_grid is not None and (outside := (positions >= [known_grid.height, known_grid.width]).any(axis=1)).any():
        raise BadEncoding(
            f"patch {positions[outside][0].tolist()} is outside the grid of {known_grid.height} x {known_grid.width}"
        )
    columns = np.ascontiguousarray(positions.T)
    return (lambda start, stop: columns[:, start:stop]), len(positions), known_grid


def _grid(grid: tuple[int, int], merge: int) -> Grid:
    height, width = grid
    if min(height, width, merge) < 1 or height % merge or width % merge:
        raise BadEncoding(
            f"a grid of {height} x {width} patches cannot be read in blocks of {merge} x {merge}: both sides must be "
            "multiples of merge, 1 or more"
        )
    return Grid(height, width, merge)


def grid_cos_sin(row: Axial, parts: Sequence[AxisColumns], patches: Int64s, grid: Grid) -> tuple[Array, Array]:
    """Return cos and sin of the patches of a tower whose angles depend on the grid, [N, head_dim/2] each."""
    angles = [_angles(row, patches[part.axis], (grid.height, grid.width)[part.axis], part.freqs) for part in parts]
    joined = np.concatenate(angles, axis=-1)
    return np.cos(joined), np.sin(joined)


def _angles(row: Axial, index: Int64s, count: int, freqs: Frequencies) -> Array:
    """Return 2 pi times the centre of each patch (-1 to 1), or its stretched position, times a frequency."""
    places: Array
    if freqs.arithmetic == "exact":
        places = index / count * row.stretched if row.stretched else (2 * index + 1 - count) / count * (2.0 * math.pi)
        return np.asarray(places[:, None] * freqs.inverse_frequency)
    one, total = np.float32(1.0), np.float32(count)
    if row.stretched:
        places = index.astype(np.float32) / total * np.float32(row.stretched)
    else:
        places = np.float32(2.0 * math.pi) * (2 * ((index.astype(np.float32) + one / 2) / total) - one)
    return np.asarray(places[:, None] * freqs.inverse_frequency.astype(np.float32))
