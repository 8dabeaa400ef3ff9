"""A table as a JSON document, its facts first and its arrays block after block; and its facts as texts."""

from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import orjson
import pybase64
from numpy.typing import NDArray

from models.positions.table import Table
from service.embedding.position_tables import Piece, Tables, lent

BASE64_UNIT = 3  # bytes that become four letters


class Form(Protocol):
    """Of an answer, what its JSON depends on."""

    @property
    def dtype(self) -> str:
        """Of floats."""
        ...

    @property
    def base64(self) -> bool:
        """Arrays as base64 of their bytes."""
        ...


def facts(table: Table, chosen: tuple[Piece, ...], form: Form) -> dict[str, Any]:
    """Everything but the arrays, in the order they are read."""
    told = {name: fact for name, fact in table.facts.items() if name not in table.outputs}
    shapes = {piece.name: piece.output.shape for piece in chosen}
    return {
        "scheme": table.scheme,
        "arithmetic": table.arithmetic,
        "dtype": form.dtype,
        **told,
        "notes": table.notes,
        "shapes": shapes,
    }


def texts(table: Table) -> dict[str, str]:
    """The facts as safetensors' metadata holds them: texts, JSON where a fact is none."""
    told = {"scheme": table.scheme, "arithmetic": table.arithmetic, **table.facts, "notes": list(table.notes)}
    return {name: fact if isinstance(fact, str) else orjson.dumps(fact).decode() for name, fact in told.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """A JSON document, not written yet."""

    table: Table
    chosen: tuple[Piece, ...]
    form: Form

    async def parts(self, tables: Tables) -> AsyncGenerator[bytes, None]:
        """Its bytes, a block of rows at a time."""
        yield orjson.dumps(facts(self.table, self.chosen, self.form))[:-1]
        for piece in self.chosen:
            yield b',"%s":' % piece.name.encode()
            array = self._base64 if self.form.base64 else self._lists
            async for part in array(tables, piece):
                yield part
        yield b"}"

    async def _lists(self, tables: Tables, piece: Piece) -> AsyncGenerator[bytes, None]:
        shape = piece.output.shape
        async for first, rows in tables.blocks(piece):
            yield b"".join(_nested(shape, first, rows))
        yield b"]" * (len(shape) - 1)

    async def _base64(self, tables: Tables, piece: Piece) -> AsyncGenerator[bytes, None]:
        about = orjson.dumps({"dtype": piece.dtype, "shape": piece.output.shape})
        yield about[:-1] + b',"data":"'
        left = b""
        async for _, rows in tables.blocks(piece):
            data = left + lent(rows)
            end = len(data) - len(data) % BASE64_UNIT
            left = data[end:]
            yield pybase64.b64encode(data[:end])
        yield pybase64.b64encode(left) + b'"}'


def _nested(shape: tuple[int, ...], first: int, rows: NDArray[Any]) -> Iterator[bytes]:
    """Rows [first, ...) of an array of that shape as JSON lists, brackets opened but the last ones not yet closed."""
    if rows.dtype.type is ml_dtypes.bfloat16:
        rows = rows.astype(np.float32)
    run = shape[-2] if len(shape) > 1 else 1  # rows that lie in one list
    place, end = first, first + len(rows)
    while place < end:
        stop = min(end, place - place % run + run)
        text = orjson.dumps(rows[place - first : stop - first], option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        yield _between(shape, place) + text
        place = stop


def _between(shape: tuple[int, ...], row: int) -> bytes:
    """What stands before a row: brackets that close and open, a comma."""
    outer, size = 0, 1
    for count in reversed(shape[:-1]):
        size *= count
        if row % size:
            break
        outer += 1
    if row == 0:
        return b"[" * (len(shape) - 1)
    return b"]" * outer + b"," + b"[" * outer
