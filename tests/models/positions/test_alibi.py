"""ALiBi against golden biases of transformers, and the relations between its forms."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from models.errors import BadEncoding
from models.graphs.positions.alibi import alibi
from models.positions.alibi import FORMS, slopes, tabulate
from tests.golden_cases import Case, cases
from tests.onnx_sessions import open_session

ARITHMETICS = ("exact", "parity")
HEADS = st.integers(1, 128)
LENGTHS = st.integers(1, 24)
KEY_ONLY = ("bloom", "mpt", "falcon")
# Falcon's published bias is bfloat16 through and through: only parity says the same.
GOLDEN = [
    (case, arithmetic)
    for case in cases("alibi")
    for arithmetic in ARITHMETICS
    if (case.params["variant"], arithmetic) != ("falcon", "exact")
]


def whole(heads: int, **arguments: Any) -> NDArray[Any]:
    return tabulate(heads, **arguments).outputs["bias"].whole()


def run(model: Any, **inputs: NDArray[Any]) -> NDArray[Any]:
    session = open_session(model.SerializeToString())
    (bias,) = session.run(["bias"], inputs)
    return np.asarray(bias)


@pytest.mark.parametrize(("case", "arithmetic"), GOLDEN, ids=repr)
def test_slopes_and_bias_match_transformers(case: Case, arithmetic: Any) -> None:
    heads, form, mask = case.params["num_heads"], case.params["variant"], case.arrays.get("attention_mask")
    arguments: Any = {"form": form, "arithmetic": arithmetic, "max_bias": case.params.get("alibi_bias_max", 8)}
    keys = case.arrays["bias"].shape[-1]
    table = tabulate(heads, query_length=keys, attention_mask=mask, **arguments)
    graph = alibi(heads, masked=mask is not None, **arguments)
    inputs = {"key_positions": np.arange(keys)[None]} if mask is None else {"attention_mask": mask}
    for bias in (table.outputs["bias"].whole(), run(graph, **inputs)):
        rtol = case.tolerance["bias"]["rtol"]
        np.testing.assert_allclose(bias.reshape(case.arrays["bias"].shape), case.arrays["bias"], rtol=rtol, atol=1e-9)
    if "slopes" in case.arrays:
        rtol = case.tolerance["slopes"]["rtol"]
        np.testing.assert_allclose(table.outputs["slopes"].whole(), case.arrays["slopes"], rtol=rtol, atol=1e-9)


@pytest.mark.parametrize("max_bias", [8.0, 16.0, 6.5])
@pytest.mark.parametrize("heads", [1, 2, 3, 12, 71, 100, 112])
def test_exact_slopes_match_the_paper_in_40_digits(heads: int, max_bias: float) -> None:
    with mpmath.workdps(40):
        power = 2 ** (heads.bit_length() - 1)
        exponents = [mpmath.mpf(max_bias) * (h + 1) / power for h in range(power)]
        exponents += [mpmath.mpf(max_bias) / 2 * (2 * h + 1) / power for h in range(heads - power)]
        expected = [float(mpmath.mpf(2) ** -exponent) for exponent in exponents]
    np.testing.assert_allclose(slopes(heads, max_bias), expected, rtol=1e-15, atol=1e-18)


@given(st.integers(0, 8).map(lambda bits: 2**bits), st.floats(0.5, 64))
def test_slopes_of_power_of_two_heads_are_geometric(heads: int, max_bias: float) -> None:
    actual = slopes(heads, max_bias)
    np.testing.assert_allclose(actual[1:] / actual[:-1], actual[0], rtol=1e-13, atol=1e-13)
    assert actual[-1] == pytest.approx(2.0**-max_bias, rel=1e-13)


@given(HEADS, st.sampled_from(ARITHMETICS), st.sampled_from(list(FORMS)))
def test_extra_heads_take_every_other_slope(heads: int, arithmetic: Any, form: str) -> None:
    power = 2 ** (heads.bit_length() - 1)
    first, twice = (slopes(count, arithmetic=arithmetic, form=form) for count in (power, 2 * power))
    expected = np.concatenate([first, twice[::2][: heads - power]])
    np.testing.assert_allclose(slopes(heads, arithmetic=arithmetic, form=form), expected, rtol=1e-6, atol=1e-12)


def softmax(scores: NDArray[Any]) -> NDArray[Any]:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


@settings(max_examples=40)
@given(st.integers(1, 20), LENGTHS, st.integers(0, 9), st.sampled_from(KEY_ONLY), st.integers(0, 99))
def test_forms_agree_under_a_causal_softmax(heads: int, queries: int, past: int, form: str, seed: int) -> None:
    keys = past + queries
    scores = np.random.default_rng(seed).normal(size=(heads, queries, keys))
    future = np.arange(keys) > past + np.arange(queries)[:, None]
    either = [
        softmax(np.where(future, -np.inf, scores + whole(heads, form=name, query_length=queries, past=past)))
        for name in ("symmetric", form)
    ]
    np.testing.assert_allclose(either[0], either[1], rtol=0, atol=1e-13)


def test_key_only_form_differs_without_a_causal_mask() -> None:
    symmetric, key_only = (softmax(whole(8, form=form, query_length=16)) for form in ("symmetric", "mpt"))
    assert np.abs(symmetric - key_only).max() > 0.3


@settings(max_examples=40)
@given(st.integers(1, 20), LENGTHS, st.integers(0, 50))
def test_symmetric_form_depends_only_on_distance(heads: int, length: int, past: int) -> None:
    near = whole(heads, query_length=length)
    far = whole(heads, query_length=length, past=past)
    assert np.array_equal(far[..., past:], near)
    assert np.array_equal(near, near.swapaxes(2, 3))
    assert np.array_equal(near[0, :, 0], -slopes(heads)[:, None] * np.arange(length))


@settings(max_examples=40)
@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from(["bloom", "falcon"]), st.sampled_from(ARITHMETICS))
def test_left_padding_shifts_masked_forms_and_zeroes_pads(heads: int, length: int, form: str, arithmetic: Any) -> None:
    arguments: Any = {"form": form, "arithmetic": arithmetic}
    mask = np.concatenate([np.zeros((1, 3), np.int64), np.ones((1, length), np.int64)], axis=1)
    padded = whole(heads, query_length=length + 3, attention_mask=mask, **arguments)
    assert not padded[..., :3].any()
    assert np.array_equal(padded[..., 3:], whole(heads, query_length=length, **arguments))


def test_exponent_beyond_float32_gives_slope_zero_as_torch() -> None:
    """torch 2.13: 1 / torch.pow(2, inf) is 0, without a warning."""
    assert slopes(8, 1e300, "parity", "mpt").tolist() == [0.0] * 8


@pytest.mark.parametrize("heads", [12, 71])
def test_falcon_parity_multiplies_in_bfloat16(heads: int) -> None:
    keys = np.arange(700)  # past 256 bfloat16 skips whole numbers
    steep = slopes(heads, arithmetic="parity", form="bloom").astype(ml_dtypes.bfloat16)
    expected = (steep[:, None] * keys.astype(ml_dtypes.bfloat16)).astype(np.float32)
    arguments: Any = {"form": "falcon", "arithmetic": "parity"}
    assert np.array_equal(whole(heads, query_length=700, **arguments)[0, :, 0], expected)
    assert np.array_equal(run(alibi(heads, **arguments), key_positions=keys[None])[0, :, 0], expected)


@settings(max_examples=60)
@given(st.sampled_from(list(FORMS)), st.sampled_from(ARITHMETICS), st.booleans(), st.data())
def test_block_of_rows_equals_the_whole_bias(form: str, arithmetic: Any, masked: bool, data: st.DataObject) -> None:
    mask = np.random.default_rng(1).integers(0, 2, (3, 7)) if masked and FORMS[form].reads_mask else None
    table = tabulate(5, form=form, query_length=4, past=3, attention_mask=mask, arithmetic=arithmetic)
    bias = table.outputs["bias"]
    assert bias.shape == (1 if mask is None else 3, 5, 4 if form == "symmetric" else 1, 7)
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, bias.count)] * 2)))
    assert np.array_equal(bias.rows(start, stop), bias.whole().reshape(-1, 7)[start:stop])


@settings(max_examples=40)
@given(st.integers(1, 20), LENGTHS, st.integers(0, 600), st.sampled_from(list(FORMS)), st.sampled_from(ARITHMETICS))
def test_graph_matches_the_function(heads: int, queries: int, past: int, form: str, arithmetic: Any) -> None:
    arguments: Any = {"form": form, "arithmetic": arithmetic}
    inputs = {"key_positions": np.arange(past + queries)[None]}
    if FORMS[form].per_query:
        inputs["query_positions"] = past + np.arange(queries)[None]
    expected = whole(heads, query_length=queries, past=past, **arguments).astype(np.float32)
    assert np.array_equal(run(alibi(heads, **arguments), **inputs), expected)


def test_graph_reads_positions_of_each_sequence() -> None:
    positions = np.array([[0, 1, 2, 3], [5, 5, 0, 9]])
    bias = run(alibi(4), query_positions=positions[:, :2], key_positions=positions)
    distance = np.abs(positions[:, None, :2, None] - positions[:, None, None, :])
    np.testing.assert_allclose(bias, -slopes(4)[:, None, None] * distance, rtol=1e-7, atol=1e-13)


@pytest.mark.parametrize("form", FORMS)
def test_facts_describe_how_the_table_was_computed(form: str) -> None:
    table = tabulate(12, form=form, query_length=3, past=2)
    assert table.facts["form"] == form
    assert table.facts["formula"].count("slope") >= 1
    assert table.facts["slopes"] == slopes(12).tolist()
    assert any("only under a causal softmax" in note for note in table.notes) == (form in KEY_ONLY)


MASK = np.ones((2, 4), np.int64)
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "unknown form": (lambda: tabulate(8, form="jina", query_length=3), "'jina' is not one of symmetric, bloom, mpt"),
    "no heads": (lambda: slopes(0), "heads is 0; it must be a whole number from 1"),
    "no bias": (lambda: slopes(8, 0.0), "max_bias is 0.0; it must be a number above 0"),
    "a bias BLOOM has not": (
        lambda: slopes(8, 16, "parity", "bloom"),
        "max_bias is 16; bloom supports only 8.0: leave it out, or ask for exact",
    ),
    "no queries": (lambda: tabulate(8, query_length=0), "query_length is 0"),
    "no keys": (lambda: tabulate(8, query_length=3, key_length=0), "key_length is 0"),
    "negative past": (lambda: tabulate(8, query_length=3, past=-1), "past is -1"),
    "a mask MPT ignores": (
        lambda: tabulate(8, form="mpt", query_length=4, attention_mask=MASK),
        "mpt ALiBi reads none: leave padding to the mask of the scores, or use a form that reads one: bloom, falcon",
    ),
    "a short mask": (
        lambda: tabulate(8, form="bloom", query_length=5, attention_mask=MASK),
        r"attention_mask has shape \[2, 4\]; it must be \[B, 5\]",
    ),
    "a mask of weights": (
        lambda: tabulate(8, form="bloom", query_length=4, attention_mask=2 * MASK),
        "attention_mask holds other numbers than 0 and 1",
    ),
    "a graph's mask": (lambda: alibi(8, masked=True), "symmetric ALiBi reads none"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rejects_impossible_bias_with_the_reason(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(BadEncoding, match=message):
        call()
