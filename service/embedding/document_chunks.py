"""Cuts pairs of a query and a long document to what a model can read, or splits the document into chunks."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from service.embedding.limits import least
from service.embedding.tokenize.text_tokens import TextTokens
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


def most_tokens(parts: Parts, longest: int | None) -> int:
    """Return how many tokens of a query or document `split` reads at most, for the same `longest`."""
    document = parts.max_document_tokens
    if parts.max_chunks and longest is not None:
        return max(parts.max_query_tokens or longest, least(document, parts.max_chunks * longest) or 0)
    return max(parts.max_query_tokens or 0, document or 0)


def split(
    pairs: Sequence[tuple[str, str]], tokens: Mapping[str, TextTokens], added: int, longest: int | None, parts: Parts
) -> Chunks:
    """Return pairs with their queries and documents cut, and long documents in chunks.

    Args:
        tokens: the first `most_tokens` tokens of every query and document.
        added: tokens that the model adds to those of a pair.
        longest: pair that the model reads, in tokens; None: any.

    Raises:
        TooLong: a query leaves no room for a chunk.
    """
    made: list[tuple[str, str]] = []
    owners: list[int] = []
    cut: list[int] = []
    for index, (query, document) in enumerate(pairs):
        read_query = tokens[query]
        query_tokens = len(read_query.ids) if read_query.total is None else read_query.total
        kept, query_tokens = query, least(query_tokens, parts.max_query_tokens) or 0
        if parts.max_query_tokens is not None:
            kept = sliced(query, read_query, 0, query_tokens)
        places, read = tokens[document], least(len(tokens[document].ids), parts.max_document_tokens) or 0
        pieces, whole = [document], True
        if parts.max_chunks and longest is not None:
            room = _room(read_query, query_tokens, added, longest)
            starts = range(0, read, room)[: parts.max_chunks] or range(1)
            pieces = [sliced(document, places, start, min(start + room, read)) for start in starts]
            whole = min(starts[-1] + room, read) == places.total
        elif parts.max_document_tokens is not None:
            pieces, whole = [sliced(document, places, 0, read)], read == places.total
        made += [(kept, piece) for piece in pieces]
        owners += [index] * len(pieces)
        if kept is not query or not whole:
            cut.append(index)
    return Chunks(made, owners, cut)


def _room(query: TextTokens, query_tokens: int, added: int, longest: int) -> int:
    """Return how many tokens of a document fit beside a query; raise TooLong if none does."""
    room = longest - added - query_tokens
    if room < 1:
        more = "more than " if query.total is None else ""
        raise TooLong(
            f"has {more}{query_tokens} tokens",
            field=("query",),
            allowed=f"the model reads {longest} with the document's and {added} special ones",
            remedy="shorten it or leave max_chunks_per_doc out, so that the longer part is cut",
        )
    return room


def sliced(text: str, tokens: TextTokens, start: int, stop: int) -> str:
    """Return the part of a text that holds its tokens from `start` to `stop`; the text itself if that is all."""
    if start == 0 and stop == tokens.total:
        return text
    assert tokens.places is not None
    return text[tokens.places[start, 0] : tokens.places[stop - 1, 1]]
