"""From samples to figures: medians, ratios, verdicts, a table for the terminal, JSON and markdown for results."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from loadtest.facts import facts
from loadtest.generators import INSTALL
from loadtest.servers import EMPTY, INLAY

BUSY = 0.85  # of its core: an empty server that is less busy under 32 connections was not the limit
TAIL = 10  # p99 / p50 of an empty server with one connection: above it other processes took its core


@dataclass(frozen=True)
class Sample:
    """One server, one case, one round.

    Attributes:
        per_second: requests answered in a second.
        p50_us: median latency in microseconds.
        p99_us: 99th percentile of latency in microseconds.
        cpu_us: processor time of all the server's processes for one request, in microseconds.
    """

    per_second: float
    p50_us: float
    p99_us: float
    cpu_us: float

    @property
    def busy(self) -> float:
        """Cores that the server used."""
        return self.per_second * self.cpu_us / 1e6


@dataclass(frozen=True)
class Ratio:
    """Inlay's requests/s over another server's, compared round by round.

    Attributes:
        reference: the other server's name.
        median: of the rounds.
        low: the lowest round.
        high: the highest round.
        cpu: the other server's processor time for a request over Inlay's, median of the rounds.
    """

    reference: str
    median: float
    low: float
    high: float
    cpu: float


@dataclass(frozen=True)
class Row:
    """One case: the samples of every server, in the order of the rounds.

    Attributes:
        case: its name.
        connections: requests in flight at a time.
        generator: the load generator's name.
        is_ceiling: whether the generator may be the limit.
        bar: the least ratio to the empty server; None: no bar.
        samples: by server.
    """

    case: str
    connections: int
    generator: str
    is_ceiling: bool
    bar: float | None
    samples: Mapping[str, Sequence[Sample]]

    def median(self, name: str) -> Sample:
        """Return each figure's median over the rounds of one server."""
        rounds = [asdict(sample) for sample in self.samples[name]]
        return Sample(**{key: statistics.median(one[key] for one in rounds) for key in rounds[0]})

    @property
    def reference(self) -> str | None:
        """The empty server where it takes part, otherwise the fastest peer; None: Inlay was alone."""
        others = [name for name in self.samples if name != INLAY]
        return EMPTY if EMPTY in others else max(others, key=lambda name: self.median(name).per_second, default=None)

    @property
    def ratio(self) -> Ratio | None:
        """Inlay beside the reference."""
        if (name := self.reference) is None or INLAY not in self.samples:
            return None
        pairs = list(zip(self.samples[INLAY], self.samples[name], strict=True))
        speeds = sorted(ours.per_second / other.per_second for ours, other in pairs)
        cpu = statistics.median(other.cpu_us / ours.cpu_us for ours, other in pairs)
        return Ratio(name, statistics.median(speeds), speeds[0], speeds[-1], cpu)

    @property
    def is_disturbed(self) -> bool:
        """Whether other processes, or a slow generator, held up the empty server, which flatters Inlay's ratio."""
        if self.reference != EMPTY:
            return False
        empty = self.median(EMPTY)
        return empty.busy < BUSY if self.connections > 1 else empty.p99_us > TAIL * empty.p50_us

    @property
    def verdict(self) -> str:
        """Whether the bar is met, or whether Inlay is ahead of the fastest peer."""
        ratio = self.ratio
        if ratio is None or (self.reference == EMPTY and self.bar is None):
            return ""
        if self.bar is None:
            return f"{'ahead of' if ratio.median > 1 else 'BEHIND'} {ratio.reference}"
        met = "NOT met" if ratio.median < self.bar else "unsure" if self.is_disturbed else "met"
        return f"{met} (>= {self.bar:.2f})"


HEADS = (
    *("case", "connections", "server", "requests/s", "p50 ms", "p99 ms", "CPU us/request", "cores"),
    *("ratio (low-high)", "by CPU", "verdict"),
)


def _cells(row: Row) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for name in row.samples:
        one = row.median(name)
        latencies = (f"{one.p50_us / 1000:.2f}", f"{one.p99_us / 1000:.2f}")
        figures = (f"{one.per_second:.0f}", *latencies, f"{one.cpu_us:.0f}", f"{one.busy:.2f}")
        compared = ("", "", "")
        if name == INLAY and (ratio := row.ratio):
            compared = (f"{ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})", f"{ratio.cpu:.2f}", row.verdict)
        lines.append((row.case, str(row.connections), name, *figures, *compared))
    return lines


def notes(rows: Sequence[Row]) -> list[str]:
    """Return what a reader of the table must know."""
    to_empty = any(row.reference == EMPTY for row in rows)
    other = "the empty server" if to_empty else "the fastest other server"
    lines = [
        "Each connection has one request in flight. Figures are medians of interleaved rounds.",
        f"ratio: Inlay's requests/s over those of {other}, median (lowest-highest) of the rounds.",
        f"by CPU: processor time of {other} for a request over Inlay's; a slow generator cannot hide in it.",
        "cores: processor time of all the server's processes over wall time.",
        f"Generators: {', '.join(sorted({row.generator for row in rows}))}.",
    ]
    if any(row.is_ceiling for row in rows):
        lines.append(f"Warning: a Python generator may be the ceiling itself. On Debian: {INSTALL}.")
    if any(row.is_disturbed for row in rows):
        lines.append(
            "unsure: other processes or a slow generator held up the empty server, which flatters the ratio; read "
            "`by CPU`, or repeat on a quiet machine."
        )
    return lines


def print_table(rows: Sequence[Row], more: Sequence[str] = ()) -> None:
    """Print the table and the notes.

    Args:
        rows: all cases.
        more: further notes.
    """
    lines = [HEADS, *(line for row in rows for line in _cells(row))]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADS))]
    for line in lines:
        left, right = line[:3], line[3:]
        print("  ".join([*map(str.ljust, left, widths), *map(str.rjust, right, widths[3:])]).rstrip())
    print(*notes(rows), *more, sep="\n")


def save(rows: Sequence[Row], more: Sequence[str], settings: Mapping[str, str], target: Path) -> None:
    """Write the figures as JSON and markdown.

    Args:
        rows: all cases.
        more: further notes.
        settings: of this run.
        target: path of both files, without suffix.
    """
    target.parent.mkdir(exist_ok=True)
    header = {**facts(), **settings}
    listed = [
        {
            **asdict(row),
            "medians": {name: asdict(row.median(name)) for name in row.samples},
            "ratio": asdict(row.ratio) if row.ratio else None,
            "verdict": row.verdict,
        }
        for row in rows
    ]
    said = [*notes(rows), *more]
    document = {"facts": header, "notes": said, "cases": listed}
    target.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    table = [HEADS, ("---",) * 3 + ("--:",) * (len(HEADS) - 3), *(line for row in rows for line in _cells(row))]
    title = "make bench ARGS=--peers" if target.name == "peers" else "make bench"
    text = [f"# {title}", "", *(f"- {key}: {value}" for key, value in header.items()), ""]
    text += [*("| " + " | ".join(line) + " |" for line in table), "", *(f"- {line}" for line in said)]
    target.with_suffix(".md").write_text("\n".join(text) + "\n", encoding="utf-8")
