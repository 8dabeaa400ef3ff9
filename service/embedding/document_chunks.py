"""Cuts pairs of a query and a long document to what a model can read, or splits the document into chunks."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from service.embedding.tokenize.tokenizer import Span
from service.errors import TooLong


class Parts(NamedTuple):
    """The limits for pairs of a query and a document. None and 0 set no limit.

    Args:
        max_query_tokens: tokens read of a query; the rest is ignored.
        max_document_tokens: tokens read of a document.
        max_chunks: most chunks of a document that does not fit beside its query; None: the document is cut.
    """

    max_query_tokens: int | None = None
    max_document_tokens: int | None = None
    max_chunks: int | None = None


class Chunks(NamedTuple):
    """The pairs that the model reads.

    Args:
        pairs: a query and a document, or a chunk of one, each.
        owners: the number of the pair that each is of, in order.
        cut: numbers of the pairs of which a part is not read.
    """

    pairs: Sequence[tuple[str, str]]
    owners: Sequence[int]
    cut: Sequence[int]


def split(
    pairs: Sequence[tuple[str, str]],
    spans: Mapping[str, list[Span]],
    added: int,
    longest: int | None,
    parts: Parts,
) -> Chunks:
    """Return pairs with their queries and documents cut, and long documents in chunks.

    Args:
        spans: the characters of each token of every query and document.
        added: tokens that the model adds to those of a pair.
        longest: pair that the model reads, in tokens; None: any.

    Raises:
        TooLong: a query leaves no room for a chunk.
    """
    made: list[tuple[str, str]] = []
    owners: list[int] = []
    cut: list[int] = []
    for index, (query, document) in enumerate(pairs):
        places, query_places = spans[document], spans[query]
        query_tokens = min(len(query_places), parts.max_query_tokens or len(query_places))
        kept = _sliced(query, query_places, 0, query_tokens)
        read = min(len(places), parts.max_document_tokens or len(places))
        room = _room(query_tokens, added, longest) if parts.max_chunks and longest is not None else read
        starts = range(0, read, room)[: parts.max_chunks or 1] if read else range(1)
        made += [(kept, _sliced(document, places, start, min(start + room, read))) for start in starts]
        owners += [index] * len(starts)
        if kept is not query or min(starts[-1] + room, read) < len(places):
            cut.append(index)
    return Chunks(made, owners, cut)


def _room(query_tokens: int, added: int, longest: int) -> int:
    """Return how many tokens of a document fit beside a query; raise TooLong if none does."""
    room = longest - added - query_tokens
    if room < 1:
        raise TooLong(
            f"has {query_tokens} tokens",
            field=("query",),
            allowed=f"the model reads {longest} with the document's and {added} special ones",
            remedy="shorten it or leave max_chunks_per_doc out, so that the longer part is cut",
        )
    return room


def _sliced(text: str, places: list[Span], start: int, stop: int) -> str:
    """Return the part of a text that holds its tokens from `start` to `stop`; the text itself if that is all."""
    if start == 0 and stop == len(places):
        return text
    return text[places[start][0] : places[stop - 1][1]]
