"""RoPE over several axes against transformers' tables and mpmath, and properties of the axes."""

import json
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from models.errors import BadEncoding
from models.graphs.positions import multi_axis as graphs
from models.positions.arithmetic import Arithmetic
from models.positions.rope.axial import AXIAL, tabulate_axial
from models.positions.rope.frequencies import Rope, frequencies
from models.positions.rope.multi_axis import AXES, tabulate_mrope
from models.positions.rope.rotation import duplicate
from models.positions.rope.table import tabulate
from models.positions.table import Table
from tests.golden_cases import Case, case, cases
from tests.onnx_sessions import open_session

Array = NDArray[Any]
ARITHMETICS: tuple[Arithmetic, ...] = ("exact", "parity")
MROPE = {"qwen2_vl_chunked": "chunked", "ernie4_5_vl": "ernie"}
SEEDS = st.integers(0, 2**32 - 1)


def graph(model: Any, **inputs: Array) -> list[Array]:
    actual: list[Array] = open_session(model.SerializeToString()).run(None, inputs)
    return actual


def values(table: Table) -> list[Array]:
    return [output.whole() for output in table.outputs.values()]


def check(actual: list[Array], golden: Case, atol: float) -> None:
    for name, mine in zip(("cos", "sin"), actual, strict=True):
        np.testing.assert_allclose(mine, golden.arrays[name].reshape(mine.shape), rtol=0, atol=atol)


def sections_of(golden: Case) -> dict[str, Any]:
    return {"sections": golden.params["mrope_section"], "axes": MROPE[golden.params["variant"]]}


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("case", cases("mrope"), ids=str)
def test_mrope_matches_transformers(case: Case, arithmetic: Arithmetic) -> None:
    rope = Rope(case.params["rope_theta"], case.params["head_dim"])
    positions, arguments = case.arrays["position_ids_thw"], sections_of(case)
    atol = case.tolerance["cos/sin"]["atol"]
    wide = tabulate_mrope(rope, positions, **arguments, arithmetic=arithmetic, table="duplicated")
    check(values(wide), case, atol)
    actual = graph(graphs.mrope(frequencies(rope, arithmetic), **arguments), positions=positions)
    check([duplicate(each, AXES[arguments["axes"]].layout) for each in actual], case, atol)


def place(golden: Case) -> dict[str, Any]:
    """A golden axial case's grid or positions, as tabulate_axial takes them."""
    if "position_ids_hw" in golden.arrays:
        return {"positions": golden.arrays["position_ids_hw"]}
    return {"grid": tuple(golden.params.get("grid_hw", (golden.params.get("grid"),) * 2))}


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("case", cases("axial_rope"), ids=str)
def test_axial_rope_matches_transformers(case: Case, arithmetic: Arithmetic) -> None:
    kind, width = case.params["variant"], case.arrays["cos"].shape[-1]
    table = "single" if width < case.params["head_dim"] else "duplicated"
    created = tabulate_axial(kind, case.params["head_dim"], **place(case), arithmetic=arithmetic, table=table)
    check(values(created), case, case.tolerance["cos/sin"]["atol"])
    assert created.facts["theta"] == case.params["rope_theta"]


def raster(height: int, width: int) -> NDArray[np.int64]:
    return np.stack(np.divmod(np.arange(height * width), width), axis=1)


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("case", cases("axial_rope"), ids=str)
def test_axial_graph_matches_transformers(case: Case, arithmetic: Arithmetic) -> None:
    kind = case.params["variant"]
    model = graphs.axial(kind, case.params["head_dim"], arithmetic=arithmetic)
    where = place(case)
    inputs = {"positions": where.get("positions", raster(*where.get("grid", (0, 1))))}
    if AXIAL[kind].by_grid:
        inputs["grid"] = np.array(where["grid"])
    actual = [
        np.concatenate([each, np.full((AXIAL[kind].unrotated, each.shape[1]), still, np.float32)])
        for each, still in zip(graph(model, **inputs), (1, 0), strict=True)
    ]
    if case.arrays["cos"].shape[-1] == case.params["head_dim"]:
        actual = [duplicate(each, AXIAL[kind].layout) for each in actual]
    check(actual, case, case.tolerance["cos/sin"]["atol"])


