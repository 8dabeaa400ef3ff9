"""Texts tokenized to one array have the ids that they have one by one."""

import numpy as np
import pytest

from service.embedding.requests import Cut, Text
from service.embedding.tokenize.tokenizer import Tokenizer
from tests.static_golden import static_case

TEXTS = ["a text", "", "another, longer text " * 40, "x", "end"]
FILE = static_case("model2vec").folder / "tokenizer.json"


def test_ids_are_those_of_each_text() -> None:
    tokenizer = Tokenizer(FILE, may_be_empty=(True, True))
    for texts in (TEXTS, TEXTS[:2], []):
        each = tokenizer.encode({number: Text(text) for number, text in enumerate(texts)}, Cut()).values()
        joined = tokenizer.joined(texts, Cut())
        assert joined is not None
        ids, lengths = joined
        assert lengths == tuple(len(sequence.ids) for sequence in each)
        assert ids.dtype == np.int64
        assert ids.tolist() == [number for sequence in each for number in sequence.ids.tolist()]


@pytest.mark.parametrize(
    ("tokenizer", "cut"),
    [
        (Tokenizer(FILE, may_be_empty=(True, True)), Cut(most=12)),
        (Tokenizer(FILE, max_characters=30, may_be_empty=(True, True)), Cut()),
        (Tokenizer(FILE, may_be_empty=(True, True), filling=(8, 0)), Cut()),
        (Tokenizer(FILE), Cut(special_tokens=False)),
    ],
    ids=["cut", "characters", "filled", "empty"],
)
def test_other_texts_are_left_to_encode(tokenizer: Tokenizer, cut: Cut) -> None:
    assert tokenizer.joined(TEXTS, cut) is None
