"""The picture of loadtest/results/fleet.json: balancing by size and by load, and two autoscalers.

python -m loadtest.fleet.plot [FLEET.JSON] [FLEET.PNG]
"""

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from loadtest.fleet.balancing import LEAST_CONNECTIONS, LEAST_TOKENS, POLICIES, RANDOM, ROUND_ROBIN, STALE, TWO_CHOICES
from loadtest.fleet.cases import EVEN_LOAD, HARD_LOAD, LOADS_REPLICAS, NEW_NODE, QUEUE_ALONE, RECOMMENDED, WARM_START
from loadtest.processes import RESULTS

COLOURS = {
    RANDOM: "#b23a48",
    ROUND_ROBIN: "#c4572e",
    TWO_CHOICES: "#4c9f70",
    LEAST_CONNECTIONS: "#0b6e99",
    STALE: "#e0b84c",
    LEAST_TOKENS: "#7a5195",
}


def draw(document: dict[str, Any], target: Path) -> None:
    """Write the picture as PNG.

    Args:
        document: what loadtest.fleet saves.
        target: the PNG file.
    """
    figure = Figure(figsize=(16, 9), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    (even, hard, load), (steps, new_node, day) = figure.subplots(2, 3)
    _by_size(even, [row for row in document["sizes"] if not row["is_bursty"]])
    even.set_title(f"Equal replicas, load {EVEN_LOAD:g}")
    _by_size(hard, [row for row in document["sizes"] if row["is_bursty"]])
    even.legend(fontsize=8, loc="center right", bbox_to_anchor=(1, 0.76))  # the only place without a curve
    hard.set_title(f"Bursts, a tenth at 1/3 speed, some die, load {HARD_LOAD:g}")
    hard.legend(fontsize=8, loc="lower left")
    _by_load(load, document["loads"])
    shown = {steps: f"step, {WARM_START} s", new_node: f"step, {NEW_NODE} s", day: f"day, {WARM_START} s"}
    for axes, name in shown.items():
        _trace(axes, name, document["autoscaler"]["traces"])
    figure.suptitle(
        f"Simulated one-core replicas of all-MiniLM-L6-v2: {document['capacity_a_core']['requests_a_second']} "
        f"requests/s each, {document['mean_tokens']:.0f} tokens a request on average",
        fontsize=10,
    )
    canvas.print_figure(target, dpi=100)


def _by_size(axes: Axes, rows: list[dict[str, Any]]) -> None:
    for policy in POLICIES:
        chosen = [row for row in rows if row["policy"] == policy or row["replicas"] == 1]
        axes.plot(
            [row["replicas"] for row in chosen],
            [row["p99_ms"] for row in chosen],
            "o-",
            color=COLOURS[policy],
            label=policy,
        )
    axes.set_xscale("log")
    axes.set_xlabel("replicas (log)")
    _latency(axes)


def _by_load(axes: Axes, rows: list[dict[str, Any]]) -> None:
    for policy in POLICIES:
        chosen = [row for row in rows if row["policy"] == policy]
        axes.plot(
            [row["load"] for row in chosen],
            [row["p99_ms"] for row in chosen],
            "o-",
            color=COLOURS[policy],
            label=policy,
        )
    axes.set_title(f"{LOADS_REPLICAS} replicas, bursts, a tenth at 1/3 speed")
    axes.set_xlabel("load / nominal capacity")
    _latency(axes)
    axes.legend(fontsize=8)


def _latency(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("p99 of answered requests, ms (log)")
    axes.grid(alpha=0.3)


def _trace(axes: Axes, name: str, traces: dict[str, Any]) -> None:
    for rule, colour in ((QUEUE_ALONE, COLOURS[RANDOM]), (RECOMMENDED, COLOURS[LEAST_CONNECTIONS])):
        trace = traces[f"{name}, {rule}"]
        times = [index * trace["every"] / 60 for index in range(len(trace["needed"]))]
        if rule == QUEUE_ALONE:
            axes.plot(times, trace["needed"], color="grey", label="kept busy by the load")
        axes.plot(times, trace["replicas"], color=colour, label=rule)
    axes.set_title(f"Autoscaler: {name} to start a replica")
    axes.set_xlabel("minutes")
    axes.set_ylabel("replicas")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def main() -> None:
    """Draw the saved results again."""
    paths = [Path(argument) for argument in sys.argv[1:]]
    source, target = [*paths, *(RESULTS / "fleet.json", RESULTS / "fleet.png")[len(paths) :]]
    draw(json.loads(source.read_text(encoding="utf-8")), target)


if __name__ == "__main__":
    main()
