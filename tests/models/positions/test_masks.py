"""Attention masks against transformers' golden masks and a literal definition and properties."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.errors import BadEncoding
from models.positions.masks import tabulate
from models.positions.table import DTYPES, Output, rounded
from tests.golden_cases import Case, cases


@st.composite
def masks(draw: st.DrawFn) -> dict[str, Any]:
    """Parameters of `allowed`: any rules together, a cache or none, pads on either side and inside."""
    queries, past, more = draw(st.integers(1, 7)), draw(st.integers(0, 5)), draw(st.integers(0, 3))
    keys, batch = past + queries + more, draw(st.integers(1, 3))
    size = st.none() | st.integers(1, keys + 2)
    chosen: dict[str, Any] = {
        "query_length": queries,
        "key_length": keys,
        "past": past,
        "causal": draw(st.booleans()),
        "window": draw(size),
        "chunk": draw(size),
    }
    for name, most in (("attention_mask", 1), ("position_ids", 4)):
        if draw(st.booleans()):
            rows = draw(
                st.lists(st.lists(st.integers(0, most), min_size=keys, max_size=keys), min_size=batch, max_size=batch)
            )
            chosen[name] = np.array(rows, np.int64)
    return chosen


def allowed(query_length: int, key_length: int | None = None, **rules: Any) -> Any:
    """The boolean mask [B, 1, S, K], True where a query may see a key."""
    return tabulate(query_length, key_length, form="boolean", **rules).outputs["mask"].whole()


def spelt_out(
    query_length: int,
    key_length: int,
    past: int,
    causal: bool,
    window: int | None,
    chunk: int | None,
    attention_mask: Any = None,
    position_ids: Any = None,
) -> Any:
    """The definition, one query and key at a time."""
    batch = max(len(rows) if rows is not None else 1 for rows in (attention_mask, position_ids))
    actual = np.zeros((batch, 1, query_length, key_length), bool)
    for b, i, j in product(range(batch), range(query_length), range(key_length)):
        query, holds = i + past, []
        if causal:
            holds.append(j <= query)
        if window is not None:
            holds.append(j > query - window if causal else abs(query - j) <= window)
        if attention_mask is not None:
            holds.append(attention_mask[b][j] == 1)
        if position_ids is not None:
            near, far = sorted((query, j))
            holds.append(all(position_ids[b][k + 1] - position_ids[b][k] == 1 for k in range(near, far)))
        if chunk is not None and position_ids is not None:
            holds.append(position_ids[b][j] // chunk == position_ids[b][query] // chunk)
        elif chunk is not None:
            left = 0 if attention_mask is None else [*attention_mask[b], 1].index(1)
            holds.append((j - left) // chunk == (query - left) // chunk)
        actual[b, 0, i, j] = all(holds)
    return actual


def in_blocks(output: Output, size: int) -> Any:
    blocks = [output.rows(start, min(start + size, output.count)) for start in range(0, output.count, size)]
    return np.concatenate(blocks).reshape(output.shape)


def golden(case: Case) -> dict[str, Any]:
    chosen: dict[str, Any] = {
        "query_length": 8,
        "key_length": 8,
        "causal": not case.params["variant"].startswith("bidirectional"),
        "window": case.params.get("sliding_window"),
        "chunk": case.params.get("chunk_size"),
    }
    if "attention_mask" in case.arrays:
        chosen["attention_mask"] = case.arrays["attention_mask"]
    if "position_ids" in case.params:
        chosen["position_ids"] = np.array(case.params["position_ids"])
    return chosen


@pytest.mark.parametrize("case", cases("mask"), ids=repr)
def test_masks_are_bitwise_those_of_transformers(case: Case) -> None:
    chosen, expected = golden(case), case.arrays["mask"]
    table = tabulate(**chosen)
    np.testing.assert_array_equal(table.outputs["mask"].whole(), expected)
    assert table.facts["masked"] == case.params["dtype_min"]
    assert table.facts["queries_that_see_nothing"] == np.count_nonzero((expected != 0).all(axis=-1))


@settings(max_examples=150)
@given(masks(), st.integers(1, 9))
def test_mask_is_the_and_of_its_rules_in_any_blocks(chosen: dict[str, Any], size: int) -> None:
    expected = spelt_out(**chosen)
    table = tabulate(**chosen, form="boolean")
    np.testing.assert_array_equal(table.outputs["mask"].whole(), expected)
    np.testing.assert_array_equal(in_blocks(table.outputs["mask"], size), expected)
    assert table.facts["queries_that_see_nothing"] == np.count_nonzero(~expected.any(axis=-1))


@given(masks())
def test_two_rules_combine_by_and(chosen: dict[str, Any]) -> None:
    sizes = {name: chosen[name] for name in ("query_length", "key_length", "past")}
    # a chunk is counted by what else is given, and what a window means depends on causal
    rows = {name: chosen[name] for name in ("attention_mask", "position_ids") if name in chosen}
    window = {"causal": chosen["causal"], "window": chosen["window"]}
    alone = [allowed(**sizes, causal=False, **{name: each}) for name, each in rows.items()]
    alone += [allowed(**sizes, **window), allowed(**sizes, **rows, causal=False, chunk=chosen["chunk"])]
    together = np.logical_and.reduce(np.broadcast_arrays(*alone))
    np.testing.assert_array_equal(allowed(**chosen), together)


@given(st.integers(1, 12), st.integers(0, 12), st.integers(0, 3))
def test_window_as_long_as_the_row_has_no_effect(length: int, past: int, more: int) -> None:
    causal = allowed(length, past=past)
    np.testing.assert_array_equal(allowed(length, past=past, window=length + past + more), causal)
    np.testing.assert_array_equal(causal[0, 0], np.tri(length, length + past, past, dtype=bool))
    both = allowed(length, past=past, causal=False, window=length + past + more)
    assert both.all()


@given(st.integers(1, 20), st.integers(1, 6))
def test_causal_window_includes_the_query_itself(length: int, window: int) -> None:
    causal, both = (allowed(length, causal=each, window=window)[0, 0].sum(axis=1) for each in (True, False))
    place = np.arange(length)
    np.testing.assert_array_equal(causal, np.minimum(place + 1, window))
    np.testing.assert_array_equal(both, np.minimum(place, window) + 1 + np.minimum(place[::-1], window))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), masks())
def test_packed_sequence_sees_the_same_keys_as_alone(lengths: list[int], chosen: dict[str, Any]) -> None:
    rules = {name: chosen[name] for name in ("causal", "window", "chunk")}
    position_ids = np.concatenate([np.arange(length) for length in lengths])[None]
    expected = np.zeros((sum(lengths), sum(lengths)), bool)
    for end, length in zip(np.cumsum(lengths), lengths, strict=True):
        expected[end - length : end, end - length : end] = allowed(length, **rules)[0, 0]
    np.testing.assert_array_equal(allowed(sum(lengths), position_ids=position_ids, **rules)[0, 0], expected)


@given(masks())
def test_real_query_sees_itself(chosen: dict[str, Any]) -> None:
    seen = allowed(**chosen)[:, 0]  # [B, S, K]
    queries = np.arange(chosen["query_length"])
    own = seen[:, queries, queries + chosen["past"]]
    real = chosen.get("attention_mask", np.ones((1, chosen["key_length"]), np.int64))[:, queries + chosen["past"]]
    np.testing.assert_array_equal(own, np.broadcast_to(real == 1, own.shape))


@given(masks(), st.integers(1, 5))
def test_left_padding_only_shifts_a_mask(chosen: dict[str, Any], pads: int) -> None:
    length = chosen["query_length"]
    rules = {name: chosen[name] for name in ("causal", "window", "chunk")}
    padded = allowed(length + pads, attention_mask=np.array([[0] * pads + [1] * length]), **rules)
    np.testing.assert_array_equal(padded[0, 0, pads:, pads:], allowed(length, **rules)[0, 0])
    assert not padded[..., :pads].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_key_gets_the_finite_minimum_of_the_dtype(dtype: str) -> None:
    least = {"float16": -65504.0, "bfloat16": -(2.0**127) * (2 - 2.0**-7)}
    expected = least.get(dtype) or float(np.finfo(dtype).min)
    table = tabulate(2, dtype=dtype)
    sent = rounded(table.outputs["mask"].whole(), dtype)
    assert sent[0, 0].astype(np.float64).tolist() == [[0.0, expected], [0.0, 0.0]]
    assert table.facts["masked"] == expected


def test_note_explains_queries_without_visible_keys() -> None:
    padded: dict[str, Any] = {"query_length": 3, "attention_mask": np.array([[0, 1, 1]])}
    for fill, outcome in (("min", 1 / 3), ("inf", np.nan)):
        table = tabulate(**padded, fill=fill)
        row = table.outputs["mask"].whole()[0, 0, 0]
        with np.errstate(invalid="ignore"):
            weights = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        np.testing.assert_allclose(weights, outcome)
        (note,) = table.notes
        assert note.startswith("queries that see no key: 1; ")
        assert ("NaN" in note) == (fill == "inf")
    assert tabulate(3, fill="inf").notes == ()


def test_cross_attention_may_have_fewer_keys_than_queries() -> None:
    chosen = {"query_length": 4, "attention_mask": np.array([[1, 0]]), "causal": False}
    assert allowed(**chosen).tolist() == [[[[True, False]] * 4]]
    blind = tabulate(4, attention_mask=np.array([[1, 0], [0, 0]]), causal=False)
    assert blind.facts["queries_that_see_nothing"] == 4


def test_million_by_million_mask_is_read_by_row() -> None:
    length = 1_048_576
    mask = tabulate(length, window=4096).outputs["mask"]
    row = mask.rows(length - 1, length)[0]
    assert np.flatnonzero(row == 0).tolist() == list(range(length - 4096, length))


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"query_length": 0}, "query_length is 0; it must be a whole number from 1"),
    ({"past": -1}, "past is -1; it must be a whole number from 0"),
    ({"window": 0}, "window is 0; it must be a whole number from 1"),
    ({"chunk": 0}, "chunk is 0; it must be a whole number from 1"),
    ({"past": 2, "key_length": 5}, "key_length is 5; past and query_length make 6: send at least that, or"),
    ({"attention_mask": np.ones((1, 3), int), "key_length": 4}, "attention_mask has 3 keys; key_length is 4"),
    (
        {"attention_mask": np.ones(4, int)},
        r"attention_mask is int64 \[4\]; it must be whole numbers \[batch, key_length\]",
    ),
    ({"attention_mask": np.full((1, 4), 2)}, "attention_mask holds other numbers than 0"),
    ({"attention_mask": np.ones((1, 4))}, "attention_mask is float64"),
    (
        {"attention_mask": np.ones((2, 4), int), "position_ids": np.ones((3, 4), int)},
        "rows of the batch: attention_mask 2 and position_ids 3",
    ),
    ({"form": "log"}, "form 'log' is not one of additive, boolean"),
    ({"fill": "nan"}, "fill 'nan' is not one of min, inf"),
    ({"dtype": "int8"}, "dtype 'int8' is not one of float64, float32, float16, bfloat16"),
)


@pytest.mark.parametrize(("wrong", "message"), REFUSED)
def test_rejects_impossible_parameters_with_the_reason(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(BadEncoding, match=message):
        tabulate(**({"query_length": 4} | wrong))
