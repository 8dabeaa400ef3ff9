"""Rows of a learned table, within it and beyond its last row, against numpy's interpolation."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from models.errors import BadEncoding
from models.positions.learned import PositionRule, positions, rows, tabulate

TABLE = np.random.default_rng(3).normal(size=(6, 4)).astype(np.float32)


def stretched(table: NDArray[Any], length: int) -> NDArray[np.float64]:
    """align_corners=False, column by column, as numpy interpolates (it clamps at both ends)."""
    source = (np.arange(length) + 0.5) * len(table) / length - 0.5
    columns = [np.interp(source, np.arange(len(table)), column) for column in table.T.astype(np.float64)]
    return np.stack(columns, axis=-1)


@pytest.mark.parametrize("beyond", ["error", "clamp", "interpolate"])
def test_positions_within_the_table_read_its_rows(beyond: Any) -> None:
    expected_rows = np.array([5, 0, 3, 3])
    assert np.array_equal(rows(TABLE, expected_rows, beyond), TABLE[expected_rows])


def test_rejects_positions_beyond_the_last_row_by_default() -> None:
    with pytest.raises(BadEncoding, match=r"position 6 is beyond the table's last row, 5: .* \"clamp\" or"):
        rows(TABLE, np.array([0, 6]))


def test_clamp_reads_the_last_row() -> None:
    assert np.array_equal(rows(TABLE, np.array([4, 5, 6, 2**40]), "clamp"), TABLE[[4, 5, 5, 5]])


@settings(max_examples=60)
@given(st.integers(1, 9), st.integers(1, 40))
def test_interpolate_is_linear_with_half_pixel_centres(count: int, length: int) -> None:
    table = np.random.default_rng(count).normal(size=(count, 3)).astype(np.float32)
    got = tabulate(table, range(length), beyond="interpolate", length=length).outputs["table"].whole()
    np.testing.assert_allclose(got, stretched(table, length), rtol=0, atol=1e-14)
    single = rows(table, np.arange(length), "interpolate", length, "parity")
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, stretched(table, length), rtol=0, atol=1e-5)


def test_interpolate_without_length_reaches_the_last_position() -> None:
    assert np.array_equal(rows(TABLE, np.array([8, 2]), "interpolate"), rows(TABLE, np.array([8, 2]), "interpolate", 9))
    table = tabulate(TABLE, np.array([8, 2]), beyond="interpolate")
    assert table.facts["length"] == 9
    assert table.notes == ("the table of 6 rows is stretched to 9: positions below 6 read other values too",)


@pytest.mark.parametrize("beyond", ["clamp", "interpolate"])
def test_block_of_rows_equals_the_whole_table(beyond: Any) -> None:
    table = tabulate(TABLE, range(3, 30), beyond=beyond).outputs["table"]
    assert np.array_equal(table.rows(4, 19), table.whole()[4:19])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_returns_the_tables_values_in_any_dtype(dtype: Any) -> None:
    table = TABLE.astype(dtype)
    got = rows(table, np.array([1, 2]))
    assert got.dtype == (np.float64 if dtype == np.float64 else np.float32)
    assert np.array_equal(got, table[1:3].astype(np.float64))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "way beyond": (lambda: rows(TABLE, np.array([1]), "wrap"), "'wrap' is not one of error, clamp, interpolate"),
    "length too short": (
        lambda: rows(TABLE, np.array([9]), "interpolate", 8),
        "length is 8, but position 9 needs at least 10 rows",
    ),
    "length without use": (lambda: rows(TABLE, np.array([1]), "clamp", 8), "only interpolate reads a length"),
    "no positions": (lambda: rows(TABLE, np.array([], np.int64)), "no positions"),
    "negative": (lambda: rows(TABLE, np.array([-1])), "position -1 is not in 0 to"),
    "no table": (lambda: rows(TABLE[0], np.array([0])), r"the position table has shape \[4\]"),
    "no rows": (lambda: rows(TABLE[:0], np.array([0])), r"the position table has shape \[0, 4\]"),
    "range beyond": (lambda: tabulate(TABLE, range(7)), "position 6 is beyond"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rejects_impossible_rows_with_the_reason(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(BadEncoding, match=message):
        call()


# spec: RobertaEmbeddings, BartLearnedPositionalEmbedding and OPTLearnedPositionalEmbedding of transformers 5.23
RULES: dict[str, tuple[PositionRule, list[int], list[int] | None, list[int]]] = {
    "bert": (PositionRule("arange", 0, 512), [7, 8, 9], None, [0, 1, 2]),
    "bart": (PositionRule("arange", 2, 1026), [7, 8, 9], None, [2, 3, 4]),
    "roberta": (PositionRule("cumsum_non_pad", 1, 514, 1), [1, 7, 8, 1], None, [1, 2, 3, 1]),
    "opt": (PositionRule("cumsum_mask", 2, 2050), [1, 7, 8, 9], [0, 1, 1, 0], [1, 2, 3, 1]),
    "opt without a mask": (PositionRule("cumsum_mask", 2, 2050), [7, 8], None, [2, 3]),
}


@pytest.mark.parametrize("name", RULES)
def test_positions_follow_the_familys_rule(name: str) -> None:
    rule, ids, mask, expected = RULES[name]
    given_mask = None if mask is None else np.array(mask)
    assert positions(rule, np.array(ids), given_mask).tolist() == expected