def drawn_sections(axes: str, seed: int) -> tuple[list[int], NDArray[np.int64]]:
    random = np.random.default_rng(seed)
    first, second, third = random.integers(1, 6, 3).tolist()
    sections = [first, first, third] if axes == "ernie" else [first + 8, second, second]
    return sections, random.integers(0, 100_000, (3, 7))


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("axes", AXES)
@given(seed=SEEDS)
def test_equal_axes_are_bitwise_plain_rope(axes: str, arithmetic: Arithmetic, seed: int) -> None:
    sections, positions = drawn_sections(axes, seed)
    rope = Rope(1e6, 2 * sum(sections))
    same = np.stack([positions[0]] * 3)
    many = tabulate_mrope(rope, same, sections=sections, axes=axes, arithmetic=arithmetic)
    for mine, plain in zip(values(many), values(tabulate(rope, same[0], arithmetic=arithmetic)), strict=True):
        np.testing.assert_array_equal(mine, plain)


@pytest.mark.parametrize("axes", AXES)
@given(seed=SEEDS)
def test_section_is_the_number_of_frequencies_of_its_axis(axes: str, seed: int) -> None:
    sections, positions = drawn_sections(axes, seed)
    rope = Rope(1e4, 2 * sum(sections))
    before, _ = values(tabulate_mrope(rope, positions, sections=sections, axes=axes))
    table = tabulate_mrope(rope, positions, sections=sections, axes=axes)
    for section, axis in zip(sections, AXES[axes].order, strict=True):
        moved = positions.copy()
        moved[axis] += 1
        after, _ = values(tabulate_mrope(rope, moved, sections=sections, axes=axes))
        changed = (before != after).any(axis=0)
        assert changed.sum() == section
        assert changed.tolist() == [name == ("time", "height", "width")[axis] for name in table.facts["axis"]]


def test_axis_of_every_frequency_matches_the_models() -> None:
    spelled = {
        "chunked": ([2, 3, 3], "tthhhwww"),
        "interleaved": ([3, 3, 2], "thwthwth"),
        "ernie": ([3, 3, 2], "hwhwhwtt"),
    }
    for axes, (sections, letters) in spelled.items():
        created = tabulate_mrope(Rope(1e4, 16), np.zeros((3, 1), np.int64), sections=sections, axes=axes)
        assert "".join(name[0] for name in created.facts["axis"]) == letters, axes


def test_notes_sections_the_interleaved_pattern_cannot_keep() -> None:
    table = tabulate_mrope(Rope(1e4, 16), np.zeros((3, 1), np.int64), sections=[1, 5, 2], axes="interleaved")
    assert any("sections name 5 frequencies for height; the pattern gives it 3" in note for note in table.notes)
    assert table.facts["axis"].count("height") == 3


def test_batch_keeps_its_shape_and_blocks_agree() -> None:
    positions = np.random.default_rng(0).integers(0, 999, (3, 2, 5))
    table = tabulate_mrope(Rope(1e6, 128), positions)
    cos = table.outputs["cos"]
    assert cos.shape == (2, 5, 64)
    flat = values(tabulate_mrope(Rope(1e6, 128), positions.reshape(3, 10)))[0]
    np.testing.assert_array_equal(cos.whole().reshape(10, 64), flat)
    np.testing.assert_array_equal(np.concatenate([cos.rows(0, 3), cos.rows(3, 10)]), flat)


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_mrope_graph_matches_the_table_of_a_scaled_rope(axes: str, arithmetic: Arithmetic) -> None:
    rope = Rope.of(1e6, 128, "yarn", {"factor": 4.0, "original_max_position_embeddings": 32768})
    positions = np.random.default_rng(1).integers(0, 130_000, (3, 50))
    actual = graph(graphs.mrope(frequencies(rope, arithmetic), None, axes), positions=positions)
    table = tabulate_mrope(rope, positions, axes=axes, arithmetic=arithmetic)
    for mine, expected in zip(actual, values(table), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=0, atol=2e-7)
    assert actual[0].max() > 1.1  # the attention factor of yarn times 4 is 1.139


@pytest.mark.parametrize("kind", AXIAL)
@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_axial_graph_matches_the_table_of_every_kind(kind: str, arithmetic: Arithmetic) -> None:
    positions, by_grid = raster(6, 4), AXIAL[kind].by_grid
    grid = {"grid": np.array([6, 4])} if by_grid else {}
    actual = graph(graphs.axial(kind, 32, arithmetic=arithmetic), positions=positions, **grid)
    table = tabulate_axial(
        kind, 32, positions=positions, grid=(6, 4) if by_grid else None, merge=1, arithmetic=arithmetic
    )
    for mine, expected in zip(actual, values(table), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=0, atol=2e-7)


