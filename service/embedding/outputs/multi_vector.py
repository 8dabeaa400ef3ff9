"""Several vectors a text, which late-interaction models (ColBERT, BGE-M3) compute from its hidden states.

Queries and documents are read differently: by their prompt, which holds a marker token, their longest length, the
tokens that queries are filled up with and the tokens that get no vector. Token ids are taken as they are sent.

The vectors are made while other texts of the request still run: 1000 texts of 200 tokens have 0.8 GB of hidden states
of 1024 columns.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import MULTI_VECTOR, MULTI_VECTORS
from models.recipes.heads import Expansion
from service.embedding.outputs.kind import (
    HIDDEN,
    Job,
    OutputKind,
    Planning,
    cast,
    check_width,
    run_heads,
)
from service.embedding.requests import EmbedOptions, Ids, Output, Text
from service.embedding.tokenize.packing import Rows, joined

Flags = NDArray[np.bool_]


class MultiVector(OutputKind):
    """A vector for each token of a text, except tokens that are left out."""

    prepares = completes = True
    inline_inputs = 100  # that are filled up and marked on the event loop: half a millisecond
    held_rows = 4096  # of hidden states that wait for others, so that one run makes the vectors of several texts

    def __init__(self, planning: Planning, name: str) -> None:
        super().__init__(planning, name, HIDDEN)
        assert planning.card.multi_vector is not None
        self._made, self._query = planning.card.multi_vector, planning.options.input_type == "query"
        self._side = self._made.query if self._query else self._made.document
        self.longest = self._side.max_tokens
        self.token_bytes = 4 * self.width

    @classmethod
    def makes(cls, planning: Planning, name: str) -> bool:
        """Return whether the model makes several vectors of hidden states."""
        card = planning.card
        return name == MULTI_VECTOR and card.multi_vector is not None and card.graph_for(name, False) is None

    def as_read(self, options: EmbedOptions) -> EmbedOptions:
        """Return the options; if they name no prompt, with the prompt of their kind of text."""
        named = options.prompt_name is not None or options.task is not None
        return options if named else options._replace(prompt_name=self._side.prompt)

    def prepare(self, job: Job) -> None:
        """Fill queries up, and mark the tokens that get a vector."""
        ids: Sequence[Ids] = job.ids
        if self._made.expansion and self._query:
            texts = [isinstance(item, Text) for item in job.request.inputs]
            pairs = zip(ids, texts, strict=True)
            ids = [_expanded(self._made.expansion, each) if text else each for each, text in pairs]
        job.ids = _with_vectors(ids, self._side.skipped, self._made.first)

    def reduce(self, job: Job, index: int, rows: Rows) -> Rows:
        """Return the hidden states of an input."""
        return {MULTI_VECTOR: rows[HIDDEN]}

    def complete(self, job: Job, indices: Sequence[int]) -> None:
        """Replace the hidden states of texts by their vectors."""
        hidden = [job.rows[index][MULTI_VECTOR] for index in indices]
        flags = [job.ids[index].vectors for index in indices]
        for index, vectors in zip(indices, self.project(hidden, flags), strict=True):
            job.rows[index][MULTI_VECTOR] = vectors

    def project(
        self, hidden: Sequence[NDArray[np.float32]], flags: Sequence[Flags | None]
    ) -> list[NDArray[np.float32]]:
        """Return the vectors of texts [k, width], from their hidden states [n, d] and the flags of tokens that get one.

        Raises:
            EngineFailure: a vector is not finite.
        """
        chosen = [rows if kept is None or kept.all() else rows[kept] for rows, kept in zip(hidden, flags, strict=True)]
        if not any(map(len, chosen)):
            return [np.empty((0, self.width), np.float32) for _ in chosen]
        about = f"a {MULTI_VECTOR} that is"
        return run_heads(self.card, self.engine, MULTI_VECTORS, MULTI_VECTOR, chosen, about)

    def finish(self, job: Job) -> Output:
        """Return the vectors of all texts, one below the other."""
        lengths = tuple([len(part[MULTI_VECTOR]) for part in job.rows])
        return Output(self.name, cast(joined(job.rows, MULTI_VECTOR), self.dtype), lengths, False)

    def probe(self) -> None:
        """Compute the vector of one row."""
        modules = self._made.modules
        (rows,) = self.project([np.ones((1, modules.inner), np.float32)], [None])
        check_width(self.card, MULTI_VECTORS, MULTI_VECTOR, rows, modules.width)


def _expanded(expansion: Expansion, sequence: Ids) -> Ids:
    """Return a query filled up; each of its tokens gets a vector."""
    length = len(sequence.ids)
    more = expansion.tokens - length
    if more <= 0:
        return sequence
    filled = np.concatenate([sequence.ids, np.full(more, expansion.token_id)])
    mask = None if expansion.attended else (np.arange(expansion.tokens) < length).astype(np.int64)
    types = None if sequence.types is None else np.concatenate([sequence.types, np.zeros(more, np.int64)])
    return Ids(filled, mask, types, cut=sequence.cut, vectors=np.ones(expansion.tokens, np.bool_))


def _with_vectors(ids: Sequence[Ids], skipped: Sequence[int], first: int) -> list[Ids]:
    """Return sequences with flags of the tokens that get a vector: those attended to or added, and not left out."""
    joined = np.concatenate([sequence.ids for sequence in ids])
    kept = ~np.isin(joined, np.array(skipped, np.int64))
    marked, start = [], 0
    for sequence in ids:
        flags = kept[start : start + len(sequence.ids)]
        start += len(sequence.ids)
        flags[:first] = False
        if sequence.vectors is not None:
            flags &= sequence.vectors
        elif sequence.mask is not None:
            flags &= sequence.mask.astype(np.bool_)
        marked.append(sequence._replace(vectors=flags))
    return marked
