"""RoPE scalings against transformers' frequencies and the formulas in fifty digits, their properties and errors."""

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import BadScaling
from models.positions.rope.frequencies import Rope, frequencies, remarks
from models.positions.rope.scaling_parameters import PARAMETERS
from models.positions.rope.scalings import SCALINGS
from tests.golden_cases import Case, cases

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
LISTS = {"short_factor": [1.0 + i / 16 for i in range(32)], "long_factor": [2.0 + i for i in range(32)]}
EXAMPLES: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "ntk": {"factor": 4.0},
    "ntk_fixed": {"factor": 4.0},
    "ntk_alpha": {"alpha": 50.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 4096},
    "deepseek_yarn": {"factor": 4.0, "original_max_position_embeddings": 4096},
    "llama3": LLAMA3,
    "longrope": {**LISTS, "original_max_position_embeddings": 2048},
    "proportional": {"partial_rotary_factor": 0.5, "factor": 2.0},
}


def example(rope_type: str, **changed: Any) -> Rope:
    return Rope.of(10000.0, 64, rope_type, EXAMPLES[rope_type] | changed, max_position_embeddings=8192)


def rope_of(case: Case) -> Rope:
    """A golden case's parameters as a Rope; what config.json may leave out or misplace is the business of config.py."""
    parameters = dict(case.params["rope_parameters"])
    theta, rope_type, head_dim = parameters.pop("rope_theta"), parameters.pop("rope_type"), case.params["head_dim"]
    share = 1.0 if rope_type == "proportional" else parameters.pop("partial_rotary_factor", 1.0)
    if case.params.get("layer_type"):
        parameters.pop("truncate", None)
    sizes = {"head_dim": head_dim, "max_position_embeddings": case.params["max_position_embeddings"]}
    return Rope.of(theta, int(head_dim * share), rope_type, parameters, **sizes)


def seq_len_and_frequencies(case: Case) -> list[tuple[int | None, np.ndarray[Any, Any]]]:
    """The seq_len and the inverse frequencies of each call a case records."""
    named = {name: array for name, array in case.arrays.items() if name.startswith("inv_freq_")}
    if not named:
        return [(None, case.arrays["inv_freq"])]
    trained = dict(rope_of(case).parameters).get("original_max_position_embeddings", 0)
    lengths = {"inv_freq_short": trained, "inv_freq_long": trained + 1}
    return [(lengths.get(name) or int(name.removeprefix("inv_freq_seq")), array) for name, array in named.items()]


@pytest.mark.parametrize("arithmetic", ["exact", "parity"])
@pytest.mark.parametrize("case", cases("rope"), ids=str)
def test_frequencies_match_transformers(case: Case, arithmetic: Any) -> None:
    for seq_len, expected in seq_len_and_frequencies(case):
        actual = frequencies(rope_of(case), arithmetic, seq_len)
        np.testing.assert_allclose(actual.inverse_frequency, expected, **case.tolerance["inv_freq"])
        assert actual.attention_factor == pytest.approx(float(case.arrays["attention_factor"]), rel=1e-12)


@pytest.mark.parametrize("case", cases("rope"), ids=str)
def test_parity_frequencies_are_float32_values(case: Case) -> None:
    """Within an ulp or two of torch's, whose pow differs from a correctly rounded one in a few channels."""
    for seq_len, expected in seq_len_and_frequencies(case):
        actual = frequencies(rope_of(case), "parity", seq_len).inverse_frequency
        steps = np.abs(actual.astype(np.float32).view(np.int32) - expected.view(np.int32))
        assert (actual == actual.astype(np.float32)).all()
        assert steps.max() <= 2


@pytest.mark.parametrize("case", cases("rope_reference"), ids=str)
def test_unscaled_frequencies_match_sixty_digits(case: Case) -> None:
    actual = frequencies(Rope(float(case.params["rope_theta"]), case.params["head_dim"]))
    hi, lo = case.arrays["inv_freq_hi"], case.arrays["inv_freq_lo"]
    assert np.array_equal(actual.inverse_frequency, hi)
    np.testing.assert_allclose(actual.residue, lo, rtol=1e-12, atol=1e-40)


