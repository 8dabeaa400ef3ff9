"""Pictures of biases, buckets and masks as grids, queries down and keys across."""

from collections.abc import Sequence
from math import prod

import numpy as np

from models.plots.colors import MASK, colour_scale
from models.plots.heatmaps import rows_axis
from models.plots.picture import Axis, AxisScale, HeatPanel, Picture
from models.plots.sampling import cell_limit, evenly, grid_at, row_limit, sampling_note
from models.plots.subject import Subject, legend_keys, panel_letters, panel_title, picture_of
from models.positions.table import Output

GRIDS_ALONE = (16, 8)  # grids of a single subject: all if they are up to the first number, else the second number
GRIDS_COMPARED = 2  # grids of each of several subjects
COLUMNS = 4
Grid = tuple[HeatPanel, tuple[str, ...]]
QUERY, KEY = "query position (tokens)", "key position (tokens)"


def bias(subjects: Sequence[Subject], axis: AxisScale | None = None) -> Picture:
    """Return the picture of the bias (or, where a table has none, the bucket) of every query and key, by head."""
    what = "bias" if all("bias" in subject.table.outputs for subject in subjects) else "bucket"
    grids = _all_grids(subjects, what)
    label = "bias (added to the score)" if what == "bias" else "bucket (index)"
    about = f"Heat map of the {what}: one row per query, one column per key."
    return _picture(subjects, f"{what} by query and key", about, grids, label)


def mask(subjects: Sequence[Subject], axis: AxisScale | None = None) -> Picture:
    """Return the picture of which keys each query may attend to."""
    grids = [
        [(_visibility(panel, subject), notes) for panel, notes in subject_grids]
        for subject, subject_grids in zip(subjects, _all_grids(subjects, "mask"), strict=True)
    ]
    about = "Heat map of two colours: one row per query, one column per key."
    return _picture(subjects, "which keys each query attends to", about, grids)


def _picture(
    subjects: Sequence[Subject], what: str, about: str, grids: Sequence[Sequence[Grid]], label: str | None = None
) -> Picture:
    panels = _arranged(grids)
    values = [panel.values for row in panels for panel in row]
    colours = MASK if label is None else colour_scale(values, label, steep=label.startswith("bias"))
    height = _height(panels, len(legend_keys(subjects)) + (label is None))
    notes = [note for subject_grids in grids for _, lines in subject_grids for note in lines]
    return picture_of(subjects, what, about, panels, height, notes, colours)


def _height(panels: tuple[tuple[HeatPanel, ...], ...], text_lines: int) -> int:
    """Return the height in pixels for squares as wide as the picture allows."""
    if not panels[0][0].square:
        return 460
    (left, right), (top, bottom) = panels[0][0].edges
    wide = {1: 500, 2: 320, 3: 215}.get(len(panels[0]), 165)
    high = max(60, round(wide * min(1.0, (bottom - top) / (right - left))))
    return 120 + 20 * text_lines + len(panels) * (high + 25)


def _visibility(panel: HeatPanel, subject: Subject) -> HeatPanel:
    """Return the panel with 1 where a key is visible: True in a boolean mask, 0 in an additive one."""
    boolean = subject.table.outputs["mask"].kind == "bool"
    visible = panel.values != 0 if boolean else panel.values == 0
    return HeatPanel(panel.title, visible.astype(np.float64), panel.x, panel.y, panel.square)


def _all_grids(subjects: Sequence[Subject], name: str) -> list[list[Grid]]:
    return [
        _grids(subject, subject.output(name), letter, len(subjects))
        for subject, letter in zip(subjects, panel_letters(subjects), strict=True)
    ]


def _grids(subject: Subject, output: Output, letter: str, columns: int) -> list[Grid]:
    """Return one grid for each leading index of [.., S, K], or for as many as fit."""
    *leading, queries, _ = output.shape
    heads, count_all = (leading[-1] if leading else 1), prod(leading)
    if queries == 1 and heads > 1:  # one row for all queries: heads make the rows
        axis = Axis("head (index)", limits=(-0.5, heads - 0.5))
        return [_grid(output, range(heads), cell_limit(columns), axis, letter, "heads")]
    y = rows_axis(subject, queries, QUERY)
    # Of several sequences with heads only the first is drawn: their biases differ only by padding.
    count, kind = (heads, "head") if heads > 1 else (count_all, "sequence")
    most_alone = GRIDS_ALONE[0] if count <= GRIDS_ALONE[0] else GRIDS_ALONE[1]
    indices = evenly(count, most_alone if columns == 1 else GRIDS_COMPARED).tolist()
    left_out = sampling_note(len(indices), count, f"{kind}s drawn")
    limit = cell_limit(columns if columns > 1 else min(len(indices), COLUMNS))
    grids = []
    for index in indices:
        rows = range(index * queries, (index + 1) * queries)
        name = f"{kind} {index}" if count > 1 else ""
        panel, lines = _grid(output, rows, limit, y, panel_title(letter, name), "queries")
        grids.append((panel, lines + left_out))
    return grids


def _grid(output: Output, rows: range, limit: int, y: Axis, name: str, kind: str) -> Grid:
    down, across = evenly(len(rows), row_limit(output, limit)), evenly(output.width, limit)
    x = Axis(KEY, limits=(-0.5, output.width - 0.5))
    square = kind == "queries" and 0.25 <= len(rows) / output.width <= 4
    panel = HeatPanel(name, grid_at(output, rows.start + down, across), x, y, square)
    rows_note = sampling_note(len(down), len(rows), f"{kind} drawn")
    return panel, rows_note + sampling_note(len(across), output.width, "keys drawn")


def _arranged(grids: Sequence[Sequence[Grid]]) -> tuple[tuple[HeatPanel, ...], ...]:
    """Return a single subject's grids in rows of COLUMNS; several subjects side by side."""
    if len(grids) == 1:
        panels = [panel for panel, _ in grids[0]]
        return tuple(tuple(panels[start : start + COLUMNS]) for start in range(0, len(panels), COLUMNS))
    fewest = min(len(subject_grids) for subject_grids in grids)
    return tuple(tuple(subject_grids[row][0] for subject_grids in grids) for row in range(fewest))
