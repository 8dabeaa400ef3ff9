"""Where the numbers of /metrics are kept: in lists, or in files that several workers share. Knows no metric.

Several workers share a port, so a scrape reaches one of them and must speak for all. Each worker holds one numbered
slot of a directory: `N.keys` says what is counted where, `N.cells` are its float64 numbers, mapped into its memory.
Counting is an addition in memory; nothing is written out, and the kernel keeps the pages of a killed worker. The next
worker takes the slot, and its counters, over; gauges start anew. A slot is held by a lock that ends with its process.

Numbers are changed by the event loop's thread alone; cells may be asked for by any.
"""

import fcntl
import json
import math
import mmap
import os
from array import array
from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from threading import Lock
from typing import IO, Any, NamedTuple, Protocol

CHUNK_BYTES = 64 * 1024
NUMBER_BYTES = 8
STARTS = ("inlay_worker_starts",)  # counted here: how often a slot was taken
Key = tuple[str, ...]  # the name of a family, then the values of its labels
Cells = MutableSequence[float]


class Place(NamedTuple):
    """Where a key's numbers stand among a slot's, in numbers."""

    at: int
    size: int
    gauge: bool


class Seen(NamedTuple):
    """The numbers of one slot at one moment; `alive` if a process holds it."""

    slot: int
    alive: bool
    cells: Mapping[Key, Sequence[float]]


class Store(Protocol):
    """Numbers by key."""

    def cells(self, key: Key, size: int, gauge: bool = False) -> Cells:
        """The key's numbers, from now on the same ones: 0, for a gauge NaN, which means `none`."""
        ...

    def seen(self) -> list[Seen]:
        """Everybody's numbers."""
        ...


class Private:
    """The numbers of a process that serves alone."""

    def __init__(self) -> None:
        self._cells: dict[Key, Cells] = {STARTS: [1.0]}

    def cells(self, key: Key, size: int, gauge: bool = False) -> Cells:
        """See Store."""
        return self._cells.setdefault(key, [math.nan if gauge else 0.0] * size)

    def seen(self) -> list[Seen]:
        """This process' numbers."""
        return [Seen(0, True, dict(self._cells))]


class Shared:
    """One worker's numbers in a slot of `directory`, which all workers of a service share.

    slot   the lowest number that no living process holds
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._turn = Lock()
        with _gate(directory, fcntl.LOCK_EX):
            self.slot, self._held = _free_slot(directory)
        self._keys = _path(directory, self.slot, "keys").open("ab")
        self._file = _path(directory, self.slot, "cells").open("a+b")
        self._places = _places(directory, self.slot)
        self._keys.truncate(sum(len(_line(key, place)) for key, place in self._places.items()))  # a line cut by a kill
        self._used = max((place.at + place.size for place in self._places.values()), default=0)
        self._chunks: list[Any] = []
        self._read: dict[int, tuple[int, dict[Key, Place]]] = {}
        for place in self._places.values():
            if place.gauge:
                self._forget(place)
        self.cells(STARTS, 1)[0] += 1

    def close(self) -> None:
        """Give the slot back, as the end of the process does; what was counted stays."""
        for file in (self._keys, self._file, self._held):
            file.close()

    def cells(self, key: Key, size: int, gauge: bool = False) -> Cells:
        """See Store."""
        with self._turn:
            place = self._places.get(key) or self._added(key, size, gauge)
            view: Cells = self._view(place)
            return view

    def seen(self) -> list[Seen]:
        """The numbers of every slot that was ever taken."""
        with _gate(self._directory, fcntl.LOCK_SH):
            slots = sorted(int(path.stem) for path in self._directory.glob("*.cells"))
            alive = {slot: slot == self.slot or _is_held(self._directory, slot) for slot in slots}
        return [Seen(slot, alive[slot], self._numbers(slot)) for slot in slots]

    def _numbers(self, slot: int) -> dict[Key, Sequence[float]]:
        length = _path(self._directory, slot, "keys").stat().st_size
        if self._read.get(slot, (0, {}))[0] != length:  # keys are only ever added
            self._read[slot] = (length, _places(self._directory, slot))
        places = self._read[slot][1] if length else {}
        numbers = array("d")
        numbers.frombytes(_path(self._directory, slot, "cells").read_bytes() if places else b"")
        return {key: numbers[at : at + size] for key, (at, size, _) in places.items()}

    def _added(self, key: Key, size: int, gauge: bool) -> Place:
        per_chunk = CHUNK_BYTES // NUMBER_BYTES
        at = self._used
        if at // per_chunk != (at + size - 1) // per_chunk:  # numbers of one key stand in one mapping
            at = (at // per_chunk + 1) * per_chunk
        place = self._places[key] = Place(at, size, gauge)
        self._used = at + size
        self._view(place)  # the file is long enough before anyone reads that there is such a key
        if gauge:
            self._forget(place)
        self._keys.write(_line(key, place))
        self._keys.flush()
        return place

    def _forget(self, place: Place) -> None:
        self._view(place)[:] = memoryview(array("d", [math.nan] * place.size))

    def _view(self, place: Place) -> Any:
        chunk, first = divmod(place.at, CHUNK_BYTES // NUMBER_BYTES)
        while len(self._chunks) <= chunk:
            start = len(self._chunks) * CHUNK_BYTES
            os.posix_fallocate(self._file.fileno(), start, CHUNK_BYTES)  # a full disk is told here, not by a SIGBUS
            self._chunks.append(memoryview(mmap.mmap(self._file.fileno(), CHUNK_BYTES, offset=start)).cast("d"))
        return self._chunks[chunk][first : first + place.size]


def _free_slot(directory: Path) -> tuple[int, IO[bytes]]:
    for slot in count():
        file = _path(directory, slot, "lock").open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            continue
        return slot, file
    raise AssertionError("numbers do not end")


def _is_held(directory: Path, slot: int) -> bool:
    with _path(directory, slot, "lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextmanager
def _gate(directory: Path, how: int) -> Iterator[None]:
    """Who takes a slot does it alone: else the question whether it is held would hold it for a moment."""
    with (directory / "gate").open("ab") as file:
        fcntl.flock(file, how)
        yield


def _places(directory: Path, slot: int) -> dict[Key, Place]:
    *lines, _ = _path(directory, slot, "keys").read_bytes().split(b"\n")  # behind the last newline: nothing or half
    return {tuple(key): Place(at, size, gauge) for key, at, size, gauge in map(json.loads, lines)}


def _line(key: Key, place: Place) -> bytes:
    return json.dumps([key, *place]).encode() + b"\n"


def _path(directory: Path, slot: int, part: str) -> Path:
    return directory / f"{slot}.{part}"
