"""The picture of loadtest/results/overload.json: goodput, latency, and the outcomes of requests by load.

python -m loadtest.overload_plot [OVERLOAD.JSON] [OVERLOAD.PNG]
"""

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from loadtest.overload_report import LEAST_GOODPUT
from loadtest.processes import RESULTS
from loadtest.servers import FASTAPI, INLAY

COLOURS = {INLAY: "#0b6e99", FASTAPI: "#c4572e"}
OUTCOMES = (("accepted", "#4c9f70"), ("refused (429, 503)", "#e0b84c"), ("failed or timed out", "#b23a48"))


def draw(document: dict[str, Any], target: Path) -> None:
    """Write the picture as PNG.

    Args:
        document: what loadtest.overload saves.
        target: the PNG file.
    """
    figure = Figure(figsize=(15, 5), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    goodput, latency, outcomes = figure.subplots(1, 3)
    _goodput(goodput, document["servers"])
    _latency(latency, document["servers"], document["settings"]["timeout"])
    _outcomes(outcomes, document["servers"])
    settings = document["settings"]
    figure.suptitle(
        f"Open-loop Poisson arrivals at multiples of each server's own capacity: {settings['model']}, "
        f"one text of {settings['words']} words a request, {settings['seconds']:g} s a level, {settings['placement']}",
        fontsize=10,
    )
    canvas.print_figure(target, dpi=110)


def _goodput(axes: Axes, servers: list[dict[str, Any]]) -> None:
    for one in servers:
        loads = [level["multiple"] for level in one["levels"]]
        shares = [level["tally"]["goodput"] / level["capacity"] for level in one["levels"]]
        label = f"{one['name']} (capacity {one['capacity']:.0f} requests/s)"
        axes.plot(loads, shares, "o-", color=COLOURS[one["name"]], label=label)
    axes.axhline(LEAST_GOODPUT, color="grey", linestyle=":", label=f"{LEAST_GOODPUT:g} of capacity")
    axes.set_title("Goodput: right answers within the timeout")
    axes.set_ylabel("goodput / capacity")
    axes.set_ylim(0, max(1.15, axes.get_ylim()[1]))
    _loads(axes, servers)


def _latency(axes: Axes, servers: list[dict[str, Any]], timeout_s: float) -> None:
    for one in servers:
        for key, style in (("p50_ms", "o-"), ("p99_ms", "s--")):
            seen = [
                (level["multiple"], level["tally"][key]) for level in one["levels"] if level["tally"][key] is not None
            ]
            label = f"{one['name']}, {key.removesuffix('_ms')}"
            axes.plot(*zip(*seen, strict=True) if seen else ([], []), style, color=COLOURS[one["name"]], label=label)
    axes.axhline(timeout_s * 1000, color="grey", linestyle=":", label=f"client timeout: {timeout_s:g} s")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_title("Latency of accepted requests, from when they were due")
    axes.set_ylabel("milliseconds (log)")
    _loads(axes, servers)


def _loads(axes: Axes, servers: list[dict[str, Any]]) -> None:
    ticks = sorted({level["multiple"] for one in servers for level in one["levels"]})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
    axes.set_xlabel("arrivals / capacity (log)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _outcomes(axes: Axes, servers: list[dict[str, Any]]) -> None:
    labels = [f"{one['name']}\n{level['multiple']:g}x".replace(" ", "\n") for one in servers for level in one["levels"]]
    tallies = [level["tally"] for one in servers for level in one["levels"]]
    counts = [[level["accepted"], level["refused"], sum(level["failed"].values())] for level in tallies]
    below = [0.0] * len(labels)
    for column, (name, colour) in enumerate(OUTCOMES):
        shares = [100 * row[column] / max(1, sum(row)) for row in counts]
        axes.bar(range(len(labels)), shares, bottom=below, color=colour, label=name)
        below = [one + share for one, share in zip(below, shares, strict=True)]
    axes.set_xticks(range(len(labels)), labels, fontsize=7)
    axes.set_ylabel("% of requests due")
    axes.set_ylim(0, 118)
    axes.set_title("Outcomes of the requests")
    axes.legend(fontsize=8, ncols=3, loc="upper center")


if __name__ == "__main__":
    paths = [Path(argument) for argument in sys.argv[1:]]
    source, target = [*paths, *(RESULTS / "overload.json", RESULTS / "overload.png")[len(paths) :]]
    draw(json.loads(source.read_text(encoding="utf-8")), target)
