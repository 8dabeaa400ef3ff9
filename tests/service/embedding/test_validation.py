"""Token ids are checked before they are packed; positions and segments left out follow the family's rule."""

from dataclasses import replace

import numpy as np
import pytest

from models.artifacts.card import Card
from models.positions.learned import PositionRule
from models.recipes.positional_encodings import Encodings
from service.embedding.requests import Ids
from service.embedding.tokenize import validation as sequences
from service.embedding.tokenize.packing import pack
from service.errors import BadInput, InlayError, OutOfRange


def card(**changes) -> Card:
    return replace(
        Card(
            name="tiny", family="bert", hidden_size=4, vocab_size=50, max_tokens=8, pad_id=0, type_rows=2,
            types="zeros",
            position=PositionRule("arange", 0, 8), graphs={}, default_output="input_embeddings", recipe=(), encoder=(),
            weights=None, tokenizer=None, pooling=None, prompts={}, default_prompt=None,
            encodings=Encodings(), dtype="float32", parameters=0, bytes=0, flops_per_token={},
            flops_per_token_and_key=0, largest_difference={}, tolerance=0, files={}, source="", tool="",
        ),
        **changes,
    )  # fmt: skip


def ids(*values: int, **others) -> Ids:
    return Ids(np.array(values, np.int64), **{name: np.array(value, np.int64) for name, value in others.items()})


ROBERTA = PositionRule("cumsum_non_pad", 1, 10, 1)


@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        (ids(), r"inputs\[3\] has no token ids"),
        (ids(1, 50), r"inputs\[3\].input_ids\[1\] is 50; the vocabulary holds 0 to 49"),
        (ids(-1), r"inputs\[3\].input_ids\[0\] is -1; the vocabulary holds 0 to 49"),
        (ids(1, mask=[1, 1]), r"inputs\[3\].attention_mask has 2 values where input_ids has 1"),
        (ids(1, mask=[2]), r"inputs\[3\].attention_mask\[0\] is 2; a mask holds 0 to 1"),
        (ids(1, types=[2]), r"inputs\[3\].token_type_ids\[0\] is 2; the segment table holds 0 to 1"),
        (ids(1, positions=[8]), r"inputs\[3\].position_ids\[0\] is 8; the position table holds 0 to 7"),
        (
            ids(*[1] * 9),
            r"inputs\[3\] has 9 token ids; tiny has positions for 8: shorten it or send \"truncate\": true",
        ),
    ],
)
def test_bad_input_names_its_field_and_what_is_allowed(sequence, message):
    with pytest.raises(InlayError, match=message) as caught:
        sequences.check(card(), 3, sequence, truncate=False, direction="right")
    assert caught.value.index == 3
    assert caught.value.field[:2] == ("inputs", 3)


@pytest.mark.parametrize(("direction", "kept"), [("right", range(8)), ("left", range(2, 10))])
def test_truncation_cuts_all_lists_alike(direction, kept):
    sequence = ids(*range(10), mask=[1] * 10, types=[0] * 10, positions=[*range(8), 0, 0])
    cut = sequences.check(card(), 0, sequence, True, direction)
    np.testing.assert_array_equal(cut.ids, list(kept))
    assert len(cut.mask) == len(cut.types) == len(cut.positions) == 8


def test_family_without_segments_takes_only_zeros():
    plain = card(types="none", type_rows=0)
    assert sequences.check(plain, 0, ids(1, 2, types=[0, 0]), True, "right").types is None
    with pytest.raises(BadInput, match="bert models have no segments"):
        sequences.check(plain, 0, ids(1, 2, types=[0, 1]), True, "right")


def test_gpt2_segments_index_the_vocabulary():
    gpt2 = card(types="optional", type_rows=0)
    assert sequences.check(gpt2, 0, ids(1, types=[49]), True, "right").types is not None
    with pytest.raises(OutOfRange, match="is 50"):
        sequences.check(gpt2, 0, ids(1, types=[50]), True, "right")


def test_default_positions_follow_the_family():
    packed = pack(card(), [ids(5, 6), ids(7, 8, 9, positions=[4, 4, 4])])
    np.testing.assert_array_equal(packed.positions, [0, 1, 4, 4, 4])
    np.testing.assert_array_equal(packed.types, [0] * 5)
    assert packed.lengths == (2, 3)
    roberta = pack(card(position=ROBERTA), [ids(1, 1, 5, 6)])
    np.testing.assert_array_equal(roberta.positions, [1, 1, 2, 3])


def test_roberta_length_excludes_the_pad_rows():
    roberta = card(position=ROBERTA)
    assert len(sequences.check(roberta, 0, ids(*[5] * 8), False, "right").ids) == 8
    with pytest.raises(BadInput, match="positions for 8"):
        sequences.check(roberta, 0, ids(*[5] * 9), False, "right")
