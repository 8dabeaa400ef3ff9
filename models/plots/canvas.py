"""Rendering of a picture to the bytes of a PNG or SVG file, the same bytes every time.

matplotlib shares settings and font caches between threads, so one picture is drawn at a time. It is imported when the
first picture is drawn (about a second), and needs a folder to write a cache of fonts to.
"""

import io
import math
import os
import re
import sys
import tempfile
import threading
import warnings
from bisect import bisect_right
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal
from xml.sax.saxutils import escape

from models.errors import BadEncoding, NoWritableFolder
from models.plots.colors import DARK, LIGHT, MARK_DASHES, Theme
from models.plots.panels import MARK_WIDTH, curve_style, draw_grid, draw_lines, draw_scale, legend_marks
from models.plots.picture import HeatPanel, LinePanel, Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Format = Literal["png", "svg"]
DPI = 100
DEFAULT_WIDTH = 800
INCHES = DEFAULT_WIDTH / DPI  # width of every picture: wider ones have more dots per inch
LEGEND_LINE = 0.185  # inches
LEGEND_SIZE = 9.5  # points
LEGEND_GAP = 0.27  # inches between its columns
LEGEND_HANDLE = 0.54  # inches of a line of the legend, with the spaces around it
MEASURED_DPI = (75, 100, 400)  # of pictures 600, 800 and 3200 pixels wide
MARGIN = 0.1  # inches left and right of text
MIN_PANEL_INCHES = 0.25  # height for panels; without it, matplotlib's layout has no solution
_OPENING = re.compile(r'<svg( .*?) width="[0-9.]+pt" height="[0-9.]+pt"')
_DRAWING_LOCK = threading.Lock()
_SETTINGS: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],  # part of matplotlib
    "font.size": 10.0,
    "axes.labelsize": 10.0,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "legend.fontsize": LEGEND_SIZE,
    "axes.unicode_minus": True,
    "axes.linewidth": 0.8,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "inlay",
    "image.composite_image": True,
    "text.parse_math": False,
    "text.usetex": False,
}


def render(picture: Picture, form: Format, width_px: int, height_px: int | None, dark: bool = False) -> bytes:
    """Return the file.

    Args:
        picture: what to draw.
        form: png or svg.
        width_px: width in pixels. The layout is always that of 800 pixels; a wider file has more dots per inch.
        height_px: height in pixels at that width; None: the picture's own, with room for every line of the legend.
        dark: light on dark, not dark on light.

    Raises:
        BadEncoding: the height leaves no room for panels besides the picture's text.
        NoWritableFolder: matplotlib can write its cache nowhere.
    """
    with _DRAWING_LOCK:
        _check_folder()
        import matplotlib

        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # of a label's letters that the font lacks: boxes
        theme = DARK if dark else LIGHT
        with matplotlib.rc_context(_SETTINGS | _theme_settings(theme)):
            height = height_px or round(_natural_height(picture, theme) * width_px / DEFAULT_WIDTH)
            figure = _laid_out(picture, width_px, height, theme)
            return _png(figure, picture) if form == "png" else _svg(figure, picture, width_px, height)


def _check_folder() -> None:
    """Raise NoWritableFolder if matplotlib would find no folder: once its import has failed, it fails forever."""
    if "matplotlib" in sys.modules or os.access(os.environ.get("MPLCONFIGDIR", ""), os.W_OK):
        return
    try:
        tempfile.gettempdir()
    except OSError as error:
        raise NoWritableFolder(
            "pictures need a folder that this process can write to, and none of the temporary folders is one: "
            "mount one at /tmp, or name one with MPLCONFIGDIR"
        ) from error


def _theme_settings(theme: Theme) -> dict[str, str]:
    ink_settings = ("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color")
    return dict.fromkeys(ink_settings, theme.ink) | dict.fromkeys(("figure.facecolor", "axes.facecolor"), theme.paper)


def _natural_height(picture: Picture, theme: Theme) -> float:
    """Return the height in pixels of a picture 800 pixels wide."""
    more_lines = max(0, len(_legend_rows(picture, theme)) - 1) if picture.colours is None else 0
    return picture.height + more_lines * LEGEND_LINE * DPI


