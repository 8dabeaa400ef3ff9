"""Labels of pictures: complete legends, text that no curve crosses and that fits, parameters in plain words."""

import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from models.plots import FIGURES, Subject, described, draw
from models.plots.canvas import wrapped
from models.plots.picture import LinePanel, Picture
from models.plots.subject import distinct
from models.positions import alibi, buckets, masks
from models.positions.rope import axial
from models.positions.rope import table as rope_table
from models.positions.rope.frequencies import Rope

SVG = "{http://www.w3.org/2000/svg}"
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "ntk": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 128},
    "llama3": {
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
}


def rope(rope_type: str = "default", length: int = 512, arithmetic: Any = "exact", **rest: Any) -> Subject:
    encoding = Rope.of(10000.0, 32, rope_type, SCALINGS[rope_type])
    tables = [rope_table.tabulate(encoding, range(length), arithmetic=each) for each in (arithmetic, "parity")]
    return Subject(tables[0], positions=range(length), twin=tables[1], **rest)


def spectrum(*subjects: Subject) -> Picture:
    return FIGURES["rope", "spectrum"].compose(distinct(subjects), None)


def texts(svg: bytes) -> list[str]:
    return ["".join(each.itertext()) for each in ET.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize("first", SCALINGS)
def test_spectrum_compares_every_subject_in_both_panels(first: str) -> None:
    order = [first, *(name for name in SCALINGS if name != first)]
    drawn = spectrum(*map(rope, order))
    names = [subject.label for subject in distinct([rope(name) for name in order])]
    assert len(set(names)) == len(order)
    for row in drawn.panels:
        assert isinstance(row[0], LinePanel)
        assert [curve.label for curve in row[0].curves] == names
    shown = texts(draw("spectrum", [rope(name) for name in order], format="svg"))
    assert [line for line in shown if line in names] == names


def test_unscaled_spectrum_is_one_in_the_ratio_panel() -> None:
    ratio = spectrum(rope(), rope("linear")).panels[1][0]
    assert isinstance(ratio, LinePanel)
    assert [np.unique(np.round(curve.y, 6)).tolist() for curve in ratio.curves] == [[1.0], [4.0]]


def test_spectrum_draws_the_unscaled_form_unless_compared() -> None:
    alone, compared = (spectrum(*subjects).panels[0][0] for subjects in ([rope("yarn")], [rope(), rope("yarn")]))
    assert isinstance(alone, LinePanel)
    assert isinstance(compared, LinePanel)
    assert [curve.label for curve in alone.curves] == ["unscaled", "scaled"]
    assert [curve.label for curve in compared.curves] == ["unscaled", "yarn scaling, factor 4, trained on 128 tokens"]
    assert [curve.tone for curve in compared.curves] == [0, 1]


def boxes(root: ET.Element) -> list[tuple[float, float, float, float]]:
    """Left, right, top and bottom of the background of every pair of axes."""
    found = []
    for group in root.iter(f"{SVG}g"):
        if re.fullmatch(r"axes_\d+", group.get("id", "")):
            patch = next(each for each in group if each.get("id", "").startswith("patch"))
            numbers = re.findall(r"-?[\d.]+", patch[0].get("d", ""))
            x, y = (list(map(float, numbers[start::2])) for start in (0, 1))
            found.append((min(x), max(x), min(y), max(y)))
    return found


@pytest.mark.parametrize("plot", ["decay", "error", "spectrum"])
@pytest.mark.parametrize("others", [[], ["yarn", "llama3"]])
def test_labels_of_marks_lie_outside_the_curves(plot: str, others: list[str]) -> None:
    subjects = [rope(name) for name in ["llama3", *others][-3:]]
    root = ET.fromstring(draw(plot, subjects, format="svg"))
    sought = "trained|rounding|bfloat16|float16|float32"
    lines = [each for each in root.iter(f"{SVG}text") if re.search(sought, "".join(each.itertext()))]
    axes = boxes(root)
    assert lines
    assert len(axes) == (3 if plot == "spectrum" else 1)  # with that of wavelengths, which has no width
    for line in lines:
        place = re.search(r"translate\(([\d.]+) ([\d.]+)\)", line.get("transform", ""))
        x, y = (
            (float(place[1]), float(place[2])) if place else (float(line.get("x", "nan")), float(line.get("y", "nan")))
        )
        inside = [left < x < right - 1 and top + 1 < y < bottom for left, right, top, bottom in axes]
        assert not any(inside), "".join(line.itertext())


def test_trained_lengths_nearby_are_named_one_above_the_other() -> None:
    root = ET.fromstring(draw("decay", [rope(each, 8192) for each in ("yarn", "llama3")], format="svg"))
    lines = [each for each in root.iter(f"{SVG}text") if re.fullmatch(r"trained on [\d,]+ tokens", each.text or "")]
    assert len({line.get("y") for line in lines}) == len(lines) == 2


def test_parameters_in_common_stand_in_the_subtitle_once() -> None:
    svg = draw("decay", [rope(), rope("linear"), rope("yarn")], format="svg")
    shown = texts(svg)
    assert "theta 10,000, 32 channels" in shown
    assert {"unscaled", "linear scaling, factor 4"} <= set(shown)
    assert not any("theta" in line for line in shown if "scaling" in line)


def test_equal_parameters_are_told_apart() -> None:
    labels = [each.label for each in distinct([rope(), rope(arithmetic="parity"), rope(arithmetic="parity")])]
    assert "exact" in labels[0]
    assert labels[1].endswith("(1)")
    assert labels[2].endswith("(2)")
    named = [each.label for each in distinct([rope(name="mine"), rope(name="yours")])]
    assert named == ["mine", "yours"]


@pytest.mark.parametrize("plot", ["decay", "spectrum"])
def test_picture_grows_with_its_legend(plot: str) -> None:
    subjects = [rope(name=f"{n} {'W' * 60}") for n in range(6)]
    tall = ET.fromstring(draw(plot, subjects, format="svg"))
    low = ET.fromstring(draw(plot, subjects[:1], format="svg"))
    heights = [float(root.get("height", 0)) for root in (tall, low)]
    axes = [sum(bottom - top for _, _, top, bottom in boxes(root)) for root in (tall, low)]
    assert heights[0] - heights[1] >= 4 * 18
    assert axes[0] == pytest.approx(axes[1], rel=0.15)


@pytest.mark.parametrize("size", [9.0, 9.5, 12.0])
@pytest.mark.parametrize("letter", ["W", "i", "W ", "i i"])
def test_wrapped_text_is_not_wider_than_allowed(size: float, letter: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    text = (letter * 150).strip()
    lines = wrapped(text, size, 5.0)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    for dpi in (75, 100, 200):  # of pictures 600, 800 and 1600 pixels wide
        figure = Figure((8.0, 4.0), dpi=dpi)
        renderer = FigureCanvasAgg(figure).get_renderer()
        for line in lines:
            drawn = figure.text(0, 0, line, fontsize=size, family=["DejaVu Sans"])
            assert drawn.get_window_extent(renderer).width <= 5.0 * dpi


def test_long_name_keeps_its_beginning_and_end() -> None:
    names = [f"{'M' * 150}{n}" for n in range(2)]
    shown = texts(draw("decay", [replace(rope(), name=name) for name in names], format="svg"))
    cut = [line for line in shown if "…" in line]
    assert [line[-1] for line in cut] == ["0", "1"]
    assert all(line.startswith("MM") for line in cut)


def test_word_of_a_mask_says_which_keys_a_query_sees() -> None:
    said = {
        "attends to itself and all tokens before it": {},
        "attends to itself and the 3 tokens before it": {"window": 4},
        "attends to itself and the 1 token before it": {"window": 2},
        "attends to itself alone": {"window": 1},
        "attends to every token": {"causal": False},
        "attends to tokens up to 2 away on either side": {"causal": False, "window": 2},
        "attends to itself and all tokens before it, within its chunk of 4 tokens": {"chunk": 4},
        "attends to itself and all tokens before it, padding excluded": {"attention_mask": np.array([[1] * 7 + [0]])},
        "attends to itself and all tokens before it, within its packed sequence": {
            "position_ids": np.array([[0, 1, 2, 3, 0, 1, 2, 3]])
        },
    }
    for words, rules in said.items():
        assert described(masks.tabulate(8, **rules)) == words  # type: ignore[arg-type]


def test_label_leaves_out_parameters_that_mean_none() -> None:
    assert described(alibi.tabulate(8, query_length=4)) == "ALiBi, symmetric, 8 heads, maximum bias 8"
    assert "factor" not in described(rope().table)
    assert described(rope().table) == "RoPE, unscaled, theta 10,000, 32 channels"
    unbucketed = buckets.tabulate_deberta(4, position_buckets=-1, max_relative_positions=64)
    assert described(unbucketed) == "DeBERTa, no buckets, up to 64 relative positions"
    merged = [described(axial.tabulate_axial(kind, 32, grid=(4, 4))) for kind in ("pixtral", "qwen2_vl")]
    assert ["merged" in each for each in merged] == [False, True]


def test_letters_that_the_font_lacks_are_drawn_without_a_warning() -> None:
    name = "\u6b63\u5f26"
    assert name in "".join(texts(draw("spectrum", [rope(name=name), rope("linear")], format="svg")))
