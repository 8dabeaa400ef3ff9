"""The tokens of a text without special ones, of which no more is tokenized than can be read.

A long text of which `most` tokens are read is tokenized in pieces from the side that is kept, each longer than the one
before. As soon as two begin with the same tokens, with MARGIN more behind them, these are the whole text's: what comes
after can change the last tokens of a piece alone. Where it changes more, the two pieces differ, and the next is four
times as long, until it is the text. That is so for every kind of tokenizer, whatever its normalizer drops and its
pre-tokenizer looks ahead for:

    the words of WordPiece     are unknown above a length (BERT's 100), and the second piece is longer by more than that
    Unigram, of one character  a thousand of it are tokens of 16 and the rest before them, so the first tokens are of
                               another length unless the pieces differ by a multiple of it: they do not
    combining marks            are sorted however many there are, and a token such as `<mask>` may take all blanks
                               beside it: no piece ends among them
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from math import gcd
from typing import Any, NamedTuple
from unicodedata import combining

import numpy as np

from service.embedding.requests import Ids, Int64s, OwnTokens

TOKEN_CHARACTERS, MORE_CHARACTERS = 8, 1024  # the first piece has so many for each token, and these
LONGER = 1000  # characters by which the second piece is longer
MARGIN = 16  # tokens of a piece behind those that are read
FACTORS = 30030  # 2 * 3 * 5 * 7 * 11 * 13: pieces do not differ by a multiple of up to 16 characters
COMPARED_CHARACTERS = 1 << 16  # of the shorter of two texts whose tokens are counted to find the longer
ENDS = 64  # characters among which the end of a piece is looked for
LEAST_KEPT = 1024  # tokens of an encoding: the library keeps what it cuts off as encodings of so many

EncodeBatch = Callable[..., list[Any]]  # of the library: encode_batch_fast, or encode_batch, which keeps offsets


class LongText(Exception):
    """A text of which more characters have to be tokenized at once than the caller allows."""


class TextTokens(NamedTuple):
    """The tokens of a text that are read, without special ones.

    Args:
        ids: int64 [n].
        places: the first character of each token and the one after its last, int64 [n, 2]; None: they were not kept.
        total: tokens of the whole text; None: it has more than were read.
    """

    ids: Int64s
    places: Int64s | None
    total: int | None


class Frame(NamedTuple):
    """The special tokens around one text or two.

    Args:
        ids: those before the first text, behind it, and behind the second if there is one, int64 [n] each.
        types: segment ids of the same.
        text_types: the segment id of each text's tokens.
    """

    ids: list[Int64s]
    types: list[Int64s]
    text_types: list[int]

    @property
    def tokens(self) -> int:
        """The number of special tokens."""
        return sum(map(len, self.ids))

    def around(self, parts: Sequence[Int64s]) -> tuple[Int64s, Int64s]:
        """Return the ids and segment ids of texts with the special tokens around them."""
        ids, types = self.ids[:1], self.types[:1]
        for part, type_, ids_behind, types_behind in zip(
            parts, self.text_types, self.ids[1:], self.types[1:], strict=True
        ):
            ids += part, ids_behind
            types += np.full(len(part), type_), types_behind
        return np.concatenate(ids), np.concatenate(types)


def whole_characters(most: int) -> int:
    """Return the characters of a text that is tokenized whole, which costs less than two pieces do."""
    return 2 * (TOKEN_CHARACTERS * most + MORE_CHARACTERS) + LONGER


def read_tokens(
    encode: EncodeBatch,
    text: str,
    most: int | None,
    left: bool = False,
    located: bool = False,
    limit: int | None = None,
) -> TextTokens:
    """Return the first tokens of a text, or its last ones.

    Args:
        encode: tokenizes the pieces.
        most: tokens to return, at most; None: all.
        left: return the last.
        located: return where the tokens lie; `encode` keeps offsets.
        limit: characters to tokenize at once, at most; None: any number.

    Raises:
        LongText: more than `limit` are needed.
    """
    earlier = None
    for size in _sizes(text, most, left):
        if limit is not None and size > limit:
            raise LongText
        start = len(text) - size if left else 0
        (encoding,) = encode([text[start : start + size]], add_special_tokens=False)
        count, whole = len(encoding), size == len(text)
        ids = _kept(encoding, most, left)
        enough = most is not None and count >= most + MARGIN
        if whole or (enough and earlier is not None and np.array_equal(ids, earlier)):
            places = _places(encoding, len(ids), left) + start if located else None
            return TextTokens(ids, places, count if whole else None)
        earlier = ids if enough else None
    raise AssertionError  # the last piece is the whole text


def _kept(encoding: Any, most: int | None, left: bool) -> Int64s:
    """Return the ids that are read; the lists of what is not would be made under the GIL."""
    if most is None:
        return np.array(encoding.ids, np.int64)
    if len(encoding) > max(most, LEAST_KEPT):
        encoding.truncate(max(most, LEAST_KEPT), direction="left" if left else "right")
    ids = np.array(encoding.ids, np.int64)
    return ids[len(ids) - min(most, len(ids)) :] if left else ids[:most]


def _places(encoding: Any, count: int, left: bool) -> Int64s:
    places = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    return places[len(places) - count :] if left else places[:count]


def _sizes(text: str, most: int | None, left: bool) -> Iterator[int]:
    """Yield the characters of each piece; the last are those of the text."""
    if most is not None and len(text) > whole_characters(most):
        size, longer = TOKEN_CHARACTERS * most + MORE_CHARACTERS, LONGER
        while size < len(text):
            if (end := _end(text, size, left)) is not None:
                yield end
            while gcd(longer, FACTORS) > 1:
                longer += 1
            size, longer = size + longer, 3 * (size + longer)
    yield len(text)


def _end(text: str, size: int, left: bool) -> int | None:
    """Return the characters of a piece of about `size`; None: it would end among blanks or combining marks."""
    for end in range(size, min(size + ENDS, len(text))):
        character = text[-end] if left else text[end]
        if not character.isspace() and not combining(character):
            return end
    return None


def compared(encode: EncodeBatch, texts: Sequence[str], parts: Sequence[TextTokens], room: int) -> list[int]:
    """Return numbers that compare as the tokens of the texts do, and are above `room` where these are.

    Two long texts are counted if an odd token is left for the longer one; if both have more than COMPARED_CHARACTERS,
    their characters are compared.
    """
    totals = [room + 1 if part.total is None else part.total for part in parts]
    if len(parts) == 1 or room % 2 == 0 or None not in [part.total for part in parts] or min(totals) <= room:
        return totals
    short, long = sorted((0, 1), key=lambda place: len(texts[place]))
    if len(texts[short]) > COMPARED_CHARACTERS:
        return [room + 1 + len(text) for text in texts]
    count = parts[short].total or len(encode([texts[short]], add_special_tokens=False)[0])
    totals[short], other = count, read_tokens(encode, texts[long], count + 1).total
    totals[long] = count + 1 if other is None else other
    return totals


def longest_first(totals: Sequence[int], room: int) -> list[int]:
    """Return how much of each part to keep: the longer is cut first and keeps an odd token (tokenizers 0.23)."""
    if len(totals) == 1:
        return [min(totals[0], room)]
    short, long = sorted(totals)
    long = short if short > room else max(short, room - short)
    if short + long > room:
        short = room // 2
        long = short + room % 2
    return [short, long] if totals[0] <= totals[1] else [long, short]


def frame_of(tokenizer: Any, pair: bool, special_tokens: bool) -> Frame:
    """Return the special tokens around one text, or a pair."""

    def has_tokens(text: str) -> bool:
        with suppress(Exception):  # of an unknown character without a token for these; the library's own (0.23)
            return bool(tokenizer.encode(text, add_special_tokens=False).ids)
        return False

    sample = "a" if has_tokens("a") else next(filter(has_tokens, tokenizer.get_vocab()))
    texts = [(sample, sample) if pair else sample]
    (encoding,) = tokenizer.encode_batch_fast(texts, add_special_tokens=special_tokens)  # as `encode` has them
    sequences = np.array([-1 if number is None else number for number in encoding.sequence_ids])
    ids, types = np.array(encoding.ids, np.int64), np.array(encoding.type_ids, np.int64)
    places = [np.flatnonzero(sequences == number) for number in range(1 + pair)]
    text_types = [int(types[place[0]]) for place in places]
    edges = [0, *chain.from_iterable((place[0], place[-1] + 1) for place in places), len(ids)]
    gaps = [slice(*edges[at : at + 2]) for at in range(0, len(edges), 2)]
    return Frame([ids[gap] for gap in gaps], [types[gap] for gap in gaps], text_types)


def own_tokens(part: TextTokens, kept: slice, first: int, prompt: int) -> OwnTokens:
    """Return the tokens of a text without special tokens and its prompt.

    Args:
        part: the tokens of prompt and text, with their places.
        kept: those that are read.
        first: the place of the first that is read among the ids.
        prompt: code points before the text itself; below 0 where its beginning was cut off.
    """
    assert part.places is not None
    places = part.places - prompt
    # a token that begins in the prompt and ends in the text is the text's
    inside = (places[:, 1] > 0) | (places[:, 0] >= 0)
    starts, stops = places[kept][inside[kept]].T
    # a tokenizer that turns pieces around would have them fall
    starts = np.minimum.accumulate(starts[::-1])[::-1]
    known = part.total == len(places) or inside.any()  # else tokens of the prompt were cut off too
    total = part.total - int(np.count_nonzero(~inside)) if part.total is not None and known else None
    skipped = int(np.count_nonzero(inside[: kept.start]))
    rows = first + np.flatnonzero(inside[kept])
    return OwnTokens(rows, np.maximum(starts, 0), np.maximum.accumulate(stops), skipped, total)


def own_ids(sent: Ids, read: Ids, left: bool) -> OwnTokens:
    """Return the tokens of an input of token ids: every one that is read.

    Args:
        sent: the ids that the caller sent.
        read: the ids that are left after cutting.
        left: whether their end was kept.
    """
    count = len(sent.ids)
    return OwnTokens(np.arange(len(read.ids)), None, None, count - len(read.ids) if left else 0, count)
