"""Tables as bytes, block by block, and a cache of finished ones. Knows no protocol, no format and no scheme.

A packed table is never held whole unless the cache takes it: it is computed a block of rows at a time, on one grid of
blocks counted from its first row, so that whoever asks for which bytes gets the same ones.
"""

import asyncio
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.positions.table import DTYPES, Output, Table, rounded
from service.errors import TooLarge
from service.process import cpu_count as cores

BLOCK_VALUES = 65536  # computed at a time: about 3 ms, 512 KiB in float64
HEAD_BYTES = 65536  # what a format may add to a table that fits
INLINE_VALUES = 4096  # computed on the event loop; a hop to a thread costs as much
CACHEABLE_SHARE = 2  # a table may take one over this of the cache: 128 MiB of the usual 256
ITEM_SIZES: dict[str, int] = {name: np.dtype(dtype).itemsize for name, dtype in DTYPES.items()} | {
    "int64": 8,
    "bool": 1,
}


@dataclass(frozen=True, slots=True)
class Piece:
    """One output of a table in the dtype it is sent in; floats take the dtype a caller asks for."""

    name: str
    output: Output
    dtype: str

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.output.width * ITEM_SIZES[self.dtype]

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        return prod(self.output.shape) * ITEM_SIZES[self.dtype]

    @property
    def block_rows(self) -> int:
        """Rows computed at a time."""
        return max(1, BLOCK_VALUES // self.output.width)

    def spans(self) -> Iterator[tuple[int, int]]:
        """First and last row + 1 of each block of the grid."""
        for first in range(0, self.output.count, self.block_rows):
            yield first, min(first + self.block_rows, self.output.count)

    def rows(self, first: int, last: int) -> NDArray[Any]:
        """Rows [first, last) in the dtype, C-contiguous; overflow is infinite, as rounding has it."""
        values = self.output.rows(first, last)
        if self.output.kind == "float":
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                values = rounded(values, self.dtype)
        return np.ascontiguousarray(values)


def pieces(table: Table, dtype: str, names: tuple[str, ...] = ()) -> tuple[Piece, ...]:
    """The outputs of a table, all or those named, floats in `dtype`."""
    chosen = {name: table.outputs[name] for name in names or table.outputs}
    return tuple(Piece(name, each, dtype if each.kind == "float" else each.kind) for name, each in chosen.items())


def lent(rows: NDArray[Any]) -> memoryview:
    """The little-endian bytes of C-contiguous rows, not copied."""
    if sys.byteorder == "big":
        rows = rows.byteswap()
    if not rows.size:
        return memoryview(b"")
    return rows.reshape(-1).view(np.uint8).data


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Pieces one below the other, behind a head: the body of a file that can be read from any byte."""

    head: bytes
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """Bytes in all."""
        return len(self.head) + sum(piece.size for piece in self.pieces)

    def parts(self, start: int, stop: int) -> Iterator["Part"]:
        """What makes the bytes [start, stop), in order; nothing is computed yet."""
        if start < len(self.head):
            head = memoryview(self.head)[start:stop]
            yield Part(0, lambda: head)
        offset = len(self.head)
        for piece in self.pieces:
            size = piece.block_rows * piece.row_bytes  # of a block of the grid
            begin, end = max(start - offset, 0), min(stop - offset, piece.size)
            for place in range(begin // size * size, end, size) if begin < end else ():
                within = slice(max(begin - place, 0), min(end - place, size))
                first = place // piece.row_bytes
                last = min(first + piece.block_rows, piece.output.count)
                values = (last - first) * piece.output.width
                yield Part(values, partial(_bytes, piece, first, last, within))
            offset += piece.size


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Some bytes to be made, and how many values that takes."""

    values: int
    make: Callable[[], memoryview]


def _bytes(piece: Piece, first: int, last: int, within: slice) -> memoryview:
    return lent(piece.rows(first, last))[within]


class Tables:
    """Computes packed tables off the event loop and keeps finished ones.

    cache_bytes   of all that is kept; the least recently asked for goes first
    most_bytes    of one table
    """

    def __init__(self, cache_bytes: int, most_bytes: int = sys.maxsize) -> None:
        self._room = cache_bytes
        self._most = most_bytes
        self._kept: OrderedDict[str, memoryview] = OrderedDict()
        self._filling: dict[str, _Filling] = {}
        self._threads = ThreadPoolExecutor(max(1, cores.available()), thread_name_prefix="tables")

    def pieces(self, table: Table, dtype: str, names: tuple[str, ...] = ()) -> tuple["Piece", ...]:
        """What is to be sent of a table, as `pieces` gives it; raises TooLarge."""
        found = pieces(table, dtype, names)
        size = sum(piece.size for piece in found)
        if size > self._most:
            raise TooLarge(f"the table has {size} bytes; an answer holds {self._most}: ask for fewer rows at a time")
        return found

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The function's result, computed in a thread of the tables."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    def whole(self, key: str) -> memoryview | None:
        """The finished body of that key, if it is kept."""
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    def keep(self, key: str, body: memoryview) -> None:
        """Keep a finished body, if it is not too large."""
        if key not in self._kept and self._makes_room(len(body)):
            self._kept[key] = body

    def stream(self, key: str, packed: Packed, start: int = 0, stop: int | None = None) -> AsyncIterator[memoryview]:
        """The bytes [start, stop) of a packed table in order, computed as they are taken, or kept ones.

        key   equal for equal bytes, as an ETag is. Callers who want the whole of one table share one computation of it
        """
        stop = packed.size if stop is None else stop
        if (body := self.whole(key)) is not None:
            return _lend(body[start:stop])
        if stop - start == packed.size and (key in self._filling or self._makes_room(packed.size)):
            return self._share(key, packed)
        return self._compute(packed.parts(start, stop))

    async def blocks(self, piece: Piece) -> AsyncIterator[tuple[int, NDArray[Any]]]:
        """First row and rows of each block of a piece."""
        for first, last in piece.spans():
            yield first, await self._rows(piece, first, last)

    async def _rows(self, piece: Piece, first: int, last: int) -> Any:
        if (last - first) * piece.output.width <= INLINE_VALUES:
            return piece.rows(first, last)
        return await self.run(piece.rows, first, last)

    async def _compute(self, parts: Iterator[Part]) -> AsyncIterator[memoryview]:
        """The bytes of the parts; one is made in a thread while the one before it is sent."""
        ahead: Future[memoryview] | None = None
        try:
            for part in parts:
                due, ahead = ahead, self._begin(part)
                if due:
                    yield await asyncio.wrap_future(due)
            if ahead:
                yield await asyncio.wrap_future(ahead)
        finally:
            if ahead:
                ahead.cancel()

    def _begin(self, part: Part) -> Future[memoryview]:
        if part.values > INLINE_VALUES:
            return self._threads.submit(part.make)
        done: Future[memoryview] = Future()
        done.set_result(part.make())
        return done

    def _makes_room(self, size: int) -> bool:
        """Drop what was not asked for lately until `size` more bytes fit; False: they cannot."""
        taken = sum(filling.packed.size for filling in self._filling.values())
        if size > self._room // CACHEABLE_SHARE + HEAD_BYTES or taken + size > self._room:
            return False
        taken += sum(map(len, self._kept.values()))
        while taken + size > self._room:
            taken -= len(self._kept.popitem(last=False)[1])
        return True

    async def _share(self, key: str, packed: Packed) -> AsyncIterator[memoryview]:
        """The whole body as it grows; the last reader to leave stops the work."""
        filling = self._filling.get(key)
        if filling is None:
            filling = self._filling[key] = _Filling(packed)
            filling.task = asyncio.create_task(self._fill(key, filling))
        filling.readers += 1
        sent = 0
        try:
            while sent < packed.size:
                if filling.filled == sent:
                    await filling.grows()
                sent, start = filling.filled, sent
                yield filling.body[start:sent]
        finally:
            filling.readers -= 1
            if not filling.readers and filling.task:
                filling.task.cancel()
                if self._filling.get(key) is filling:
                    del self._filling[key]

    async def _fill(self, key: str, filling: "_Filling") -> None:
        try:
            async for block in self._compute(filling.packed.parts(0, filling.packed.size)):
                filling.add(block)
            self._kept[key] = filling.body
        except Exception as fault:
            filling.fail(fault)
        finally:
            if self._filling.get(key) is filling:
                del self._filling[key]


class _Filling:
    """A body that grows, and those who read it."""

    def __init__(self, packed: Packed) -> None:
        self.packed = packed
        self.filled = 0
        self.readers = 0
        self.task: asyncio.Task[None] | None = None
        self._writable = memoryview(bytearray(packed.size))
        self.body = self._writable.toreadonly()
        self._fault: Exception | None = None
        self._change = asyncio.Event()

    def add(self, block: memoryview) -> None:
        """Append bytes and wake the readers."""
        self._writable[self.filled : self.filled + len(block)] = block
        self.filled += len(block)
        self._wake()

    def fail(self, fault: Exception) -> None:
        """Let every reader meet this fault."""
        self._fault = fault
        self._wake()

    def _wake(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    async def grows(self) -> None:
        """Wait for more bytes; raises what stopped them."""
        if self._fault is None:
            await self._change.wait()
        if self._fault is not None:
            raise self._fault


async def _lend(body: memoryview) -> AsyncIterator[memoryview]:
    yield body
