"""The picture of loadtest/results/soak.json: memory over the hour and during the bursts.

python -m loadtest.soak_plot [SOAK.JSON] [SOAK.PNG]
"""

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from loadtest.processes import RESULTS

COLOURS = {"rss": "#0b6e99", "private": "#c4572e", "anonymous": "#4c9f70"}


def draw(document: dict[str, Any], target: Path) -> None:
    """Write the picture as PNG.

    Args:
        document: what loadtest.soak saves.
        target: the PNG file.
    """
    figure = Figure(figsize=(13, 5), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    hour, bursts = figure.subplots(1, 2, width_ratios=(3, 2))
    _hour(hour, document)
    _bursts(bursts, document)
    settings = document["settings"]
    figure.suptitle(
        f"Memory of the server, all its processes together: {settings['model']}, {settings['workers']} worker(s), "
        f"{settings['callers']} callers, {document['sent']} requests",
        fontsize=10,
    )
    canvas.print_figure(target, dpi=110)


def _hour(axes: Axes, document: dict[str, Any]) -> None:
    samples = [one for one in document["samples"] if one["phase"] in ("warm-up", "soak")]
    minutes = [one["second"] / 60 for one in samples]
    for name, colour in COLOURS.items():
        line = document["trends"][name]
        slope = f": {line['percent_an_hour']:+.2f} % an hour" if line else ""
        axes.plot(minutes, [one["memory"][name] for one in samples], color=colour, label=f"{name}{slope}", linewidth=1)
        if line:
            _through(axes, samples, line, colour)
    axes.axvspan(0, document["settings"]["warm_minutes"], color="grey", alpha=0.15, label="warm-up, not counted")
    axes.set_title("Mixed load")
    _megabytes(axes, "minutes")


def _through(axes: Axes, samples: list[dict[str, Any]], line: dict[str, float], colour: str) -> None:
    seconds = [one["second"] for one in samples if one["phase"] == "soak"]
    middle, slope = sum(seconds) / len(seconds), line["mean"] * line["percent_an_hour"] / 360_000
    ends = seconds[0], seconds[-1]
    heights = [line["mean"] + slope * (end - middle) for end in ends]
    axes.plot([end / 60 for end in ends], heights, "--", color=colour)


def _bursts(axes: Axes, document: dict[str, Any]) -> None:
    samples = [one for one in document["samples"] if one["phase"] in ("idle", "burst")]
    settings = document["settings"]
    title = "Bursts: {burst_calls} requests of {burst_inputs} inputs of {longest_input} tokens".format(**settings)
    axes.set_title(title)
    if samples:
        begun = samples[0]["second"]
        seconds = [one["second"] - begun for one in samples]
        for name, colour in COLOURS.items():
            axes.plot(seconds, [one["memory"][name] for one in samples], color=colour, label=name, linewidth=1)
        highest = max(one["peak_rss"] for one in document["bursts"])
        axes.axhline(highest, color="grey", linestyle=":", label=f"peak rss {highest:.0f} MB")
    _megabytes(axes, "seconds")


def _megabytes(axes: Axes, unit: str) -> None:
    axes.set_xlabel(unit)
    axes.set_ylabel("MB (10^6 bytes)")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


if __name__ == "__main__":
    paths = [Path(argument) for argument in sys.argv[1:]]
    source, target = [*paths, *(RESULTS / "soak.json", RESULTS / "soak.png")[len(paths) :]]
    draw(json.loads(source.read_text(encoding="utf-8")), target)
