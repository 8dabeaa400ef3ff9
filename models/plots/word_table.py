"""The picture of a word-embedding table: its singular values and the lengths of its rows."""

import numpy as np

from models.plots import canvas
from models.plots.canvas import Format
from models.plots.picture import Axis, Curve, LinePanel, Mark, Picture
from models.tables.analysis import RowFacts, Spectrum

HEIGHT = 640


def draw_table(
    name: str,
    facts: RowFacts,
    spectrum: Spectrum,
    *,
    format: Format = "png",
    width_px: int = canvas.DEFAULT_WIDTH,
    height_px: int | None = None,
    dark: bool = False,
) -> bytes:
    """Return a PNG or SVG file, the same bytes every time.

    Args:
        name: of the model.
        facts: of the table's rows.
        spectrum: of the table.
        format: png or svg.
        width_px: width and height_px as in `catalog.draw`, already checked.
        height_px: None: 640 for a width of 800.
        dark: light on dark, not dark on light.

    Raises:
        BadEncoding: the height leaves no room for panels besides the text.
    """
    return canvas.render(picture(name, facts, spectrum), format, width_px, height_px, dark)


def picture(name: str, facts: RowFacts, spectrum: Spectrum) -> Picture:
    """Return the picture: singular values by number with the effective rank marked, and a histogram of row lengths."""
    rank = f"effective rank {spectrum.effective_rank:,.1f} of {len(spectrum.singular_values):,}"
    rows = (
        f"{sum(facts.counts):,} rows, {facts.zero_rows:,} of zeros, {facts.duplicate_rows:,} that occur more than once"
    )
    return Picture(
        f"word table of {name}",
        f"{rank}; {rows}",
        f"Singular values of the word table of {name}, the largest first, and a histogram of its rows' lengths.",
        ((_singular_values(spectrum),), (_lengths(facts),)),
        height=HEIGHT,
    )


def _singular_values(spectrum: Spectrum) -> LinePanel:
    values = np.array(spectrum.singular_values)
    shown = np.where(values > spectrum.reliable_above, values, np.nan)  # below it is rounding
    number = np.arange(1, len(values) + 1)
    x = Axis("singular value (number)", limits=(0.5, len(values) + 0.5))
    y = Axis("singular value (of the table)", "linear" if np.isnan(shown).all() else "log")
    marks = (Mark("x", spectrum.effective_rank, "effective rank"),) if spectrum.effective_rank else ()
    return LinePanel(x, y, (Curve("singular values", number, shown),), marks)


def _lengths(facts: RowFacts) -> LinePanel:
    edges, counts = np.array(facts.edges), np.array(facts.counts, np.float64)
    curve = Curve("rows", (edges[:-1] + edges[1:]) / 2, counts, shape="steps")
    y = Axis("rows (number)", limits=(0.0, float(counts.max()) * 1.08))
    x = Axis("length of a row (Euclidean norm)", limits=(float(edges[0]), float(edges[-1])))
    return LinePanel(x, y, (curve,), (Mark("x", facts.mean, "mean"),))
