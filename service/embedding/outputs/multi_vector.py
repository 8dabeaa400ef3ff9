"""Several vectors a text, which late-interaction models (ColBERT, BGE-M3) compute from its hidden states.

Queries and documents are read differently: by their prompt, which holds a marker token, their longest length, the
tokens that queries are filled up with and the tokens that get no vector. Token ids are taken as they are sent.

The vectors are made while other texts of the request still run: 1000 texts of 200 tokens have 0.8 GB of hidden states
of 1024 columns.
"""

from collections.abc import Sequence

import numpy as np

from models.artifacts.card import MULTI_VECTOR, MULTI_VECTORS
from models.recipes.heads import Expansion
from models.recipes.listwise import Listwise
from service.embedding.outputs.kind import HIDDEN, HeadGraph, Job, OutputKind, Planning
from service.embedding.requests import EmbedOptions, Ids, Text
from service.embedding.tokenize.packing import Rows
from service.errors import BadInput


class MultiVector(OutputKind):
    """A vector for each token of a text, except tokens that are left out."""

    prepares = completes = reduces_in_thread = True
    held_rows = 4096  # of hidden states that wait for others, so that one run makes the vectors of several texts

    def __init__(self, planning: Planning, name: str) -> None:
        super().__init__(planning, name, HIDDEN)
        assert planning.card.multi_vector is not None
        self._made, self._query = planning.card.multi_vector, planning.options.input_type == "query"
        inner, width = self._made.modules.inner, self._made.modules.width
        self.head = HeadGraph(MULTI_VECTORS, MULTI_VECTOR, inner, width, f"a {MULTI_VECTOR} that is")
        self._side = self._made.query if self._query else self._made.document
        self.longest, self.ending = self._side.max_tokens, self._side.ending
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
        if listwise := self._made.listwise:
            ids = [_marked(listwise, index, each) for index, each in enumerate(ids)]
        job.ids = _with_vectors(ids, self._side.skipped, self._made.first)

    def reduce(self, job: Job, index: int, rows: Rows) -> Rows:
        """Return the hidden states of the tokens of an input that get a vector."""
        hidden, flags = rows[HIDDEN], job.ids[index].vectors
        return {self.name: hidden if flags is None or flags.all() else hidden[flags]}


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


def _marked(listwise: Listwise, index: int, sequence: Ids) -> Ids:
    """Return the text of a query and all documents with flags of its marks; BadInput if it has none."""
    flags = np.isin(sequence.ids, listwise.ids)
    if not flags.any():
        raise BadInput(
            "has no token that gets a vector",
            field=("inputs", index),
            allowed=f"this model reads a query and documents in one text, marked by {listwise.document} and "
            f"{listwise.query}",
            remedy="send them to /rerank",
        )
    return sequence._replace(vectors=flags)


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