def expected_axes(kind: str) -> str:
    """Which of row and column turns the first half of the columns."""
    return {"gemma4": "wh", "llama4": "wh"}.get(kind, "hw")


@pytest.mark.parametrize("kind", AXIAL)
def test_each_half_of_the_columns_depends_on_one_axis(kind: str) -> None:
    cos, sin = values(tabulate_axial(kind, 32, grid=(6, 4), merge=1))
    for half, axis in enumerate(expected_axes(kind)):
        columns = slice(8 * half, 8 * half + 8)
        along = "hw".index(axis)
        for each in (cos, sin):
            cube = each[:24, columns].reshape(6, 4, 8)
            assert (cube == cube.take([0], axis=1 - along)).all()
            assert (cube != cube.take([0], axis=along)).any()


def test_patches_are_ordered_in_merge_blocks() -> None:
    """A 4 x 4 grid, merge 2: rows and columns as transformers' get_vision_position_ids orders them."""
    blocks = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)]
    order = np.array(blocks + [(row + 2, column) for row, column in blocks])
    by_grid, by_hand = (
        values(tabulate_axial("qwen2_vl", 32, **where)) for where in ({"grid": (4, 4)}, {"positions": order})
    )
    np.testing.assert_array_equal(by_grid, by_hand)


@pytest.mark.parametrize("kind", AXIAL)
def test_block_of_patches_equals_the_whole_table(kind: str) -> None:
    output = tabulate_axial(kind, 32, grid=(6, 4)).outputs["sin"]
    parts = [output.rows(start, min(start + 5, output.count)) for start in range(0, output.count, 5)]
    np.testing.assert_array_equal(np.concatenate(parts), output.whole())