def _laid_out(picture: Picture, width_px: int, height_px: int, theme: Theme) -> "Figure":
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    dpi = width_px / INCHES
    figure = Figure((INCHES, height_px / dpi), dpi=dpi)
    top = _heading(figure, picture, theme)
    bottom = _footing(figure, picture, theme)
    text_inches = (top + bottom) * height_px / dpi
    if height_px / dpi - text_inches < MIN_PANEL_INCHES:
        minimum = math.ceil((text_inches + MIN_PANEL_INCHES) * dpi)
        raise BadEncoding(
            f"height is {height_px} pixels; with its text this picture needs {minimum} at a width of {width_px}: "
            "make it higher, or narrower"
        )
    engine = ConstrainedLayoutEngine(
        rect=(0.0, bottom, 1.0, 1.0 - top - bottom), w_pad=0.06, h_pad=0.05, compress=_all_square(picture)
    )
    figure.set_layout_engine(engine)
    _fill(figure, picture, theme)
    return figure


def _all_square(picture: Picture) -> bool:
    return all(isinstance(panel, HeatPanel) and panel.square for row in picture.panels for panel in row)


def _fill(figure: "Figure", picture: Picture, theme: Theme) -> None:
    rows, columns = len(picture.panels), max(len(row) for row in picture.panels)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=False)
    image = None
    for drawn_row, row in zip(grid, picture.panels, strict=True):
        for axes, panel in zip(drawn_row, row, strict=False):
            if isinstance(panel, LinePanel):
                draw_lines(axes, panel, theme)
            elif picture.colours is not None:
                image = draw_grid(axes, panel, picture.colours, theme, len(row))
        for axes in drawn_row[len(row) :]:
            axes.remove()
    drawn = [axes for axes in grid.ravel() if axes.figure is not None]
    _label_outer(grid, picture)
    if image is not None and picture.colours is not None and not picture.colours.classes:
        draw_scale(figure, image, drawn, picture.colours)


def _label_outer(grid: Any, picture: Picture) -> None:
    """Name an axis that several grids share once, at the left and at the bottom."""
    for down, row in enumerate(picture.panels):
        for across, panel in enumerate(row):
            below = picture.panels[down + 1] if down + 1 < len(picture.panels) else ()
            axes = grid[down][across]
            if across and row[0].y == panel.y:
                axes.yaxis.set_label_text("")
                axes.yaxis.set_tick_params(labelleft=not isinstance(panel, HeatPanel))
            if len(picture.panels) > 2 and down != len(picture.panels) // 2 - 1 + len(picture.panels) % 2:
                axes.yaxis.set_label_text("")
            if across < len(below) and below[across].x == panel.x:
                axes.xaxis.set_tick_params(labelbottom=not isinstance(panel, HeatPanel))
                if isinstance(panel, HeatPanel):
                    axes.xaxis.set_label_text("")


def _heading(figure: "Figure", picture: Picture, theme: Theme) -> float:
    """Draw title, subtitle and legend from the top down; returns the fraction of the height that they take."""
    width, height = figure.get_size_inches()
    y = 0.1
    for text, size, weight, colour in (
        (picture.title, 12.0, "bold", theme.ink),
        (picture.subtitle, 9.5, "normal", theme.ink),
        *((key, 9.5, "normal", theme.ink) for key in picture.keys),
    ):
        for line in wrapped(text, size, width - 2 * MARGIN, weight):
            figure.text(MARGIN / width, 1 - y / height, line, fontsize=size, weight=weight, color=colour, va="top")
            y += size * 1.35 / 72
    return float((y + _legend(figure, picture, theme, y) + 0.04) / height)


@lru_cache(maxsize=1024)
def text_inches(text: str, size: float, weight: str = "normal") -> float:
    """Return the width of a line of text of `size` points, in the picture where it is widest.

    A PNG puts every letter on a whole pixel: the fewer dots per inch, the more that adds.
    """
    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.font_manager import FontProperties

    font = FontProperties(family="DejaVu Sans", size=size, weight=weight)
    widths = []
    for dpi in MEASURED_DPI:
        renderer = RendererAgg(1, 1, dpi)  # type: ignore[no-untyped-call]
        width, _, _ = renderer.get_text_width_height_descent(text, font, ismath=False)  # type: ignore[no-untyped-call]
        widths.append(float(width) / dpi)
    return max(widths)


def wrapped(text: str, size: float, inches: float, weight: str = "normal") -> list[str]:
    """Return the text as lines that are at most `inches` wide; a longer word is cut."""
    lines: list[str] = []
    for word in text.split(" "):
        line = f"{lines[-1]} {word}" if lines else word
        if lines and text_inches(line, size, weight) <= inches:
            lines[-1] = line
            continue
        while text_inches(word, size, weight) > inches:
            letters = range(2, len(word) + 1)  # a line has one letter at least
            cut = 1 + bisect_right(letters, inches, key=lambda count: text_inches(word[:count], size, weight))
            lines.append(word[:cut])
            word = word[cut:]
        lines.append(word)
    return [line.rstrip() for line in lines if line.strip()]


