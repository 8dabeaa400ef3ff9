"""The pictures of docs/performance.md and docs/deploy/sizing.md, drawn from the figures in loadtest/results/.

python -m loadtest.performance_plots [FOLDER]      docs/images/ unless a folder is named
"""

import json
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from loadtest.processes import RESULTS, ROOT

IMAGES = ROOT / "docs/images"
BLUE, ORANGE, GREEN, YELLOW, RED, PURPLE, GREY = (
    "#0b6e99", "#c4572e", "#4c9f70", "#e0b84c", "#b23a48", "#7a5195", "#8a8f98",
)  # fmt: skip
SETTINGS: Any = {
    "svg.fonttype": "none",  # text stays text: it can be searched and read aloud, and the file is small
    "svg.hashsalt": "inlay",  # the same figures give the same bytes
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],  # part of matplotlib
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
OVER_HTTP = {
    "Inlay openvino": ("Inlay, OpenVINO bfloat16", PURPLE, "s-"),
    "Inlay int8": ("Inlay, int8", GREEN, "^-"),
    "inlay": ("Inlay, float32", BLUE, "o-"),
    "mosec, batching": ("mosec, batching", ORANGE, "o--"),
    "mosec, no batching": ("mosec, no batching", YELLOW, "s--"),
    "FastAPI, ORT": ("FastAPI around ONNX Runtime", RED, "^--"),
    "FastAPI, sentence-transformers": ("FastAPI around sentence-transformers", GREY, "v--"),
}
"""The servers that are shown, by their names in encoders.json; layouts of workers are left to its report."""
PEERS = {
    "inlay": ("Inlay", BLUE),
    "mosec, batching": ("mosec, batching", ORANGE),
    "mosec, no batching": ("mosec, no batching", YELLOW),
    "fastapi": ("plain FastAPI", RED),
}
MEMORY = {"rss": (BLUE, "resident"), "private": (ORANGE, "private"), "anonymous": (GREEN, "anonymous")}
BALANCING = {
    "random": RED, "round robin": ORANGE, "least connections, 1 s old": YELLOW, "two choices": GREEN,
    "least connections": BLUE, "least tokens": PURPLE,
}  # fmt: skip


def saved(name: str) -> Any:
    """Return the figures of a measurement, by the name of its file without `.json`."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def encoders(figure: Figure) -> None:
    """Draw how many times as fast as Inlay's float32 encoder each engine is, on one core."""
    axes = figure.subplots()
    figures = saved("encoders")["engines"]["figures"]
    shown = [one for one in figures if not one["missing"] and "static" not in one["name"]]
    cases = {"S1": "one text of 24 tokens", "S16": "16 texts, 376 tokens", "R32": "32 texts, 2016 tokens"}
    bars = {
        label: [_times_as_fast(one["timings"][case], figures[0]["timings"][case]) for one in shown]
        for case, label in cases.items()
    }
    _grouped(axes, [one["name"].replace("Inlay fp32", "Inlay float32") for one in shown], bars, (BLUE, GREEN, YELLOW))
    axes.set_xlabel("times as fast as Inlay's float32 encoder")
    axes.set_title("Encoders around the same weights, one core, one thread")


