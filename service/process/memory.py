"""What files this process has mapped, how many heaps it has, and giving freed memory back. Frees nothing itself."""

import ctypes
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from service.process import cpu_count as cores

SMAPS = Path("/proc/self/smaps")
LEAST_HEAPS = 2
_LIBC = ctypes.CDLL(None)
_TRIM = getattr(_LIBC, "malloc_trim", None)  # glibc's; other C libraries give back by themselves
_MALLOPT = getattr(_LIBC, "mallopt", None) if _TRIM else None  # another library's heeds nothing
_M_ARENA_MAX = -8  # of malloc.h
_TUNABLE = "glibc.malloc.arena_max"
_MAPPING = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) \S+ ([1-9]\d*) +(/.*)\n(?:\w+: .*\n)*?Rss: +(\d+)", re.MULTILINE
)

File = tuple[str, int]  # its name without folders, its inode: folders are renamed while their files are mapped


class Mapped(NamedTuple):
    """Bytes of a file that are mapped, and how many of them at most are in memory and touched by this process.

    At most, since a page that several mappings of the file show is counted for each.
    """

    mapped: int
    resident: int


Mappings = dict[File, Mapped]


def few_heaps(variables: Mapping[str, str] = os.environ) -> int | None:
    """Let glibc divide its memory into no more heaps than there are cores. To be called before threads begin.

    Its default is eight a core: each of the threads, which take turns at the interpreter, would fill one of its own
    with holes. What an operator sets for glibc stays as it is set.

    variables   of the environment
    return      how many; None where it was left alone, or with another C library
    raises      nothing
    """
    set_already = "MALLOC_ARENA_MAX" in variables or f"{_TUNABLE}=" in variables.get("GLIBC_TUNABLES", "")
    heaps = max(LEAST_HEAPS, cores.available())
    if set_already or _MALLOPT is None or not _MALLOPT(_M_ARENA_MAX, heaps):
        return None
    return heaps


def give_back() -> None:
    """Return unused pages of the heap: glibc keeps a model's worth of them in each arena after every exchange."""
    if _TRIM is not None:
        _TRIM(0)


def mappings(smaps: Path = SMAPS) -> Mappings:
    """Every file that is mapped; empty where the system does not say. Takes some milliseconds, more for big tables."""
    try:
        text = smaps.read_text(errors="replace")
    except OSError:
        return {}
    ranges: defaultdict[File, list[tuple[int, int]]] = defaultdict(list)
    resident: defaultdict[File, int] = defaultdict(int)
    for each in _MAPPING.finditer(text):
        start, end, offset = [int(each[group], 16) for group in (1, 2, 3)]
        file = (Path(each[5].removesuffix(" (deleted)")).name, int(each[4]))
        ranges[file].append((offset, offset + end - start))
        resident[file] += int(each[6]) * 1024
    lengths = {file: _union(found) for file, found in ranges.items()}
    return {file: Mapped(length, min(length, resident[file])) for file, length in lengths.items()}


def _union(ranges: list[tuple[int, int]]) -> int:
    """How much several ranges cover together."""
    length = reached = 0
    for start, end in sorted(ranges):
        length += max(0, end - max(start, reached))
        reached = max(reached, end)
    return length


def of(files: Iterable[File], found: Mappings) -> Mapped:
    """What is mapped of a few files."""
    each = [found.get(file, Mapped(0, 0)) for file in files]
    return Mapped(sum(one.mapped for one in each), sum(one.resident for one in each))
