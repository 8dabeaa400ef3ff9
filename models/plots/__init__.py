"""Pictures of positional encodings: FIGURES says which, `draw` makes one. Serves nothing.

matplotlib is imported by `draw` alone, when it first draws.
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
