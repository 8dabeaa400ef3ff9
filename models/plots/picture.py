"""A figure as data, independent of the drawing library: panels of curves or grids, their axes and colours."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Float64s = NDArray[np.float64]
Scale = Literal["linear", "log", "log2", "symlog"]
AxisScale = Literal["linear", "log"]
Shape = Literal["line", "steps", "points"]
Colouring = Literal["diverging", "sequential", "symlog", "classes"]


@dataclass(frozen=True, slots=True)
class Axis:
    """A labelled axis; the label ends in its unit.

    Attributes:
        label: text, ending in the unit.
        scale: linear, log (base 10), log2 or symlog.
        ticks: (value, text); empty: chosen automatically.
        limits: limits of the visible range; None: those of the data.
        linear_up_to: a symlog scale is linear between -linear_up_to and linear_up_to.
    """

    label: str
    scale: Scale = "linear"
    ticks: tuple[tuple[float, str], ...] = ()
    limits: tuple[float, float] | None = None
    linear_up_to: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """y over x, both [n]; NaN leaves a gap.

    Attributes:
        label: label in the legend.
        x: [n].
        y: [n].
        low: [n]: lower edge of a band around the curve; None: no band.
        high: [n]: its upper edge.
        tone: index of the colour and line style; None: the grey of reference curves.
        shape: line, steps or points.
    """

    label: str
    x: NDArray[Any]
    y: Float64s
    low: Float64s | None = None
    high: Float64s | None = None
    tone: int | None = 0
    shape: Shape = "line"


@dataclass(frozen=True, slots=True)
class Mark:
    """A line across a panel at one value of an axis.

    Attributes:
        axis: the axis that the value is on.
        value: value at which the line is drawn.
        label: text above the panel (of x) or right of it (of y; in the legend where a second axis is there); may be
            empty.
    """

    axis: Literal["x", "y"]
    value: float
    label: str


@dataclass(frozen=True, slots=True, eq=False)
class LinePanel:
    """Curves over one pair of axes.

    Attributes:
        x: the horizontal axis.
        y: the vertical axis.
        curves: curves in drawing order.
        marks: lines at single values.
        reciprocal: (numerator, axis): a second axis on the right that shows numerator / y.
    """

    x: Axis
    y: Axis
    curves: tuple[Curve, ...]
    marks: tuple[Mark, ...] = ()
    reciprocal: tuple[float, Axis] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class HeatPanel:
    """A grid of values; row 0 is at the top.

    Attributes:
        title: above the grid; may be empty.
        values: [rows, columns] float64.
        x: axis whose limits are the outer edges of the first and last column.
        y: likewise for rows.
        square: whether a unit of x is as long as a unit of y.
    """

    title: str
    values: Float64s
    x: Axis
    y: Axis
    square: bool = False

    @property
    def edges(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The limits of x and of y; those of the cells where an axis has none."""
        rows, columns = self.values.shape
        return self.x.limits or (-0.5, columns - 0.5), self.y.limits or (-0.5, rows - 0.5)


@dataclass(frozen=True, slots=True)
class Colours:
    """The colour scale of all grids in a picture.

    Attributes:
        label: label of the colour bar.
        kind: diverging: low = -high. sequential. symlog: logarithmic beyond `linear_up_to`. classes: 0, 1, ... by name.
        low: smallest value of the scale.
        high: largest value of the scale.
        linear_up_to: for symlog, the largest value of the linear part.
        classes: names of the values 0, 1, ...
        clipped: whether there are values beyond low and high.
    """

    label: str
    kind: Colouring
    low: float
    high: float
    linear_up_to: float = 1.0
    classes: tuple[str, ...] = ()
    clipped: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """A whole figure.

    Attributes:
        title: first line.
        subtitle: second line.
        description: alternative text for readers who cannot see it.
        panels: rows of panels.
        height: height in pixels, for a picture 800 pixels wide whose legend has one line.
        colours: the scale of its grids; None: there is none.
        keys: lines below the subtitle that explain the letters above grids.
        notes: lines at the bottom, for example what was left out.
    """

    title: str
    subtitle: str
    description: str
    panels: tuple[tuple[LinePanel | HeatPanel, ...], ...]
    height: int
    colours: Colours | None = None
    keys: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
