"""Sparse vectors of texts: pooled logits (SPLADE), lexical weights (BGE-M3), or a table of weights by id.

Those that are made of hidden states are made in the run that gives these (`with_sparse`): hidden states are dropped as
soon as their batch is reduced, the head's matrix is read once for several texts and callers, and a queue counts the
time. Of a text's tokens a block has logits at a time, whatever its length.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import HEAD, SPARSE, SPARSE_LINEAR, Card
from models.recipes.heads import Lexical, Sparse, Splade
from service.embedding.outputs.kind import HIDDEN, Job, OutputKind, Planning, cast, not_finite
from service.embedding.requests import EmbedOptions, Output
from service.embedding.tokenize.packing import Packed, Rows, Work
from service.errors import ConflictingFields, OutOfRange
from service.runtime.engine import Engine

VALUE_BYTES = 8  # int32 and float32
INDICES = "sparse_indices"  # beside the values in Rows
BLOCK_VALUES = 1 << 21  # logits of tokens computed at a time: 8 MiB
LEAST_BLOCK = 64  # tokens, however large the vocabulary: its matrix is read for each block

Floats = NDArray[np.float32]
Vector = tuple[NDArray[np.int32], Floats]  # indices, ascending, and values
Run = Callable[[list[Any]], list[Rows]]


class SparseVector(OutputKind):
    """The values of a sparse vector, ascending by their columns, which are stored beside them under INDICES."""

    fields = ("max_active_dims",)
    sparse = finishes_in_thread = True
    graph_output: str | None = SPARSE

    def __init__(self, planning: Planning, name: str) -> None:
        super().__init__(planning, name, self.graph_output)
        card, sent = planning.card, planning.options.max_active_dims
        if sent is not None and sent < 1:
            raise OutOfRange(f"is {sent}", field=("max_active_dims",), allowed="send a whole number from 1")
        self._most = card.sparse.max_active_dims if card.sparse and sent is None else sent
        self.most_values = card.sparse.width if card.sparse and card.sparse.splade and self.source else 0
        self.width = 1
        self.token_bytes = 0 if self.most_values else VALUE_BYTES  # as many values as a text has tokens at most
        self.input_bytes = VALUE_BYTES * self.most_values

    @classmethod
    def makes(cls, planning: Planning, name: str) -> bool:
        """Return whether this is a sparse vector."""
        return name == SPARSE and name in planning.card.outputs

    def reduce(self, job: Job, index: int, rows: Rows) -> Rows:
        """Return the values and their columns."""
        return {SPARSE: rows[SPARSE], INDICES: rows[INDICES]}

    def finish(self, job: Job) -> Output:
        """Return the vectors of all texts: values [sum(lengths), 1] and their indices."""
        vectors: list[Vector] = [(part[INDICES], part[SPARSE]) for part in job.rows]
        if self._most is not None:
            vectors = [largest(*vector, self._most) for vector in vectors]
        indices = np.concatenate([columns for columns, _ in vectors])
        values = np.concatenate([values for _, values in vectors])[:, None]
        return Output(SPARSE, cast(values, self.dtype), tuple([len(part) for part, _ in vectors]), False, indices)

    def probe(self) -> None:
        """Compute the vector of one row of zeros."""
        made = self.card.sparse
        if made is not None and self.source and (made.splade or made.lexical):
            hidden = np.zeros((1, self.card.token_width), np.float32)
            for _, values in _vectors(self.engine, made, [hidden], [np.zeros(1, np.int64)]):
                if not np.isfinite(values).all():
                    raise not_finite(self.card.name, SPARSE, 0)


class SparseLookup(SparseVector):
    """The sparse vector of a query, made of the weights of its ids in a table; no graph is run."""

    completes = True
    graph_output = None

    def __init__(self, planning: Planning, name: str) -> None:
        super().__init__(planning, name)
        assert planning.card.sparse is not None
        self._table = planning.weights[planning.card.sparse.table or ""]
        if len(planning.outputs) > 1:
            raise ConflictingFields(
                f"is {', '.join(planning.outputs)}",
                field=("outputs",),
                allowed=f"of a query {planning.card.name} looks {SPARSE} up and runs no encoder",
                remedy=f'ask for {SPARSE} alone, or send "input_type": "document"',
            )

    @classmethod
    def makes(cls, planning: Planning, name: str) -> bool:
        """Return whether the model looks up the vectors of such inputs."""
        sparse = planning.card.sparse
        return name == SPARSE and sparse is not None and sparse.looks_up(planning.options.input_type)

    def as_read(self, options: EmbedOptions) -> EmbedOptions:
        """Return the options without special tokens."""
        return options._replace(special_tokens=False)

    def complete(self, job: Job, indices: Sequence[int]) -> None:
        """Look up the weight of each id that is attended to, once."""
        for index in indices:
            sequence = job.ids[index]
            ids = sequence.ids if sequence.mask is None else sequence.ids[sequence.mask.astype(bool)]
            columns = np.unique(ids)
            values = np.asarray(self._table[columns])
            nonzero = values != 0
            job.rows[index] = {SPARSE: values[nonzero], INDICES: columns[nonzero].astype(np.int32)}


# ---- in the run that gives hidden states


def with_sparse(run: Run, engine: Engine, card: Card) -> Run:
    """Return a run of a graph that also makes sparse vectors for the works that request them."""
    sparse = card.sparse
    if sparse is None or (sparse.splade is None and sparse.lexical is None):
        return run
    made = sparse

    def run_sparse(works: list[Work[Packed]]) -> list[Rows]:
        if not any(SPARSE in work.outputs for work in works):
            return run(works)
        computed = [dict.fromkeys(HIDDEN if name == SPARSE else name for name in work.outputs) for work in works]
        rows = run([work._replace(outputs=tuple(names)) for work, names in zip(works, computed, strict=True)])
        asking = [index for index, work in enumerate(works) if SPARSE in work.outputs]
        hidden = [_attended(rows[index][HIDDEN], works[index]) for index in asking]
        ids = [_attended(works[index].packed.ids, works[index]) for index in asking]
        for index, (indices, values) in zip(asking, _vectors(engine, made, hidden, ids), strict=True):
            kept = {name: part for name, part in rows[index].items() if name in works[index].outputs}
            rows[index] = kept | {SPARSE: values, INDICES: indices}
        return rows

    return run_sparse


def _attended(rows: NDArray[np.generic], work: Work[Packed]) -> NDArray[np.generic]:
    mask = work.packed.mask
    return rows if mask is None else rows[mask.astype(bool)]


def _vectors(
    engine: Engine, sparse: Sparse, hidden: Sequence[NDArray[np.generic]], ids: Sequence[NDArray[np.generic]]
) -> Iterator[Vector]:
    """Yield the vector of each text, from its attended tokens' hidden states [n, d] and ids [n]."""
    joined = hidden[0] if len(hidden) == 1 else np.concatenate(hidden)
    lengths = [len(part) for part in ids]
    if sparse.splade:
        blocks = _logits(engine, joined, sparse.width)
        for pooled in _pooled(blocks, lengths, sparse.splade):
            indices = np.flatnonzero(~(pooled <= 0)).astype(np.int32)  # NaN is kept, for the check behind every run
            yield indices, pooled[indices]
    elif sparse.lexical:
        (weights,) = engine.run(SPARSE_LINEAR, {"pooled": joined}, (SPARSE,))
        ends = np.cumsum(lengths)
        for part, weight in zip(ids, np.split(weights[:, 0], ends[:-1]), strict=True):
            yield _largest_of_ids(part, weight, sparse.lexical)


