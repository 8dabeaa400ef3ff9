"""What files this process has mapped, and giving freed memory back to the system. Frees nothing itself."""

import ctypes
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

SMAPS = Path("/proc/self/smaps")
_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; other C libraries give back by themselves
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
