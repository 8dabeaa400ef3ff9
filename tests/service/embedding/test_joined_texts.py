"""Texts tokenized to one array have the ids that they have one by one: long, empty and cut ones too."""

import numpy as np
import pytest

from service.embedding.requests import Cut, Text
from service.embedding.tokenize.tokenizer import Tokenizer
from service.errors import EmptyInput, TooLong
from tests.static_golden import static_case

TEXTS = ["a text", "", "another, longer text " * 40, "x", "end"]
FILE = static_case("model2vec").folder / "tokenizer.json"


@pytest.mark.parametrize(
    ("tokenizer", "most"),
    [
        (Tokenizer(FILE, may_be_empty=(True, True)), None),
        (Tokenizer(FILE, may_be_empty=(True, True)), 12),
        (Tokenizer(FILE, max_characters=30, may_be_empty=(True, True)), None),
        (Tokenizer(FILE, may_be_empty=(True, True), filling=(8, 0)), None),
    ],
    ids=["plain", "cut", "characters", "filled"],
)
def test_ids_are_those_of_each_text(tokenizer: Tokenizer, most: int | None) -> None:
    for texts in (TEXTS, TEXTS[:2], []):
        each = tokenizer.encode({number: Text(text) for number, text in enumerate(texts)}, Cut(most=most)).values()
        ids, lengths = tokenizer.joined(texts, Cut(most=most))
        assert lengths == tuple(len(sequence.ids) for sequence in each)
        assert ids.dtype == np.int64
        assert ids.tolist() == [number for sequence in each for number in sequence.ids.tolist()]


def test_a_text_without_tokens_or_too_long_is_named() -> None:
    with pytest.raises(EmptyInput) as empty:
        Tokenizer(FILE).joined(["a", "", "b"], Cut(special_tokens=False))
    assert empty.value.index == 1
    with pytest.raises(TooLong) as long:
        Tokenizer(FILE).joined(TEXTS, Cut(truncate=False, most=12))
    assert long.value.index == 2
