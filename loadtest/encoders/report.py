"""What each part of a run measured: its table, its bars and its figures; saved as JSON and markdown."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loadtest.bench_report import Row
from loadtest.encoders.bars import Bar, engine_bars, http_bars, input_layer_bars
from loadtest.encoders.cases import cases
from loadtest.encoders.engines import EngineResult
from loadtest.encoders.over_http import HttpResult

PARTS = ("engines", "http", "input_layer", "growth")
Table = list[tuple[str, ...]]
Points = Mapping[str, Sequence[Mapping[str, float]]]
"""By the number of cores, what `growth` prints."""


@dataclass(frozen=True)
class Part:
    """One part of a run.

    Attributes:
        name: what --parts calls it.
        title: of its table.
        note: what a reader of the table must know.
        table: its first line holds the heads.
        bars: with verdicts.
        figures: all that was measured, for JSON.
    """

    name: str
    title: str
    note: str
    table: Table
    bars: Sequence[Bar]
    figures: Any


def engines_part(results: Sequence[EngineResult]) -> Part:
    """Return the part of the libraries, Inlay's fp32 encoder first."""
    about = "; ".join(f"{case.name}: {case.about}" for case in cases())
    note = (
        f"One core, one thread each. {about}; batches of at most 512 padded tokens. Milliseconds: median / fastest. "
        "ratio: times as fast as Inlay fp32, median of the rounds / of the fastest calls. Cosines: to it, over "
        "models/artifacts/texts/evaluation.txt. Bits: each text of S16 alone against batches of 2, 5, 8, 16, reversed, "
        "with a long neighbour, four times itself. sentence-transformers and model2vec tokenize within the time that "
        "is measured."
    )
    figures = [asdict(result) for result in results]
    bars = [*engine_bars(results)]
    return Part("engines", "Engines in a process of their own", note, engine_table(results), bars, figures)


def http_part(result: HttpResult) -> Part:
    """Return the part of the servers, Inlay with its default settings first."""
    note = "One text of 20 words a request, raw float32 answers, all cores shared with the load. Medians of rounds."
    figures = {"rows": [asdict(row) for row in result.rows], "missing": result.missing}
    bars = [*http_bars(result.rows, result.missing)]
    return Part("http", "Over HTTP", note, http_table(result), bars, figures)


def input_layer_part(taken: Mapping[str, Mapping[str, Sequence[float]]]) -> Part:
    """Return the part of the forms of the input layer, by tokens."""
    note = "Microseconds a token of one run on one thread, median / fastest of interleaved rounds."
    sizes = list(taken)
    table: Table = [("form", *(f"{size} tokens" for size in sizes))]
    for form in taken[sizes[0]]:
        table.append((form, *(f"{taken[size][form][0]:.2f} / {taken[size][form][1]:.2f}" for size in sizes)))
    return Part("input_layer", "The input layer alone", note, table, [*input_layer_bars(taken)], dict(taken))


def growth_part(points: Points) -> Part:
    """Return the part of cost against growth."""
    note = (
        "Microseconds a token of Inlay's fp32 encoder. Waiting: tokens sent at once, in requests of 512. joining: until"
        " all of them wait, over all of them; running: the first 2048 of them, over those."
    )
    table: Table = [("cores", "tokens a text", "tokens waiting", "joining", "running", "together")]
    for cores, listed in points.items():
        for one in listed:
            joining, running = one["joining_us"], one["running_us"]
            counts = (f"{one['length']:.0f}", f"{one['waiting']:.0f}")
            table.append((cores, *counts, f"{joining:.2f}", f"{running:.0f}", f"{joining + running:.0f}"))
    return Part("growth", "Cost against growth", note, table, [], dict(points))


