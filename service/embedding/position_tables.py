"""Position tables as bytes, computed block by block, and a cache of finished ones.

A table is not held in memory as a whole unless the cache takes it. It is computed a block of rows at a time.
"""

import asyncio
import hashlib
import sys
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, TypeVar, TypeVarTuple

import numpy as np
from numpy.typing import NDArray

from models import VERSION
from models.errors import BadEncoding, NoWritableFolder
from models.positions.table import DTYPES, Output, Table, rounded
from models.tables.quantization import QuantizedTable
from service.errors import BadParameters, TooLarge, Unsupported
from service.machine import available_cpus
from service.request_context import RequestContext
from service.scheduling.memory_budget import MemoryBudget

BLOCK_VALUES = 65536  # computed at a time: about 3 ms, 512 KiB in float64
PIECE_BYTES = 1 << 18  # of a cached body, sent at a time
HEAD_BYTES = 65536  # what a format may add to a table that fits
VALUE_BYTES = 48  # of memory for a value of a block while it is made and sent, as JSON too
INLINE_VALUES = 4096  # computed on the event loop; a hop to a thread costs as much
CACHEABLE_SHARE = 2  # a table may take up to 1/2 of the cache: 128 MiB of the default 256
ITEM_SIZES: dict[str, int] = {name: np.dtype(dtype).itemsize for name, dtype in DTYPES.items()} | {
    "int64": 8,
    "bool": 1,
}
Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


