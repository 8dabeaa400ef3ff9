"""Sinusoidal tables against golden tables of transformers, mpmath, and the properties of position encodings."""

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from models.errors import BadEncoding
from models.graphs.positions import sinusoidal as graphs
from models.positions.sinusoidal import SINUSOIDS, tabulate, tabulate_grid
from tests.golden_cases import Case, cases
from tests.onnx_sessions import open_session

ARITHMETICS = ("exact", "parity")
EVEN = st.integers(2, 40).map(lambda half: 2 * half)
KINDS = st.sampled_from(sorted(SINUSOIDS))
# What a golden case says of its layout, and which kind that is.
KIND_OF = {
    ("interleaved", "dim"): "vaswani",
    ("half", "dim"): "marian",
    ("half", "half_minus_1"): "tensor2tensor",
}


def kind_of(case: Case) -> str:
    for name in ("ctrl", "whisper"):
        if name in case.name:
            return name
    return KIND_OF[case.params["layout"], case.params["denom"]]


def rows(kind: str, dim: int, positions: Any, **arguments: Any) -> NDArray[Any]:
    return tabulate(kind, dim, positions, **arguments).outputs["table"].whole()


def run(model: Any, **inputs: NDArray[Any]) -> NDArray[Any]:
    session = open_session(model.SerializeToString())
    (table,) = session.run(["table"], inputs)
    return np.asarray(table)


