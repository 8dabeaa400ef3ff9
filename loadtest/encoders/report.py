"""The figures as tables for the terminal and markdown, and as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loadtest.bench_report import Row
from loadtest.encoders.bars import Bar, engine_bars, http_bars
from loadtest.encoders.cases import cases
from loadtest.encoders.engines import EngineResult
from loadtest.encoders.over_http import HttpResult

Table = list[tuple[str, ...]]


@dataclass(frozen=True)
class Results:
    """What a run measured; a part that was not asked for is None."""

    facts: Mapping[str, str]
    engines: Sequence[EngineResult] | None = None
    http: HttpResult | None = None

    @property
    def bars(self) -> list[Bar]:
        """All bars of the parts that were measured."""
        http = http_bars(self.http.rows, self.http.missing) if self.http else ()
        return [*(engine_bars(self.engines) if self.engines else ()), *http]


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
    own, theirs = result.timings[case], reference.timings[case]
    ratios = f"{own.ratio(theirs):.2f}/{own.ratio_of_fastest(theirs):.2f}"
    return f"{own.median_ms:.3g}/{own.fastest_ms:.3g}", ratios


def http_table(result: HttpResult) -> Table:
    """Return requests/s and latencies of each server."""
    table: Table = [("server", "connections", "requests/s", "p50 ms", "p99 ms", "CPU ms/request", "Inlay's ratio")]
    for row in result.rows:
        for name in row.samples:
            table.append(_http_line(row, name))
    table += [(name, "", "", "", "", "", f"missing: {why}") for name, why in result.missing.items()]
    return table


def _http_line(row: Row, name: str) -> tuple[str, ...]:
    one, own = row.median(name), row.median(next(iter(row.samples)))
    figures = (
        f"{one.per_second:.1f}",
        f"{one.p50_us / 1000:.1f}",
        f"{one.p99_us / 1000:.1f}",
        f"{one.cpu_us / 1000:.2f}",
    )
    return (name, str(row.connections), *figures, f"{own.per_second / one.per_second:.2f}")


def bar_table(bars: Sequence[Bar]) -> Table:
    """Return each bar, what was measured, and the verdict."""
    table: Table = [("bar", "bound", "measured", "verdict")]
    for bar in bars:
        bound = f"{'<=' if bar.at_most else '>='} {bar.bound:g}"
        table.append((bar.about, bound, "" if bar.measured is None else f"{bar.measured:.4g}", bar.verdict))
    return table


def sections(results: Results) -> list[tuple[str, Table, str]]:
    """Return title, table and explanation of each part."""
    parts: list[tuple[str, Table, str]] = []
    if results.engines:
        about = "; ".join(f"{case.name}: {case.about}" for case in cases())
        note = (
            f"One core, one thread each. {about}; batches of at most 512 padded tokens. Milliseconds: median / "
            "fastest. ratio: times as fast as Inlay fp32, median of the rounds / of the fastest calls. Cosines: to it, "
            "each text alone. Bits: each text alone against batches of 2, 5, 8, 16, reversed, with a long neighbour, "
            "four times itself. sentence-transformers and model2vec tokenize within the time that is measured."
        )
        parts.append(("Engines in a process of their own", engine_table(results.engines), note))
    if results.http:
        note = "One text of 20 words a request, raw float32 answers, all cores shared with the load. Medians of rounds."
        parts.append(("Over HTTP", http_table(results.http), note))
    if results.bars:
        parts.append(("Bars", bar_table(results.bars), "What a machine lacks is missing, not failed."))
    return parts


def show(results: Results) -> None:
    """Print all tables."""
    for title, table, note in sections(results):
        widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
        print(f"\n{title}")
        for line in table:
            print("  ".join(map(str.ljust, line, widths)).rstrip())
        print(note)


def save(results: Results, target: Path) -> None:
    """Write JSON and markdown; `target` is the path of both without suffix."""
    target.with_suffix(".json").write_text(json.dumps(_document(results), indent=1) + "\n", encoding="utf-8")
    text = ["# make bench ARGS=--encoders", "", *(f"- {key}: {value}" for key, value in results.facts.items())]
    for title, table, note in sections(results):
        ruled = [table[0], ("---",) * len(table[0]), *table[1:]]
        text += ["", f"## {title}", "", note, "", *("| " + " | ".join(line) + " |" for line in ruled)]
    target.with_suffix(".md").write_text("\n".join(text) + "\n", encoding="utf-8")


def _document(results: Results) -> dict[str, Any]:
    document: dict[str, Any] = {"facts": dict(results.facts)}
    if results.engines:
        document["engines"] = [asdict(result) for result in results.engines]
    if results.http:
        document["http"] = {"rows": [asdict(row) for row in results.http.rows], "missing": results.http.missing}
    document["bars"] = [{**asdict(bar), "verdict": bar.verdict} for bar in results.bars]
    return document
