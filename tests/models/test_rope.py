"""RoPE frequencies and tables: transformers' float32 tables, mpmath's 60 digits, and configs in every spelling."""

from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import onnxruntime
import pytest

from models import graphs
from models.config import Config
from models.errors import BadCheckpoint, BadScaling
from models.onnx_graph import save
from models.positions.rope import Rope, frequencies, rope_of, table
from tests.golden_cases import Case, cases

SIZES = {"hidden_size": 64, "num_attention_heads": 2, "max_position_embeddings": 4096}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def config(**data: Any) -> Config:
    return Config(SIZES | data, {}, {})


def of_case(case: Case) -> Config:
    """A golden case's parameters as the config.json of a one-headed model."""
    sizes = {"hidden_size": case.params["head_dim"], "num_attention_heads": 1}
    return Config(sizes | {key: case.params[key] for key in ("max_position_embeddings", "rope_parameters")}, {}, {})


@pytest.mark.parametrize("case", cases("rope"), ids=str)
def test_frequencies_and_tables_are_those_of_transformers(case: Case) -> None:
    rope = rope_of(of_case(case), "half")
    arrays = case.arrays
    np.testing.assert_allclose(rope.inverse_frequency, arrays["inv_freq"], **case.tolerance["inv_freq"])
    assert rope.attention_factor == pytest.approx(float(arrays["attention_factor"]), rel=1e-7)
    half = rope.rotary_dim // 2
    angles = np.abs(arrays["positions"][:, None] * np.array(rope.inverse_frequency))
    allowed = rope.attention_factor * (3e-7 + 5e-7 * angles)  # the manifest's own formula
    for name, found in zip(("cos", "sin"), table(rope, arrays["positions"]), strict=True):
        assert (np.abs(found - arrays[name][:, :half]) <= allowed).all(), name


@pytest.mark.parametrize("case", cases("rope_reference"), ids=str)
def test_tables_hold_to_sixty_digits(case: Case, tmp_path: Path) -> None:
    """Up to position 10,485,759: float64 within 2e-9, and the ONNX graph within half a float32 step of it."""
    arrays = case.arrays
    data = {"hidden_size": case.params["head_dim"], "num_attention_heads": 1, "max_position_embeddings": 1}
    rope = rope_of(Config(data | {"rope_theta": case.params["rope_theta"]}, {}, {}), "half")
    np.testing.assert_allclose(rope.inverse_frequency, arrays["inv_freq_hi"], rtol=5e-16)
    save(graphs.rope(rope), tmp_path / "rope.onnx")
    served = onnxruntime.InferenceSession(tmp_path / "rope.onnx").run(None, {"positions": arrays["positions"]})
    for name, found, row in zip(("cos", "sin"), table(rope, arrays["positions"]), served, strict=True):
        exact = arrays[f"{name}_hi"] + arrays[f"{name}_lo"]
        assert np.abs(found - exact).max() < 2e-9
        assert row.dtype == np.float32
        assert np.abs(row - exact).max() < 3.3e-8


def test_the_table_is_a_rotation_at_every_position() -> None:
    cos, sin = table(rope_of(config(), "half"), np.arange(0, 1 << 20, 4097))
    np.testing.assert_allclose(cos**2 + sin**2, 1.0, atol=1e-15)


@pytest.mark.parametrize("position", [1, 131_071, 1_048_575])
def test_llama3_frequencies_follow_their_definition_in_fifty_digits(position: int) -> None:
    """wavelength below old/high: unscaled; above old/low: divided; between: blended (Llama 3.1)."""
    rope = rope_of(config(rope_theta=500000.0, rope_scaling=LLAMA3 | {"original_max_position_embeddings": 512}), "half")
    with mpmath.workdps(50):
        for channel, found in enumerate(rope.inverse_frequency):
            plain = mpmath.power(500000, mpmath.mpf(-2 * channel) / 32)
            wavelength = 2 * mpmath.pi / plain
            if wavelength < mpmath.mpf(512) / 4:
                expected = plain
            elif wavelength > 512:
                expected = plain / 8
            else:
                blend = (512 / wavelength - 1) / 3
                expected = (1 - blend) * plain / 8 + blend * plain
            assert abs(found - expected) < 1e-15
            assert (
                abs(mpmath.cos(position * mpmath.mpf(found)) - table(rope, np.array([position]))[0][0, channel]) < 1e-9
            )


