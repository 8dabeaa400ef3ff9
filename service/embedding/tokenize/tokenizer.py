"""Tokenizers: text to token ids and back, with the model's own special tokens and limits."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, takewhile
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import numpy as np

from models.recipes.static import WordRules
from service.embedding.limits import too_many_tokens
from service.embedding.requests import Cut, Ids, Int64s, OwnTokens, Text
from service.embedding.tokenize.packing import cut_by_size
from service.embedding.tokenize.text_tokens import (
    LongText,
    TextTokens,
    compared,
    frame_of,
    longest_first,
    own_tokens,
    read_tokens,
    whole_characters,
)
from service.embedding.tokenize.words import Words
from service.errors import SHORTEN_OR_TRUNCATE, BadInput, EmptyInput, OutOfRange, StartError, TooLong, Unavailable
from service.heavy.lane import has_processes, run_beside
from service.scheduling.memory_budget import MemoryBudget

INLINE_CHARACTERS = 2000  # about half a millisecond of tokenising; longer work goes to a thread
TOGETHER_CHARACTERS = 1 << 14  # of texts that a thread tokenizes at once: 18 MB at CHARACTER_BYTES
THREAD_CHARACTERS = 1 << 16  # of a text that a thread tokenizes; its memory is reserved
LISTED_CHARACTERS = 1 << 12  # of texts whose tokens a thread makes objects of
CHARACTER_BYTES = 1100  # of memory, most of which a token takes: 2 tokens a character, as of Hangul in WordPiece
MOST_ID = 2**32 - 1  # what the library's ids hold
Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")
Stamp = tuple[int, int, int]


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
        may_be_empty: whether a text may give no token, where the model's own are left out and where they are added.
        segments: return segment ids too.
        filling: tokens that each text is filled up to for the model, and the id of those added; None: none are.
        words: how texts are split into the words of the vocabulary; None: as the file says.

    Raises:
        StartError: the file is not a tokenizer.
    """

    def __init__(
        self,
        path: Path,
        max_characters: int | None = None,
        may_be_empty: tuple[bool, bool] = (False, False),
        segments: bool = True,
        filling: tuple[int, int] | None = None,
        words: WordRules | None = None,
    ) -> None:
        import tokenizers

        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower (0.23)
            raise StartError(f"{path} is not a tokenizer.json: {error}; export the model again") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        if words:
            vocabulary = frozenset(self._tokenizer.get_vocab())
            self._tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.PreTokenizer.custom(Words(vocabulary, words))
        self._path, self.stamp = path, _stamp(path)
        self._options = (max_characters, may_be_empty, segments, filling, words)
        self._max_characters = max_characters
        self._may_be_empty = may_be_empty
        self._segments = segments
        self._filling = filling
        self.frame = lru_cache(maxsize=4)(partial(frame_of, self._tokenizer))  # no self: no cycle
        self._longest = lru_cache(maxsize=64)(partial(_longest, max_characters))
        self.prompt_length = lru_cache(maxsize=64)(partial(_prompt_length, self._tokenizer))
        self.ending = lru_cache(maxsize=4)(partial(_ending, self._tokenizer))

    def __reduce__(self) -> tuple[Any, ...]:
        """Load the same file in the heavy process, which keeps it."""
        return _loaded, (self._path, self.stamp, self._options)

    def encode(self, texts: Mapping[int, Text], cut: Cut, limit: int | None = None) -> dict[int, Ids]:
        """Return the ids and segment ids of each text or pair, by its number in the request.

        Args:
            limit: characters of a text to tokenize at once, at most; None: any number.

        Raises:
            LongText: a text needs more than `limit`.
            TooLong, EmptyInput: a text is too long and must not be cut, or gives no token.
        """
        longest, ids = self._longest(cut.most, limit), dict[int, Ids]()
        sizes = {index: len(text.text) + len(text.pair or "") for index, text in texts.items()}
        for batch in cut_by_size(texts, sizes, TOGETHER_CHARACTERS):
            whole = {
                index: texts[index].text if texts[index].pair is None else texts[index][:2]
                for index in batch
                if max(len(texts[index].text), len(texts[index].pair or "")) <= longest
            }
            encodings = self._encode(list(whole.values()), cut.special_tokens)
            encoded = dict(zip(whole, encodings, strict=True))
            for index in batch:
                encoding = encoded.get(index)
                if encoding is None or not 0 < len(encoding) <= (cut.most or len(encoding)):
                    ids[index], _ = self._read(index, texts[index], cut, limit)
                else:
                    types = np.array(encoding.type_ids, np.int64) if self._segments else None
                    read = np.array(encoding.ids, np.int64)
                    ids[index] = Ids(self._filled(read) if self._filling else read, None, types)
        return ids

    def _encode(self, texts: Sequence[Any], add_special_tokens: bool, located: bool = False) -> list[Any]:
        """Return the library's encodings of texts and pairs; `located`: with offsets.

        Raises:
            BadInput: a text holds an unknown character, and the vocabulary has no token for these.
        """
        # encode_batch_fast releases the GIL, encode holds it (tokenizers 0.23)
        encode = self._tokenizer.encode_batch if located else self._tokenizer.encode_batch_fast
        try:
            encodings: list[Any] = encode(list(texts), add_special_tokens=add_special_tokens)
        except Exception as error:  # the library raises nothing narrower (0.23)
            raise BadInput(
                f"hold a character that this model's vocabulary does not have ({error})",
                field=("inputs",),
                remedy="leave it out, or export the model with a tokenizer that has a token for unknown characters",
            ) from error
        return encodings

    def encode_located(
        self, texts: Mapping[int, Text], cut: Cut, prompt: str, limit: int | None = None
    ) -> tuple[dict[int, Ids], dict[int, OwnTokens]]:
        """Return the result of `encode` for texts after a prompt, and where the tokens of each text lie."""
        found = {index: self._read(index, text, cut, limit, prompt) for index, text in texts.items()}
        return {index: ids for index, (ids, _) in found.items()}, {
            index: located for index, (_, located) in found.items() if located is not None
        }

    def _read(
        self, index: int, sent: Text, cut: Cut, limit: int | None, prompt: str | None = None
    ) -> tuple[Ids, OwnTokens | None]:
        """Return the ids of one text or pair, no more of which is tokenized than can be read.

        Special tokens are cut last, but count (vLLM 0.33).

        Args:
            prompt: the text begins with it, and the places of the tokens behind it are returned; None: they are not.
        """
        text, left, most, locate = self._short(index, sent, cut), cut.direction == "left", cut.most, prompt is not None
        texts = [text.text] if text.pair is None else [text.text, text.pair]
        frame = self.frame(len(texts) == 2, cut.special_tokens)
        room = None if most is None else max(0, most - frame.tokens)
        encode = partial(self._encode, located=locate)
        wanted = None if left and locate else room  # how many tokens are before the last is told
        parts = [read_tokens(encode, each, wanted, left, locate, limit) for each in texts]
        shortened = self._is_over(index, text, cut, parts, frame.tokens)
        keeps = [len(part.ids) for part in parts]
        if room is not None and shortened:
            keeps = longest_first(compared(encode, texts, parts, room), room)
        kept = [
            slice(len(part.ids) - keep, len(part.ids)) if left else slice(0, keep)
            for part, keep in zip(parts, keeps, strict=True)
        ]
        ids, types = frame.around([part.ids[place] for part, place in zip(parts, kept, strict=True)])
        if most is not None and len(ids) > most:
            ids, types = (each[len(each) - most :] if left else each[:most] for each in (ids, types))
        shortened |= text is not sent
        if shortened and text.ending and not left:
            ending = text.ending[-len(ids) :]
            ids[len(ids) - len(ending) :] = ending
        removed = len(sent.text) - len(text.text) if left else 0
        located = None if prompt is None else own_tokens(parts[0], kept[0], len(frame.ids[0]), len(prompt) - removed)
        return Ids(self._filled(ids), None, types if self._segments else None, cut=shortened), located

    def _is_over(self, index: int, text: Text, cut: Cut, parts: Sequence[TextTokens], special: int) -> bool:
        """Return whether a text has more tokens than are read.

        Raises:
            EmptyInput, TooLong: it has none, or may not be cut.
        """
        known = [part.total for part in parts if part.total is not None]
        count = special + sum(known) if len(known) == len(parts) else None
        if count == 0 and not self._may_be_empty[cut.special_tokens]:
            raise EmptyInput(
                "gives no token",
                field=("inputs", index),
                allowed="this model adds none of its own",
                remedy="send some text",
            )
        if cut.most is None or (count is not None and count <= cut.most):
            return False
        if not cut.truncate and cut.max_tokens is None:
            has = f"{count if count is not None else f'more than {cut.most}'} tokens"
            raise TooLong(
                f"has {has}" if text.pair is None else f"and the text paired with it have {has}",
                field=("inputs", index),
                allowed=f"this model reads {cut.most}",
                remedy=SHORTEN_OR_TRUNCATE,
            )
        return True

    def joined(self, texts: Sequence[str], cut: Cut) -> tuple[Int64s, tuple[int, ...]] | None:
        """Return the ids of all texts one after the other, and how many each has; None: `encode` has to cut one.

        Without arrays for each text, which take a third of the time of short ones.
        """
        most = cut.most
        if self._filling is None and max(map(len, texts), default=0) <= self._longest(cut.most, None):
            encodings = self._encode(texts, cut.special_tokens)
            ids = [encoding.ids for encoding in encodings]
            lengths = tuple(map(len, ids))
            complete = self._may_be_empty[cut.special_tokens] or all(lengths)
            if complete and (most is None or max(lengths, default=0) <= most):
                return np.fromiter(chain.from_iterable(ids), np.int64, sum(lengths)), lengths
        return None

    def tokens(
        self,
        texts: Sequence[str],
        special_tokens: bool,
        most: int,
        write: Callable[[list[list[Token]]], Result],
        limit: int | None = None,
    ) -> Result:
        """Return what `write` makes of every token of each text; nothing is cut.

        Raises:
            LongText: there is a `limit`, and the texts have more than LISTED_CHARACTERS.
            TooLarge: all texts together have more than `most` tokens.
        """
        if limit is not None and sum(map(len, texts)) > LISTED_CHARACTERS:
            raise LongText
        encodings = self._encode(texts, special_tokens, located=True)
        if (count := sum(map(len, encodings))) > most:
            raise too_many_tokens(count, most)
        return write([_tokens(text, encoding) for text, encoding in zip(texts, encodings, strict=True)])

    def places(self, texts: Sequence[str], most: int, limit: int | None = None) -> list[TextTokens]:
        """Return the first `most` tokens of each text with their places in it, without special tokens."""
        encode = partial(self._encode, located=True)
        return [read_tokens(encode, text, most, False, True, limit) for text in texts]

    @property
    def added_to_pairs(self) -> int:
        """The number of special tokens that a pair of texts gets."""
        added: int = self._tokenizer.num_special_tokens_to_add(True)
        return added

    def decode(self, sequences: Sequence[list[int]], skip_special_tokens: bool, limit: int | None = None) -> list[str]:
        """Return the text of each sequence of ids.

        Raises:
            LongText: there are more than `limit` ids.
            OutOfRange: the vocabulary does not have an id.
        """
        if limit is not None and sum(map(len, sequences)) > limit:
            raise LongText
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
        texts: list[str] = self._tokenizer.decode_batch(list(sequences), skip_special_tokens)
        return texts

    def pieces(self, text: str) -> list[int]:
        """Return the ids of a text without special tokens."""
        return list(self._encode([text], False)[0].ids)

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


