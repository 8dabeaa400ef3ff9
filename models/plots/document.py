"""A figure as a JSON document, for programs that draw it themselves."""

import base64
from typing import Any

import numpy as np

from models.plots.picture import Axis, Colours, Curve, HeatPanel, LinePanel, Picture
from models.plots.sampling import evenly

MAX_CELLS = 2**18  # of all grids of a document: 1 MiB in float32
Document = dict[str, Any]


def document(picture: Picture) -> Document:
    """Return a figure as JSON values.

    Grids are float32 in base64. Where all grids hold more than MAX_CELLS cells, rows and columns are left out evenly,
    and a note says so.

    Args:
        picture: the figure.

    Returns:
        title, subtitle, description, panels (rows of panels), colours, notes. A panel of kind "curves" has x, y,
        curves, marks and reciprocal; one of kind "grid" has title, x, y, rows, columns, data and square. A curve's gaps
        are NaN, which becomes null in JSON.
    """
    grids = [panel for row in picture.panels for panel in row if isinstance(panel, HeatPanel)]
    side = _longest_side(grids)
    cut = any(max(grid.values.shape) > side for grid in grids)
    left_out = (f"up to {side} rows and columns of each grid; a picture has more",) if cut else ()
    return {
        "title": picture.title,
        "subtitle": picture.subtitle,
        "description": picture.description,
        "panels": [
            [_grid(panel, side) if isinstance(panel, HeatPanel) else _lines(panel) for panel in row]
            for row in picture.panels
        ],
        "colours": picture.colours and _colours(picture.colours),
        "notes": [*picture.notes, *left_out],
    }


def _longest_side(grids: list[HeatPanel]) -> int:
    """Return how many rows and columns each grid keeps, so that all of them hold at most MAX_CELLS cells."""
    side = max((max(grid.values.shape) for grid in grids), default=1)
    while side > 1 and sum(np.minimum(grid.values.shape, side).prod() for grid in grids) > MAX_CELLS:
        side = side * 7 // 8
    return side


def _grid(panel: HeatPanel, side: int) -> Document:
    rows, columns = (evenly(count, side) for count in panel.values.shape)
    with np.errstate(over="ignore"):  # beyond float32 is infinite
        values = panel.values[np.ix_(rows, columns)].astype("<f4").tobytes()
    (left, right), (top, bottom) = panel.edges
    return {
        "kind": "grid",
        "title": panel.title,
        "x": _axis(panel.x) | {"limits": (left, right)},
        "y": _axis(panel.y) | {"limits": (top, bottom)},
        "rows": len(rows),
        "columns": len(columns),
        "data": base64.b64encode(values).decode(),
        "square": panel.square,
    }


def _lines(panel: LinePanel) -> Document:
    reciprocal = panel.reciprocal and {"numerator": panel.reciprocal[0], "axis": _axis(panel.reciprocal[1])}
    return {
        "kind": "curves",
        "x": _axis(panel.x),
        "y": _axis(panel.y),
        "curves": [_curve(curve) for curve in panel.curves],
        "marks": [{"axis": mark.axis, "value": float(mark.value), "label": mark.label} for mark in panel.marks],
        "reciprocal": reciprocal,
    }


def _curve(curve: Curve) -> Document:
    values = {name: getattr(curve, name) for name in ("x", "y", "low", "high")}
    lists = {name: value.tolist() for name, value in values.items() if value is not None}
    return {"label": curve.label, "reference": curve.tone is None, "shape": curve.shape, **lists}


def _axis(axis: Axis) -> Document:
    return {"label": axis.label, "scale": axis.scale, "limits": axis.limits, "linear_up_to": axis.linear_up_to}


def _colours(colours: Colours) -> Document:
    return {
        "label": colours.label,
        "kind": colours.kind,
        "low": float(colours.low),
        "high": float(colours.high),
        "classes": colours.classes,
    }
