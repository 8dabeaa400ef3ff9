"""The machine's resources that this process may use: cores, mapped files, heaps."""

import ctypes
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

CGROUP = Path("/sys/fs/cgroup")
SMAPS = Path("/proc/self/smaps")
CPUINFO = Path("/proc/cpuinfo")
MIN_HEAPS = 2
_LIBC = ctypes.CDLL(None)
_TRIM = getattr(_LIBC, "malloc_trim", None)  # glibc's; other C libraries give back by themselves
MALLOPT = getattr(_LIBC, "mallopt", None) if _TRIM else None  # of another C library it does nothing
_M_ARENA_MAX = -8  # of malloc.h
_TUNABLE = "glibc.malloc.arena_max"
_MAPPING = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) \S+ ([1-9]\d*) +(/.*)\n(?:\w+: .*\n)*?Rss: +(\d+)", re.MULTILINE
)

File = tuple[str, int]  # its name without folders, its inode: folders are renamed while their files are mapped


class Mapped(NamedTuple):
    """Mapped bytes of a file, and an upper bound of those that this process has touched in memory.

    A page that several mappings of the file show is counted for each.
    """

    mapped: int
    resident: int


Mappings = dict[File, Mapped]


def available_cpus(cgroup: Path = CGROUP) -> int:
    """Return the cores that this process may use: its affinity or its cgroup's quota, the smaller, at least 1.

    ONNX Runtime's own default counts the machine's cores and ignores both.
    """
    allowed = len(os.sched_getaffinity(0))
    quota = _quota(cgroup)
    return max(1, allowed if quota is None else min(allowed, int(quota)))


def processor_flags(cpuinfo: Path = CPUINFO) -> frozenset[str]:
    """Return the processor's instruction sets by Linux's names, such as amx_bf16; empty if they are not known."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), ":")
    return frozenset(flags.partition(":")[2].split())


def _quota(cgroup: Path) -> float | None:
    """Return the cores of the cgroup's quota, by version 2 or 1; None if it has none."""
    for files in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):
        with suppress(OSError, ValueError):  # no such file, or "max"
            quota, period = map(int, " ".join([(cgroup / file).read_text() for file in files]).split())
            return quota / period if quota > 0 else None
    return None


def limit_heaps(variables: Mapping[str, str] = os.environ) -> int | None:
    """Let glibc use at most as many heaps as there are cores; call it before threads start.

    Its default is eight a core: each of the threads, which take turns at the interpreter, would fill one of its own
    with holes. What an operator sets for glibc is left as it is.

    Args:
        variables: the environment.

    Returns:
        The number of heaps; None where it was left as it is, or with another C library.
    """
    set_already = "MALLOC_ARENA_MAX" in variables or f"{_TUNABLE}=" in variables.get("GLIBC_TUNABLES", "")
    heaps = max(MIN_HEAPS, available_cpus())
    if set_already or MALLOPT is None or not MALLOPT(_M_ARENA_MAX, heaps):
        return None
    return heaps


def trim_heaps() -> None:
    """Return unused pages of the heaps to the system; after an exchange glibc keeps a model's worth in each heap.

    What is free at the end of a heap that threads share stays: at most twice the largest block that was freed, 64 MiB.
    """
    if _TRIM is not None:
        _TRIM(0)


def mapped_files(smaps: Path = SMAPS) -> Mappings:
    """Return every mapped file, none outside Linux; takes some milliseconds, more for big tables."""
    try:
        text = smaps.read_text(errors="replace")
    except OSError:
        return {}
    ranges: defaultdict[File, list[tuple[int, int]]] = defaultdict(list)
    resident: defaultdict[File, int] = defaultdict(int)
    for match in _MAPPING.finditer(text):
        start, end, offset = [int(match[group], 16) for group in (1, 2, 3)]
        file = (Path(match[5].removesuffix(" (deleted)")).name, int(match[4]))
        ranges[file].append((offset, offset + end - start))
        resident[file] += int(match[6]) * 1024
    lengths = {file: _union(spans) for file, spans in ranges.items()}
    return {file: Mapped(length, min(length, resident[file])) for file, length in lengths.items()}


def _union(ranges: list[tuple[int, int]]) -> int:
    """Return the bytes that several ranges cover together."""
    length = reached = 0
    for start, end in sorted(ranges):
        length += max(0, end - max(start, reached))
        reached = max(reached, end)
    return length


def mapped_of(files: Iterable[File], mappings: Mappings) -> Mapped:
    """Return the mapped bytes of several files together."""
    mapped = [mappings.get(file, Mapped(0, 0)) for file in files]
    return Mapped(sum(one.mapped for one in mapped), sum(one.resident for one in mapped))
