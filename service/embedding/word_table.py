"""The word table of a served model: its rows, the ids that a text stands for, and computations on it."""

import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from models.recipes.steps import Embed
from models.tables.quantization import RowSource
from models.tables.row_blocks import Check
from service.embedding.model import Model
from service.embedding.tokenize.tokenizer import Tokenizer
from service.errors import BadRequest, EmptyInput, FieldPath, NotFound, OutOfRange
from service.heavy.lane import HeavyLane

Result = TypeVar("Result")
Kind = Literal["logits", "search", "gradient", "rows", "spectrum"]


@dataclass(frozen=True, slots=True, eq=False)
class _Mapped:
    """Rows by id of a table that stores each distinct row once."""

    table: RowSource
    mapping: NDArray[np.int64]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.mapping), *self.table.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.table.dtype

    def __getitem__(self, index: Any) -> Any:
        return self.table[self.mapping[index]]


@dataclass(frozen=True, slots=True, eq=False)
class WordTable:
    """One row for each id, as stored: before any scaling, projection, norm or per-token weight of the model.

    Args:
        rows: [V, d], d the table's own width; quantized rows are dequantized when they are read.
        dtype: dtype on disk.
        bytes: size on disk.
    """

    model: Model
    name: str
    rows: RowSource
    dtype: str
    bytes: int

    @property
    def identity(self) -> tuple[str, ...]:
        """Everything that determines the table's values: the key for caches of results computed from it."""
        card = self.model.card
        hashes = [file.sha256 for file in card.files.values()]
        return (card.name, self.name, *hashes)

    def ids_of(self, text: str, *, entry: bool = False) -> list[int]:
        """Return the ids of a text, without special tokens.

        Args:
            entry: a text that is an entry of the vocabulary is its id.

        Raises:
            BadRequest: the model has no tokenizer, or the text gives no token.
        """
        whole = self._tokenizer().id_of(text) if entry else None
        ids = self._tokenizer().pieces(text) if whole is None else [whole]
        if not ids:
            raise EmptyInput(f"{text[:40]!r} gives no token", remedy="send some text")
        return [self.checked(id_, ("a token of the text",)) for id_ in ids]

    def id_of(self, token: str) -> int:
        """Return the id of an entry of the vocabulary or of a one-token text; raise BadRequest for others."""
        ids = self.ids_of(token, entry=True)
        if len(ids) > 1:
            names = ", ".join(f"{id_} {self.token(id_)!r}" for id_ in ids[:8])
            raise BadRequest(
                f"{token[:40]!r} is {len(ids)} tokens: {names}", allowed="send the id of one, or all as text"
            )
        return ids[0]

    def token(self, id_: int) -> str | None:
        """Return the text of an id; None if there is no tokenizer, or no such id in it."""
        tokenizer = self.model.tokenizer
        return tokenizer.token(id_) if tokenizer else None

    def checked(self, id_: int, field: FieldPath) -> int:
        """Return the same id; raise BadRequest for the field unless the table has it."""
        if not 0 <= id_ < self.rows.shape[0]:
            allowed = f"{self.model.card.name} has ids from 0 to {self.rows.shape[0] - 1}"
            raise OutOfRange(f"is {id_}", field=field, allowed=allowed)
        return id_

    def _tokenizer(self) -> Tokenizer:
        if self.model.tokenizer is None:
            raise BadRequest(
                f"{self.model.card.name} was exported without a tokenizer", remedy="send ids instead of text"
            )
        return self.model.tokenizer


def word_table(model: Model) -> WordTable:
    """Return the word table of a model; raise NotFound if it has none of its own."""
    card = model.card
    if card.weights is None:
        raise NotFound(f"{card.name} was adopted: its ONNX files hold its tables", remedy="export its checkpoint")
    if card.static is not None:
        name, mapping = card.static.table, card.static.mapping
    else:
        name, mapping = next((step.table for step in card.recipe if isinstance(step, Embed)), ""), None
    if not name:
        raise NotFound(f"{card.name} is a {card.family}", allowed="it has no table of words")
    table = model.weights[name]
    stored = (card.tables or {}).get(name)
    rows = table if mapping is None else _Mapped(table, np.asarray(model.weights[mapping]))
    return WordTable(
        model, name, rows, stored.dtype if stored else table.dtype.name, stored.bytes if stored else table.nbytes
    )


class _CallerLeft(Exception):
    """Raised inside a computation whose caller has disconnected."""


class TableComputations:
    """Runs computations on word tables and output heads in threads, one of a kind at a time; callers take turns."""

    def __init__(self) -> None:
        self._lanes: defaultdict[Kind, HeavyLane] = defaultdict(partial(HeavyLane, threads=1))
        self._results: WeakKeyDictionary[Model, dict[object, Any]] = WeakKeyDictionary()

    async def run(self, kind: Kind, compute: Callable[[Check], Result]) -> Result:
        """Return what `compute` returns.

        Args:
            compute: called with a function that it must call between its steps, which raises if the caller has left.

        Raises:
            Overloaded: too many computations of the caller wait.
        """
        left = threading.Event()

        def check() -> None:
            if left.is_set():
                raise _CallerLeft

        try:
            return await self._lanes[kind].run(compute, check)
        finally:
            left.set()

    def of_table(self, compute: Callable[[RowSource, Check], Result], table: WordTable, check: Check) -> Result:
        """Return what a function computes of a word table; it is computed once for each loaded model."""
        results = self._results.setdefault(table.model, {})
        if compute not in results:
            results[compute] = compute(table.rows, check)
        result: Result = results[compute]
        return result
