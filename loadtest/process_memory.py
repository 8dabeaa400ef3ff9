"""The memory of a server's processes now and at its peak, and the trend of a series of samples. Linux only."""

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
class MemoryUse:
    """Megabytes (10^6 bytes) of a process and all its descendants together.

    Attributes:
        rss: resident, mapped files included; pages that several of them share count once for each.
        private: what would be free if they ended, including clean pages of files that no other process maps.
        shared: mapped by other processes too.
        anonymous: heap, stacks and arenas, which a leak would grow.
        files: count of open descriptors.
        threads: count.
    """

    rss: float
    private: float
    shared: float
    anonymous: float
    files: int
    threads: int


def memory_use(pid: int) -> MemoryUse:
    """Return what `pid` and its descendants hold now; zeros where it has ended."""
    members = [one for member in process_tree(pid) if (one := _one(Path("/proc", str(member))))]
    names = [field.name for field in fields(MemoryUse)]
    sums = [sum(getattr(one, name) for one in members) for name in names]
    return MemoryUse(*(round(value, 3) for value in sums))


def _one(proc: Path) -> MemoryUse | None:
    try:
        lines = (proc / "smaps_rollup").read_text().splitlines()[1:]
        files, threads = len(list((proc / "fd").iterdir())), len(list((proc / "task").iterdir()))
    except OSError:  # the process has ended
        return None
    sizes = {name: int(value.split()[0]) * 1024 / MB for name, _, value in (line.partition(":") for line in lines)}
    sums = {key: sum(sizes.get(name, 0) for name in names) for key, names in KEYS.items()}
    return MemoryUse(**sums, files=files, threads=threads)


def reset_peak(pid: int) -> None:
    """Let `peak` start again from the present memory."""
    for member in process_tree(pid):
        with contextlib.suppress(OSError):
            Path(f"/proc/{member}/clear_refs").write_text("5")  # proc_pid_clear_refs(5): resets VmHWM


def peak(pid: int) -> float:
    """Return the peak of resident megabytes since `reset_peak`: VmHWM of all processes, added up."""
    return sum(_high_water(member) for member in process_tree(pid))


def _high_water(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024 / MB for line in lines if line.startswith("VmHWM:")), 0.0)


@dataclass(frozen=True)
class Footprint:
    """Megabytes (10^6 bytes) of one process.

    Attributes:
        anonymous: RssAnon: heap, stacks and arenas.
        files: RssFile: resident pages of mapped files.
        proportional: Pss: pages that several processes map count in parts.
        peak: VmHWM: the most that was resident since the start or `reset_peak`.
    """

    anonymous: float
    files: float
    proportional: float
    peak: float


def footprint(pid: int) -> Footprint:
    """Return the memory of one living process."""
    proc = Path("/proc", str(pid))
    lines = [*(proc / "status").read_text().splitlines(), *(proc / "smaps_rollup").read_text().splitlines()[1:]]
    sizes = {name: value for name, _, value in (line.partition(":") for line in lines)}
    read = [int(sizes[name].split()[0]) * 1024 / MB for name in ("RssAnon", "RssFile", "Pss", "VmHWM")]
    return Footprint(*(round(value, 1) for value in read))


@dataclass(frozen=True)
class Trend:
    """A least-squares line through samples.

    Attributes:
        mean: of the samples.
        percent_an_hour: its slope, in per cent of the mean.
        error: one standard error of that slope, as if samples were independent.
    """

    mean: float
    percent_an_hour: float
    error: float


def trend(seconds: Sequence[float], values: Sequence[float]) -> Trend | None:
    """Return the least-squares line of `values` over `seconds`; None for fewer than three samples."""
    count = len(values)
    if count < 3:
        return None
    middle, mean = sum(seconds) / count, sum(values) / count
    spread = sum((one - middle) ** 2 for one in seconds)
    pairs = list(zip(seconds, values, strict=True))
    slope = sum((one - middle) * (value - mean) for one, value in pairs) / spread
    residual = sum((value - mean - slope * (one - middle)) ** 2 for one, value in pairs)
    error = (residual / (count - 2) / spread) ** 0.5
    hourly = 3600 * 100 / mean
    return Trend(round(mean, 3), round(slope * hourly, 3), round(error * hourly, 3))
