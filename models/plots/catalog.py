"""FIGURES: one row per figure, by scheme and name, and `draw`, which draws one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

from models.errors import BadEncoding
from models.plots import attention, biases, canvas, distances, heatmaps
from models.plots.canvas import Format
from models.plots.picture import AxisScale, Picture
from models.plots.spectrum import spectrum
from models.plots.subject import Subject, distinct

WIDTHS = (600, 4000)  # below 600, letters of 9 points have fewer than 9 pixels
HEIGHTS = (240, 4000)


@dataclass(frozen=True, slots=True)
class Figure:
    """One kind of figure.

    Attributes:
        compose: (subjects, scale of the distance axis) -> the picture as data.
        about: what the figure shows, in a few words.
        max_subjects: largest number of subjects that it compares, side by side or on one pair of axes.
        scales: whether it has an axis of distances or positions that can be linear or logarithmic.
    """

    compose: Callable[[Sequence[Subject], AxisScale | None], Picture]
    about: str
    max_subjects: int
    scales: bool = False


_HEATMAP = Figure(heatmaps.heatmap, "the values by position and channel", 4)
_SPECTRUM = Figure(spectrum, "frequency and wavelength of each channel, scaled and unscaled", 6)
_DECAY = Figure(distances.decay, "mean score of equal vectors by distance", 6, scales=True)
_ERROR = Figure(distances.error, "difference between float32 (parity) and exact values by position", 6, scales=True)
_SIMILARITY = Figure(distances.similarity, "cosine similarity of rows by distance", 6, scales=True)
_MATRIX = Figure(heatmaps.similarity_matrix, "cosine similarity of every two rows", 3)
_ATTENTION = Figure(attention.bias, "bias or bucket by query and key", 4)
_SLOPES = Figure(biases.slopes, "slope of each head", 6)
_BUCKET = Figure(biases.bucket, "bucket by distance", 6, scales=True)
_BIAS = Figure(biases.bias, "bias by distance, a curve a head", 6, scales=True)
_MASK = Figure(attention.mask, "which keys each query attends to", 4)

_ROPE = {"heatmap": _HEATMAP, "spectrum": _SPECTRUM, "decay": _DECAY, "error": _ERROR}
_TABLE = {"heatmap": _HEATMAP, "similarity": _SIMILARITY, "similarity_matrix": _MATRIX}
_BUCKETS = {"bucket": _BUCKET, "heatmap": _ATTENTION}
# The first figure of a scheme is its default.
_BY_SCHEME: dict[str, dict[str, Figure]] = {
    "rope": _ROPE,
    "mrope": {"heatmap": _HEATMAP, "spectrum": _SPECTRUM},
    "axial_rope": {"heatmap": _HEATMAP, "spectrum": _SPECTRUM},
    "sinusoidal": _TABLE | {"spectrum": _SPECTRUM, "decay": _DECAY, "error": _ERROR},
    "sinusoidal_grid": _TABLE,
    "learned": _TABLE,
    "alibi": {"heatmap": _ATTENTION, "slopes": _SLOPES, "bias": _BIAS},
    "t5": _BUCKETS | {"bias": _BIAS},
    "deberta": _BUCKETS,
    "mask": {"heatmap": _MASK},
}
FIGURES: dict[tuple[str, str], Figure] = {
    (scheme, plot): figure for scheme, figures in _BY_SCHEME.items() for plot, figure in figures.items()
}


def figures_of(scheme: str) -> dict[str, Figure]:
    """Return the figures of a scheme by name, the default first; empty where there are none."""
    return {plot: figure for (owner, plot), figure in FIGURES.items() if owner == scheme}


def default_plot(scheme: str) -> str:
    """Return the name of a scheme's default figure.

    Raises:
        BadEncoding: the scheme has no figure.
    """
    for plot in figures_of(scheme):
        return plot
    raise BadEncoding(f"scheme {scheme!r} has no figure; those that do: {', '.join(_BY_SCHEME)}")


def draw(
    plot: str | None,
    subjects: Sequence[Subject],
    *,
    format: Format = "png",
    width_px: int = canvas.DEFAULT_WIDTH,
    height_px: int | None = None,
    dark: bool = False,
    axis: AxisScale | None = None,
) -> bytes:
    """Return one figure of one or several tables, the same bytes every time. Threads may call it; they take turns.

    Args:
        plot: a name of figures_of(scheme); None: the first.
        subjects: one, or several to compare: curves on one pair of axes, grids side by side with one colour scale.
        format: png or svg.
        width_px: 600 to 4000. The layout is made for 800; other widths have other dots per inch.
        height_px: 240 to 4000; None: the figure's own.
        dark: light on dark, not dark on light.
        axis: scale of distances and positions, linear or log; None: log where they are long.

    Returns:
        a PNG or SVG file.

    Raises:
        BadEncoding: a parameter is unknown or out of range, or the tables do not have this figure.
    """
    if format not in get_args(Format):
        raise BadEncoding(f"format {format!r} is not one of {', '.join(get_args(Format))}")
    for name, value, (minimum, maximum) in (("width", width_px, WIDTHS), ("height", height_px, HEIGHTS)):
        if value is not None and not minimum <= value <= maximum:
            raise BadEncoding(f"{name} is {value} pixels; it must be {minimum} to {maximum}")
    return canvas.render(compose(plot, subjects, axis=axis), format, width_px, height_px, dark)


def compose(plot: str | None, subjects: Sequence[Subject], *, axis: AxisScale | None = None) -> Picture:
    """Return one figure as data: its curves or grids, axes and notes.

    Args:
        plot: a name of figures_of(scheme); None: the first.
        subjects: one, or several to compare.
        axis: scale of distances and positions, linear or log; None: log where they are long.

    Raises:
        BadEncoding: a parameter is unknown or out of range, or the tables do not have this figure.
    """
    if not subjects:
        raise BadEncoding("nothing to draw: give at least one subject")
    figure = _figure(plot or default_plot(subjects[0].scheme), subjects)
    if len(subjects) > figure.max_subjects:
        raise BadEncoding(f"{len(subjects)} subjects to compare; this figure holds up to {figure.max_subjects}")
    if axis not in (None, *get_args(AxisScale)):
        raise BadEncoding(f"axis {axis!r} is not one of {', '.join(get_args(AxisScale))}")
    if axis is not None and not figure.scales:
        raise BadEncoding(f"axis {axis!r}: this figure has no axis of distances to scale; leave it out")
    return figure.compose(distinct(subjects), axis)


def _figure(plot: str, subjects: Sequence[Subject]) -> Figure:
    figures = []
    for subject in subjects:
        if (subject.scheme, plot) not in FIGURES:
            known = ", ".join(figures_of(subject.scheme)) or "none"
            raise BadEncoding(f"plot {plot!r} is not one of {known}, the figures of {subject.scheme}")
        figures.append(FIGURES[subject.scheme, plot])
    if len(set(figures)) > 1:
        schemes = ", ".join(dict.fromkeys(subject.scheme for subject in subjects))
        raise BadEncoding(f"plot {plot!r} shows different things of {schemes}: compare schemes that share it")
    return figures[0]
