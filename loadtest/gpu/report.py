"""The results of a run on a GPU: a JSON file, the table and the picture that the documentation takes."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from loadtest.gpu.measure import Row

COLORS = {"Inlay": "#0b6e99", "torch": "#b23a48"}
Checks = Sequence[tuple[str, str, bool]]


def table(rows: Sequence[Row], checks: Checks) -> str:
    """Return both tables as Markdown."""
    lengths = sorted({length for row in rows for length in row.tokens_per_second})
    heads = [
        "model",
        "library",
        "type",
        "cosine to float64",
        "GPU MB",
        *(f"{each} tokens: tokens/s" for each in lengths),
    ]
    lines = [_line(heads), _line(["---", "---", "---", *["--:"] * (len(heads) - 3)])]
    for row in rows:
        if row.missing:
            lines.append(_line([row.model, row.library, row.dtype, row.missing, *[""] * (len(heads) - 4)]))
            continue
        speeds = [_speed(row.tokens_per_second.get(length, ())) for length in lengths]
        memory = "" if row.megabytes is None else f"{row.megabytes:,.0f}"
        cosine = f"{row.cosine:.6f}" + ("" if row.is_right else ", too far")
        lines.append(_line([row.model, row.library, row.dtype, cosine, memory, *speeds]))
    lines += ["", _line(["check", "found"]), _line(["---", "---"])]
    lines += [_line([name, found if right else f"FAILED: {found}"]) for name, found, right in checks]
    return "\n".join(lines) + "\n"


def save(rows: Sequence[Row], checks: Checks, facts: Mapping[str, str], target: Path) -> None:
    """Write target.json, .md and .svg."""
    found: dict[str, Any] = {"facts": dict(facts), "rows": [asdict(row) for row in rows], "checks": list(checks)}
    target.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    said = ", ".join(f"{name} {value}" for name, value in facts.items())
    target.with_suffix(".md").write_text(f"{table(rows, checks)}\n{said}\n", encoding="utf-8")
    draw(rows, target.with_suffix(".svg"))


def draw(rows: Sequence[Row], target: Path) -> None:
    """Write the picture: tokens a second of each model and library, one panel a length."""
    timed = [row for row in rows if row.tokens_per_second]
    lengths = sorted({length for row in timed for length in row.tokens_per_second})
    figure = Figure(figsize=(5 * max(1, len(lengths)), 0.3 * len(timed) + 1.5), layout="constrained")
    names = [f"{row.model}, {row.library} {row.dtype}" for row in timed]
    for place, length in enumerate(lengths):
        axes = figure.add_subplot(1, len(lengths), place + 1)
        speeds = [statistics.median(row.tokens_per_second.get(length, (0.0,))) for row in timed]
        axes.barh(range(len(timed)), speeds, color=[COLORS[row.library] for row in timed])
        axes.set_yticks(range(len(timed)), names if not place else [""] * len(timed))
        axes.invert_yaxis()
        axes.set_title(f"texts of {length} tokens, tokens/s")
    FigureCanvasSVG(figure).print_figure(target)


def _speed(rounds: Sequence[float]) -> str:
    return f"{statistics.median(rounds):,.0f}" if rounds else ""


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