def _shortened(text: str, size: float, inches: float) -> str:
    """Return the text, without its middle where it is wider than `inches`: names often differ at their ends."""
    if text_inches(text, size) <= inches:
        return text

    def cut(count: int) -> str:
        """Leave `count` letters at either end."""
        return f"{text[:count]}…{text[len(text) - count :]}"

    return cut(bisect_right(range(1, len(text) // 2), inches, key=lambda count: text_inches(cut(count), size)))


def _legend_rows(picture: Picture, theme: Theme) -> list[list[tuple[Any, str]]]:
    """Return the lines of the legend, each with as many keys as fit."""
    room = INCHES - 2 * MARGIN
    keys = [(handle, _shortened(label, LEGEND_SIZE, room - LEGEND_HANDLE)) for handle, label in _keys(picture, theme)]
    if not keys:
        return []
    widest = max(text_inches(label, LEGEND_SIZE) for _, label in keys) + LEGEND_HANDLE
    columns = max(1, min(len(keys), int((room + LEGEND_GAP) / (widest + LEGEND_GAP))))
    return [keys[start : start + columns] for start in range(0, len(keys), columns)]


def _legend(figure: "Figure", picture: Picture, theme: Theme, y: float) -> float:
    """Draw the legend of curves or classes below the title; returns the inches that it takes."""
    rows = _legend_rows(picture, theme)
    if not rows:
        return 0.0
    width, height = figure.get_size_inches()
    # matplotlib fills columns first: the keys are put so that they read along the rows
    across = [[row[column] for row in rows if column < len(row)] for column in range(len(rows[0]))]
    handles, labels = zip(*(key for column in across for key in column), strict=True)
    figure.legend(
        handles,
        labels,
        loc="upper left",
        bbox_to_anchor=(0.06 / width, 1 - y / height),
        ncols=len(across),
        frameon=False,
        borderaxespad=0.0,
        borderpad=0.2,
        handlelength=3.2,
        labelspacing=0.3,
    )
    return len(rows) * LEGEND_LINE + 0.06


def _keys(picture: Picture, theme: Theme) -> list[tuple[Any, str]]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if picture.colours is not None:
        named = zip(theme.classes, picture.colours.classes, strict=False)
        return [(Patch(facecolor=colour, edgecolor=theme.faint), label) for colour, label in named]
    panels = [panel for row in picture.panels for panel in row if isinstance(panel, LinePanel)]
    marks = []
    for number, mark in ((number, mark) for panel in panels for number, mark in enumerate(legend_marks(panel))):
        dash = MARK_DASHES[number % len(MARK_DASHES)]
        marks.append((Line2D([], [], color=theme.ink, linewidth=MARK_WIDTH, linestyle=dash), mark.label))
    if max(len(panel.curves) for panel in panels) < 2:
        return marks
    curves = {(curve.label, curve.tone): curve for panel in panels for curve in panel.curves}
    return [(Line2D([], [], **curve_style(curve, theme)), curve.label) for curve in curves.values()] + marks


def _footing(figure: "Figure", picture: Picture, theme: Theme) -> float:
    """Draw the notes at the bottom; returns the fraction of the height that they take."""
    width, height = figure.get_size_inches()
    lines = wrapped("; ".join(picture.notes), 9.0, width - 2 * MARGIN)
    for above, line in enumerate(reversed(lines)):
        figure.text(MARGIN / width, (0.07 + above * 0.165) / height, line, fontsize=9, color=theme.quiet, va="bottom")
    return float((len(lines) * 0.165 + (0.1 if lines else 0.0)) / height)


def _png(figure: "Figure", picture: Picture) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    buffer = io.BytesIO()
    metadata = {"Title": picture.title, "Description": picture.description, "Software": None}
    FigureCanvasAgg(figure).print_png(buffer, metadata=metadata, pil_kwargs={"optimize": True})  # type: ignore[no-untyped-call]
    return buffer.getvalue()


def _svg(figure: "Figure", picture: Picture, width_px: int, height_px: int) -> bytes:
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.BytesIO()
    FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None, "Creator": None})  # type: ignore[no-untyped-call]
    text = buffer.getvalue().decode()
    metadata = f"<title>{escape(picture.title)}</title>\n <desc>{escape(picture.description)}</desc>\n <metadata>"
    text = text.replace("<metadata>", metadata, 1)
    text = _OPENING.sub(rf'<svg role="img"\1 width="{width_px}" height="{height_px}"', text, count=1)
    return text.replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif").encode()