@dataclass(frozen=True, slots=True)
class TypedOutput:
    """One output of a table in the dtype to send: floats in the requested one, integers and booleans as they are.

    Args:
        dtype: one of ITEM_SIZES.
    """

    name: str
    output: Output
    dtype: str

    @property
    def size(self) -> int:
        """The bytes of all rows."""
        return prod(self.output.shape) * ITEM_SIZES[self.dtype]

    @property
    def block_rows(self) -> int:
        """The number of rows computed at a time."""
        return max(1, BLOCK_VALUES // self.output.width)

    def rows(self, first: int, last: int) -> NDArray[Any]:
        """Return rows [first, last) in the dtype, C-contiguous; a float out of its range becomes infinite."""
        values = self.output.rows(first, last)
        if self.output.kind == "float":
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                values = rounded(values, self.dtype)
        return np.ascontiguousarray(values)

    def blocks(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield the first row and the rows of each block."""
        for first in range(0, self.output.count, self.block_rows):
            yield first, self.rows(first, min(first + self.block_rows, self.output.count))


def typed_outputs(table: Table, dtype: str, names: tuple[str, ...] = ()) -> tuple[TypedOutput, ...]:
    """Return the outputs of a table, all or the named ones, floats in `dtype`."""
    outputs = {name: table.outputs[name] for name in names or table.outputs}
    return tuple(
        TypedOutput(name, output, dtype if output.kind == "float" else output.kind) for name, output in outputs.items()
    )


def block_bytes(outputs: Iterable[TypedOutput]) -> int:
    """Return the memory that a stream of outputs takes, block by block."""
    values = [min(output.block_rows, output.output.count) * output.output.width for output in outputs]
    return VALUE_BYTES * max(values, default=0)


def little_endian(rows: NDArray[Any]) -> memoryview:
    """Return the bytes of C-contiguous rows without copying; every supported processor is little-endian."""
    return rows.reshape(-1).view(np.uint8).data


@dataclass(frozen=True, slots=True, eq=False)
class TableFile:
    """A header, then the rows of one output after the other."""

    header: bytes
    outputs: tuple[TypedOutput, ...]

    @property
    def size(self) -> int:
        """The bytes of the file."""
        return len(self.header) + sum(output.size for output in self.outputs)


class Tables:
    """Computes tables off the event loop and caches finished files.

    Args:
        cache_bytes: bytes of all cached files; the least recently used goes first.
        max_table_bytes: largest size of one table.
        max_streaming_bytes: largest memory of all tables being sent.

    Attributes:
        streaming: the budget of the tables being sent, apart from that of other answers.
    """

    def __init__(
        self, cache_bytes: int, max_table_bytes: int = sys.maxsize, max_streaming_bytes: int = sys.maxsize
    ) -> None:
        self.streaming = MemoryBudget(max_streaming_bytes, "INLAY_MAX_STREAMING_BYTES")
        self._cache_bytes, self._largest = cache_bytes, min(cache_bytes, cache_bytes // CACHEABLE_SHARE + HEAD_BYTES)
        self._max_table_bytes = max_table_bytes
        self._cache: OrderedDict[str, memoryview] = OrderedDict()
        self._threads = ThreadPoolExecutor(max(1, available_cpus()), thread_name_prefix="tables")

    def outputs(self, table: Table, dtype: str, names: tuple[str, ...] = ()) -> tuple[TypedOutput, ...]:
        """Return `typed_outputs` of a table; raise TooLarge for more bytes than one response may have."""
        outputs = typed_outputs(table, dtype, names)
        size = sum(output.size for output in outputs)
        if size > self._max_table_bytes:
            raise TooLarge(
                f"the table has {size} bytes",
                allowed=f"a response holds {self._max_table_bytes}",
                remedy="ask for fewer rows at a time",
            )
        return outputs

    async def run(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Return the function's result, computed in one of the tables' threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    def cached(self, key: str) -> memoryview | None:
        """Return the finished body of a key; None if it is not cached."""
        if key in self._cache:
            self._cache.move_to_end(key)
        return self._cache.get(key)

    def cache(self, key: str, body: memoryview) -> None:
        """Cache a finished body, unless it is too large; the least recently used ones make room."""
        if key in self._cache or len(body) > self._largest:
            return
        self._cache[key] = body
        while sum(map(len, self._cache.values())) > self._cache_bytes:
            self._cache.popitem(last=False)

    def stream(self, key: str, file: TableFile, call: RequestContext) -> AsyncIterator[memoryview]:
        """Return the bytes of a file in order, cached or computed while they are sent.

        Args:
            key: equal for equal bytes, as an ETag is.
            call: memory is reserved for it: all of a body that is or will be cached, since it outlives its place in the
                cache if the client reads slowly; else, or if there is no room, that of a few blocks.

        Raises:
            Overloaded: the tables being sent leave no room for this one.
        """
        body = self.cached(key)
        if body is not None and self.streaming.reserved(len(body), call):
            return _once(body)
        if file.size <= self._largest and self.streaming.reserved(file.size, call):
            return self._fill(key, file)
        self.streaming.reserve(block_bytes(file.outputs), call)
        return self._compute(file)

    async def _compute(self, file: TableFile) -> AsyncGenerator[memoryview, None]:
        """Yield the bytes of a file; blocks of many values are made in a thread."""
        yield memoryview(file.header)
        for output in file.outputs:
            inline, blocks = prod(output.output.shape) <= INLINE_VALUES, output.blocks()
            while (block := next(blocks, None) if inline else await self.run(next, blocks, None)) is not None:
                yield little_endian(block[1])

    async def _fill(self, key: str, file: TableFile) -> AsyncIterator[memoryview]:
        """Yield a whole file and cache it, unless the client leaves."""
        body, at = memoryview(bytearray(file.size)), 0
        async with aclosing(self._compute(file)) as computed:
            async for block in computed:
                body[at : at + len(block)] = block
                at += len(block)
                if at == file.size:
                    self.cache(key, body.toreadonly())
                yield block


async def _once(body: memoryview) -> AsyncIterator[memoryview]:
    for start in range(0, len(body), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES]


@dataclass(frozen=True, slots=True, eq=False)
class TableCall:
    """A table that is not computed yet: the function that makes it, and its arguments, which determine every byte.

    Args:
        arguments: arguments by name; arrays, ranges, numbers, texts and frozen dataclasses.
        facts: facts added to the table's own: the preset or the model it belongs to.
        held_bytes: bytes of memory that its rows need while they are read, beside the block that is sent.
    """

    function: Callable[..., Table]
    arguments: Mapping[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)
    held_bytes: int = 0

    def table(self) -> Table:
        """Return the table; raise BadParameters for arguments that the function does not take."""
        with as_bad_parameters():
            table = self.function(**self.arguments)
        return replace(table, facts={**self.facts, **table.facts})

    def etag(self, *form: str) -> str:
        """Return a strong ETag, which differs if any byte differs.

        Args:
            form: the form that the bytes take.
        """
        digest = hashlib.sha256(repr((VERSION, np.__version__, self.function.__name__, *form)).encode())
        for name, value in sorted({**self.arguments, **self.facts}.items()):
            digest.update(f"{name}={_identity(value)};".encode())
        return f'"{digest.hexdigest()[:32]}"'


def _identity(value: Any) -> str:
    if isinstance(value, QuantizedTable):
        value = value[:]
    if isinstance(value, np.ndarray):
        data = little_endian(np.ascontiguousarray(value))  # not copied: it may be large
        return f"{value.dtype}{value.shape}{hashlib.sha256(data).hexdigest()}"
    return repr(value)


@contextmanager
def as_bad_parameters() -> Iterator[None]:
    """Turn BadEncoding of `models` into BadParameters, and a missing drawing library into Unsupported."""
    try:
        yield
    except BadEncoding as error:
        raise BadParameters(str(error)) from None
    except NoWritableFolder as error:
        raise Unsupported(str(error)) from error
