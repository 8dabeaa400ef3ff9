"""Pictures of positional encodings: FIGURES lists them, `draw` renders one and `document` returns its numbers.

matplotlib is imported only when `draw` first draws.
"""

from models.plots.catalog import FIGURES, Figure, compose, default_plot, draw, figures_of
from models.plots.document import document
from models.plots.subject import Subject, described

__all__ = ["FIGURES", "Figure", "Subject", "compose", "default_plot", "described", "document", "draw", "figures_of"]