def over_http(figure: Figure) -> None:
    """Draw requests a second of whole servers by the number of connections."""
    axes = figure.subplots()
    rows = saved("encoders")["http"]["figures"]["rows"]
    connections = [row["connections"] for row in rows]
    for name, (label, colour, style) in OVER_HTTP.items():
        rates = [statistics.median(one["per_second"] for one in row["samples"][name]) for row in rows]
        axes.plot(connections, rates, style, color=colour, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(connections, [str(number) for number in connections])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("connections, each with one request under way (log)")
    axes.set_ylabel("requests/s")
    axes.set_title("One text of 20 words a request over HTTP, two cores")
    _beside(axes)


def token_ids(figure: Figure) -> None:
    """Draw requests a second of other servers around the same graph, as shares of Inlay's."""
    axes = figure.subplots()
    cases = saved("peers")["cases"]
    names = [f"{case['case'].removeprefix('POST /embed, ')}, {_connections(case)}" for case in cases]
    bars = {
        label: [case["medians"][name]["per_second"] / case["medians"]["inlay"]["per_second"] for case in cases]
        for name, (label, _) in PEERS.items()
    }
    _grouped(axes, names, bars, [colour for _, colour in PEERS.values()])
    axes.set_xlabel("requests/s, of Inlay's")
    axes.set_title("Servers around the same ONNX graph, default settings, two cores")


def architectures(figure: Figure) -> None:
    """Draw how many times as fast as torch, batching texts of like length, whole models run."""
    axes = figure.subplots()
    document = saved("architectures")
    cases = dict(part.split(": ", 1) for part in document["cases"].rstrip(".").split("; "))
    models = document["models"]
    bars = {
        f"{case}: {text}": [_over_torch(model["engines"], case) for model in models] for case, text in cases.items()
    }
    _grouped(axes, [model["name"] for model in models], bars, (BLUE, GREEN, YELLOW, ORANGE, PURPLE))
    axes.set_xlabel("times as fast as torch in float32 (batches of like length where there are several texts)")
    axes.set_title("Whole models at real sizes, random weights, float32")


def overload(figure: Figure) -> None:
    """Draw goodput and latency by load, of Inlay and of a plain FastAPI application."""
    goodput, latency = figure.subplots(1, 2)
    document = saved("overload")
    for one, colour in zip(document["servers"], (BLUE, ORANGE), strict=True):
        name = {"inlay": "Inlay", "fastapi": "plain FastAPI"}[one["name"]]
        levels = one["levels"]
        loads = [level["multiple"] for level in levels]
        shares = [level["tally"]["goodput"] / level["capacity"] for level in levels]
        goodput.plot(loads, shares, "o-", color=colour, label=f"{name} ({one['capacity']:.0f} requests/s)")
        for key, style in (("p50_ms", "o-"), ("p99_ms", "s--")):
            seconds = [level["tally"][key] / 1000 for level in levels]
            latency.plot(loads, seconds, style, color=colour, label=f"{name}, {key.removesuffix('_ms')}")
    goodput.set_ylim(0, 1.15)
    goodput.set_ylabel("answered in time / own capacity")
    goodput.set_title("Goodput")
    latency.set_ylim(bottom=0)
    latency.set_ylabel("seconds from when a request was due")
    latency.set_title("Latency of answered requests")
    for axes in (goodput, latency):
        _loads(axes, [level["multiple"] for level in document["servers"][0]["levels"]])


def memory(figure: Figure) -> None:
    """Draw the server's memory over an hour of mixed load."""
    axes = figure.subplots()
    document = saved("soak")
    samples = [one for one in document["samples"] if one["phase"] in ("warm-up", "soak")]
    samples = samples[:: max(1, len(samples) // 300)]
    for name, (colour, label) in MEMORY.items():
        growth = document["trends"][name]["percent_an_hour"]
        line = [one["memory"][name] for one in samples]
        minutes = [one["second"] / 60 for one in samples]
        axes.plot(minutes, line, color=colour, label=f"{label}: {growth:+.1f} % an hour")
    axes.axvspan(0, document["settings"]["warm_minutes"], color="grey", alpha=0.15, label="warm-up, not counted")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("minutes of mixed load")
    axes.set_ylabel("MB")
    axes.set_title("Memory of the server, all its processes together")
    _beside(axes)


def balancing(figure: Figure) -> None:
    """Draw the 99th percentile by the number of replicas, for each balancer policy."""
    axes = figure.subplots()
    rows = [row for row in saved("fleet")["sizes"] if row["is_bursty"] and row["replicas"] > 1]
    for policy, colour in BALANCING.items():
        ours = [row for row in rows if row["policy"] == policy]
        points = [row["replicas"] for row in ours], [row["p99_ms"] / 1000 for row in ours]
        axes.plot(*points, "o-", color=colour, label=policy)
    axes.set_xscale("log")
    axes.set_xticks([10, 100, 1000], ["10", "100", "1000"])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("replicas of one core (log)")
    axes.set_ylabel("p99, seconds")
    axes.set_title("Load 0.6 with bursts, a tenth of the replicas at a third of the speed (simulated)")
    _beside(axes)


PICTURES: dict[str, tuple[Callable[[Figure], None], tuple[float, float]]] = {
    "performance-encoders": (encoders, (9, 5.5)),
    "performance-http": (over_http, (9, 4)),
    "performance-token-ids": (token_ids, (9, 6)),
    "performance-architectures": (architectures, (9, 5.5)),
    "performance-overload": (overload, (9, 3.8)),
    "performance-memory": (memory, (9, 3.8)),
    "performance-balancing": (balancing, (9, 3.8)),
}
"""What draws each picture, by the file's name without `.svg`, and its size in inches."""


def draw(folder: Path) -> None:
    """Write every picture as SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(SETTINGS):
        for name, (drawn, size) in PICTURES.items():
            figure = Figure(figsize=size, layout="constrained")
            canvas = FigureCanvasSVG(figure)
            drawn(figure)
            canvas.print_figure(folder / f"{name}.svg", format="svg", metadata={"Date": None})


def _times_as_fast(timings: dict[str, Any], reference: dict[str, Any]) -> float:
    """Return the median of the ratios of interleaved rounds."""
    pairs = zip(timings["rounds_ms"], reference["rounds_ms"], strict=True)
    return float(statistics.median(theirs / ours for ours, theirs in pairs))


def _over_torch(engines: list[dict[str, Any]], case: str) -> float:
    """Return times as fast as torch: batches of like length where they were measured; 0: not measured."""
    inlay, *others = [one["timings"].get(case) for one in engines if not one["missing"]]
    torch = [timings for timings in others if timings]
    return _times_as_fast(inlay, torch[-1]) if inlay and torch else 0


def _connections(case: dict[str, Any]) -> str:
    number = case["connections"]
    return f"{number} connection{'s' if number > 1 else ''}"


def _grouped(axes: Axes, names: Sequence[str], bars: dict[str, list[float]], colours: Iterable[str]) -> None:
    """Draw horizontal bars in groups, the first at the top, with a line at 1."""
    height = 0.8 / len(bars)
    for number, ((label, values), colour) in enumerate(zip(bars.items(), colours, strict=False)):
        places = [place + number * height for place in range(len(names))]
        drawn = axes.barh(places, values, height, color=colour, label=label)
        axes.bar_label(drawn, [f"{value:.2g}" if value else "" for value in values], padding=2, fontsize=8)
    axes.set_yticks([place + 0.4 - height / 2 for place in range(len(names))], names)
    axes.invert_yaxis()
    axes.axvline(1, color="grey", linestyle=":")
    axes.figure.legend(loc="outside lower center", ncols=2 if len(bars) > 4 else len(bars), frameon=False, fontsize=9)


def _loads(axes: Axes, loads: list[float]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(loads, [f"{load:g}×" for load in loads])
    axes.set_xlabel("arrivals / capacity (log)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=9, frameon=False)


def _beside(axes: Axes) -> None:
    """Put the legend to the right of the axes, where it hides no curve."""
    axes.grid(alpha=0.3)
    axes.figure.legend(loc="outside right center", frameon=False, fontsize=9)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if sys.argv[1:] else IMAGES)
