"""The picture of loadtest/results/encoders.json: speed of the engines, requests over HTTP, cost against growth.

python -m loadtest.encoders.plot [ENCODERS.JSON] [ENCODERS.PNG]
"""

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from loadtest.processes import RESULTS

OWN = "#0b6e99"
SHADES = ("#0b6e99", "#4c9f70", "#e0b84c", "#b23a48")


def draw(source: Path, target: Path) -> None:
    """Write the picture of the parts that were saved as PNG.

    Args:
        source: what loadtest.encoders saves.
        target: the PNG file.
    """
    saved = json.loads(source.read_text(encoding="utf-8"))
    panels: list[tuple[Callable[[Axes, Any], None], Any]] = []
    if "engines" in saved:
        panels.append((_engines, saved["engines"]["figures"]))
    if "http" in saved:
        panels.append((_http, saved["http"]["figures"]["rows"]))
    if "growth" in saved:
        panels += [(_growth, entry) for entry in saved["growth"]["figures"].items()]
    figure = Figure(figsize=(6.5 * max(1, len(panels)), 5), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    for place, (drawn, figures) in enumerate(panels):
        drawn(figure.add_subplot(1, len(panels), place + 1), figures)
    canvas.print_figure(target, dpi=110)


def _engines(axes: Axes, results: list[dict[str, Any]]) -> None:
    """Draw the ratio of every encoder to the first; a static table, which has none, is off this scale."""
    timed = [one for one in results if not one["missing"] and "static" not in one["name"]]
    reference = results[0]["timings"]
    height = 0.8 / len(reference)
    for number, case in enumerate(reference):
        ratios = [
            statistics.median(
                theirs / ours
                for theirs, ours in zip(reference[case]["rounds_ms"], one["timings"][case]["rounds_ms"], strict=True)
            )
            for one in timed
        ]
        places = [place + number * height for place in range(len(timed))]
        axes.barh(places, ratios, height, color=SHADES[number % len(SHADES)], label=case)
    axes.set_yticks([place + 0.4 - height / 2 for place in range(len(timed))], [one["name"] for one in timed])
    axes.invert_yaxis()
    axes.axvline(1, color="grey", linestyle=":")
    axes.set_title("Times as fast as Inlay fp32, one core")
    axes.legend(fontsize=8)


def _http(axes: Axes, rows: list[dict[str, Any]]) -> None:
    for name in rows[0]["samples"]:
        speeds = [statistics.median(one["per_second"] for one in row["samples"][name]) for row in rows]
        colour, style = (OWN if name.startswith("inlay") else None), ("o-" if name == "inlay" else "o--")
        axes.plot([row["connections"] for row in rows], speeds, style, label=name, color=colour)
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("connections")
    axes.set_ylabel("requests/s")
    axes.set_title("Texts of 20 words over HTTP")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _growth(axes: Axes, entry: tuple[str, list[dict[str, Any]]]) -> None:
    cores, points = entry
    for number, length in enumerate(sorted({one["length"] for one in points})):
        line = [one for one in points if one["length"] == length]
        costs = [one["joining_us"] + one["running_us"] for one in line]
        label = f"{length} token{'s' if length > 1 else ''} a text"
        axes.plot([one["waiting"] for one in line], costs, "o-", color=SHADES[number % len(SHADES)], label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("tokens waiting")
    axes.set_ylabel("µs a token")
    axes.set_title(f"Cost of a token, {cores} core{'s' if cores != '1' else ''}")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=8)


if __name__ == "__main__":
    paths = [Path(argument) for argument in sys.argv[1:]]
    read, written = [*paths, *(RESULTS / "encoders.json", RESULTS / "encoders.png")[len(paths) :]]
    draw(read, written)
