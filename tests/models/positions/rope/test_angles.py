"""cos and sin at any position: mpmath's digits, transformers' float32 tables, and the ONNX graphs of both."""

from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.graphs.builder import save
from models.graphs.positions.rope import rope as rope_graph
from models.positions.arithmetic import Frequencies
from models.positions.rope.angles import cos_sin, rows
from models.positions.rope.frequencies import Rope, frequencies
from models.positions.rope.table import tabulate
from tests.golden_cases import Case, cases
from tests.models.positions.rope.test_scalings import rope_of
from tests.onnx_sessions import open_session

PLAIN = Rope(10000.0, 128)
LAST = 10_485_759
POSITIONS = st.integers(0, LAST)


def ulps(actual: np.ndarray[Any, Any], exact: list[Any]) -> float:
    """The largest distance from exact values in float32 steps at each value."""
    steps = [mpmath.mpf(float(np.spacing(np.float32(abs(float(value)))))) for value in exact]
    return max(
        float(abs(mpmath.mpf(float(near)) - value) / step)
        for near, value, step in zip(actual.astype(np.float32), exact, steps, strict=True)
    )


@pytest.mark.parametrize("theta", [1e4, 5e5, 1e6, 1.2e7])
def test_exact_values_match_mpmath_at_position_ten_million(theta: float) -> None:
    positions = np.array([0, 1, 511, 512, 131_071, 1_048_575, 7_777_777, LAST])
    cos, sin = cos_sin(frequencies(Rope(theta, 128)), positions)
    with mpmath.workdps(60):
        turn = [mpmath.power(mpmath.mpf(theta), -mpmath.mpf(2 * i) / 128) for i in range(64)]
        for row, position in enumerate(positions.tolist()):
            assert ulps(cos[row], [mpmath.cos(position * each) for each in turn]) < 0.51
            assert ulps(sin[row], [mpmath.sin(position * each) for each in turn]) < 0.51


@pytest.mark.parametrize("position", [2**26 - 1, 2**27 + 5, 2**40 + 3, 2**53 - 1])
def test_exact_values_hold_up_to_the_last_position(position: int) -> None:
    cos, sin = cos_sin(frequencies(PLAIN), np.array([position]))
    with mpmath.workdps(60):
        angles = [position * mpmath.power(10000, -mpmath.mpf(2 * i) / 128) for i in range(64)]
        assert ulps(cos[0], [mpmath.cos(angle) for angle in angles]) < 0.51
        assert ulps(sin[0], [mpmath.sin(angle) for angle in angles]) < 0.51


@pytest.mark.parametrize("case", cases("rope_reference"), ids=str)
def test_exact_tables_and_graph_match_sixty_digits(case: Case, tmp_path: Path) -> None:
    actual = frequencies(Rope(float(case.params["rope_theta"]), case.params["head_dim"]))
    for name, values, graph in zip(
        ("cos", "sin"),
        cos_sin(actual, case.arrays["positions"]),
        run(actual, case.arrays["positions"], tmp_path),
        strict=True,
    ):
        exact = case.arrays[f"{name}_hi"] + case.arrays[f"{name}_lo"]
        assert np.abs(values - exact).max() < 1e-15
        assert graph.dtype == np.float32
        assert (np.abs(graph - exact) <= 0.51 * np.spacing(np.abs(exact).astype(np.float32))).all()


def run(actual: Frequencies, positions: np.ndarray[Any, Any], folder: Path) -> list[np.ndarray[Any, Any]]:
    save(rope_graph(actual), folder / "rope.onnx")
    values: list[np.ndarray[Any, Any]] = open_session(folder / "rope.onnx").run(None, {"positions": positions})
    return values


def golden_tables(case: Case) -> list[tuple[int | None, str]]:
    """seq_len of each recorded table, and what its arrays are called after."""
    trained = dict(rope_of(case).parameters).get("original_max_position_embeddings")
    if case.params["rope_parameters"]["rope_type"] == "longrope":
        return [(trained + 1, ""), (trained, "_short")]
    seq_len = case.arrays.get("seq_len_for_cos_sin")
    return [(None if seq_len is None else int(seq_len), "")]


