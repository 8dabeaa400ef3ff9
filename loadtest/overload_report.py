"""What loadtest.overload found: levels, ratios to the first of them, verdicts, a table. Measures nothing."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.arrivals import Tally

GOODPUT, SLOWER, AT = 0.9, 2.0, 4.0  # of capacity; times the latency at 1x; both up to this multiple
LATE_MS = 5.0  # of the generator's p99 lag
BUSY = 0.85  # of its core: a server offered more than it can do and using less was held up by other processes


@dataclass(frozen=True)
class Level:
    """One server at one multiple of its capacity; `cpu` is the share of one core that the server used."""

    multiple: float
    rate: float
    cpu: float
    tally: Tally

    @property
    def doubts(self) -> str:
        """Why the row says little: the generator was late, or others took the server's core; else empty."""
        late = (self.tally.lag_p99_ms or 0) > LATE_MS or "no connection free" in self.tally.failed
        held_up = self.multiple > 1 and self.cpu < BUSY
        return ", ".join(["generator late"] * late + ["server held up"] * held_up)


@dataclass(frozen=True)
class Contest:
    """One server: its capacity in requests a second, in rounds, and its levels."""

    name: str
    rounds: Sequence[float]
    levels: Sequence[Level]

    @property
    def capacity(self) -> float:
        """The median round."""
        return statistics.median(self.rounds)

    def of_first(self, level: Level) -> dict[str, float | None]:
        """Goodput and latency as multiples of the first level's."""
        first = self.levels[0].tally
        return {
            "goodput": _ratio(level.tally.goodput, first.goodput),
            "p50": _ratio(level.tally.p50_ms, first.p50_ms),
            "p99": _ratio(level.tally.p99_ms, first.p99_ms),
        }


def _ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else round(one / other, 3)


HEADS = tuple(
    [
        *("server", "load", "due/s", "goodput", "of capacity", "of 1x", "accepted", "refused", "told", "failed"),
        *("p50 ms", "of 1x", "p99 ms", "of 1x", "refusal p99", "CPU", "lag p99 ms", "max"),
    ]
)


def cells(found: Contest, one: Level) -> tuple[str, ...]:
    """One row of the table."""
    tally, ratios = one.tally, found.of_first(one)
    load = f"{one.multiple:g}x" + (f" ({one.doubts})" if one.doubts else "")
    counts = (tally.accepted, tally.refused, tally.told, sum(tally.failed.values()))
    return (
        *(found.name, load, f"{one.rate:.0f}", f"{tally.goodput:.1f}", f"{tally.goodput / found.capacity:.2f}"),
        _shown(ratios["goodput"], 2),
        *map(str, counts),
        *(_shown(tally.p50_ms), _shown(ratios["p50"], 2), _shown(tally.p99_ms), _shown(ratios["p99"], 2)),
        *(_shown(tally.refusal_p99_ms), f"{one.cpu:.0%}", _shown(tally.lag_p99_ms, 2), _shown(tally.lag_max_ms)),
    )


def _shown(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def show(found: Sequence[Contest], met: dict[str, bool]) -> None:
    """Print the table, how requests failed, and the verdicts."""
    lines = [HEADS, *(cells(one, each) for one in found for each in one.levels)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADS))]
    for line in lines:
        print("  ".join([*map(str.ljust, line[:2], widths), *map(str.rjust, line[2:], widths[2:])]).rstrip())
    for one in found:
        for each in one.levels:
            if each.tally.failed:
                print(f"{one.name} at {each.multiple:g}x failed: {each.tally.failed}")
    for claim, holds in met.items():
        print(f"{'met    ' if holds else 'NOT met'} {claim}")


def verdicts(found: Sequence[Contest]) -> dict[str, bool]:
    """The targets of the service and whether each is met."""
    met: dict[str, bool] = {}
    for one in found:
        for each in one.levels[1:] if one.name == "inlay" else ():
            at, ratios = f"at {each.multiple:g}x", one.of_first(each)
            goodput = each.tally.goodput / one.capacity
            if each.multiple <= AT:
                met[f"goodput {at} is {goodput:.2f} of capacity (>= {GOODPUT})"] = goodput >= GOODPUT
            for name in ("p50", "p99"):
                slower = ratios[name]
                if each.multiple <= AT and slower is not None:
                    met[f"{name} of accepted {at} is {slower:.2f} of that at 1x (<= {SLOWER:g})"] = slower <= SLOWER
            untold = each.tally.refused - each.tally.told
            met[f"refused without Retry-After {at}: {untold} of {each.tally.refused} (= 0)"] = untold == 0
    return met
