"""How much memory the processes of a server hold at a moment, and at most. Linux only; judges nothing."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from loadtest.processes import process_tree

MB = 1e6
KEYS = {
    "rss": ("Rss",),
    "private": ("Private_Clean", "Private_Dirty"),
    "shared": ("Shared_Clean", "Shared_Dirty"),
    "anonymous": ("Anonymous",),
}


@dataclass(frozen=True)
class Resident:
    """Megabytes (10^6 bytes) of a process and all its descendants together; `files` and `threads` are counts.

    rss         resident, mapped files included; pages that several of them share count once for each
    private     what would be free if they ended, clean pages of files that no other process maps included
    anonymous   heap, stacks and arenas: what a leak grows
    """

    rss: float
    private: float
    shared: float
    anonymous: float
    files: int
    threads: int


def resident(pid: int) -> Resident:
    """What `pid` and its descendants hold now; zeros where it has ended."""
    found = [one for member in process_tree(pid) if (one := _one(Path("/proc", str(member))))]
    names = [field.name for field in fields(Resident)]
    sums = [sum(getattr(one, name) for one in found) for name in names]
    return Resident(*(round(value, 3) for value in sums))


def _one(proc: Path) -> Resident | None:
    try:
        lines = (proc / "smaps_rollup").read_text().splitlines()[1:]
        files, threads = len(list((proc / "fd").iterdir())), len(list((proc / "task").iterdir()))
    except OSError:  # it ended meanwhile
        return None
    sizes = {name: int(value.split()[0]) * 1024 / MB for name, _, value in (line.partition(":") for line in lines)}
    sums = {key: sum(sizes.get(name, 0) for name in names) for key, names in KEYS.items()}
    return Resident(**sums, files=files, threads=threads)


def forget_peak(pid: int) -> None:
    """From now on, `peak` counts anew."""
    for member in process_tree(pid):
        with contextlib.suppress(OSError):
            Path(f"/proc/{member}/clear_refs").write_text("5")  # proc_pid_clear_refs(5): resets VmHWM


def peak(pid: int) -> float:
    """Megabytes resident at most since then, by the kernel's own count: VmHWM of all processes, added up."""
    return sum(_high_water(member) for member in process_tree(pid))


def _high_water(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024 / MB for line in lines if line.startswith("VmHWM:")), 0.0)


@dataclass(frozen=True)
class Trend:
    """A line through samples: per cent of the mean that it climbs in an hour, give or take one standard error."""

    mean: float
    percent_an_hour: float
    error: float


def trend(seconds: Sequence[float], values: Sequence[float]) -> Trend | None:
    """The least-squares line; None for fewer than three samples. The error takes samples for independent."""
    count = len(values)
    if count < 3:
        return None
    middle, mean = sum(seconds) / count, sum(values) / count
    spread = sum((one - middle) ** 2 for one in seconds)
    pairs = list(zip(seconds, values, strict=True))
    slope = sum((one - middle) * (value - mean) for one, value in pairs) / spread
    rest = sum((value - mean - slope * (one - middle)) ** 2 for one, value in pairs)
    error = (rest / (count - 2) / spread) ** 0.5
    hourly = 3600 * 100 / mean
    return Trend(round(mean, 3), round(slope * hourly, 3), round(error * hourly, 3))