@pytest.mark.parametrize("kind", sorted(set(AXIAL) - {"dinov3", "eva02"}))
def test_exact_axial_values_match_mpmath(kind: str) -> None:
    row, head_dim = AXIAL[kind], 16
    patches = np.array([[0, 3], [1000, 77], [131_071, 4095]])
    cos, sin = values(tabulate_axial(kind, head_dim, positions=patches))
    with mpmath.workdps(60):
        for patch, cos_row, sin_row in zip(patches.tolist(), cos, sin, strict=True):
            for column in range(head_dim // 2):
                half, j = divmod(column, head_dim // 4)
                exponent = (2 * j + half) if kind == "pixtral" else 2 * j
                where = patch["hw".index(expected_axes(kind)[half])] + (kind == "llama4")
                angle = where * mpmath.mpf(row.theta) ** -(mpmath.mpf(exponent) / (head_dim // 2))
                assert abs(cos_row[column] - mpmath.cos(angle)) < 1e-15
                assert abs(sin_row[column] - mpmath.sin(angle)) < 1e-15


@pytest.mark.parametrize(("height", "width"), [(4, 7), (36, 36)])
def test_exact_stretched_values_match_mpmath(height: int, width: int) -> None:
    """EVA-02: a grid spans the 16 positions of training, whatever its size."""
    cos, sin = values(tabulate_axial("eva02", 16, grid=(height, width)))
    with mpmath.workdps(60):
        for index in (0, 3, height * width - 1):
            for column in range(8):
                half, j = divmod(column, 4)
                where, count = divmod(index, width)[half], (height, width)[half]
                angle = mpmath.mpf(16 * where) / count * mpmath.mpf(10000) ** -(mpmath.mpf(j) / 4)
                assert abs(cos[index, column] - mpmath.cos(angle)) < 1e-14
                assert abs(sin[index, column] - mpmath.sin(angle)) < 1e-14


@pytest.mark.parametrize(("height", "width"), [(1, 1), (4, 7), (224, 14)])
def test_exact_dinov3_values_match_mpmath(height: int, width: int) -> None:
    cos, sin = values(tabulate_axial("dinov3", 16, grid=(height, width)))
    with mpmath.workdps(60):
        for index in {0, 3 % (height * width), height * width - 1}:
            for column in range(8):
                half, j = divmod(column, 4)
                where, count = (divmod(index, width)[half], (height, width)[half])
                centre = 2 * (mpmath.mpf(where) + 0.5) / count - 1
                angle = 2 * mpmath.pi * centre * mpmath.mpf(100) ** -(mpmath.mpf(j) / 4)
                assert abs(cos[index, column] - mpmath.cos(angle)) < 3e-15
                assert abs(sin[index, column] - mpmath.sin(angle)) < 3e-15


def test_llama4_class_token_is_last_and_not_rotated() -> None:
    cos, sin = values(tabulate_axial("llama4", 32, grid=(3, 5)))
    assert cos.shape == (16, 16)
    assert (cos[-1] == 1).all()
    assert (sin[-1] == 0).all()
    assert (sin[:-1] != 0).all()  # the first row and column are position 1


def test_facts_are_json_serialisable() -> None:
    created = [tabulate_axial(kind, 32, grid=(4, 4)) for kind in AXIAL]
    created += [tabulate_mrope(Rope(1e6, 128), np.ones((3, 2), np.int64), axes=axes) for axes in AXES]
    for table in created:
        facts = json.loads(json.dumps(table.facts))
        width = len(facts["inverse_frequency"])
        assert len(facts["axis"]) == width == table.outputs["cos"].width
        assert facts["formula"]
        assert facts["layout"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"axes": "qwen"}, "'qwen' are not one of chunked, interleaved, ernie"),
        ({"sections": [16, 24]}, "chunked M-RoPE needs three (time, height, width) that sum to rotary_dim/2 = 64"),
        ({"sections": [16, 24, 23]}, "sections are [16, 24, 23]"),
        ({"sections": [-1, 33, 32]}, "sections are [-1, 33, 32]"),
        ({"sections": [20, 24, 20], "axes": "ernie"}, "20 is not 24"),
        ({"table": "triple"}, "'triple' is not one of single, duplicated"),
        ({"positions": np.zeros((2, 4), np.int64)}, "positions are [2, 4]; M-RoPE needs [3, tokens]"),
        ({"positions": np.zeros(3, np.int64)}, "positions are [3]"),
        ({"positions": np.full((3, 1), -1)}, "position -1 is not in"),
        ({"positions": np.zeros((3, 0), np.int64)}, "no positions"),
    ],
)
def test_rejects_impossible_mrope(options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadEncoding) as caught:
        tabulate_mrope(Rope(1e6, 128), **{"positions": np.zeros((3, 4), np.int64)} | options)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("clip", {"grid": (2, 2)}, "'clip' is not one of qwen2_vl"),
        ("pixtral", {}, "pixtral needs a grid (patches down, across) or the positions"),
        ("pixtral", {"grid": (2, 2), "positions": raster(2, 2)}, "takes a grid or positions, not both"),
        ("dinov3", {"positions": raster(2, 2)}, "dinov3 needs the grid as well as the positions"),
        ("dinov3", {"grid": (2, 1), "positions": raster(2, 2)}, "patch [0, 1] is outside the grid of 2 x 1"),
        ("qwen2_vl", {"grid": (4, 3)}, "a grid of 4 x 3 patches cannot be read in blocks of 2 x 2"),
        ("pixtral", {"grid": (0, 3)}, "a grid of 0 x 3 patches"),
        ("pixtral", {"grid": (2, 2), "head_dim": 30}, "a head of 30 channels cannot be shared by two axes"),
        ("pixtral", {"grid": (2, 2), "theta": 1.0}, "rope_theta above 1"),
        ("pixtral", {"positions": np.zeros((4, 3), np.int64)}, "positions are [4, 3]"),
        ("pixtral", {"positions": np.full((4, 2), -1)}, "position -1 is not in"),
        ("pixtral", {"grid": (2, 2), "table": "triple"}, "'triple' is not one of single, duplicated"),
    ],
)
def test_rejects_impossible_axial_rope(kind: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadEncoding) as caught:
        tabulate_axial(kind, **{"head_dim": 32} | options)
    assert said in str(caught.value)


def test_every_multi_axis_golden_case_is_compared() -> None:
    assert {actual.params["variant"] for actual in cases("mrope")} == set(MROPE)
    assert {actual.params["variant"] for actual in cases("axial_rope")} <= set(AXIAL)
    assert case("axial_qwen2_vl").arrays["position_ids_hw"].shape == (12, 2)
