"""From samples to figures: medians, ratios, a table for the screen, JSON and markdown for results. Measures nothing."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from loadtest.facts import facts

FLOOR, OURS = "empty", "inlay"
BUSY = 0.85  # of its core: less under 32 calls means that something else was the ceiling
CALM = 10  # times the median: a lone call that takes longer waited for other processes


@dataclass(frozen=True)
class Sample:
    """One server, one case, one round. `cpu_us` is the server's CPU time for one request, of all its threads."""

    per_second: float
    p50_us: float
    p99_us: float
    cpu_us: float

    @property
    def busy(self) -> float:
        """The share of one core that the server used."""
        return self.per_second * self.cpu_us / 1e6


@dataclass(frozen=True)
class Ratio:
    """Requests/s of the service over the floor's: the median of the rounds, and the lowest and highest of them."""

    median: float
    low: float
    high: float
    cpu: float  # the floor's CPU time for a request over the service's


@dataclass(frozen=True)
class Row:
    """One case: the samples of every server, in the order of the rounds."""

    case: str
    calls: int
    generator: str
    limited: bool  # the generator may be the ceiling
    target: float | None
    samples: Mapping[str, Sequence[Sample]]

    def median(self, name: str) -> Sample:
        """Each figure's median over the rounds."""
        rounds = [asdict(sample) for sample in self.samples[name]]
        return Sample(**{key: statistics.median(one[key] for one in rounds) for key in rounds[0]})

    @property
    def ratio(self) -> Ratio:
        """The service against the floor; rounds are compared with their neighbours in time."""
        pairs = list(zip(self.samples[OURS], self.samples[FLOOR], strict=True))
        speeds = sorted(ours.per_second / floor.per_second for ours, floor in pairs)
        cpu = statistics.median(floor.cpu_us / ours.cpu_us for ours, floor in pairs)
        return Ratio(statistics.median(speeds), speeds[0], speeds[-1], cpu)

    @property
    def disturbed(self) -> bool:
        """Whether others, or a slow generator, held up the empty server: requests/s then flatter the service."""
        floor = self.median(FLOOR)
        return floor.busy < BUSY if self.calls > 1 else floor.p99_us > CALM * floor.p50_us

    @property
    def verdict(self) -> str:
        """Whether the target is met; empty where there is none."""
        if self.target is None:
            return ""
        met = "NOT met" if self.ratio.median < self.target else "unsure" if self.disturbed else "met"
        return f"{met} (>= {self.target:.2f})"


HEADS = ("case", "calls", "server", "requests/s", "p50 ms", "p99 ms", "CPU us/request", "ratio", "of CPU", "target")


def _cells(row: Row) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for name in row.samples:
        one = row.median(name)
        cpu = f"{one.cpu_us:.0f}"
        figures = (f"{one.per_second:.0f}", f"{one.p50_us / 1000:.2f}", f"{one.p99_us / 1000:.2f}", cpu)
        verdict = ("", "", "")
        if name == OURS:
            ratio = row.ratio
            verdict = (f"{ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})", f"{ratio.cpu:.2f}", row.verdict)
        lines.append((row.case, str(row.calls), name, *figures, *verdict))
    return lines


def notes(rows: Sequence[Row]) -> list[str]:
    """What a reader of the table must know."""
    said = [
        "calls: requests under way at a time; HTTP: as many connections, gRPC: streams of one connection.",
        "Figures are medians of interleaved rounds; ratio: service / empty, requests/s, median (lowest-highest) round.",
        "of CPU: the empty server's CPU time for a request / the service's; a slow generator cannot hide in it.",
        f"Generators: {', '.join(sorted({row.generator for row in rows}))}.",
    ]
    if any(row.limited for row in rows):
        said.append(
            "A Python generator may be the ceiling itself; install wrk and h2load (Debian: wrk, nghttp2-client)."
        )
    if any(row.disturbed for row in rows):
        said.append(
            "unsure: the empty server was held up by other processes or a slow generator, which flatters the ratio; "
            "trust `of CPU`, or repeat on a quiet machine."
        )
    return said


def facts_line() -> str:
    """The facts that matter most, on one line."""
    return ", ".join(f"{key} {value}" for key, value in facts().items() if key in ("cores", "processor", "python"))


def print_table(rows: Sequence[Row]) -> None:
    """The table for a terminal."""
    lines = [HEADS, *(line for row in rows for line in _cells(row))]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADS))]
    for line in lines:
        left, right = line[:3], line[3:]
        print("  ".join([*map(str.ljust, left, widths), *map(str.rjust, right, widths[3:])]).rstrip())
    print(*notes(rows), sep="\n")


def save(rows: Sequence[Row], settings: Mapping[str, str], folder: Path) -> None:
    """Write bench.json and bench.md into `folder`."""
    folder.mkdir(exist_ok=True)
    told = {**facts(), **settings}
    cases = [{**asdict(row), "ratio": asdict(row.ratio), "verdict": row.verdict} for row in rows]
    document = {"facts": told, "notes": notes(rows), "cases": cases}
    (folder / "bench.json").write_text(json.dumps(document, indent=1) + "\n")
    table = [HEADS, ("---",) * 3 + ("--:",) * (len(HEADS) - 3), *(line for row in rows for line in _cells(row))]
    text = ["# make bench", "", *(f"- {key}: {value}" for key, value in told.items()), ""]
    text += [*("| " + " | ".join(line) + " |" for line in table), "", *notes(rows)]
    (folder / "bench.md").write_text("\n".join(text) + "\n")