def cells(height: int, width: int, cls: bool) -> NDArray[np.int64]:
    grid = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij"), axis=-1).reshape(-1, 2)
    return np.concatenate([np.full((int(cls), 2), -1), grid]).astype(np.int64)


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("case", cases("sinusoid"), ids=repr)
def test_table_matches_transformers(case: Case, arithmetic: Any) -> None:
    kind, dim, zero_row = kind_of(case), case.params["dim"], case.params.get("zero_row")
    expected, atol = case.arrays["table"], case.tolerance["table"]["atol"]
    table = rows(kind, dim, range(case.params["n"]), arithmetic=arithmetic, zero_row=zero_row)
    np.testing.assert_allclose(table, expected, rtol=0, atol=atol)
    graph = graphs.sinusoid(kind, dim, arithmetic=arithmetic, zero_row=zero_row)
    np.testing.assert_allclose(run(graph, positions=np.arange(case.params["n"])), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("case", cases("sinusoid2d"), ids=repr)
def test_grid_matches_transformers(case: Case, arithmetic: Any) -> None:
    height, width, cls = (case.params[name] for name in ("height", "width", "cls"))
    arguments: Any = {"order": case.params["order"], "arithmetic": arithmetic}
    expected, atol = case.arrays["table"], case.tolerance["table"]["atol"]
    table = tabulate_grid(case.params["dim"], (height, width), cls_rows=int(cls), **arguments).outputs["table"].whole()
    np.testing.assert_allclose(table, expected, rtol=0, atol=atol)
    graph = graphs.sinusoid_grid(case.params["dim"], **arguments)
    np.testing.assert_allclose(run(graph, cells=cells(height, width, cls)), expected, rtol=0, atol=atol)


def paper(kind: str, dim: int, position: int, theta: float) -> NDArray[np.float64]:
    """One row in 60 digits, each column written out as the sources define it."""
    with mpmath.workdps(60):
        half, base = dim // 2, mpmath.mpf(theta)
        spread = [mpmath.mpf(2 * k) / dim if kind in ("vaswani", "marian", "ctrl") else k for k in range(dim - half)]
        if kind not in ("vaswani", "marian", "ctrl"):
            spread = [mpmath.mpf(k) / (half - 1) for k in range(half)]
        sines = [mpmath.sin(position * base**-each) for each in spread]
        cosines = [mpmath.cos(position * base**-each) for each in spread][:half]
        if kind == "vaswani":
            row = [(sines, cosines)[column % 2][column // 2] for column in range(dim)]
        else:
            row = cosines + sines if kind == "musicgen" else sines + cosines
        return np.array([float(value) for value in row] + [0.0] * (dim - len(row)))


@settings(max_examples=60)
@given(KINDS, st.integers(4, 33), st.integers(0, 2**40), st.sampled_from([10000.0, 500000.0, 1.2e7, 100.0]))
def test_exact_rows_match_60_digits_at_any_position(kind: str, dim: int, position: int, theta: float) -> None:
    dim += dim % 2 if kind == "whisper" else 0
    row = rows(kind, dim, np.array([position]), theta=theta)[0]
    np.testing.assert_allclose(row, paper(kind, dim, position, theta), rtol=0, atol=2e-15)


@pytest.mark.parametrize("position", [1, 4097, 999_983, 1_048_575, 10_485_759])
@pytest.mark.parametrize("kind", SINUSOIDS)
def test_exact_rows_and_graph_are_within_a_float32_ulp(kind: str, position: int) -> None:
    expected = paper(kind, 64, position, 10000.0)
    ulp = np.spacing(np.abs(expected.astype(np.float32)))
    graph = run(graphs.sinusoid(kind, 64), positions=np.array([position]))
    for row in (rows(kind, 64, range(position, position + 1))[0].astype(np.float32), graph[0]):
        assert (np.abs(row - expected) <= ulp).all()


@settings(max_examples=30)
@given(KINDS, st.integers(4, 24), st.lists(st.integers(0, 2**24), min_size=1, max_size=9), st.integers(0, 9))
def test_graph_matches_the_function(kind: str, dim: int, positions: list[int], offset: int) -> None:
    dim += dim % 2 if kind == "whisper" else 0
    given_positions = np.array(positions)
    for arithmetic in ("exact", "parity"):
        arguments: Any = {"arithmetic": arithmetic, "offset": offset, "zero_row": positions[0] + offset}
        table = rows(kind, dim, given_positions, **arguments)
        np.testing.assert_allclose(
            run(graphs.sinusoid(kind, dim, **arguments), positions=given_positions), table, atol=2e-7
        )


def waves(kind: str, table: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Sines and cosines of a table of even dim."""
    half = table.shape[1] // 2
    if kind == "vaswani":
        return table[:, 0::2], table[:, 1::2]
    first, second = table[:, :half], table[:, half:]
    return (second, first) if kind == "musicgen" else (first, second)


@settings(max_examples=60)
@given(KINDS, EVEN, st.integers(0, 2**30), st.integers(0, 2**30))
def test_step_of_k_positions_is_one_linear_map(kind: str, dim: int, position: int, step: int) -> None:
    table = rows(kind, dim, np.array([position, step, position + step]))
    (sine, step_sine, far_sine), (cosine, step_cosine, far_cosine) = waves(kind, table)
    np.testing.assert_allclose(far_sine, sine * step_cosine + cosine * step_sine, atol=1e-14)
    np.testing.assert_allclose(far_cosine, cosine * step_cosine - sine * step_sine, atol=1e-14)


@settings(max_examples=60)
@given(KINDS, EVEN, st.integers(0, 2**52), st.sampled_from(ARITHMETICS))
def test_every_pair_has_length_one(kind: str, dim: int, position: int, arithmetic: Any) -> None:
    sine, cosine = waves(kind, rows(kind, dim, np.array([position]), arithmetic=arithmetic).astype(np.float64))
    np.testing.assert_allclose(sine**2 + cosine**2, 1.0, atol=1e-14 if arithmetic == "exact" else 3e-7)


@settings(max_examples=40)
@given(KINDS, st.integers(4, 20), st.integers(0, 3000), st.integers(0, 3000), st.sampled_from(ARITHMETICS))
def test_block_of_rows_equals_the_whole_table(kind: str, dim: int, start: int, stop: int, arithmetic: Any) -> None:
    dim += dim % 2 if kind == "whisper" else 0
    start, stop = sorted((start, stop))
    table = tabulate(kind, dim, range(7, 3007), arithmetic=arithmetic, zero_row=9).outputs["table"]
    assert np.array_equal(table.rows(start, stop), table.whole()[start:stop])
    listed = rows(kind, dim, np.arange(7, 3007), arithmetic=arithmetic, zero_row=9)
    assert np.array_equal(table.whole(), listed)


@settings(max_examples=40)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 3), st.sampled_from(["hw", "wh"]), st.data())
def test_block_of_a_grid_equals_the_whole_grid(
    height: int, width: int, cls_rows: int, order: str, data: st.DataObject
) -> None:
    table = tabulate_grid(8, (height, width), order=order, cls_rows=cls_rows).outputs["table"]
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, table.count)] * 2)))
    assert np.array_equal(table.rows(start, stop), table.whole()[start:stop])
    assert not table.whole()[:cls_rows].any()


@pytest.mark.parametrize("order", ["hw", "wh"])
def test_each_half_of_a_grid_row_is_marians_row(order: str) -> None:
    table = tabulate_grid(24, (5, 7), order=order).outputs["table"].whole().reshape(5, 7, 24)
    down, across = np.split(table, 2, axis=-1) if order == "hw" else np.split(table, 2, axis=-1)[::-1]
    assert np.array_equal(down, np.broadcast_to(rows("marian", 12, np.arange(5))[:, None], (5, 7, 12)))
    assert np.array_equal(across, np.broadcast_to(rows("marian", 12, np.arange(7))[None], (5, 7, 12)))


def test_offset_shifts_rows_and_zero_row_includes_it() -> None:
    plain = rows("tensor2tensor", 10, range(12))
    moved = rows("tensor2tensor", 10, range(10), offset=2, zero_row=3)
    assert not moved[1].any()
    kept = [0, *range(2, 10)]
    assert np.array_equal(moved[kept], plain[2:][kept])


def test_facts_describe_how_the_table_was_computed() -> None:
    table = tabulate("tensor2tensor", 7, range(3), arithmetic="parity", theta=100.0, zero_row=1)
    assert table.arithmetic == "parity"
    assert table.facts["formula"] == "w_k = theta^(-k/(floor(d/2) - 1)); row p = [sin(p w_k) ... | cos(p w_k) ...]"
    assert table.facts["inverse_frequency"] == pytest.approx([1.0, 0.1, 0.01])
    assert {key: table.facts[key] for key in ("kind", "dim", "theta", "zero_row", "offset")} == {
        "kind": "tensor2tensor",
        "dim": 7,
        "theta": 100.0,
        "zero_row": 1,
        "offset": 0,
    }


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "unknown kind": (lambda: tabulate("cosine", 8, range(3)), "'cosine' is not one of vaswani, marian, ctrl"),
    "no channels": (lambda: tabulate("vaswani", 0, range(3)), "dim is 0; vaswani sinusoids have 1 to"),
    "divides by zero, d 2": (lambda: tabulate("tensor2tensor", 2, range(3)), "dim is 2; .* divide by zero"),
    "divides by zero, d 3": (lambda: tabulate("musicgen", 3, range(3)), "dim is 3; .* divide by zero"),
    "odd whisper": (lambda: tabulate("whisper", 9, range(3)), "dim is 9; whisper sinusoids have an even number"),
    "theta": (lambda: tabulate("vaswani", 8, range(3), theta=1.0), "theta is 1.0; it must be a number above 1"),
    "no positions": (lambda: tabulate("vaswani", 8, range(0)), "no positions: send at least one"),
    "negative position": (lambda: tabulate("vaswani", 8, np.array([2, -1])), "position -1 is not in 0 to"),
    "negative after offset": (lambda: tabulate("vaswani", 8, range(3), offset=-1), "position -1 is not in 0 to"),
    "zero row": (lambda: tabulate("vaswani", 8, range(3), zero_row=-1), "zero_row is -1; it must be a position"),
    "grid dim": (lambda: tabulate_grid(6, (2, 2)), "dim is 6; a grid has a multiple of 4 channels"),
    "grid order": (lambda: tabulate_grid(8, (2, 2), order="xy"), "order 'xy' is not one of hw, wh"),
    "grid size": (lambda: tabulate_grid(8, (0, 2)), r"grid is \(0, 2\); it must be two whole numbers"),
    "grid of too many": (lambda: tabulate_grid(8, (2**40, 2**40)), r"more than 2\^53 rows"),
    "cls rows": (lambda: tabulate_grid(8, (2, 2), cls_rows=-1), "cls_rows is -1"),
    "graph": (lambda: graphs.sinusoid("whisper", 9), "dim is 9"),
    "grid graph": (lambda: graphs.sinusoid_grid(6), "dim is 6"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rejects_impossible_table_with_the_reason(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(BadEncoding, match=message):
        call()