def in_fifty_digits(rope_type: str) -> list[Any]:
    """The formulas of the papers for the parameters of `example`, by another library."""
    r, theta, parameters = 64, mpmath.mpf(10000), EXAMPLES[rope_type]
    plain = [theta ** (-mpmath.mpf(2 * i) / r) for i in range(32)]
    if rope_type == "dynamic":  # twice the trained length
        theta *= (4 * mpmath.mpf(16384) / 8192 - 3) ** (mpmath.mpf(r) / (r - 2))
    if rope_type in ("ntk", "ntk_alpha"):
        theta *= mpmath.mpf(parameters.get("factor") or parameters["alpha"]) ** (mpmath.mpf(r) / (r - 2))
    stretched = [theta ** (-mpmath.mpf(2 * i) / r) for i in range(32)]
    ends = [32 * mpmath.log(mpmath.mpf(4096) / (2 * mpmath.pi * turns)) / mpmath.log(10000) for turns in (32, 1)]
    low, high = mpmath.floor(ends[0]), mpmath.ceil(ends[1])
    ramp = [min(max((i - low) / (high - low), 0), 1) for i in range(32)]
    forms = {
        "default": plain,
        "linear": [f / 4 for f in plain],
        "dynamic": stretched,
        "ntk": stretched,
        "ntk_fixed": [f * mpmath.mpf(4) ** (-mpmath.mpf(2 * i + 2) / r) for i, f in enumerate(plain)],
        "ntk_alpha": stretched,
        "yarn": [g * f / 4 + (1 - g) * f for g, f in zip(ramp, plain, strict=True)],
        "deepseek_yarn": [g * f / 4 + (1 - g) * f for g, f in zip(ramp, plain, strict=True)],
        "llama3": [llama3_in_fifty_digits(f) for f in plain],
        "longrope": [f / mpmath.mpf(each) for f, each in zip(plain, LISTS["long_factor"], strict=True)],
        "proportional": [f / 2 if i < 16 else mpmath.mpf(0) for i, f in enumerate(plain)],
    }
    return forms[rope_type]


def llama3_in_fifty_digits(f: Any) -> Any:
    turns = 8192 * f / (2 * mpmath.pi)
    blend = min(max((turns - 1) / 3, 0), 1)
    return (1 - blend) * f / 8 + blend * f


@pytest.mark.parametrize("rope_type", SCALINGS)
def test_exact_frequencies_match_thirty_digits(rope_type: str) -> None:
    actual = frequencies(example(rope_type), "exact", seq_len=16384)
    with mpmath.workdps(50):
        for near, rest, expected in zip(
            actual.inverse_frequency, actual.residue, in_fifty_digits(rope_type), strict=True
        ):
            assert abs(mpmath.mpf(float(near)) + mpmath.mpf(float(rest)) - expected) <= expected * mpmath.mpf("1e-30")


def test_attention_factors_match_their_formulas() -> None:
    def factor(rope_type: str, **changed: Any) -> float:
        return frequencies(example(rope_type, **changed)).attention_factor

    assert factor("yarn") == pytest.approx(0.1 * math.log(4) + 1, rel=1e-15)
    assert factor("yarn", mscale=0.707, mscale_all_dim=1.4) == pytest.approx(
        (0.0707 * math.log(4) + 1) / (0.14 * math.log(4) + 1), rel=1e-15
    )
    assert factor("yarn", mscale=0.707) == factor("yarn")
    assert factor("yarn", attention_factor=1.5, mscale=1.0, mscale_all_dim=2.0) == 1.5
    assert factor("yarn", factor=1.0) == 1.0
    assert factor("longrope") == pytest.approx(math.sqrt(1 + math.log(4) / math.log(2048)), rel=1e-15)
    assert factor("longrope", factor=32.0) == pytest.approx(math.sqrt(1 + math.log(32) / math.log(2048)), rel=1e-15)
    assert factor("longrope", short_mscale=1.25, long_mscale=1.5) == 1.25
    long = frequencies(example("longrope", short_mscale=1.25, long_mscale=1.5), seq_len=2049)
    assert long.attention_factor == 1.5


