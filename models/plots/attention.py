"""Pictures of what meets attention scores, queries down and keys across: biases, buckets, masks. Draws nothing."""

from collections.abc import Sequence
from math import prod

import numpy as np

from models.plots.captions import (
    description,
    joined,
    lettered,
    letters,
    subtitle,
    title,
)
from models.plots.colors import MASK, shared
from models.plots.heatmaps import rows_axis
from models.plots.picture import (
    Axis,
    AxisScale,
    HeatPanel,
    Picture,
)
from models.plots.sampling import (
    cells,
    evenly,
    grid_at,
    note,
    row_limit,
)
from models.plots.subject import Subject
from models.positions.table import Output

ALONE = (16, 8)  # grids drawn of a lone subject: all up to the first number, else the second
COMPARED = 2  # of each of several
COLUMNS = 4
Found = tuple[HeatPanel, tuple[str, ...]]
QUERY, KEY = "query position (tokens)", "key position (tokens)"


def bias(subjects: Sequence[Subject], axis: AxisScale | None = None) -> Picture:
    """Bias, or where a table has none bucket, of every query and key: a grid a head."""
    what = "bias" if all("bias" in subject.table.outputs for subject in subjects) else "bucket"
    found = _all_grids(subjects, what)
    label = "bias (added to the score)" if what == "bias" else "bucket (index)"
    return _picture(
        title(f"{what} by query and key", subjects),
        description(f"Heat map of the {what}: a row a query, a column a key.", subjects),
        subjects,
        found,
        label,
    )


def mask(subjects: Sequence[Subject], axis: AxisScale | None = None) -> Picture:
    """Which keys each query may attend to."""
    found = [
        [(_allowed(panel, subject), lines) for panel, lines in grids]
        for subject, grids in zip(subjects, _all_grids(subjects, "mask"), strict=True)
    ]
    return _picture(
        title("who may attend to whom", subjects),
        description("Heat map of two colours: a row a query, a column a key.", subjects),
        subjects,
        found,
    )


def _picture(
    heading: str, told: str, subjects: Sequence[Subject], found: Sequence[Sequence[Found]], label: str | None = None
) -> Picture:
    panels = _arranged(found)
    values = [panel.values for row in panels for panel in row]
    keys = lettered(subjects)
    return Picture(
        heading,
        subtitle(subjects),
        told,
        panels,
        height=_height(panels, len(keys) + (label is None)),
        colours=MASK if label is None else shared(values, label, steep=label.startswith("bias")),
        keys=keys,
        notes=tuple(dict.fromkeys(line for grids in found for _, lines in grids for line in lines)),
    )


def _height(panels: tuple[tuple[HeatPanel, ...], ...], named: int) -> int:
    """Room for squares as wide as the picture lets them be."""
    if not panels[0][0].square:
        return 460
    (left, right), (top, bottom) = panels[0][0].edges
    wide = {1: 500, 2: 320, 3: 215}.get(len(panels[0]), 165)
    high = max(60, round(wide * min(1.0, (bottom - top) / (right - left))))
    return 120 + 20 * named + len(panels) * (high + 25)


def _allowed(panel: HeatPanel, subject: Subject) -> HeatPanel:
    """1 where a key is seen: true in a boolean mask, 0 in an additive one."""
    boolean = subject.table.outputs["mask"].kind == "bool"
    seen = panel.values != 0 if boolean else panel.values == 0
    return HeatPanel(panel.title, seen.astype(np.float64), panel.x, panel.y, panel.square)


def _all_grids(subjects: Sequence[Subject], name: str) -> list[list[Found]]:
    return [
        _grids(subject, subject.output(name), letter, len(subjects))
        for subject, letter in zip(subjects, letters(subjects), strict=True)
    ]


def _grids(subject: Subject, output: Output, letter: str, beside: int) -> list[Found]:
    """One grid of each leading index of [.., S, K], or of as many as there is room for."""
    *leading, queries, _ = output.shape
    heads, many = (leading[-1] if leading else 1), prod(leading)
    if queries == 1 and heads > 1:  # one row for all queries: heads make the rows
        axis = Axis("head (index)", limits=(-0.5, heads - 0.5))
        return [_grid(output, range(heads), cells(beside), axis, letter, "heads")]
    y = rows_axis(subject, queries, QUERY)
    # Of several sequences with heads the first alone: their biases differ by padding only.
    count, kind = (heads, "head") if heads > 1 else (many, "sequence")
    chosen = evenly(count, (ALONE[0] if count <= ALONE[0] else ALONE[1]) if beside == 1 else COMPARED).tolist()
    left_out = note(len(chosen), count, f"{kind}s drawn")
    most = cells(beside if beside > 1 else min(len(chosen), COLUMNS))
    found = []
    for index in chosen:
        rows = range(index * queries, (index + 1) * queries)
        name = f"{kind} {index}" if count > 1 else ""
        panel, lines = _grid(output, rows, most, y, joined(letter, name), "queries")
        found.append((panel, lines + left_out))
    return found


def _grid(output: Output, rows: range, most: int, y: Axis, name: str, kind: str) -> Found:
    down, across = evenly(len(rows), row_limit(output, most)), evenly(output.width, most)
    x = Axis(KEY, limits=(-0.5, output.width - 0.5))
    square = kind == "queries" and 0.25 <= len(rows) / output.width <= 4
    panel = HeatPanel(name, grid_at(output, rows.start + down, across), x, y, square)
    return panel, note(len(down), len(rows), f"{kind} drawn") + note(len(across), output.width, "keys drawn")


def _arranged(found: Sequence[Sequence[Found]]) -> tuple[tuple[HeatPanel, ...], ...]:
    """A lone subject's grids in rows of COLUMNS; several subjects side by side."""
    if len(found) == 1:
        panels = [panel for panel, _ in found[0]]
        return tuple(tuple(panels[start : start + COLUMNS]) for start in range(0, len(panels), COLUMNS))
    fewest = min(len(grids) for grids in found)
    return tuple(tuple(grids[row][0] for grids in found) for row in range(fewest))