def engine_table(results: Sequence[EngineResult]) -> Table:
    """Return milliseconds, ratios to the first library and the quality of each."""
    names = [case.name for case in cases()]
    heads = [head for name in names for head in (f"{name} ms", "ratio")]
    table: Table = [("engine", *heads, "cosine min / mean", "bits change with the batch")]
    for result in results:
        quality = result.quality
        if result.missing or not quality:
            table.append((result.name, *("",) * len(heads), "", f"missing: {result.missing}"))
            continue
        cells = [cell for name in names for cell in _cells(result, results[0], name)]
        cosines = f"{quality.least_cosine:.5f} / {quality.mean_cosine:.5f}"
        changed = f"{quality.differ} of {quality.compared}, by {quality.largest:.1g}" if quality.differ else "never"
        table.append((result.name, *cells, cosines, changed))
    return table


def _cells(result: EngineResult, reference: EngineResult, case: str) -> tuple[str, str]:
    ours, theirs = result.timings[case], reference.timings[case]
    ratios = f"{ours.ratio(theirs):.2f}/{ours.ratio_of_fastest(theirs):.2f}"
    return f"{ours.median_ms:.3g}/{ours.fastest_ms:.3g}", ratios


def http_table(result: HttpResult) -> Table:
    """Return requests/s and latencies of each server."""
    table: Table = [("server", "connections", "requests/s", "p50 ms", "p99 ms", "CPU ms/request", "Inlay's ratio")]
    for row in result.rows:
        for name in row.samples:
            table.append(_http_line(row, name))
    table += [(name, "", "", "", "", "", f"missing: {why}") for name, why in result.missing.items()]
    return table


def _http_line(row: Row, name: str) -> tuple[str, ...]:
    one, ours = row.median(name), row.median(next(iter(row.samples)))
    figures = (
        f"{one.per_second:.1f}",
        f"{one.p50_us / 1000:.1f}",
        f"{one.p99_us / 1000:.1f}",
        f"{one.cpu_us / 1000:.2f}",
    )
    return (name, str(row.connections), *figures, f"{ours.per_second / one.per_second:.2f}")


def bar_table(bars: Sequence[Bar]) -> Table:
    """Return each bar, what was measured, and the verdict."""
    table: Table = [("bar", "bound", "measured", "verdict")]
    for bar in bars:
        bound = f"{'<=' if bar.at_most else '>='} {bar.bound:g}"
        table.append((bar.about, bound, "" if bar.measured is None else f"{bar.measured:.5g}", bar.verdict))
    return table


def show(part: Part) -> None:
    """Print the tables of a part."""
    print(f"\n{part.title}")
    print_table(part.table)
    print(part.note)
    if part.bars:
        print_table(bar_table(part.bars))


def print_table(table: Table) -> None:
    """Print a table in columns; its first line holds the heads."""
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for line in table:
        print("  ".join(map(str.ljust, line, widths)).rstrip())


def save(part: Part, facts: Mapping[str, str], target: Path) -> None:
    """Write a part into JSON and markdown beside the parts that were saved before.

    Args:
        facts: of the machine, the software and the run.
        target: path of both files, without suffix.
    """
    source = target.with_suffix(".json")
    saved = json.loads(source.read_text(encoding="utf-8")) if source.exists() else {}
    saved[part.name] = {
        **{"title": part.title, "facts": dict(facts), "note": part.note, "table": part.table},
        "bars": bar_table(part.bars) if part.bars else [],
        "figures": part.figures,
    }
    ordered = {name: saved[name] for name in PARTS if name in saved}
    source.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    text = ["# make bench ARGS=--encoders"]
    for one in ordered.values():
        text += ["", f"## {one['title']}", "", *(f"- {key}: {value}" for key, value in one["facts"].items())]
        text += ["", one["note"], "", *ruled(one["table"])]
        text += ["", *ruled(one["bars"])] if one["bars"] else []
    target.with_suffix(".md").write_text("\n".join(text) + "\n", encoding="utf-8")


def ruled(table: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table in markdown."""
    lines = [table[0], ["---"] * len(table[0]), *table[1:]]
    return ["| " + " | ".join(line) + " |" for line in lines]
