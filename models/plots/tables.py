"""The picture of a word table: its singular values and the lengths of its rows. Computes neither."""

import numpy as np

from models.plots import canvas
from models.plots.canvas import Format
from models.plots.picture import (
    Axis,
    Curve,
    LinePanel,
    Mark,
    Picture,
)
from models.tables.analysis import RowFacts, Spectrum

HEIGHT = 640


def draw_table(
    name: str,
    facts: RowFacts,
    found: Spectrum,
    *,
    format: Format = "png",
    width_px: int = canvas.USUAL_WIDTH,
    height_px: int | None = None,
    dark: bool = False,
) -> bytes:
    """A PNG or SVG file, the same bytes every time; sizes as `figures.draw` takes them, already checked.

    raises   BadEncoding where it is too low for its words
    """
    height = height_px or round(HEIGHT * width_px / canvas.USUAL_WIDTH)
    return canvas.render(picture(name, facts, found), format, width_px, height, dark)


def picture(name: str, facts: RowFacts, found: Spectrum) -> Picture:
    """Singular values by number, effective rank marked; below, how many rows have which length."""
    rank = f"effective rank {found.effective_rank:,.1f} of {len(found.singular_values):,}"
    rows = f"{sum(facts.counts):,} rows, {facts.zero_rows:,} of zeros, {facts.duplicate_rows:,} there more than once"
    return Picture(
        f"word table of {name}",
        f"{rank}; {rows}",
        f"Singular values of the word table of {name}, the largest first, and a histogram of its rows' lengths.",
        ((_singular_values(found),), (_lengths(facts),)),
        height=HEIGHT,
    )


def _singular_values(found: Spectrum) -> LinePanel:
    values = np.array(found.singular_values)
    shown = np.where(values > found.reliable_above, values, np.nan)  # below it is rounding
    number = np.arange(1, len(values) + 1)
    x = Axis("singular value (number)", limits=(0.5, len(values) + 0.5))
    y = Axis("singular value", "linear" if np.isnan(shown).all() else "log")
    marks = (Mark("x", found.effective_rank, "effective rank"),) if found.effective_rank else ()
    return LinePanel(x, y, (Curve("singular values", number, shown),), marks)


def _lengths(facts: RowFacts) -> LinePanel:
    edges, counts = np.array(facts.edges), np.array(facts.counts, np.float64)
    curve = Curve("rows", (edges[:-1] + edges[1:]) / 2, counts, shape="steps")
    y = Axis("rows (number)", limits=(0.0, float(counts.max()) * 1.08))
    x = Axis("length of a row", limits=(float(edges[0]), float(edges[-1])))
    return LinePanel(x, y, (curve,), (Mark("x", facts.mean, "mean"),))