def test_single_mscale_counts_in_deepseek_yarn() -> None:
    """vLLM 0.33: factor 40 and mscale 0.707 give 1.260804, where yarn leaves mscale out and gives 1.368888."""

    def factor(rope_type: str, **changed: Any) -> float:
        return frequencies(example(rope_type, factor=40.0, **changed)).attention_factor

    assert factor("deepseek_yarn", mscale=0.707) == pytest.approx(1.260804, abs=5e-7)
    assert factor("yarn", mscale=0.707) == pytest.approx(1.368888, abs=5e-7)
    assert factor("deepseek_yarn", mscale=1.0, mscale_all_dim=1.0) == 1.0
    assert factor("deepseek_yarn") == factor("yarn")


@given(st.integers(2, 128), st.floats(1.0, 64.0), st.floats(100.0, 1e7))
def test_ntk_slows_only_slow_channels_by_up_to_its_factor(pairs: int, factor: float, theta: float) -> None:
    plain = frequencies(Rope(theta, 2 * pairs)).inverse_frequency
    actual = frequencies(Rope.of(theta, 2 * pairs, "ntk", {"factor": factor})).inverse_frequency
    assert actual[0] == plain[0] == 1.0
    assert plain[-1] / actual[-1] == pytest.approx(factor, rel=1e-12)
    assert (actual <= plain).all()


@pytest.mark.parametrize("rope_type", SCALINGS)
@pytest.mark.parametrize("arithmetic", ["exact", "parity"])
def test_scaling_only_slows_channels_and_keeps_order(rope_type: str, arithmetic: Any) -> None:
    actual = frequencies(example(rope_type), arithmetic, 16384).inverse_frequency
    plain = frequencies(Rope(10000.0, 64), arithmetic).inverse_frequency
    assert (actual <= plain).all()
    assert (np.diff(actual) <= 0).all()


def test_dynamic_scaling_starts_beyond_the_trained_length() -> None:
    rope, plain = example("dynamic"), frequencies(Rope(10000.0, 64)).inverse_frequency
    for seq_len in (None, 1, 8192):
        assert np.array_equal(frequencies(rope, "exact", seq_len).inverse_frequency, plain)
    assert (frequencies(rope, "exact", 8193).inverse_frequency[1:] < plain[1:]).all()


def test_proportional_of_a_whole_head_equals_default() -> None:
    rope = Rope.of(10000.0, 64, "proportional", {})
    assert np.array_equal(frequencies(rope).inverse_frequency, frequencies(Rope(10000.0, 64)).inverse_frequency)


