"""The figures of loadtest.overload: levels, ratios to the first of them, verdicts, and a table."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.open_loop import Tally
from loadtest.servers import INLAY

LEAST_GOODPUT = 0.85  # of capacity, at any load above it
MOST_SECONDS = 10.0  # that 99 of 100 accepted requests take: many clients give up then
LATE_MS = 5.0  # of the generator's p99 lag
MOST_TRIES = 4.0  # of a client in a crowd, on average
RETRYING, GIVING_UP, CROWD = "retrying", "giving up", "crowd"
BUSY = 0.85  # of its core: a server offered more than its capacity and using less was held up by other processes


@dataclass(frozen=True)
class Level:
    """One server at one multiple of its capacity.

    Attributes:
        multiple: of the capacity.
        capacity: in requests a second, of this server just before.
        rate: requests due in a second.
        cpu: cores that the server used.
        tally: what became of the requests.
        kind: of clients, where they are not those of the comparison.
    """

    multiple: float
    capacity: float
    rate: float
    cpu: float
    tally: Tally
    kind: str = ""

    @property
    def share(self) -> float:
        """Goodput as a share of capacity."""
        return self.tally.goodput / self.capacity

    @property
    def warnings(self) -> str:
        """Why the row may be wrong: a late generator, or a server without its core; otherwise empty."""
        late = (self.tally.lag_p99_ms or 0) > LATE_MS or "no connection free" in self.tally.failed
        held_up = self.multiple > 1 and self.cpu < BUSY and self.kind != CROWD
        return ", ".join(["generator late"] * late + ["server held up"] * held_up)


@dataclass(frozen=True)
class ServerResult:
    """One server: its levels, and those with other clients."""

    name: str
    levels: Sequence[Level]
    others: Sequence[Level] = ()

    @property
    def capacity(self) -> float:
        """Requests a second, median over the levels."""
        return statistics.median([level.capacity for level in (*self.levels, *self.others)])


HEADS = (
    *("server", "load", "due/s", "goodput", "of capacity", "accepted", "refused", "retry-after", "failed"),
    *("p50 ms", "p99 ms", "refusal p99", "CPU", "lag p99 ms", "max"),
)


def cells(result: ServerResult, level: Level) -> tuple[str, ...]:
    """Return one row of the table."""
    tally = level.tally
    load = (
        f"{level.multiple:g}x"
        + (f" {level.kind}" if level.kind else "")
        + (f" ({level.warnings})" if level.warnings else "")
    )
    counts = (tally.accepted, tally.refused, tally.with_retry_after, sum(tally.failed.values()))
    return (
        *(result.name, load, f"{level.rate:.0f}", f"{tally.goodput:.1f}", f"{level.share:.2f}"),
        *map(str, counts),
        *(_shown(tally.p50_ms), _shown(tally.p99_ms)),
        *(_shown(tally.refusal_p99_ms), f"{level.cpu:.0%}", _shown(tally.lag_p99_ms, 2), _shown(tally.lag_max_ms)),
    )


def _shown(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def show(results: Sequence[ServerResult], met: dict[str, bool]) -> None:
    """Print the table, how requests failed, and the verdicts."""
    lines = [HEADS, *(cells(one, level) for one in results for level in (*one.levels, *one.others))]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADS))]
    for line in lines:
        print("  ".join([*map(str.ljust, line[:2], widths), *map(str.rjust, line[2:], widths[2:])]).rstrip())
    for one in results:
        for level in (*one.levels, *one.others):
            if level.tally.failed:
                print(f"{one.name} at {level.multiple:g}x {level.kind} failed: {level.tally.failed}")
    for claim, holds in met.items():
        print(f"{'met    ' if holds else 'NOT met'} {claim}")


def verdicts(results: Sequence[ServerResult]) -> dict[str, bool]:
    """Return Inlay's targets and whether each is met."""
    met: dict[str, bool] = {}
    for one in results:
        for level in one.levels if one.name == INLAY else ():
            if level.multiple > 1:
                met |= _goodput_verdict(level) | _level_verdicts(level)
        for level in one.others:
            met |= _crowd_verdicts(level.tally) if level.kind == CROWD else _goodput_verdict(level)
    return met


def _goodput_verdict(level: Level) -> dict[str, bool]:
    claim = f"goodput at {level.multiple:g}x {level.kind} is {level.share:.2f} of capacity (>= {LEAST_GOODPUT})"
    return {" ".join(claim.split()): level.share >= LEAST_GOODPUT}


def _crowd_verdicts(tally: Tally) -> dict[str, bool]:
    """A crowd that retries as it is told is served, and few come twice too often."""
    return {
        f"{tally.accepted} of a crowd of {tally.due} were served (all)": tally.accepted == tally.due,
        f"they asked {tally.mean_tries:.1f} times each (<= {MOST_TRIES:g})": tally.mean_tries <= MOST_TRIES,
    }


def _level_verdicts(level: Level) -> dict[str, bool]:
    at, tally = f"at {level.multiple:g}x", level.tally
    without, failed, seconds = tally.refused - tally.with_retry_after, sum(tally.failed.values()), tally.p99_ms
    return {
        f"refused without Retry-After {at}: {without} of {tally.refused} (= 0)": without == 0,
        f"neither answered nor refused {at}: {failed} (= 0)": failed == 0,
        f"p99 of accepted {at} is {_shown(seconds)} ms (<= {MOST_SECONDS:g} s)": (seconds or 0) <= 1e3 * MOST_SECONDS,
    }
