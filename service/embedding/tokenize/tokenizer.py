"""Tokenizers: text to token ids and back, with the model's own special tokens and limits."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, takewhile
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import numpy as np

from service.embedding.limits import too_many_tokens
from service.embedding.requests import Cut, Ids, Int64s, OwnTokens, Text
from service.embedding.tokenize.offsets import own_tokens
from service.errors import SHORTEN_OR_TRUNCATE, EmptyInput, OutOfRange, StartError, TooLong

INLINE_CHARACTERS = 2000  # about half a millisecond of tokenising; longer work goes to a thread
MOST_ID = 2**32 - 1  # what the library's ids hold
Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")
EncodeBatch = Callable[..., list[Any]]  # of the library: encode_batch_fast, or encode_batch, which keeps offsets
Span = tuple[int, int]  # the first character of a token and the one after its last


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a text.

    Args:
        text: the characters between the offsets; of a special token its name.
        special: the tokenizer added it; it has no offsets.
        start: the first byte of its characters in the text's UTF-8.
        stop: the byte after its last.
    """

    id: int
    text: str
    special: bool
    start: int | None = None
    stop: int | None = None


class Tokenizer:
    """A tokenizer.json, with its padding and truncation switched off.

    Args:
        max_characters: longest text, or part of a pair; None: no limit.
        may_be_empty: a text may give no token.
        segments: return segment ids too.
        filling: tokens that each text is filled up to for the model, and the id of those added; None: none are.

    Raises:
        StartError: the file is not a tokenizer.
    """

    def __init__(
        self,
        path: Path,
        max_characters: int | None = None,
        may_be_empty: bool = False,
        segments: bool = True,
        filling: tuple[int, int] | None = None,
    ) -> None:
        import tokenizers

        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower (0.23)
            raise StartError(f"{path} is not a tokenizer.json: {error}; export the model again") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._max_characters = max_characters
        self._may_be_empty = may_be_empty
        self._segments = segments
        self._filling = filling
        self.prompt_length = lru_cache(maxsize=64)(partial(_prompt_length, self._tokenizer))  # no self: no cycle
        self.ending = lru_cache(maxsize=4)(partial(_ending, self._tokenizer))

    def encode(self, texts: Mapping[int, Text], cut: Cut) -> dict[int, Ids]:
        """Return the ids and segment ids of each text or pair, by its number in the request.

        Raises:
            TooLong, EmptyInput: a text is too long and must not be cut, or gives no token.
        """
        # encode_batch_fast releases the GIL, encode holds it (tokenizers 0.23)
        encoded = self._encode(texts, cut, self._tokenizer.encode_batch_fast)
        at_end = cut.direction == "right"
        return {
            index: self._ids(kept, shortened, text.ending if at_end else ())
            for index, text, _, kept, shortened in encoded
        }

    def encode_located(
        self, texts: Mapping[int, Text], cut: Cut, prompt: str
    ) -> tuple[dict[int, Ids], dict[int, OwnTokens]]:
        """Return the result of `encode` for texts after a prompt, and where the tokens of each text lie.

        `encode` keeps no offsets, with which it takes twice as long.
        """
        ids, located = {}, {}
        for index, text, whole, kept, shortened in self._encode(texts, cut, self._tokenizer.encode_batch):
            ids[index] = self._ids(kept, shortened)
            left = cut.direction == "left"
            removed = len(texts[index].text) - len(text.text) if left else 0
            located[index] = own_tokens(whole, kept, len(prompt) - removed, left)
        return ids, located

    def _encode(
        self, texts: Mapping[int, Text], cut: Cut, encode: EncodeBatch
    ) -> Iterator[tuple[int, Text, Any, Any, bool]]:
        """Yield for each text its number, the text within the limit of characters, its whole encoding, the one within
        the limit of tokens, and whether anything was cut."""
        sent = texts
        if self._max_characters is not None:
            texts = {index: self._short(index, text, cut) for index, text in texts.items()}
        raw = [text.text if text.pair is None else (text.text, text.pair) for text in texts.values()]
        encodings = encode(raw, add_special_tokens=cut.special_tokens)
        most = cut.most
        for (index, text), whole in zip(texts.items(), encodings, strict=True):
            kept, count = whole, len(whole)
            if not count or (most is not None and count > most):
                kept = self._fitted(index, text, whole, most, cut, encode)
            yield index, text, whole, kept, kept is not whole or text is not sent[index]

    def joined(self, texts: Sequence[str], cut: Cut) -> tuple[Int64s, tuple[int, ...]]:
        """Return the ids of all texts one after the other, and how many each has; what is raised is as of `encode`.

        Without arrays for each text, which take a third of the time of short ones.
        """
        most, longest = cut.most, self._max_characters
        if self._filling is None and (longest is None or max(map(len, texts), default=0) <= longest):
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=cut.special_tokens)
            ids = [encoding.ids for encoding in encodings]
            lengths = tuple(map(len, ids))
            if (self._may_be_empty or all(lengths)) and (most is None or max(lengths, default=0) <= most):
                return np.fromiter(chain.from_iterable(ids), np.int64, sum(lengths)), lengths
        each = list(self.encode({index: Text(text) for index, text in enumerate(texts)}, cut).values())
        return np.concatenate([np.empty(0, np.int64), *(sequence.ids for sequence in each)]), tuple(
            sequence.tokens for sequence in each
        )

    def tokens(self, texts: Sequence[str], special_tokens: bool, most: int) -> list[list[Token]]:
        """Return every token of each text as `written` writes them, in the same thread; nothing is cut.

        Raises:
            TooLarge: all texts together have more than `most` tokens.
        """
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=special_tokens)
        if (count := sum(map(len, encodings))) > most:
            raise too_many_tokens(count, most)
        return [_tokens(text, encoding) for text, encoding in zip(texts, encodings, strict=True)]

    def spans(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return where the tokens of each text lie in it; no special tokens are added and nothing is cut."""
        return [encoding.offsets for encoding in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    @property
    def added_to_pairs(self) -> int:
        """The number of special tokens that a pair of texts gets."""
        added: int = self._tokenizer.num_special_tokens_to_add(True)
        return added

    def decode(self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool) -> list[str]:
        """Return the text of each sequence of ids.

        Raises:
            OutOfRange: the vocabulary does not have an id.
        """
        # the library silently leaves out ids it does not know (0.23)
        unknown = {
            token_id
            for token_id in set().union(*sequences)
            if not 0 <= token_id <= MOST_ID or self.token(token_id) is None
        }
        if unknown:
            index, id_ = next(
                (at, token_id) for at, ids in enumerate(sequences) for token_id in ids if token_id in unknown
            )
            raise OutOfRange(
                f"holds {id_}, which this model's vocabulary does not have",
                field=("ids", index),
                remedy="leave it out",
            )
        texts: list[str] = self._tokenizer.decode_batch([list(ids) for ids in sequences], skip_special_tokens)
        return texts

    def pieces(self, text: str) -> list[int]:
        """Return the ids of a text without special tokens."""
        return list(self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def id_of(self, token: str) -> int | None:
        """Return the id of an entry of the vocabulary; None if there is no such entry."""
        token_id: int | None = self._tokenizer.token_to_id(token)
        return token_id

    def token(self, id_: int) -> str | None:
        """Return the entry of the vocabulary with that id; None if there is none."""
        token: str | None = self._tokenizer.id_to_token(id_)
        return token

    def text(self, id_: int) -> str:
        """Return the text of a single id; special tokens are shown."""
        text: str = self._tokenizer.decode([id_], skip_special_tokens=False)
        return text

    def _fitted(self, index: int, text: Text, whole: Any, most: int | None, cut: Cut, encode: EncodeBatch) -> Any:
        """Return the encoding of a text that is empty or too long, within `most` tokens."""
        count = len(whole)
        if not count and not self._may_be_empty:
            raise EmptyInput(
                "gives no token",
                field=("inputs", index),
                allowed="this model adds none of its own",
                remedy="send some text",
            )
        if most is None or count <= most:
            return whole
        if not cut.truncate and cut.max_tokens is None:
            raise TooLong(
                f"has {count} tokens" if text.pair is None else f"and the text paired with it have {count} tokens",
                field=("inputs", index),
                allowed=f"this model reads {most}",
                remedy=SHORTEN_OR_TRUNCATE,
            )
        return self._cut(text, most, cut, encode)

    def _ids(self, encoding: Any, cut: bool, ending: tuple[int, ...] = ()) -> Ids:
        """Return the ids of an encoding; `ending` replaces the last ones if the text was cut."""
        types = np.array(encoding.type_ids, np.int64) if self._segments else None
        ids = np.array(encoding.ids, np.int64)
        if cut and ending:
            kept = min(len(ending), len(ids))
            ids[len(ids) - kept :] = ending[len(ending) - kept :]
        return Ids(self._filled(ids) if self._filling else ids, None, types, cut=cut)

    def _filled(self, ids: Int64s) -> Int64s:
        if self._filling is None or len(ids) >= self._filling[0]:
            return ids
        filled = np.full(self._filling[0], self._filling[1], np.int64)
        filled[: len(ids)] = ids
        return filled

    def _short(self, index: int, text: Text, cut: Cut) -> Text:
        """Return the text within the limit of characters, which applies to each part of a pair."""
        most = self._max_characters
        longest = max(len(text.text), len(text.pair or ""))
        if most is None or longest <= most:
            return text
        if not cut.truncate:
            raise TooLong(
                f"has {longest} characters",
                field=("inputs", index),
                allowed=f"this model reads {most}",
                remedy=SHORTEN_OR_TRUNCATE,
            )
        kept = slice(most) if cut.direction == "right" else slice(-most, None)
        return Text(text.text[kept], text.pair and text.pair[kept], text.ending)

    def _cut(self, text: Text, max_tokens: int, cut: Cut, encode: EncodeBatch) -> Any:
        """Return the tokens of a text cut to `max_tokens`; special ones are cut last, but count (vLLM 0.33)."""
        parts = [text.text] if text.pair is None else [text.text, text.pair]
        added = self._tokenizer.num_special_tokens_to_add(len(parts) == 2) if cut.special_tokens else 0
        room = max(0, max_tokens - added)
        encodings = encode(parts, add_special_tokens=False)
        for encoding, keep in zip(encodings, _longest_first([len(part.ids) for part in encodings], room), strict=True):
            encoding.truncate(keep, direction=cut.direction)
        whole = self._tokenizer.post_process(*encodings, *[None] * (2 - len(parts)), cut.special_tokens)
        if len(whole) > max_tokens:
            whole.truncate(max_tokens, direction=cut.direction)
        return whole


async def sized(characters: int, work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
    """Return what a method of a tokenizer returns, run in a thread where it reads more than INLINE_CHARACTERS."""
    if characters <= INLINE_CHARACTERS:
        return work(*arguments)
    return await asyncio.get_running_loop().run_in_executor(None, work, *arguments)


def _tokens(text: str, encoding: Any) -> list[Token]:
    at = _byte_offsets(text)
    return [
        Token(id_, name, True) if special else Token(id_, text[start:stop], False, at[start], at[stop])
        for id_, name, special, (start, stop) in zip(
            encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets, strict=True
        )
    ]


def _byte_offsets(text: str) -> Sequence[int]:
    """Return the byte at which each character begins in UTF-8, and the end; the library counts characters (0.23)."""
    if text.isascii():
        return range(len(text) + 1)
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    widths = 1 + (codes > 0x7F) + (codes > 0x7FF) + (codes > 0xFFFF)
    offsets: list[int] = np.concatenate(([0], np.cumsum(widths))).tolist()
    return offsets


def _prompt_length(tokenizer: Any, prompt: str) -> int:
    """Return the tokens of a prompt, without a closing special token (sentence-transformers 6.2)."""
    encoding = tokenizer.encode(prompt)
    closing = bool(encoding.special_tokens_mask) and encoding.special_tokens_mask[-1] == 1
    return len(encoding.ids) - int(closing)


def _ending(tokenizer: Any, one: str, other: str) -> tuple[int, ...]:
    """Return the ids with which two texts both end, without special tokens."""
    ids = [tokenizer.encode(text, add_special_tokens=False).ids[::-1] for text in (one, other)]
    same = takewhile(lambda pair: pair[0] == pair[1], zip(*ids, strict=False))
    return tuple(each for each, _ in same)[::-1]


def _longest_first(lengths: list[int], room: int) -> list[int]:
    """Return how much of each part to keep: the longer is cut first and keeps an odd token (tokenizers 0.23)."""
    if len(lengths) == 1:
        return [min(lengths[0], room)]
    short, long = sorted(lengths)
    long = short if short > room else max(short, room - short)
    if short + long > room:
        short = room // 2
        long = short + room % 2
    return [short, long] if lengths[0] <= lengths[1] else [long, short]
