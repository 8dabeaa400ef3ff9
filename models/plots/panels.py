"""Drawing of a picture's panels on matplotlib's axes; matplotlib is imported only inside functions."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from models.plots.colors import DASHES, MARK_DASHES, MARKERS, Theme
from models.plots.picture import Axis, Colours, Curve, HeatPanel, LinePanel, Mark

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis as DrawnAxis
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_ZERO = 1e-12
CELLS_WITH_EDGES = 40
MARK_WIDTH = 1.0
LABEL_LETTER = 0.0115  # width of a letter of a mark's label, as a share of a panel's width; generous
MANY_BANDS = 3  # more than these bands are drawn paler, and without edges


def format_tick(value: float, _: Any = None) -> str:
    """Return the text of a tick: 0.25, 4,096, −3, 10⁻⁶, 3×10⁷."""
    size = abs(value)
    if size < _ZERO:
        return "0"
    sign = "−" if value < 0 else ""
    if 1e-3 <= size < 1e6:
        return f"{sign}{size:,.6g}" if size < 1e5 else f"{sign}{size:,.0f}"
    exponent = math.floor(math.log10(size) + 1e-9)
    mantissa = f"{size / 10.0**exponent:.3g}"
    power = f"10{str(exponent).translate(_SUPERSCRIPTS)}"
    return f"{sign}{power}" if mantissa == "1" else f"{sign}{mantissa}×{power}"


def format_power_of_ten(value: float, _: Any = None) -> str:
    """Return the text of a tick of a logarithmic axis: 10⁻³, 1, 10⁵."""
    exponent = round(math.log10(value))
    return str(10**exponent) if exponent in (0, 1) else f"10{str(exponent).translate(_SUPERSCRIPTS)}"


def format_count(value: float, _: Any = None) -> str:
    """Return the text of a tick of a logarithmic axis of counts: 1, 1,000, 10,000,000."""
    return f"{value:,.0f}"


def format_power_of_two(value: float, _: Any = None) -> str:
    """Return the text of a tick of a base-2 axis: 2⁻³, or the number itself where it is whole and short."""
    exponent = round(math.log2(value))
    return format_tick(value) if 0 <= exponent <= 16 else f"2{str(exponent).translate(_SUPERSCRIPTS)}"


def draw_lines(axes: "Axes", panel: LinePanel, theme: Theme) -> None:
    """Draw curves, bands, marks and both axes of one panel."""
    many = sum(curve.low is not None for curve in panel.curves) > MANY_BANDS
    for curve in panel.curves:
        _draw_curve(axes, curve, theme, pale=many)
    _set_axis(axes.xaxis, panel.x)
    _set_axis(axes.yaxis, panel.y)
    axes.grid(True, color=theme.faint, alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
    for name in ("top", "right"):
        axes.spines[name].set_visible(name == "right" and panel.reciprocal is not None)
    _fit_limits(axes, panel)
    _draw_marks(axes, panel, theme)
    if panel.reciprocal is not None:
        _second_axis(axes, *panel.reciprocal)


def curve_style(curve: Curve, theme: Theme) -> dict[str, Any]:
    """Return how a curve is drawn, in its panel and in the legend."""
    tone = curve.tone or 0
    colour = theme.faint if curve.tone is None else theme.lines[tone % len(theme.lines)]
    if curve.shape == "points":
        ring = {"markerfacecolor": "none", "markeredgewidth": 1.4} if tone else {}
        return {"color": colour, "marker": MARKERS[tone % len(MARKERS)], "linestyle": "none"} | ring
    width = 1.0 if curve.tone is None else 1.8
    return {"color": colour, "linestyle": DASHES[tone % len(DASHES)], "linewidth": width}


def _draw_curve(axes: "Axes", curve: Curve, theme: Theme, pale: bool) -> None:
    style, tone = curve_style(curve, theme), curve.tone
    order = 2.5 if tone is None else 3 + 0.01 * tone
    steps: Literal["steps-mid", "default"] = "steps-mid" if curve.shape == "steps" else "default"
    mid: Literal["mid"] | None = "mid" if curve.shape == "steps" else None
    if curve.low is not None and curve.high is not None:
        band: dict[str, Any] = {"color": style["color"], "linewidth": 0, "step": mid}
        axes.fill_between(curve.x, curve.low, curve.high, alpha=0.1 if pale else 0.16, **band)
        for edge in () if pale else (curve.low, curve.high):
            axes.plot(curve.x, edge, color=style["color"], alpha=0.45, linewidth=0.6, drawstyle=steps)
    if curve.shape == "points":
        style["markersize"] = 5.0 + 1.6 * (tone or 0)  # a later one is a ring around an earlier one of the same value
    axes.plot(curve.x, curve.y, label=curve.label, zorder=order, drawstyle=steps, **style)


def _set_axis(matplotlib_axis: "DrawnAxis", axis: Axis, most_ticks: int = 7) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator

    axes = matplotlib_axis.axes
    set_scale = axes.set_xscale if matplotlib_axis is axes.xaxis else axes.set_yscale
    if axis.scale == "symlog":
        set_scale("symlog", linthresh=axis.linear_up_to, linscale=1.0)
        matplotlib_axis.set_minor_locator(NullLocator())
    elif axis.scale == "linear":
        matplotlib_axis.set_major_locator(
            MaxNLocator(
                nbins=most_ticks, steps=[1, 2, 2.5, 5, 10], integer="index" in axis.label or "tokens" in axis.label
            )
        )
    else:
        set_scale("log", base=2 if axis.scale == "log2" else 10)
    matplotlib_axis.set_major_formatter(FuncFormatter(_tick_format(axis)))
    matplotlib_axis.set_minor_formatter(NullFormatter())
    if axis.ticks:
        matplotlib_axis.set_major_locator(FixedLocator([point for point, _ in axis.ticks]))
        names = dict(axis.ticks)
        matplotlib_axis.set_major_formatter(FuncFormatter(lambda value, _: names.get(value, "")))
    if axis.limits is not None:
        (axes.set_xlim if matplotlib_axis is axes.xaxis else axes.set_ylim)(*axis.limits)
    matplotlib_axis.set_label_text(axis.label)


def _tick_format(axis: Axis) -> Callable[[float, Any], str]:
    if axis.scale == "log2":
        return format_power_of_two
    if axis.scale == "log":
        return format_count if "tokens" in axis.label or "positions" in axis.label else format_power_of_ten
    return format_tick


def _fit_limits(axes: "Axes", panel: LinePanel) -> None:
    """Widen the y limits to contain all marks and, on a logarithmic axis, at least two ticks."""
    if panel.x.limits is None and panel.x.scale == "linear":
        axes.margins(x=0.02)
    low, high = axes.get_ylim()
    marks = [mark.value for mark in panel.marks if mark.axis == "y"]
    if marks and panel.y.scale == "log":
        low, high = min(low, min(marks) / 1.5), max(high, max(marks) * 3)
    elif marks:
        low, high = min(low, *marks), max(high, *marks)
    if panel.y.scale == "log" and high < 20 * low:  # at least two ticks
        low, high = 10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high))
    if panel.y.limits is None:
        axes.set_ylim(low, high)


def legend_marks(panel: LinePanel) -> list[Mark]:
    """Return the marks whose label stands in the legend: of y, where a second axis is at the right."""
    return [mark for mark in panel.marks if mark.label and mark.axis == "y" and panel.reciprocal is not None]


def _draw_marks(axes: "Axes", panel: LinePanel, theme: Theme) -> None:
    """Draw the lines of all marks, and their labels outside the panel, where no curve is."""
    in_legend = legend_marks(panel)
    ends: list[float] = []  # of the labels above the panel, by level
    for mark in sorted(panel.marks, key=lambda mark: mark.value):
        line = axes.axhline if mark.axis == "y" else axes.axvline
        number = in_legend.index(mark) if mark in in_legend else 0
        dash = MARK_DASHES[number % len(MARK_DASHES)] if mark.label else "solid"
        line(mark.value, color=theme.ink, linewidth=MARK_WIDTH, linestyle=dash, zorder=1.9)
        if mark.label and mark.axis == "y" and mark not in in_legend:
            place, transform = (1.0, mark.value), axes.get_yaxis_transform()
            axes.annotate(mark.label, place, (4, 0), transform, "offset points", va="center", fontsize=9)
        elif mark.label and mark.axis == "x":
            _label_above(axes, mark, ends)


def _label_above(axes: "Axes", mark: Mark, ends: list[float]) -> None:
    """Write the label of a mark above the panel, on the lowest level where it does not touch another.

    Args:
        ends: where the label that was last written on each level ends, as a share of the panel's width; changed.
    """
    across = float(axes.transLimits.transform(axes.transScale.transform((mark.value, axes.get_ylim()[0])))[0])
    width = LABEL_LETTER * len(mark.label)
    start = min(max(across - width / 2, 0.0), max(0.0, 1.0 - width))
    level = next((n for n, end in enumerate(ends) if end <= start), len(ends))
    ends[level : level + 1] = [start + width]
    alignment = "left" if start == 0.0 else "right" if start + width >= 1.0 else "center"
    place = {"left": 0.0, "right": 1.0, "center": across}[alignment]
    axes.annotate(
        mark.label,
        (place, 1.0),
        (0, 3 + 12 * level),
        "axes fraction",
        "offset points",
        ha=alignment,
        va="bottom",
        fontsize=9,
    )


def _second_axis(axes: "Axes", numerator: float, axis: Axis) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    low, high = (numerator / limit for limit in reversed(axes.get_ylim()))
    decades = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    step = 1 + len(decades) // 8
    matplotlib_axis = axes.secondary_yaxis("right").yaxis
    matplotlib_axis.set_major_locator(FixedLocator([numerator / 10.0**decade for decade in decades[::step]]))
    matplotlib_axis.set_minor_locator(NullLocator())
    matplotlib_axis.set_major_formatter(FuncFormatter(lambda value, _: format_count(numerator / value)))
    matplotlib_axis.set_label_text(axis.label)


def draw_grid(axes: "Axes", panel: HeatPanel, colours: Colours, theme: Theme, columns_in_row: int) -> "ScalarMappable":
    """Draw one grid of values, the first row at the top; `columns_in_row` panels share its row."""
    (left, right), (top, bottom) = panel.edges
    image = axes.imshow(
        panel.values,
        cmap=_map(colours, theme),
        norm=_norm(colours),
        extent=(left, right, bottom, top),
        aspect="equal" if panel.square else "auto",
        interpolation="nearest",
    )
    for matplotlib_axis, axis in ((axes.xaxis, panel.x), (axes.yaxis, panel.y)):
        most_ticks = (7, 7, 4, 3)[min(columns_in_row, 4) - 1] if matplotlib_axis is axes.xaxis else 6
        _set_axis(matplotlib_axis, Axis(axis.label, ticks=axis.ticks, limits=axis.limits), most_ticks)
        matplotlib_axis.label.set_fontsize(10 if columns_in_row < 3 else 9)
    axes.set_ylim(bottom, top)
    rows, columns = panel.values.shape
    if colours.kind == "classes" and max(rows, columns) <= CELLS_WITH_EDGES:
        axes.hlines(np.linspace(top, bottom, rows + 1), left, right, colors=theme.paper, linewidth=0.6)
        axes.vlines(np.linspace(left, right, columns + 1), top, bottom, colors=theme.paper, linewidth=0.6)
    if panel.title:
        axes.set_title(panel.title, fontsize=10)
    return image


def _map(colours: Colours, theme: Theme) -> Any:
    from matplotlib.colors import ListedColormap

    if colours.kind == "classes":
        return ListedColormap(theme.classes)
    return theme.diverging if colours.kind == "diverging" else theme.sequential


def _norm(colours: Colours) -> Any:
    from matplotlib.colors import Normalize, SymLogNorm

    if colours.kind == "symlog":
        return SymLogNorm(colours.linear_up_to, vmin=colours.low, vmax=colours.high, base=10)
    return Normalize(colours.low, colours.high)


def draw_scale(figure: "Figure", image: "ScalarMappable", axes: Sequence["Axes"], colours: Colours) -> None:
    """Draw the colour bar of all grids."""
    from matplotlib.ticker import FuncFormatter

    bar = figure.colorbar(
        image,
        ax=list(axes),
        label=colours.label,
        extend="both" if colours.clipped else "neither",
        aspect=28,
        pad=0.015,
        fraction=0.05,
    )
    bar.ax.yaxis.set_major_formatter(FuncFormatter(format_tick))
    bar.ax.minorticks_off()
    bar.outline.set_linewidth(0.6)
