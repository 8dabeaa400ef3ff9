"""Pictures of tables as grids, positions down and channels across, and of how alike their rows are. Draws nothing."""

from collections.abc import Sequence

from models.plots import curves
from models.plots.captions import (
    description,
    joined,
    lettered,
    letters,
    subtitle,
    title,
)
from models.plots.colors import shared
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
    rows_at,
    scattered,
)
from models.plots.subject import Subject

# Rows that are no positions in a text.
ROWS = {"axial_rope": "patch (index)", "sinusoidal_grid": "patch (index)", "mrope": "token (index)"}
STRETCHED = "positions drawn, one from each stretch"


def heatmap(subjects: Sequence[Subject], axis: AxisScale | None = None) -> Picture:
    """The values themselves. A lone table's outputs stand side by side, those of several below each other."""
    names = list(dict.fromkeys(name for subject in subjects for name in subject.table.outputs))
    columns = max(len(subjects), len(names)) if len(subjects) == 1 else len(subjects)
    rows = [
        [_values(subject, name, letter, columns) for subject, letter in zip(subjects, letters(subjects), strict=True)]
        for name in names
    ]
    panels = tuple(tuple(panel for panel, _ in row) for row in rows)
    if len(subjects) == 1:
        panels = (tuple(panel for row in panels for panel in row),)
    return Picture(
        title("values by position and channel", subjects),
        subtitle(subjects),
        description(f"Heat map of {' and '.join(names)}: a row a position, a column a channel.", subjects),
        panels,
        height=480 if len(panels) == 1 else 600,
        colours=shared([panel.values for row in panels for panel in row], f"value of {' and '.join(names)}"),
        keys=lettered(subjects),
        notes=tuple(dict.fromkeys(line for row in rows for _, lines in row for line in lines)),
    )


def _values(subject: Subject, name: str, letter: str, beside: int) -> tuple[HeatPanel, tuple[str, ...]]:
    output = subject.output(name)
    most = cells(beside)
    rows, columns = scattered(output.count, row_limit(output, most)), evenly(output.width, most)
    panel = HeatPanel(
        joined(letter, "" if name == "table" else name),
        grid_at(output, rows, columns),
        _channels(subject, output.width),
        rows_axis(subject, output.count, ROWS.get(subject.scheme, "position (tokens)")),
    )
    lines = note(len(rows), output.count, STRETCHED) + note(len(columns), output.width, "channels drawn")
    return panel, lines


def _channels(subject: Subject, width: int) -> Axis:
    pairs = len(subject.table.facts.get("inverse_frequency", ())) == width and "cos" in subject.table.outputs
    return Axis("channel pair (index)" if pairs else "channel (index)", limits=(-0.5, width - 0.5))


def rows_axis(subject: Subject, count: int, label: str) -> Axis:
    """The axis of rows: their positions, or where these do not run evenly, rows named by their position."""
    positions = subject.row_positions(count)
    if isinstance(positions, range):
        half = positions.step / 2
        return Axis(label, limits=(positions[0] - half, positions[-1] + half))
    ticks = tuple((float(row), f"{int(positions[row]):,}") for row in evenly(count, 7))
    return Axis(f"{label}, as given", ticks=ticks, limits=(-0.5, count - 0.5))


def similarity_matrix(subjects: Sequence[Subject], axis: AxisScale | None = None) -> Picture:
    """How alike every two rows are."""
    panels: list[HeatPanel] = []
    notes: list[str] = []
    for subject, letter in zip(subjects, letters(subjects), strict=True):
        output = subject.output("table")
        rows = scattered(output.count, min(cells(len(subjects)), curves.similarity_rows(output)))
        edges = rows_axis(subject, output.count, ROWS.get(subject.scheme, "position (tokens)"))
        panels.append(HeatPanel(letter, curves.cosine_matrix(rows_at(output, rows)), edges, edges, square=True))
        notes += note(len(rows), output.count, STRETCHED)
    return Picture(
        title("similarity of every two positions", subjects),
        subtitle(subjects),
        description("Heat map of the cosine similarity of every two rows.", subjects),
        (tuple(panels),),
        height={1: 640, 2: 480}.get(len(panels), 400),
        colours=shared([panel.values for panel in panels], "cosine similarity (−1 to 1)", whole=True),
        keys=lettered(subjects),
        notes=tuple(dict.fromkeys(notes)),
    )
