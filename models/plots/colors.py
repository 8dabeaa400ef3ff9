"""The colours of figures, readable for colour-blind people: lines also differ in dash, maps are even in lightness."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from models.plots.picture import Colours, Float64s

STEEP = 20.0
SHOWN_PERCENT = 99.5  # per cent of the values that a scale must cover: one outlier must not make all others pale


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of background, text and lines, and the names of matplotlib's colour maps.

    Attributes:
        paper: background.
        ink: text and axes.
        faint: grid and reference curves.
        quiet: secondary text.
        lines: Okabe and Ito 2008, without the yellow that is too pale on white or the blue that is too dark on black.
        diverging: map with equal lightness on both sides of 0, which has the colour of the background.
        sequential: map with monotone lightness.
        classes: colours of masked and of visible keys.
    """

    paper: str
    ink: str
    faint: str
    quiet: str
    lines: tuple[str, ...]
    diverging: str
    sequential: str
    classes: tuple[str, ...]


def _theme(name: str) -> Theme:
    """Return a theme of colors.json."""
    row = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))[name]
    return Theme(**row | {"lines": tuple(row["lines"]), "classes": tuple(row["classes"])})


LIGHT, DARK = _theme("light"), _theme("dark")
DASHES: tuple[Any, ...] = (
    "solid",
    (0, (6, 2)),
    (0, (1, 1.2)),
    (0, (6, 2, 1, 2)),
    (0, (3, 1.5)),
    (0, (8, 2, 1, 2, 1, 2)),
)
MARK_DASHES: tuple[Any, ...] = ((0, (1, 2)), (0, (4, 3)), (0, (1, 2, 4, 2)), (0, (8, 3)), (0, (2, 5)), (0, (1, 6)))
MARKERS = ("o", "s", "^", "D", "v", "P")
MASK = Colours("", "classes", 0.0, 1.0, classes=("masked", "may attend"))


def colour_scale(grids: Sequence[Float64s], label: str, steep: bool = False, whole: bool = False) -> Colours:
    """Return one colour scale for all grids: symmetric around 0 where they have both signs, else from min to max.

    Args:
        grids: the values.
        label: meaning of the values, with their unit.
        steep: whether values of one sign beyond STEEP are shown by their logarithm from 1 on.
        whole: whether the scale must cover every value, not only SHOWN_PERCENT of them.
    """
    values = np.concatenate([grid[np.isfinite(grid)].ravel() for grid in grids])
    if values.size == 0:
        return Colours(label, "sequential", 0.0, 1.0)
    low, high = float(values.min()), float(values.max())
    magnitudes = np.abs(values)
    if low < 0 < high:
        limit = float(np.percentile(magnitudes, SHOWN_PERCENT))
        limit = limit if 0 < limit < 0.8 * max(-low, high) and not whole else max(-low, high)
        return Colours(label, "diverging", -limit, limit, clipped=limit < max(-low, high))
    if steep and magnitudes.max() > STEEP:
        return Colours(label, "symlog", low, high)
    return Colours(label, "sequential", low, high if high > low else low + 1.0)
