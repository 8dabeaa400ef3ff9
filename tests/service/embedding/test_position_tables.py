"""Tables as files and their cache: the bytes of any span, computed block by block."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.positions.table import Output, Table
from service.embedding.position_tables import (
    BLOCK_VALUES,
    HEAD_BYTES,
    TableFile,
    Tables,
    typed_outputs,
)
from service.request_context import RequestContext

ROWS, WIDTH = 3000, 128


class Counted:
    """A table of consecutive numbers that notes which rows are computed, and can be held up."""

    def __init__(self, rows: int = ROWS, kind: Any = "float") -> None:
        self.asked: list[tuple[int, int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.output = Output((rows, WIDTH), self.rows, kind)
        self.table = Table("counted", "exact", {"a": self.output, "b": self.output}, {})

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        assert self.gate.wait(30)
        self.asked.append((start, stop))
        return np.arange(start * WIDTH, stop * WIDTH, dtype=np.float64).reshape(-1, WIDTH)

    def file(self, head: bytes = b"head") -> TableFile:
        return TableFile(head, typed_outputs(self.table, "float32"))

    @property
    def whole(self) -> bytes:
        one = np.arange(self.output.count * WIDTH, dtype=np.float64).astype(np.float32).tobytes()
        return b"head" + one + one


async def joined(tables: Tables, key: str, file: TableFile) -> bytes:
    async with aclosing(tables.stream(key, file, RequestContext())) as parts:  # type: ignore[type-var]
        return b"".join([bytes(part) async for part in parts])


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not done():
            await asyncio.sleep(0)


async def test_cached_tables_are_not_computed_again() -> None:
    tables, counted = Tables(2**26), Counted()
    assert await joined(tables, "key", counted.file()) == counted.whole
    first = len(counted.asked)
    assert await joined(tables, "key", counted.file()) == counted.whole
    body = tables.cached("key")
    assert body is not None
    assert body.readonly
    assert len(counted.asked) == first


async def test_concurrent_readers_get_whole_tables() -> None:
    tables, counted = Tables(2**26), Counted()
    bodies = await asyncio.gather(*(joined(tables, "key", counted.file()) for _ in range(20)))
    assert set(bodies) == {counted.whole}
    assert tables.cached("key") == counted.whole


async def test_stops_when_its_reader_has_left() -> None:
    tables, counted = Tables(2**26), Counted(rows=30_000)
    reader = aiter(tables.stream("key", counted.file(), RequestContext()))
    await anext(reader)
    await reader.aclose()  # type: ignore[attr-defined]
    await asyncio.sleep(0)
    made = len(counted.asked)
    blocks = 2 * -(-30_000 * WIDTH // BLOCK_VALUES)
    assert made < blocks / 2
    assert tables.cached("key") is None
    assert await joined(tables, "key", counted.file()) == counted.whole
    assert tables.cached("key") is not None


async def test_caches_tables_up_to_half_of_the_cache() -> None:
    counted = Counted()
    size = counted.file().size
    for room, kept in ((2 * size - 8, True), (2 * (size - HEAD_BYTES) - 8, False), (0, False)):
        tables = Tables(room)
        assert await joined(tables, "key", counted.file()) == counted.whole
        assert (tables.cached("key") is not None) == kept


async def test_evicts_the_least_recently_used() -> None:
    counted = Counted()
    tables = Tables(4 * counted.file().size)
    for key in "abcd":
        await joined(tables, key, counted.file())
    assert tables.cached("a") is not None
    await joined(tables, "e", counted.file())
    assert [key for key in "abcde" if tables.cached(key) is not None] == ["a", "c", "d", "e"]


async def test_fault_reaches_its_reader_and_is_not_cached() -> None:
    tables = Tables(2**26)
    faults = [RuntimeError("once")]

    def rows(start: int, stop: int) -> NDArray[Any]:
        if start and faults:
            raise faults.pop()
        return np.zeros((stop - start, WIDTH))

    file = TableFile(b"", typed_outputs(Table("bad", "exact", {"a": Output((ROWS, WIDTH), rows)}, {}), "float32"))
    with pytest.raises(RuntimeError, match="once"):
        await joined(tables, "key", file)
    assert tables.cached("key") is None
    assert len(await joined(tables, "key", file)) == file.size


async def test_event_loop_runs_while_a_block_is_computed() -> None:
    tables, counted = Tables(0), Counted()
    counted.gate.clear()
    waiting = asyncio.create_task(joined(tables, "key", counted.file()))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not waiting.done()
    counted.gate.set()
    assert await waiting == counted.whole


@pytest.mark.parametrize(("kind", "dtype"), [("int64", np.int64), ("bool", np.bool_)])
async def test_integers_and_booleans_keep_their_dtype(kind: str, dtype: Any) -> None:
    values = np.arange(12).reshape(3, 4).astype(dtype)
    output = Output((3, 4), lambda start, stop: values[start:stop], kind)  # type: ignore[arg-type]
    (output_,) = typed_outputs(Table("whole", "exact", {"a": output}, {}), "float16")
    assert (output_.dtype, await joined(Tables(0), "key", TableFile(b"", (output_,)))) == (kind, values.tobytes())