async def beside(
    characters: int, budget: MemoryBudget, work: Callable[[*Arguments, int | None], Result], *arguments: *Arguments
) -> Result:
    """Return what a method of a tokenizer returns: in a thread, and what is too long for it by the heavy process.

    Args:
        characters: of all texts, or ids; INLINE_CHARACTERS are read on the event loop.
        budget: where the memory of a long text is reserved that this process reads.
        work: a method, or a function of a module; its last argument is the `limit` of characters.
    """
    if characters <= INLINE_CHARACTERS:
        return work(*arguments, None)
    with suppress(LongText):
        return await asyncio.to_thread(work, *arguments, TOGETHER_CHARACTERS)
    with suppress(LongText), budget.held_for(CHARACTER_BYTES * min(characters, THREAD_CHARACTERS)):
        return await asyncio.to_thread(work, *arguments, THREAD_CHARACTERS)
    with budget.held_for(0 if has_processes() else CHARACTER_BYTES * characters):
        return await run_beside(work, *arguments, None)


@lru_cache(maxsize=4)
def _loaded(path: Path, stamp: Stamp, options: tuple[Any, ...]) -> Tokenizer:
    """Return the tokenizer of another process, for which this one reads texts."""
    with suppress(OSError, StartError):  # it is gone
        if (tokenizer := Tokenizer(path, *options)).stamp == stamp:
            return tokenizer
    raise Unavailable("the model's files were exchanged meanwhile", remedy="try again in a moment")


def _stamp(path: Path) -> Stamp:
    """Return what changes when the file does."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


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


def _longest(max_characters: int | None, most: int | None, limit: int | None) -> float:
    """Return the characters of a text that is tokenized whole, with its special tokens."""
    whole = None if most is None else whole_characters(most)
    return min([each for each in (whole, max_characters, limit) if each is not None], default=float("inf"))
