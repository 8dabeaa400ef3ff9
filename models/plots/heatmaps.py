"""Pictures of tables as grids, positions down and channels across, and of the similarity of their rows."""

from collections.abc import Sequence

from models.plots import curves
from models.plots.colors import colour_scale
from models.plots.picture import Axis, AxisScale, HeatPanel, Picture
from models.plots.sampling import cell_limit, evenly, grid_at, row_limit, rows_at, sampling_note, scattered
from models.plots.subject import Subject, panel_letters, panel_title, picture_of

# Labels of rows that are not positions in a text.
ROWS = {"axial_rope": "patch (index)", "sinusoidal_grid": "patch (index)", "mrope": "token (index)"}
LINE = 18  # pixels of a line of the legend, in a picture 800 wide
SAMPLED = "positions drawn, one from each interval"


def heatmap(subjects: Sequence[Subject], axis: AxisScale | None = None) -> Picture:
    """Return the picture of the values: one table's outputs side by side, those of several below each other."""
    names = list(dict.fromkeys(name for subject in subjects for name in subject.table.outputs))
    columns = max(len(subjects), len(names)) if len(subjects) == 1 else len(subjects)
    rows = [
        [
            _values(subject, name, letter, columns)
            for subject, letter in zip(subjects, panel_letters(subjects), strict=True)
        ]
        for name in names
    ]
    panels = tuple(tuple(panel for panel, _ in row) for row in rows)
    if len(subjects) == 1:
        panels = (tuple(panel for row in panels for panel in row),)
    return picture_of(
        subjects,
        "values by position and channel",
        f"Heat map of {' and '.join(names)}: one row per position, one column per channel.",
        panels,
        (480 if len(panels) == 1 else 600) + LINE * max(0, len(subjects) - 2),
        [line for row in rows for _, notes in row for line in notes],
        colour_scale([panel.values for row in panels for panel in row], _value_label(names)),
    )


def _value_label(names: Sequence[str]) -> str:
    return "value (no unit)" if list(names) == ["table"] else f"value of {' and '.join(names)} (no unit)"


def _values(subject: Subject, name: str, letter: str, grids_in_row: int) -> tuple[HeatPanel, tuple[str, ...]]:
    output = subject.output(name)
    limit = cell_limit(grids_in_row)
    rows, columns = scattered(output.count, row_limit(output, limit)), evenly(output.width, limit)
    panel = HeatPanel(
        panel_title(letter, "" if name == "table" else name),
        grid_at(output, rows, columns),
        _channels(subject, output.width),
        rows_axis(subject, output.count, ROWS.get(subject.scheme, "position (tokens)")),
    )
    notes = sampling_note(len(rows), output.count, SAMPLED) + sampling_note(
        len(columns), output.width, "channels drawn"
    )
    return panel, notes


def _channels(subject: Subject, width: int) -> Axis:
    pairs = len(subject.table.facts.get("inverse_frequency", ())) == width and "cos" in subject.table.outputs
    return Axis("channel pair (index)" if pairs else "channel (index)", limits=(-0.5, width - 0.5))


def rows_axis(subject: Subject, count: int, label: str) -> Axis:
    """Return the axis of rows: their positions, or, where these are not evenly spaced, rows labelled by position."""
    positions = subject.row_positions(count)
    if isinstance(positions, range):
        half = positions.step / 2
        return Axis(label, limits=(positions[0] - half, positions[-1] + half))
    ticks = tuple((float(row), f"{int(positions[row]):,}") for row in evenly(count, 7))
    return Axis(f"{label}, as given", ticks=ticks, limits=(-0.5, count - 0.5))


def similarity_matrix(subjects: Sequence[Subject], axis: AxisScale | None = None) -> Picture:
    """Return the picture of the cosine similarity of every two rows."""
    panels: list[HeatPanel] = []
    notes: list[str] = []
    for subject, letter in zip(subjects, panel_letters(subjects), strict=True):
        output = subject.output("table")
        rows = scattered(output.count, min(cell_limit(len(subjects)), curves.similarity_rows(output)))
        edges = rows_axis(subject, output.count, ROWS.get(subject.scheme, "position (tokens)"))
        panels.append(HeatPanel(letter, curves.cosine_matrix(rows_at(output, rows)), edges, edges, square=True))
        notes += sampling_note(len(rows), output.count, SAMPLED)
    return picture_of(
        subjects,
        "similarity of every two positions",
        "Heat map of the cosine similarity of every two rows.",
        (panels,),
        {1: 640, 2: 480}.get(len(panels), 380) + LINE * max(0, len(panels) - 2),
        notes,
        colour_scale([panel.values for panel in panels], "cosine similarity (−1 to 1)", whole=True),
    )