def _logits(engine: Engine, hidden: NDArray[np.generic], width: int) -> Iterator[Floats]:
    """Yield the logits of rows of hidden states, block by block."""
    step = max(LEAST_BLOCK, BLOCK_VALUES // width)
    for start in range(0, len(hidden), step):
        rows = hidden[start : start + step]
        count = len(rows)
        if count == 1:  # a product of a single row takes another kernel, whose bits are others
            rows = np.repeat(rows, 2, axis=0)
        (logits,) = engine.run(HEAD, {"hidden": rows}, ("logits",))
        yield logits[:count]


def _pooled(blocks: Iterator[Floats], lengths: Sequence[int], splade: Splade) -> Iterator[Floats]:
    """Yield the pooled activations of each text, float32 [V].

    Its bits do not depend on how its rows are divided among blocks: the activation grows with the logit, so that it is
    taken of the largest one; sums add a row after the other, in float64.

    Args:
        blocks: logits of the rows of all texts.
        lengths: rows of each text.
    """
    block: Floats = np.empty((0, 0), np.float32)
    for length in lengths:
        total: NDArray[np.floating] | None = None
        while length:
            if not len(block):
                block = next(blocks)
            part, block = block[:length], block[length:]
            length -= len(part)
            if splade.pooling == "max":
                largest = part.max(axis=0)
                total = largest if total is None else np.maximum(total, largest)
                continue
            total = np.zeros(part.shape[1]) if total is None else total
            for row in part:
                total += _activated(row, splade)
        assert total is not None  # an encoder reads one token at least
        yield _activated(total, splade) if splade.pooling == "max" else total.astype(np.float32)


def _activated(logits: NDArray[np.floating], splade: Splade) -> Floats:
    values: Floats = np.log1p(np.maximum(logits, 0, dtype=np.float32))
    return np.log1p(values) if splade.activation == "log1p_relu" else values


def _largest_of_ids(ids: NDArray[np.generic], weights: Floats, lexical: Lexical) -> Vector:
    """Return the largest weight of each id that has one."""
    order = np.lexsort((weights, ids))
    last = np.append(np.diff(ids[order]) != 0, True)
    chosen = order[last]
    kept = chosen[~np.isin(ids[chosen], lexical.unused) & ~(weights[chosen] <= 0)]
    return ids[kept].astype(np.int32), weights[kept]


def largest(indices: NDArray[np.int32], values: Floats, count: int) -> Vector:
    """Return the `count` values furthest from 0; of equal ones those of the lowest indices.

    Source: sentence-transformers 6.2, select_max_active_dims.
    """
    if len(values) <= count:
        return indices, values
    kept = np.sort(np.argsort(-np.abs(values), kind="stable")[:count])
    return indices[kept], values[kept]
