"""Token offsets are UTF-8 bytes for every text and kind of tokenizer, compared with the tokenizers library."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Judge

from service.embedding.tokenize.tokenizer import Token, Tokenizer
from service.errors import OutOfRange
from tests.minilm_golden import checkpoint
from tests.static_golden import static_case

FOLDERS = {
    "wordpiece": lambda: checkpoint(),
    "bytes": lambda: static_case("model2vec_bytes").folder,
    "unigram": lambda: static_case("static_prompt").folder,
}
TEXTS = (
    "",
    "plain text",
    "Crème brûlée",
    "Cre\u0300me bru\u0302le\u0301e",  # combining marks
    "今天天气很好，我们去公园散步。",
    "I love 🍕 and 👩\u200d👩\u200d👧\u200d👦 in 🇨🇭",
    "안녕하세요 세계",
    "שָׁלוֹם עוֹלָם",
    "ﬁne ①②③ İstanbul ẞ",
    " \t\u2003spaces\xa0",
)
MOST = 10**6
kinds = pytest.mark.parametrize("kind", FOLDERS)


@cache
def both(kind: str) -> tuple[Tokenizer, Any]:
    path: Path = next(FOLDERS[kind]().glob("**/tokenizer.json"))
    judge = Judge.from_file(str(path))
    judge.no_padding()
    judge.no_truncation()
    return Tokenizer(path), judge


def check(kind: str, text: str) -> None:
    ours, judge = both(kind)
    (tokens,) = ours.tokens([text], True, MOST, list)
    encoding, raw = judge.encode(text), text.encode()
    assert [token.id for token in tokens] == encoding.ids
    for token, name, special, (start, stop) in zip(
        tokens, encoding.tokens, encoding.special_tokens_mask, encoding.offsets, strict=True
    ):
        if special:
            assert token == Token(token.id, name, True, None, None)
        else:
            assert (token.start, token.stop) == (len(text[:start].encode()), len(text[:stop].encode()))
            assert raw[token.start : token.stop].decode() == token.text == text[start:stop]


@kinds
@pytest.mark.parametrize("text", TEXTS)
def test_offsets_of_many_scripts_are_bytes(kind: str, text: str) -> None:
    check(kind, text)


@kinds
@settings()  # the first example loads the tokenizer
@given(text=st.text())
def test_offsets_of_any_text_are_bytes(kind: str, text: str) -> None:
    check(kind, text)


@kinds
def test_batched_texts_tokenise_as_single_ones(kind: str) -> None:
    ours, _ = both(kind)
    assert ours.tokens(TEXTS, False, MOST, list) == [ours.tokens([text], False, MOST, list)[0] for text in TEXTS]


@kinds
def test_decode_matches_the_library_and_rejects_unknown_ids(kind: str) -> None:
    ours, judge = both(kind)
    sequences = [judge.encode(text).ids for text in TEXTS]
    for skip in (True, False):
        assert ours.decode(sequences, skip) == [judge.decode(ids, skip_special_tokens=skip) for ids in sequences]
    unknown = judge.get_vocab_size() + 1
    with pytest.raises(OutOfRange, match=rf"ids\[1\] holds {unknown}") as refusal:
        ours.decode([[0], [0, unknown]], True)
    assert refusal.value.index == 1
