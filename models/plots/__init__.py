"""Pictures of positional encodings: FIGURES lists them and `draw` renders one.

matplotlib is imported only when `draw` first draws.
"""

from models.plots.catalog import (
    FIGURES,
    Figure,
    default_plot,
    draw,
    figures_of,
)
from models.plots.subject import Subject, described

__all__ = ["FIGURES", "Figure", "Subject", "default_plot", "described", "draw", "figures_of"]
