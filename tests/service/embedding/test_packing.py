"""Sequences are joined and split without loss or needless copies, and padded for padded graphs alone."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from service.embedding.tokenize.packing import (
    Packed,
    feeds,
    join,
    rectangle,
    rectangles,
    split,
    unpad,
)


def packed(*lengths: int, masked: bool = False) -> Packed:
    n = sum(lengths)
    ids = np.arange(n, dtype=np.int64) + 10
    return Packed(ids, ids % 7, ids % 2, (ids % 3 > 0).astype(np.int64) if masked else None, lengths)


@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=6))
def test_split_undoes_join(parts):
    packs = [packed(*lengths) for lengths in parts]
    joined = join(packs)
    assert joined.lengths == tuple(length for lengths in parts for length in lengths)
    for pack, ids in zip(packs, split(joined.ids, [pack.tokens for pack in packs]), strict=True):
        np.testing.assert_array_equal(ids, pack.ids)


def test_join_does_not_copy_a_single_part():
    pack = packed(3)
    assert join([pack]) is pack


def test_split_returns_views():
    rows = np.zeros((5, 2))
    assert all(view.base is rows for view in split(rows, [2, 3]))


def test_join_fills_missing_masks_with_ones():
    joined = join([packed(2), packed(3, masked=True)])
    np.testing.assert_array_equal(joined.mask, [1, 1, 1, 1, 0])


def test_feeds_hold_exactly_the_inputs_of_the_graph():
    assert list(feeds(packed(2), ("ids", "positions"))) == ["ids", "positions"]
    encoder = feeds(packed(2, 1), ("ids", "positions", "mask", "lengths"))
    assert encoder["mask"].dtype == bool
    np.testing.assert_array_equal(encoder["lengths"], [2, 1])


def test_rectangle_holds_every_row_and_masks_padding():
    arrays = rectangle(packed(2, 3), ("input_ids", "attention_mask"), pad_id=1)
    np.testing.assert_array_equal(arrays["input_ids"], [[10, 11, 1], [12, 13, 14]])
    np.testing.assert_array_equal(arrays["attention_mask"], [[1, 1, 0], [1, 1, 1]])
    np.testing.assert_array_equal(unpad(arrays["input_ids"][..., None], (2, 3))[:, 0], [10, 11, 12, 13, 14])


@given(st.lists(st.integers(1, 300), min_size=1, max_size=60), st.integers(1, 600))
def test_rectangles_hold_each_sequence_once_within_the_limit(lengths: list[int], most: int) -> None:
    groups = rectangles(lengths, most)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[index] for index in group) <= most


def test_sequences_that_fit_one_rectangle_stay_in_order() -> None:
    assert rectangles([3, 1, 2], 9) == [[0, 1, 2]]
    assert rectangles([], 9) == [[]]
    assert rectangles([3, 1, 2], 8) == [[0, 2], [1]]
