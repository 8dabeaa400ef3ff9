"""Several vectors a text, as late-interaction models (ColBERT, BGE-M3) make them of its hidden states.

Queries and documents are read differently: by their prompt, which holds a marker token, their longest length, the
tokens that queries are filled up with and the tokens that get no vector. Token ids are taken as they are sent.

ONNX Runtime makes the vectors, since numpy's products give a row other bits alone than among others, and it does so
while other texts of the request still run: 1000 texts of 200 tokens have 0.8 GB of hidden states of 1024 columns.
"""

import asyncio
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import MULTI_VECTOR, MULTI_VECTORS, Card
from models.recipes.heads import Expansion, MultiVector, Side
from service.embedding.model import Model, Rows
from service.embedding.requests import EmbedRequest, Ids, Text
from service.errors import EngineFailure

HELD_ROWS = 4096  # of hidden states that wait for others, so that one run makes the vectors of several texts
INLINE_TEXTS, INLINE_TOKENS = 100, 1 << 15  # that are filled up and marked on the event loop: half a millisecond

Flags = NDArray[np.bool_]


def side_of(multi_vector: MultiVector, request: EmbedRequest) -> Side:
    """Return how the texts of a request are read; they are documents unless it says otherwise."""
    return multi_vector.query if request.options.input_type == "query" else multi_vector.document


def longest(card: Card, request: EmbedRequest) -> int | None:
    """Return the longest text of its kind in tokens; None: the model's own limit, or it gives no several vectors."""
    return side_of(card.multi_vector, request).max_tokens if card.multi_vector else None


def as_read(card: Card, request: EmbedRequest) -> EmbedRequest:
    """Return a request for several vectors a text, with the prompt of its kind of text if it names none."""
    if card.multi_vector is None or request.options.prompt_name is not None or request.options.task is not None:
        return request
    prompt = side_of(card.multi_vector, request).prompt
    return request._replace(options=request.options._replace(prompt_name=prompt))


async def marked(card: Card, request: EmbedRequest, ids: Sequence[Ids]) -> list[Ids]:
    """Return the inputs of a request for several vectors a text, filled up, each with its `vectors`."""
    if len(ids) <= INLINE_TEXTS and sum([sequence.tokens for sequence in ids]) <= INLINE_TOKENS:
        return marked_now(card, request, ids)
    return await asyncio.to_thread(marked_now, card, request, ids)


def marked_now(card: Card, request: EmbedRequest, ids: Sequence[Ids]) -> list[Ids]:
    """Run `marked` on the calling thread."""
    multi_vector = card.multi_vector
    assert multi_vector is not None
    if multi_vector.expansion and request.options.input_type == "query":
        texts = [isinstance(item, Text) for item in request.inputs]
        ids = [_expanded(multi_vector.expansion, own) if text else own for own, text in zip(ids, texts, strict=True)]
    return _with_vectors(ids, side_of(multi_vector, request).skipped, multi_vector.first)


def _expanded(expansion: Expansion, sequence: Ids) -> Ids:
    """Return a query filled up; each of its tokens gets a vector."""
    own = len(sequence.ids)
    more = expansion.tokens - own
    if more <= 0:
        return sequence
    filled = np.concatenate([sequence.ids, np.full(more, expansion.token_id)])
    mask = None if expansion.attended else (np.arange(expansion.tokens) < own).astype(np.int64)
    types = None if sequence.types is None else np.concatenate([sequence.types, np.zeros(more, np.int64)])
    return Ids(filled, mask, types, cut=sequence.cut, vectors=np.ones(expansion.tokens, np.bool_))


def _with_vectors(ids: Sequence[Ids], skipped: Sequence[int], first: int) -> list[Ids]:
    """Return sequences with flags of the tokens that get a vector: those attended to or added, and not left out."""
    joined = np.concatenate([sequence.ids for sequence in ids])
    kept = ~np.isin(joined, np.array(skipped, np.int64))
    marked, start = [], 0
    for sequence in ids:
        own = kept[start : start + len(sequence.ids)]
        start += len(sequence.ids)
        own[:first] = False
        if sequence.vectors is not None:
            own &= sequence.vectors
        elif sequence.mask is not None:
            own &= sequence.mask.astype(np.bool_)
        marked.append(sequence._replace(vectors=own))
    return marked


class Projection:
    """Makes the vectors of the texts of one request as their hidden states come.

    Args:
        model: that computes them.
        rows: of every part; the hidden states under MULTI_VECTOR are replaced.
        ids: of every part, with their `vectors`.
    """

    def __init__(self, model: Model, rows: list[Rows], ids: Sequence[Ids]) -> None:
        self._model, self._rows, self._ids = model, rows, ids
        self._waiting: list[int] = []
        self._held = 0

    async def add(self, index: int) -> None:
        """Take the hidden states of a part; those that wait are projected once they are many.

        Raises:
            EngineFailure: a vector is not finite.
        """
        self._waiting.append(index)
        self._held += len(self._rows[index][MULTI_VECTOR])
        if self._held >= HELD_ROWS:
            await self.finish()

    async def finish(self) -> None:
        """Project what waits; same errors."""
        waiting, self._waiting, self._held = self._waiting, [], 0
        if not waiting:
            return
        hidden = [self._rows[index][MULTI_VECTOR] for index in waiting]
        flags = [self._ids[index].vectors for index in waiting]
        vectors = await asyncio.to_thread(project, self._model, hidden, flags)
        for index, own in zip(waiting, vectors, strict=True):
            self._rows[index][MULTI_VECTOR] = own


def project(
    model: Model, hidden: Sequence[NDArray[np.float32]], flags: Sequence[Flags | None]
) -> list[NDArray[np.float32]]:
    """Return the vectors of texts [k, width], of their hidden states [n, d] and the flags of tokens that get one.

    Raises:
        EngineFailure: a vector is not finite.
    """
    chosen = [rows if own is None or own.all() else rows[own] for rows, own in zip(hidden, flags, strict=True)]
    joined = chosen[0] if len(chosen) == 1 else np.concatenate(chosen)
    if not len(joined):
        width = model.width(MULTI_VECTOR)
        return [np.empty((0, width), np.float32) for _ in chosen]
    (vectors,) = model.engine.run(MULTI_VECTORS, {"pooled": joined}, (MULTI_VECTOR,))
    if not np.isfinite(vectors).all():
        raise EngineFailure(f"{model.card.name} gave a {MULTI_VECTOR} that is not finite")
    return np.split(vectors, np.cumsum([len(own) for own in chosen])[:-1])
