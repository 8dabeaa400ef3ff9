"""A figure as data: panels of curves or of a grid of values, their axes and colours. Knows no scheme and no library."""

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

    ticks   (where, text); empty: chosen by the drawer
    limits  of what is shown; None: what the data needs. symlog is linear between -limits and limits of `linear_up_to`
    """

    label: str
    scale: Scale = "linear"
    ticks: tuple[tuple[float, str], ...] = ()
    limits: tuple[float, float] | None = None
    linear_up_to: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """y over x, both [n]; NaN leaves a gap.

    low, high  [n]: a band around the curve
    tone       which colour and line style of the palette; None: the grey of references
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
    """A line across a panel at one value of an axis, with a word at its start or its end."""

    axis: Literal["x", "y"]
    value: float
    label: str
    at_end: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class LinePanel:
    """Curves over one pair of axes.

    reciprocal  a second axis on the right that shows numerator / y
    """

    x: Axis
    y: Axis
    curves: tuple[Curve, ...]
    marks: tuple[Mark, ...] = ()
    reciprocal: tuple[float, Axis] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class HeatPanel:
    """A grid of values; row 0 is at the top.

    values  [rows, columns] float64
    x, y    axes with limits: the outer edges of the first and last cell
    square  a token is as wide as it is high
    """

    title: str
    values: Float64s
    x: Axis
    y: Axis
    square: bool = False

    @property
    def edges(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Of x and of y; the cells themselves where an axis has no limits."""
        rows, columns = self.values.shape
        return self.x.limits or (-0.5, columns - 0.5), self.y.limits or (-0.5, rows - 0.5)


@dataclass(frozen=True, slots=True)
class Colours:
    """The one scale of all grids in a picture.

    kind     diverging: low = -high; symlog: grows with the logarithm beyond `linear_up_to`; classes: 0, 1, ... by name
    clipped  values beyond low and high exist
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
    """All there is to draw.

    panels       by row
    description  for those who do not see it
    height       in pixels, where the picture is 800 wide
    keys         lines below the subtitle: what letters above grids stand for
    notes        below: what was left out
    """

    title: str
    subtitle: str
    description: str
    panels: tuple[tuple[LinePanel | HeatPanel, ...], ...]
    height: int
    colours: Colours | None = None
    keys: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