@pytest.mark.parametrize("arithmetic", ["exact", "parity"])
@pytest.mark.parametrize("case", cases("rope"), ids=str)
def test_tables_and_graphs_match_transformers(case: Case, arithmetic: Any, tmp_path: Path) -> None:
    for seq_len, suffix in golden_tables(case):
        positions = case.arrays["positions" + suffix]
        actual = frequencies(rope_of(case), arithmetic, seq_len)
        layout = "interleaved" if "cohere" in case.name else "half"
        table = tabulate(
            rope_of(case), positions, arithmetic=arithmetic, seq_len=seq_len, table="duplicated", layout=layout
        )
        angles = positions[:, None] * actual.inverse_frequency
        allowed = actual.attention_factor * (3e-7 + 5e-7 * angles)  # the manifest's own formula
        single = {"cos": 0, "sin": 1}
        graph = run(actual, positions, tmp_path)
        for name, place in single.items():
            expected = case.arrays[name + suffix]
            wide = table.outputs[name].whole()
            step = wide.shape[1] // expected.shape[1]  # gpt_oss keeps half the width
            assert (
                np.abs(wide[:, : expected.shape[1]] - expected)
                <= spread(allowed, layout)[:, ::1][:, : expected.shape[1]]
            ).all()
            assert step in (1, 2)
            pairs = expected[:, ::2] if layout == "interleaved" else expected[:, : angles.shape[1]]
            assert (np.abs(graph[place] - pairs) <= allowed).all()


def spread(allowed: np.ndarray[Any, Any], layout: str) -> np.ndarray[Any, Any]:
    return np.repeat(allowed, 2, axis=1) if layout == "interleaved" else np.tile(allowed, 2)


@settings(max_examples=50)
@given(st.lists(POSITIONS, min_size=1, max_size=20), st.sampled_from(["exact", "parity"]))
def test_value_is_independent_of_other_requested_positions(positions: list[int], arithmetic: Any) -> None:
    actual = frequencies(PLAIN, arithmetic)
    together = cos_sin(actual, np.array(positions))
    for row, position in enumerate(positions):
        for name, values in zip(("cos", "sin"), together, strict=True):
            block = rows(actual, range(max(0, position - 700), position + 3), name)  # type: ignore[arg-type]
            at = min(position, 700)
            assert np.array_equal(block(at, at + 1)[0], values[row])
            assert np.array_equal(block(0, at + 1)[at], values[row])


@settings(max_examples=50)
@given(POSITIONS, st.integers(0, 5000), st.sampled_from([1e4, 5e5, 1.2e7]))
def test_step_of_k_positions_is_the_same_rotation_everywhere(start: int, k: int, theta: float) -> None:
    """exp(i (m + k) w) = exp(i m w) exp(i k w)."""
    actual = frequencies(Rope(theta, 64))
    whole, first, step = (cos_sin(actual, np.array([each])) for each in (start + k, start, k))
    np.testing.assert_allclose(
        whole[0] + 1j * whole[1], (first[0] + 1j * first[1]) * (step[0] + 1j * step[1]), rtol=0, atol=4e-15
    )


@given(st.lists(POSITIONS, min_size=1, max_size=50))
def test_pair_norm_equals_the_attention_factor(positions: list[int]) -> None:
    rope = Rope.of(10000.0, 64, "yarn", {"factor": 40.0, "original_max_position_embeddings": 4096})
    actual = frequencies(rope)
    cos, sin = cos_sin(actual, np.array(positions))
    np.testing.assert_allclose(np.hypot(cos, sin), actual.attention_factor, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("name", ["cos", "sin"])
def test_table_of_a_range_is_not_expanded(name: str) -> None:
    table = tabulate(PLAIN, range(0, 2**53), arithmetic="exact")
    assert table.outputs[name].shape == (2**53, 64)
    assert table.outputs[name].rows(2**52, 2**52 + 2).shape == (2, 64)


def test_facts_describe_how_the_table_was_computed() -> None:
    rope = Rope.of(10000.0, 64, "yarn", {"factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 1.0})
    table = tabulate(rope, range(4), arithmetic="parity", notes=("said before",))
    assert table.facts["rope_type"] == "yarn"
    assert table.facts["inverse_frequency"] == frequencies(rope, "parity").inverse_frequency.tolist()
    assert table.facts["attention_factor"] == pytest.approx(1.368888, abs=1e-6)
    assert table.facts["formula"].startswith("g f/s")
    assert table.notes[0] == "said before"
    assert "only together" in table.notes[1]
