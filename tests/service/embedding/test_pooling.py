"""Pooling modes follow their definitions in sentence-transformers 6.2 and leave out masked rows."""

import numpy as np
import pytest

from service.embedding.pooling import end_row, normalize, pool

ROWS = np.array([[9, 9], [1, 2], [3, -4], [5, 6], [9, 9]], np.float32)
COUNTED = np.array([False, True, True, True, False])  # masked on both sides


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("cls", [1, 2]),
        ("lasttoken", [5, 6]),
        ("max", [5, 6]),
        ("mean", [3, 4 / 3]),
        ("mean_sqrt_len_tokens", [9 / 3**0.5, 4 / 3**0.5]),
        ("weightedmean", [(1 + 2 * 3 + 3 * 5) / 6, (2 - 2 * 4 + 3 * 6) / 6]),
    ],
)
def test_modes_pool_the_counted_rows(mode, expected):
    np.testing.assert_allclose(pool(mode, ROWS, COUNTED), expected, rtol=1e-6, atol=1e-6)


def test_normalize_gives_unit_length_and_keeps_zeros():
    vectors = normalize(np.array([[3, 4], [0, 0]], np.float32))
    np.testing.assert_allclose(vectors, [[0.6, 0.8], [0, 0]], rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("cls", [3.0]),
        ("mean", [(3 + 7) / 2]),
        ("weightedmean", [(3 * 3 + 4 * 7) / (3 + 4)]),  # sentence-transformers 6.2 keeps the positions in the sequence
        ("lasttoken", [7.0]),
    ],
)
@pytest.mark.parametrize("pads", [0, 2])
def test_excluded_prompt_keeps_the_weights_of_positions(mode: str, expected: list[float], pads: int) -> None:
    rows = np.array([[9.0]] * pads + [[1.0], [2.0], [3.0], [7.0]], np.float32)
    attended = np.arange(len(rows)) >= pads
    np.testing.assert_allclose(pool(mode, rows, attended, prompt_tokens=2), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("ids", "end_id", "row"),
    [
        ([7, 3, 9, 9, 3], 9, 2),  # the first of several
        ([7, 3, 9, 12, 3], None, 3),  # the largest: files whose eos_token_id is 2
        ([7, 3], 9, 0),  # as argmax of no match
    ],
)
def test_end_row_is_that_of_clip_text_model(ids: list[int], end_id: int | None, row: int) -> None:
    assert end_row(np.array(ids), end_id) == row
    rows = np.arange(2.0 * len(ids), dtype=np.float32).reshape(-1, 2)
    assert np.array_equal(pool("eos", rows, np.ones(len(ids), bool), end=row), rows[row])
