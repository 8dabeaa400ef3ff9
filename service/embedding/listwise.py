"""Listwise rerankers: a query and as many documents as fit are one text, in which each mark has a vector.

A score is the cosine of a document's vector with the query's. Of several texts, the query's vectors are averaged,
weighted by the largest (1 + cosine) / 2 of their documents, so a score depends on the other documents.

Source: modeling.py beside jinaai/jina-reranker-v3, JinaForRanking.rerank.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.recipes.listwise import DOCUMENT_TOKENS, MOST_DOCUMENTS, QUERY_TOKENS, Listwise
from service.embedding.document_chunks import sliced
from service.embedding.limits import least
from service.embedding.tokenize.tokenizer import Tokenizer
from service.errors import SHORTEN_OR_TRUNCATE, FieldPath, TooLong

_SPARE = 2  # tokens that a document may have more between the marks than alone
_LEAST = 1e-12  # that a vector's length, or the sum of weights, is divided by


class Lists(NamedTuple):
    """The texts of a query and its documents.

    Args:
        texts: texts that the model reads.
        counts: the number of documents of each.
        cut: numbers of the documents that are read in part; all if the query is.
    """

    texts: list[str]
    counts: list[int]
    cut: tuple[int, ...]


class Reads(NamedTuple):
    """How lists are read.

    Args:
        listwise: the model's marks.
        instruction: None: there is none.
        longest: tokens of one text; None: any.
        most: tokens of a document; None: the model's own.
        truncate: longer queries and documents are cut, instead of raising.
    """

    listwise: Listwise
    instruction: str | None
    longest: int | None
    most: int | None
    truncate: bool


def lists_of(
    tokenizer: Tokenizer, reads: Reads, query: str, documents: Sequence[str], limit: int | None = None
) -> Lists:
    """Return the texts of a query and documents: each has up to MOST_DOCUMENTS, and no more than it has room for.

    Raises:
        TooLong: a query or document is too long and may not be cut, or the query leaves no room.
        LongText: a text has more characters than `limit`.
    """
    listwise, instruction = reads.listwise, reads.instruction and reads.listwise.unmarked(reads.instruction)
    unmarked = [listwise.unmarked(text) for text in (query, *documents)]
    (read,) = tokenizer.places(unmarked[:1], QUERY_TOKENS, limit)
    prompt, longer = (len(tokenizer.pieces(listwise.text("", [""] * count, instruction))) for count in (1, 101))
    around = -(-(longer - prompt) // 100) + _SPARE
    room = _room(reads.longest, prompt + 2 * (len(read.ids) + _SPARE), around, len(read.ids))
    most = least(least(DOCUMENT_TOKENS, reads.most), room and room - around) or 0
    parts = [read, *tokenizer.places(unmarked[1:], most, limit)]
    cut = [number for number, part in enumerate(parts) if part.total is None or part.total > len(part.ids)]
    if cut and not reads.truncate:
        field: FieldPath = ("documents", cut[0] - 1) if cut[0] else ("query",)
        allowed = f"the model reads {most if cut[0] else QUERY_TOKENS}"
        raise TooLong("has more tokens than are read", field=field, allowed=allowed, remedy=SHORTEN_OR_TRUNCATE)
    kept = [sliced(text, part, 0, len(part.ids)) for text, part in zip(unmarked, parts, strict=True)]
    counts = _counts([len(part.ids) + around for part in parts[1:]], room)
    texts = [
        listwise.text(kept[0], kept[1 + end - n : 1 + end], instruction)
        for end, n in zip(accumulate(counts), counts, strict=True)
    ]
    whole = range(len(documents)) if 0 in cut else [number - 1 for number in cut]
    return Lists(texts, counts, tuple(whole))


def _room(longest: int | None, taken: int, around: int, query: int) -> int | None:
    """Return how many tokens documents may have; None: any number. TooLong if the query leaves no room for one."""
    if longest is None:
        return None
    if longest - taken <= around:
        raise TooLong(
            f"has {query} tokens",
            field=("query",),
            allowed=f"the model reads {longest}, of which the query and the prompt take {taken + around}",
            remedy="shorten it",
        )
    return longest - taken


def _counts(tokens: Sequence[int], room: int | None) -> list[int]:
    """Return how many documents each text has; none has more tokens together than there is room for."""
    counts, used = [0], 0
    for each in tokens:
        used += each
        if counts[-1] == MOST_DOCUMENTS or (room is not None and used > room):
            counts, used = [*counts, 0], each
        counts[-1] += 1
    return counts


def scores_of(vectors: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
    """Return the score of each document.

    Args:
        vectors: of each text, those of its documents and then the query's, float32 [n + 1, width].
    """
    texts = [each.astype(np.float64) for each in vectors]
    weights = [max(((1 + _cosines(each[-1], each[:-1])) / 2).max(), _LEAST) for each in texts]
    query = np.average([each[-1] for each in texts], axis=0, weights=weights)
    return _cosines(query, np.concatenate([each[:-1] for each in texts]))


def _cosines(query: NDArray[np.float64], documents: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(query) * np.linalg.norm(documents, axis=1)
    return np.asarray(documents @ query / np.maximum(lengths, _LEAST))