SPELLINGS: dict[str, dict[str, Any]] = {
    "version 5": {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 1024, "rope_theta": 5e5}},
    "version 4": {"rope_theta": 5e5, "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 1024}},
    "version 4 with type": {
        "rope_theta": 5e5,
        "rope_scaling": {"type": "llama3", **{k: v for k, v in LLAMA3.items() if k != "rope_type"}}
        | {"original_max_position_embeddings": 1024},
    },
    "the trained length outside": {
        "rope_theta": 5e5,
        "rope_scaling": LLAMA3,
        "original_max_position_embeddings": 1024,
    },
    "the trained length outside wins": {
        "rope_theta": 5e5,
        "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 7},
        "original_max_position_embeddings": 1024,
    },
    "head_dim null": {
        "head_dim": None,
        "rope_theta": 5e5,
        "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 1024},
    },
    "nulls and both": {
        "rope_parameters": LLAMA3 | {"original_max_position_embeddings": 1024, "rope_theta": 5e5, "mscale": None},
        "rope_scaling": None,
        "rope_theta": 3.0,
    },
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_of_a_config_gives_the_same_frequencies(name: str) -> None:
    expected = rope_of(config(**SPELLINGS["version 5"]), "half")
    assert rope_of(config(**SPELLINGS[name]), "half") == expected
    assert expected.rope_type == "llama3"


def test_a_missing_trained_length_is_max_position_embeddings() -> None:
    """As transformers 5.23 reads it."""
    given = rope_of(config(rope_scaling=LLAMA3 | {"original_max_position_embeddings": 4096}), "half")
    assert rope_of(config(rope_scaling=LLAMA3), "half") == given


def test_head_dim_and_partial_rotation_decide_the_width() -> None:
    rope = rope_of(config(head_dim=80, partial_rotary_factor=0.4), "half")
    assert (rope.rotary_dim, len(rope.inverse_frequency), rope.head_dim) == (32, 16, 80)
    np.testing.assert_allclose(rope.inverse_frequency, [10000.0 ** (-2 * i / 32) for i in range(16)], rtol=1e-15)


IMPOSSIBLE: dict[str, tuple[dict[str, Any], str]] = {
    "unknown type": ({"rope_scaling": {"rope_type": "ntk2"}}, "'ntk2' is not one of default, linear, llama3, yarn"),
    "no factor": ({"rope_scaling": {"type": "linear"}}, "needs factor"),
    "factor below 1": ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "must be 1 or more"),
    "factor a text": ({"rope_scaling": {"type": "linear", "factor": "2"}}, "factor is '2'"),
    "factor true": ({"rope_scaling": {"type": "linear", "factor": True}}, "factor is True"),
    "factor infinite": ({"rope_scaling": {"type": "linear", "factor": float("inf")}}, "factor is inf"),
    "a parameter of another type": (
        {"rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 32}},
        "no parameter 'beta_fast'",
    ),
    "a factor without a type": ({"rope_scaling": {"factor": 2.0}}, "default RoPE has no parameter 'factor'"),
    "low and high the same": (
        {"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}},
        "high_freq_factor above low_freq_factor",
    ),
    "truncate a number": (
        {"rope_scaling": {"type": "yarn", "factor": 2.0, "truncate": 1}},
        "truncate is 1; it must be true or false",
    ),
    "theta 1": ({"rope_theta": 1.0}, "rope_theta above 1"),
    "theta negative": ({"rope_theta": -5}, "rope_theta is -5"),
    "an odd head": ({"head_dim": 33}, "even number of rotated channels"),
    "nothing rotated": ({"partial_rotary_factor": 0.01}, "even number of rotated channels"),
    "more than the head": ({"partial_rotary_factor": 1.5}, "even number of rotated channels"),
    "one dict a layer type": ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "one flat object"),
    "a list": ({"rope_scaling": [2.0]}, "one flat object"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_an_impossible_scaling_is_refused_by_name(name: str) -> None:
    data, message = IMPOSSIBLE[name]
    with pytest.raises(BadScaling, match=message):
        rope_of(config(**data), "half")


def test_heads_that_do_not_divide_are_refused_unless_head_dim_is_given() -> None:
    with pytest.raises(BadCheckpoint, match="3 attention heads, which do not divide"):
        rope_of(config(num_attention_heads=3), "half")
    assert rope_of(config(num_attention_heads=3, head_dim=16), "half").rotary_dim == 16


def test_linear_scaling_stretches_every_wavelength_by_the_factor() -> None:
    rope = Rope(10000.0, 64)
    plain = frequencies(rope, "default", {})
    scaled = frequencies(rope, "linear", {"factor": 4.0})
    np.testing.assert_allclose(plain.inverse_frequency / scaled.inverse_frequency, 4.0, rtol=1e-15)
