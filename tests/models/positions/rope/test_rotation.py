"""Rotation of q and k against transformers' outputs, properties of a rotation, and exact conversion of layouts."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from models.errors import BadEncoding
from models.graphs.positions.rope import rope
from models.positions.arithmetic import Arithmetic
from models.positions.rope.angles import cos_sin
from models.positions.rope.frequencies import Rope, frequencies
from models.positions.rope.rotation import LAYOUTS, convert_rows, duplicate, permutation, rotate
from tests.golden_cases import Case, case, cases
from tests.onnx_sessions import open_session

Array = NDArray[Any]
ARITHMETICS: tuple[Arithmetic, ...] = ("exact", "parity")
SKIPPED = {"half_skip_prefix": ("half", 2)}  # DINOv3: CLS and a register go first, unrotated
NAMES = st.sampled_from(sorted(LAYOUTS))
SEEDS = st.integers(0, 2**32 - 1)


def graph(model: Any, **inputs: Array) -> list[Array]:
    actual: list[Array] = open_session(model.SerializeToString()).run(None, inputs)
    return actual


def angles_of(actual: Case, skip: int = 0, arithmetic: Arithmetic = "parity") -> tuple[Array, Array]:
    params = actual.params
    frequency = frequencies(Rope(params["rope_theta"], params["rotary_dim"]), arithmetic)
    return cos_sin(frequency, actual.arrays["positions"][skip:])


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("case", cases("rope_apply"), ids=str)
def test_rotation_matches_transformers(case: Case, arithmetic: Arithmetic) -> None:
    layout, skip = SKIPPED.get(case.params["variant"], (case.params["variant"], 0))
    cos, sin = angles_of(case, skip)
    for name in "qk":
        turned = rotate(case.arrays[name], cos, sin, layout, skip=skip, arithmetic=arithmetic)
        assert turned.dtype == np.float32
        np.testing.assert_allclose(turned, case.arrays[f"{name}_out"], rtol=0, **case.tolerance[f"{name}_out"])


@pytest.mark.parametrize("case", cases("rope_apply_bf16"), ids=str)
def test_bfloat16_parity_rounds_three_times_as_transformers(case: Case) -> None:
    cos, sin = angles_of(case)
    for name in "qk":
        turned = rotate(case.arrays[name].astype(ml_dtypes.bfloat16), cos, sin, "half", arithmetic="parity")
        np.testing.assert_array_equal(turned.astype(np.float32), case.arrays[f"{name}_out"])


@pytest.mark.parametrize("case", cases("rope_apply_bf16"), ids=str)
def test_exact_bfloat16_is_the_nearest_value(case: Case) -> None:
    cos, sin = angles_of(case, arithmetic="exact")
    q = case.arrays["q"].astype(ml_dtypes.bfloat16)
    turned = rotate(q, cos, sin, "half").astype(np.float64)
    atol = case.tolerance["q_out"]["atol"]
    np.testing.assert_allclose(turned, case.arrays["q_out"], rtol=0, atol=atol)
    truth = rotate(q.astype(np.float64), cos, sin, "half")
    assert (np.abs(turned - truth) <= np.abs(truth) * 2.0**-8).all()  # of 8 significant bits, half a step


@pytest.mark.parametrize(("name", "arithmetic"), [("gptj", "parity"), ("roformer", "exact")])
def test_sin_cos_tables_match_transformers(name: str, arithmetic: Arithmetic) -> None:
    actual = case(f"rope_table_{name}")
    frequency = frequencies(Rope(10000.0, actual.params["dim"]), arithmetic)
    positions = np.arange(actual.params["n"])
    for cos, sin in (cos_sin(frequency, positions), graph(rope(frequency), positions=positions)):
        joined = np.concatenate([sin, cos], axis=-1)  # as GPT-J and RoFormer keep it
        np.testing.assert_allclose(joined, actual.arrays["table"], rtol=0, **actual.tolerance["table"])


def test_every_golden_sin_cos_table_is_compared() -> None:
    assert {actual.name for actual in cases("rope_table")} == {"rope_table_gptj", "rope_table_roformer"}
    assert {
        SKIPPED.get(actual.params["variant"], (actual.params["variant"],))[0] for actual in cases("rope_apply")
    } == {*LAYOUTS} - {
        "half_trailing",
        "half_per_axis",
    }  # the first is no model's; the second is compared live with Gemma 4


def test_interleaved_table_matches_cohere() -> None:
    actual = case("rope_cohere_interleaved_tables")
    config = actual.params["rope_parameters"]
    frequency = frequencies(Rope(config["rope_theta"], actual.params["head_dim"]), "parity")
    cos, sin = cos_sin(frequency, actual.arrays["positions"])
    allowed = 3e-7 + 5e-7 * np.abs(actual.arrays["positions"][:, None])  # the manifest's formula, frequencies up to 1
    for name, single in (("cos", cos), ("sin", sin)):
        assert (np.abs(duplicate(single, "interleaved") - actual.arrays[name].reshape(len(cos), -1)) <= allowed).all()


class Drawn:
    """A random q and k with angles, in a layout."""

    def __init__(self, layout: str, seed: int, partial: bool) -> None:
        random = np.random.default_rng(seed)
        blocks = LAYOUTS[layout].blocks
        self.rotary_dim = 2 * blocks * int(random.integers(1, 9))
        self.head_dim = self.rotary_dim + (2 * int(random.integers(1, 9)) if partial else 0)
        self.tokens = int(random.integers(1, 6))
        self.q, self.k = random.normal(size=(2, 3, self.tokens, self.head_dim))
        self.frequency = frequencies(Rope(float(random.uniform(10, 1e6)), self.rotary_dim))
        self.positions = random.integers(0, 100_000, self.tokens)
        self.cos, self.sin = cos_sin(self.frequency, self.positions)


@given(NAMES, SEEDS, st.booleans())
def test_rotation_keeps_pair_norms_and_unrotated_channels(layout: str, seed: int, partial: bool) -> None:
    drawn = Drawn(layout, seed, partial)
    turned = rotate(drawn.q, drawn.cos, drawn.sin, layout)
    source = permutation(drawn.head_dim, drawn.rotary_dim, layout, "half")
    target = "half" if LAYOUTS[layout].written != LAYOUTS[layout].read else layout
    written = permutation(drawn.head_dim, drawn.rotary_dim, target, "half")
    before, after, half = drawn.q[..., source], turned[..., written], drawn.rotary_dim // 2
    lengths = (np.hypot(each[..., :half], each[..., half : 2 * half]) for each in (before, after))
    np.testing.assert_allclose(*lengths, rtol=1e-13, atol=1e-13)
    np.testing.assert_array_equal(before[..., 2 * half :], after[..., 2 * half :])


@given(NAMES, SEEDS, st.booleans(), st.floats(0.5, 4.0))
def test_inverse_undoes_rotation_for_any_attention_factor(layout: str, seed: int, partial: bool, factor: float) -> None:
    drawn = Drawn(layout, seed, partial)
    cos, sin = drawn.cos * factor, drawn.sin * factor
    turned = rotate(drawn.q, cos, sin, layout)
    back = rotate(turned, cos, sin, layout, inverse=True, attention_factor=factor)
    np.testing.assert_allclose(back, drawn.q, rtol=0, atol=1e-14)


@given(NAMES, SEEDS, st.booleans(), st.integers(0, 10_000_000))
def test_scores_depend_only_on_distance(layout: str, seed: int, partial: bool, shift: int) -> None:
    drawn = Drawn(layout, seed, partial)

    def scores(offset: int) -> Array:
        cos, sin = cos_sin(drawn.frequency, drawn.positions + offset)
        q, k = (rotate(each, cos, sin, layout) for each in (drawn.q, drawn.k))
        return np.asarray(q @ k.swapaxes(-1, -2))

    np.testing.assert_allclose(scores(0), scores(shift), rtol=0, atol=1e-12)


def exact_scores(q: Array, k: Array) -> list[float]:
    """q·k of every token pair, summed without rounding: the order of the channels cannot matter."""
    return [math.fsum(row_q * row_k) for row_q in q.reshape(-1, q.shape[-1]) for row_k in k.reshape(-1, k.shape[-1])]


@given(NAMES, NAMES, SEEDS, st.booleans())
def test_converted_weights_give_bitwise_equal_scores(source: str, target: str, seed: int, partial: bool) -> None:
    random = np.random.default_rng(seed)
    rotary_dim = 4 * int(random.integers(1, 5))
    head_dim, heads, width, tokens = rotary_dim + 4 * partial, 2, 6, 3
    # small whole numbers: the projection itself is exact in any order
    weights = random.integers(-8, 9, (2, heads * head_dim, width)).astype(np.float64)
    biases = random.integers(-8, 9, (2, heads * head_dim)).astype(np.float64)
    hidden = random.integers(-8, 9, (tokens, width)).astype(np.float64)
    cos, sin = cos_sin(frequencies(Rope(10000.0, rotary_dim)), random.integers(0, 10_000, tokens))

    def scores(layout: str, weights: Array, biases: Array) -> list[float]:
        projected = hidden @ weights.swapaxes(-1, -2) + biases[:, None]
        q, k = (each.reshape(tokens, heads, head_dim).swapaxes(0, 1) for each in projected)
        return exact_scores(*(rotate(each, cos, sin, layout)[0] for each in (q, k)))

    convert = [[convert_rows(each, head_dim, rotary_dim, source, target) for each in of] for of in (weights, biases)]
    assert scores(source, weights, biases) == scores(target, *map(np.stack, convert))


@given(NAMES, NAMES, SEEDS)
def test_conversion_round_trip_returns_the_weight(source: str, target: str, seed: int) -> None:
    weight = np.random.default_rng(seed).normal(size=(3 * 12, 5)).astype(ml_dtypes.bfloat16)
    there = convert_rows(weight, 12, 8, source, target)
    assert there.dtype == weight.dtype
    np.testing.assert_array_equal(convert_rows(there, 12, 8, target, source), weight)


def test_interleaved_to_half_is_even_rows_then_odd() -> None:
    rows = np.arange(16)
    np.testing.assert_array_equal(
        convert_rows(rows, 8, 8, "interleaved", "half"), [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]
    )
    np.testing.assert_array_equal(convert_rows(rows[:8], 8, 4, "interleaved", "half"), [0, 2, 1, 3, 4, 5, 6, 7])


def test_interleave_in_half_out_permutes_interleaved_output() -> None:
    drawn = Drawn("interleaved", 3, partial=False)
    plain, moved = (rotate(drawn.q, drawn.cos, drawn.sin, name) for name in ("interleaved", "interleave_in_half_out"))
    np.testing.assert_array_equal(
        plain[..., permutation(drawn.head_dim, drawn.rotary_dim, "interleaved", "half")], moved
    )


def test_batch_rows_have_their_own_angles_for_all_heads() -> None:
    random = np.random.default_rng(0)
    x, positions = random.normal(size=(2, 3, 4, 8)), random.integers(0, 99, (2, 4))
    cos, sin = cos_sin(frequencies(Rope(10000.0, 8)), positions)
    alone = [rotate(x[row], cos[row], sin[row], "half") for row in range(2)]
    np.testing.assert_array_equal(rotate(x, cos, sin, "half"), alone)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_duplicated_table_rotates_like_the_single_one(layout: str) -> None:
    """x * cos + rotated x * sin, the formula of transformers, with the partner of each channel read off the layout."""
    drawn = Drawn(layout, 1, partial=False)
    x = drawn.q[..., permutation(drawn.head_dim, drawn.rotary_dim, layout, "half")]
    half = drawn.head_dim // 2
    quarter_turn = np.concatenate([-x[..., half:], x[..., :half]], axis=-1)
    target = "half" if layout == "interleave_in_half_out" else layout
    order = permutation(drawn.head_dim, drawn.rotary_dim, target, "half")
    cos, sin = (duplicate(values, layout)[..., order] for values in (drawn.cos, drawn.sin))
    turned = rotate(drawn.q, drawn.cos, drawn.sin, layout)
    np.testing.assert_allclose(turned[..., order], x * cos + quarter_turn * sin, rtol=0, atol=1e-14)


def test_input_tensor_is_not_modified() -> None:
    drawn = Drawn("half", 0, partial=True)
    before = drawn.q.copy(), drawn.cos.copy(), drawn.sin.copy()
    rotate(drawn.q, drawn.cos, drawn.sin, "half_negative", inverse=True)
    for now, then in zip((drawn.q, drawn.cos, drawn.sin), before, strict=True):
        np.testing.assert_array_equal(now, then)


@pytest.mark.parametrize(
    ("x", "table", "layout", "options", "said"),
    [
        ((2, 8), (2, 4), "neox", {}, "'neox' is not one of half, interleaved"),
        ((2, 7), (2, 3), "half", {}, "7 channels has no whole number of pairs"),
        ((2, 8), (2, 5), "half", {}, "10 channels cannot rotate: give a multiple of 2 up to the head's 8"),
        ((2, 8), (2, 0), "half", {}, "0 channels cannot rotate"),
        ((2, 8), (2, 3), "half_per_axis", {}, "6 channels cannot rotate: give a multiple of 4"),
        ((2, 8), (3, 4), "half", {}, "x has 2 tokens of which 0 are skipped, cos and sin have 3"),
        ((4, 8), (4, 4), "half", {"skip": 1}, "x has 4 tokens of which 1 are skipped"),
        ((4, 8), (5, 4), "half", {"skip": -1}, "of which -1 are skipped"),
        ((3, 1, 2, 8), (2, 2, 4), "half", {}, "cos begins with [2], x with [3, 1]"),
        ((8,), (8,), "half", {}, "they must be [..., tokens, head_dim]"),
        ((2, 8), (2, 4), "half", {"inverse": True, "attention_factor": 0.0}, "attention_factor is 0.0"),
        ((2, 8), (2, 4), "half", {"inverse": True, "attention_factor": math.nan}, "attention_factor is nan"),
    ],
)
def test_rejects_shapes_that_cannot_rotate(x: Any, table: Any, layout: str, options: Any, said: str) -> None:
    with pytest.raises(BadEncoding) as caught:
        rotate(np.zeros(x), np.zeros(table), np.zeros(table), layout, **options)
    assert said in str(caught.value)


def test_rejects_integer_input() -> None:
    with pytest.raises(BadEncoding, match="x is int64; it must be one of float64, float32"):
        rotate(np.zeros((2, 8), np.int64), np.zeros((2, 4)), np.zeros((2, 4)), "half")


@pytest.mark.parametrize(
    ("rows", "head_dim", "rotary_dim", "said"),
    [
        (20, 8, 8, "a weight of shape [20, 3] has no whole number of heads of 8 rows"),
        (16, 8, 10, "10 channels cannot rotate"),
        (16, 8, 3, "3 channels cannot rotate"),
        (14, 7, 4, "7 channels has no whole number of pairs"),
    ],
)
def test_rejects_weights_without_whole_heads(rows: int, head_dim: int, rotary_dim: int, said: str) -> None:
    with pytest.raises(BadEncoding) as caught:
        convert_rows(np.zeros((rows, 3)), head_dim, rotary_dim, "half", "interleaved")
    assert said in str(caught.value)
