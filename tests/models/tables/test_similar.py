"""Nearest rows against numpy's float64 over the whole table, for every dtype, block size and ties."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from models.errors import BadQuery
from models.tables import quantization, row_blocks
from models.tables.quantization import QuantizedTable
from models.tables.row_blocks import blocks, floats
from models.tables.similar import MEASURES, combined, nearest

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)


def table_of(dtype: Any, rows: int = 700, width: int = 33, seed: int = 0) -> NDArray[Any]:
    """Random rows: some zero, some duplicated, some almost equal, some long and some short."""
    random = np.random.default_rng(seed)
    table = random.standard_normal((rows, width)).astype(np.float32)
    table[5] = table[600] = 0
    table[77] = table[9] = table[450]
    table[100:160] = table[99] + random.standard_normal((60, width)) * 2e-6
    table[200:210] *= 1e-9
    table[210:220] *= 1e3
    return table.astype(dtype)


def judged(table: NDArray[Any], query: NDArray[np.float64], measure: str) -> NDArray[np.float64]:
    """Scores of every row, in float64."""
    rows = np.asarray(table).astype(np.float64)
    if measure == "euclidean":
        return np.asarray(-np.linalg.norm(rows - query, axis=1))
    dots = rows @ query
    if measure == "dot":
        return np.asarray(dots)
    sizes = np.linalg.norm(rows, axis=1) * np.linalg.norm(query)
    return np.asarray(np.where(sizes > 0, dots / np.where(sizes > 0, sizes, 1), 0))


def check(table: Any, query: NDArray[np.float64], measure: str, top_k: int, exclude: tuple[int, ...] = ()) -> None:
    actual = nearest(table, query, measure=measure, top_k=top_k, exclude=exclude)
    expected = judged(table[:], query, measure)
    allowed = np.delete(np.arange(len(expected)), list(exclude))
    best = allowed[np.lexsort((allowed, -expected[allowed]))][:top_k]
    ids, scores = np.array([id_ for id_, _ in actual]), np.array([score for _, score in actual])
    np.testing.assert_allclose(scores, expected[best], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(expected[ids], expected[best], rtol=1e-12, atol=1e-12)
    assert len(set(ids)) == len(ids) == min(top_k, len(allowed))
    assert not set(ids) & set(exclude)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("seed", range(6))
def test_nearest_rows_match_float64(dtype: Any, measure: str, seed: int) -> None:
    table = table_of(dtype, seed=seed)
    random = np.random.default_rng(seed)
    for query in (random.standard_normal(33), floats(table[[99]], np.float64)[0], random.standard_normal(33) * 1e-20):
        check(table, query, measure, 30)


@pytest.mark.parametrize("measure", MEASURES)
def test_ranks_rows_that_are_equal_in_float32(measure: str) -> None:
    random = np.random.default_rng(1)
    table = (1 + random.standard_normal((3000, 200)) * 1e-7).astype(np.float32)
    check(table, np.linspace(1, 2, 200), measure, 100)


def test_quantised_table_is_searched_dequantised() -> None:
    rows = np.random.default_rng(2).standard_normal((500, 32)).astype(np.float32)
    scales = quantization.ranges(rows)
    table = QuantizedTable(quantization.codes(rows, scales), scales)
    check(table, rows[7].astype(np.float64), "cosine", 20)


def test_result_is_independent_of_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    table, query = table_of(np.float16), np.linspace(-1, 1, 33)
    whole = nearest(table, query, top_k=700)
    monkeypatch.setattr(row_blocks, "BLOCK_VALUES", 50)
    assert nearest(table, query, top_k=700) == whole


def test_equal_rows_are_ordered_by_index() -> None:
    table = np.ones((300, 7), np.float32)
    assert [id_ for id_, _ in nearest(table, np.ones(7), top_k=300)] == list(range(300))


def test_excludes_rows_and_top_k_may_exceed_the_table() -> None:
    table = table_of(np.float32)
    check(table, table[9].astype(np.float64), "cosine", 5, exclude=(9, 77))
    check(table, table[9].astype(np.float64), "dot", 5000, exclude=(9, 9, 3))
    assert nearest(table[:2], np.ones(33), exclude=(0, 1)) == []


def test_row_is_nearest_to_itself() -> None:
    table = np.random.default_rng(3).standard_normal((100, 16)).astype(np.float32)
    query = table[41].astype(np.float64)
    assert nearest(table, query, top_k=1)[0] == (41, pytest.approx(1, abs=1e-15))
    assert nearest(table, query, measure="euclidean", top_k=1) == [(41, 0.0)]


def test_analogy_of_a_parallelogram_is_its_fourth_corner() -> None:
    random = np.random.default_rng(4)
    table = random.standard_normal((400, 24)).astype(np.float32)
    table[3] = table[0] - table[1] + table[2]
    a, b, c = (table[row].astype(np.float64) for row in range(3))
    actual = nearest(table, combined(table, [a, c], [b]), exclude=(0, 1, 2), top_k=1)
    assert actual[0] == (3, pytest.approx(1, abs=1e-6))
    unit = [vector / np.linalg.norm(vector) for vector in (a, b, c)]
    np.testing.assert_allclose(combined(table, [a, c], [b], normalise=True), unit[0] - unit[1] + unit[2], atol=1e-15)


def test_every_float16_is_widened_exactly() -> None:
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)][None]
    np.testing.assert_array_equal(floats(halves).view(np.uint32), halves.astype(np.float32).view(np.uint32))


def test_blocks_cover_a_table_once() -> None:
    table = table_of(ml_dtypes.bfloat16)
    for dtype in (np.float32, np.float64):
        parts = list(blocks(table, dtype, values=100))
        assert [start for start, _ in parts] == list(range(0, 700, 3))
        np.testing.assert_array_equal(np.concatenate([rows for _, rows in parts]), table.astype(dtype))


def test_search_stops_when_the_check_raises() -> None:
    def stop() -> None:
        raise TimeoutError

    table = table_of(np.float32)
    with pytest.raises(TimeoutError):
        nearest(table, np.ones(33), check=stop)


@pytest.mark.parametrize(
    ("query", "measure", "says"),
    [
        (np.ones(32), "cosine", r"shape \[32\]; the table's rows have 33"),
        (np.ones((1, 33)), "cosine", r"shape \[1, 33\]"),
        (np.zeros(33), "cosine", "length 0"),
        (np.full(33, np.nan), "dot", "not a number"),
        (np.full(33, 1e39), "dot", "beyond float32"),
        (np.ones(33), "manhattan", "one of cosine, dot, euclidean"),
    ],
)
def test_rejects_impossible_queries(query: NDArray[np.float64], measure: str, says: str) -> None:
    table = table_of(np.float32)
    with pytest.raises(BadQuery, match=says):
        nearest(table, query, measure=measure)


def test_rejects_normalising_a_zero_vector() -> None:
    with pytest.raises(BadQuery, match="length 0"):
        combined(np.ones((2, 3)), [np.zeros(3)], normalise=True)