REFUSED: dict[str, tuple[Rope, str]] = {
    "an unknown type": (Rope.of(1e4, 64, "ntk2"), "'ntk2' is not one of default, linear, dynamic, ntk"),
    "a missing parameter": (Rope.of(1e4, 64, "linear"), "^linear RoPE: factor is missing; give it$"),
    "several missing": (
        Rope.of(1e4, 64, "llama3", {"factor": 8.0}),
        "llama3 RoPE: low_freq_factor, high.* are missing",
    ),
    "a misspelt one, which is missing": (
        Rope.of(1e4, 64, "yarn", {"factr": 4.0}),
        "yarn RoPE has no parameter 'factr'; did you mean 'factor'[?] It reads",
    ),
    "null": (Rope.of(1e4, 64, "linear", {"factor": None}), "factor is missing"),
    "a factor below 1": (example("linear", factor=0.5), "factor is 0.5; it must be 1 or more"),
    "a text": (example("linear", factor="2"), "factor is '2'; it must be a number"),
    "true": (example("linear", factor=True), "factor is True; it must be a number"),
    "infinity": (example("linear", factor=math.inf), "factor is inf"),
    "not a number": (example("linear", factor=math.nan), "factor is nan"),
    "a number beyond float64": (example("linear", factor=10**400), "factor is 1000.*; it must be a number"),
    "a list": (example("linear", factor=[1.0, 2.0]), r"factor is \(1.0, 2.0\); it must be a number"),
    "a parameter of another": (
        example("linear", beta_fast=32),
        "linear RoPE has no parameter 'beta_fast'; it reads factor",
    ),
    "high below low": (example("llama3", high_freq_factor=0.5), "needs high_freq_factor at least low_freq_factor"),
    "truncate a number": (example("yarn", truncate=1), "truncate is 1; it must be true or false"),
    "a short list": (example("longrope", long_factor=[1.0, 2.0]), "long_factor has 2 numbers; rotary_dim/2 = 32"),
    "a list with zero": (example("longrope", long_factor=[0.0] * 32), r"long_factor\[0\] is 0.0; it must be above 0"),
    "a number for a list": (example("longrope", long_factor=2.0), "long_factor is 2.0; it must be a list"),
    "a share above 1": (example("proportional", partial_rotary_factor=1.5), "must be above 0, up to 1"),
    "proportional on part of a head": (Rope.of(1e4, 32, "proportional", {}, head_dim=64), "spans the whole head"),
    "dynamic of unknown length": (Rope.of(1e4, 64, "dynamic", {"factor": 2.0}), "dynamic RoPE needs max_position_emb"),
    "yarn of unknown factor": (
        Rope.of(1e4, 64, "yarn", {"original_max_position_embeddings": 4096}),
        "yarn RoPE needs factor, or max_position_embeddings",
    ),
    "an NTK stretch of one pair": (Rope.of(1e4, 2, "ntk", {"factor": 2.0}), "rotary_dim above 2"),
    "theta 1": (Rope(1.0, 64), "rope_theta above 1"),
    "theta negative": (Rope(-5.0, 64), "rope_theta is -5"),
    "odd": (Rope(1e4, 33), "even number of rotated channels"),
    "nothing rotated": (Rope(1e4, 0), "even number of rotated channels"),
    "more than the head": (Rope(1e4, 64, head_dim=32), "from 2 to the head's 32"),
    "a head of millions": (Rope(1e4, 1 << 20), "it must be 8192 or less"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rejects_impossible_scaling_with_the_reason(name: str) -> None:
    rope, message = REFUSED[name]
    with pytest.raises(BadScaling, match=message):
        frequencies(rope)


@pytest.mark.parametrize("rope", [example("yarn", beta_fast=1e308), Rope(1e200, 64)])
def test_rejects_numbers_beyond_the_arithmetic(rope: Rope) -> None:
    with pytest.raises(BadScaling, match="RoPE has no parity frequencies for"):
        frequencies(rope, "parity")
    assert np.isfinite(frequencies(rope, "exact").inverse_frequency).all()


def test_rejects_parameter_that_is_an_object() -> None:
    with pytest.raises(BadScaling, match=r"factor is \{'a': 1\}; it must be a number"):
        Rope.of(1e4, 64, "linear", {"factor": {"a": 1}})


@pytest.mark.parametrize("seq_len", [0, -1, 2**60])
def test_rejects_impossible_seq_len(seq_len: int) -> None:
    with pytest.raises(BadScaling, match=f"seq_len is {seq_len}"):
        frequencies(example("dynamic"), "exact", seq_len)


REMARKED = {
    "mscale alone": (example("yarn", mscale=0.707), "only together"),
    "mscale beside a factor": (
        example("yarn", attention_factor=1.0, mscale=1.0, mscale_all_dim=1.0),
        "count for nothing",
    ),
    "truncate": (example("yarn", truncate=False), "llama.cpp rounds"),
    "dynamic": (example("dynamic"), "transformers keeps the longest"),
    "longrope": (example("longrope", factor=32.0), "vLLM ignores factor"),
    "proportional": (example("proportional"), "vLLM ignores factor"),
}


@pytest.mark.parametrize("name", REMARKED)
def test_remarks_name_parameters_some_library_ignores(name: str) -> None:
    rope, text = REMARKED[name]
    assert any(text in remark for remark in remarks(rope))


def test_plain_scaling_has_no_remarks() -> None:
    assert [remarks(example(name)) for name in ("default", "linear", "llama3", "ntk", "ntk_alpha")] == [()] * 5


def test_every_scaling_parameter_is_described() -> None:
    assert set(PARAMETERS) == {name for row in SCALINGS.values() for name in (*row.required, *row.optional)}
