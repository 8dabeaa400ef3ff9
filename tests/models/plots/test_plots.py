import io
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import mpmath
import numpy as np
import pytest
from PIL import Image

from models.errors import BadEncoding
from models.plots import (
    FIGURES,
    Subject,
    curves,
    default_plot,
    described,
    draw,
    figures_of,
    sampling,
)
from models.plots.catalog import WIDTHS
from models.plots.colors import DARK, DASHES, LIGHT
from models.plots.picture import HeatPanel, LinePanel, Picture
from models.positions import alibi, buckets, learned, masks, sinusoidal
from models.positions.rope import axial, multi_axis
from models.positions.rope import table as rope_table
from models.positions.rope.frequencies import Rope
from models.positions.table import Output, Positions, Table
from tests.sweeps import sampled

ROOT = Path(__file__).parents[3]
SVG = "{http://www.w3.org/2000/svg}"
MILLION = 1_000_000
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"factor": 4.0, "original_max_position_embeddings": 2048}


def rope(positions: Positions = range(64), rope_type: str = "llama3", parameters: object = None) -> Subject:
    row = Rope.of(10000.0, 32, rope_type, parameters or (LLAMA3 if rope_type == "llama3" else YARN))
    exact, parity = (rope_table.tabulate(row, positions, arithmetic=kind) for kind in ("exact", "parity"))
    return Subject(exact, positions=positions, twin=parity)


def sinusoid(positions: Positions = range(64), kind: str = "marian") -> Subject:
    exact, parity = (sinusoidal.tabulate(kind, 32, positions, arithmetic=a) for a in ("exact", "parity"))
    return Subject(exact, positions=positions, twin=parity)


def weights(rows: int, width: int) -> np.ndarray:
    return np.random.default_rng(5).normal(size=(rows, width)).astype(np.float32)


def mrope() -> Subject:
    positions = np.stack([np.arange(24) // 8, np.arange(24) % 8, np.arange(24) % 4])
    return Subject(multi_axis.tabulate_mrope(Rope.of(1e6, 32), positions, sections=(4, 6, 6)))


# One table of each scheme, with all the inputs of its figures.
SUBJECTS: dict[str, Callable[[], Subject]] = {
    "rope": rope,
    "mrope": mrope,
    "axial_rope": lambda: Subject(axial.tabulate_axial("qwen2_vl", 32, grid=(4, 4))),
    "sinusoidal": sinusoid,
    "sinusoidal_grid": lambda: Subject(sinusoidal.tabulate_grid(16, (4, 4), cls_rows=1)),
    "learned": lambda: Subject(learned.tabulate(weights(40, 24), range(40))),
    "alibi": lambda: Subject(alibi.tabulate(12, query_length=40)),
    "t5": lambda: Subject(buckets.tabulate_t5(40, bidirectional=True, weights=weights(32, 12))),
    "deberta": lambda: Subject(buckets.tabulate_deberta(40, position_buckets=16, max_relative_positions=64)),
    "mask": lambda: Subject(masks.tabulate(24, window=5)),
}
each_figure = pytest.mark.parametrize(("scheme", "plot"), sampled(FIGURES, 7, unpack=True))


def size(png: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(png)) as image:
        image.load()
        return image.size


def words(svg: bytes) -> list[str]:
    return ["".join(each.itertext()) for each in ET.fromstring(svg).iter(f"{SVG}text")]


def picture(plot: str, *subjects: Subject, axis: str | None = None) -> Picture:
    return FIGURES[subjects[0].scheme, plot].compose(subjects, axis)  # type: ignore[arg-type]


def recorded(table: Table) -> tuple[Table, list[int]]:
    """The same table, and a list that records the number of rows of each block that is read."""
    rows_read: list[int] = []

    def recording(output: Output) -> Output:
        def rows(start: int, stop: int) -> np.ndarray:
            rows_read.append(stop - start)
            return output.rows(start, stop)

        return replace(output, rows=rows)

    return replace(table, outputs={name: recording(output) for name, output in table.outputs.items()}), rows_read


def test_every_scheme_of_a_table_has_a_figure() -> None:
    created = {subject().scheme for subject in SUBJECTS.values()}
    assert created == set(SUBJECTS) == {scheme for scheme, _ in FIGURES}


@each_figure
def test_every_figure_is_a_png_of_requested_width(scheme: str, plot: str) -> None:
    assert size(draw(plot, [SUBJECTS[scheme]()]))[0] == 800


@pytest.mark.parametrize(("width", "height"), [(600, 400), (1203, 640), (1600, None)])
def test_picture_has_requested_size_in_both_formats(width: int, height: int | None) -> None:
    actual = size(draw("decay", [rope()], width_px=width, height_px=height))
    assert actual == (width, height or actual[1])
    root = ET.fromstring(draw("decay", [rope()], format="svg", width_px=width, height_px=height))
    assert (root.get("width"), root.get("height")) == tuple(map(str, actual))


@each_figure
def test_every_figure_is_valid_svg_and_its_axes_name_units(scheme: str, plot: str) -> None:
    subject = SUBJECTS[scheme]()
    root = ET.fromstring(svg := draw(plot, [subject], format="svg"))
    assert (root.get("width"), root.get("role")) == ("800", "img")
    assert root.findtext(f"{SVG}title")
    assert (root.findtext(f"{SVG}desc") or "").endswith(f"{subject.label}.")
    axes = [axis for row in picture(plot, subject).panels for panel in row for axis in (panel.x, panel.y)]
    assert all(axis.label.endswith(")") for axis in axes)
    shown = " ".join(words(svg))
    assert all(line in shown for axis in axes for line in axis.label.split("\n"))


@each_figure
def test_compared_subjects_are_named_in_one_picture(scheme: str, plot: str) -> None:
    subjects = [replace(SUBJECTS[scheme](), name=f"number {n}") for n in range(3)]
    shown = " ".join(words(draw(plot, subjects, format="svg", dark=True)))
    assert all(subject.label in shown for subject in subjects)


def test_title_names_scheme_and_parameters() -> None:
    shown = " ".join(words(draw("heatmap", [rope()], format="svg")))
    assert "RoPE, llama3 scaling, theta 10,000, 32 channels, factor 8, high-frequency factor 4" in shown
    assert described(SUBJECTS["alibi"]().table) == "ALiBi, symmetric, 12 heads, maximum bias 8"


def test_compared_grids_share_one_colour_scale() -> None:
    drawn = picture("heatmap", rope(), rope(rope_type="yarn"))
    assert drawn.colours is not None
    most = max(
        float(np.abs(panel.values).max()) for row in drawn.panels for panel in row if isinstance(panel, HeatPanel)
    )
    assert (-drawn.colours.low, drawn.colours.high) == (most, most)
    assert most > 1.1  # yarn's attention factor


@pytest.mark.parametrize("plot", ["heatmap", "decay", "error", "spectrum"])
def test_heatmap_of_a_million_positions_reads_few_rows(plot: str) -> None:
    subject = rope(range(MILLION))
    table, rows_read = recorded(subject.table)
    draw(plot, [replace(subject, table=table)])
    assert sum(rows_read) <= 2 * sampling.MAX_CELLS


def test_similarity_of_a_million_positions_reads_few_rows() -> None:
    table, rows_read = recorded(sinusoidal.tabulate("marian", 32, range(MILLION)))
    draw("similarity", [Subject(table)])
    assert sum(rows_read) <= 1200


def test_large_mask_reads_few_rows_and_notes_it() -> None:
    table, rows_read = recorded(masks.tabulate(131_072, window=4096))
    shown = words(draw("heatmap", [Subject(table)], format="svg"))
    assert sum(rows_read) * 131_072 <= sampling.MAX_ROW_VALUES
    assert any(f"{sum(rows_read)} of 131,072 queries drawn" in line for line in shown)


def test_svg_heatmap_embeds_one_small_image_per_grid() -> None:
    svg = draw("heatmap", [rope(range(MILLION))], format="svg")
    assert len(list(ET.fromstring(svg).iter(f"{SVG}image"))) == 3  # cos, sin, the scale of colours
    assert len(svg) < 400_000


def test_four_threads_draw_the_same_as_one() -> None:
    jobs = [(scheme, plot, form) for scheme, plot in list(FIGURES)[:3] for form in ("png", "svg")]

    def job(what: tuple[str, str, str]) -> bytes:
        return draw(what[1], [SUBJECTS[what[0]]()], format=what[2])  # type: ignore[arg-type]

    alone = [job(each) for each in jobs]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(job, jobs)) == alone


def test_drawing_restores_matplotlib_settings() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    draw("decay", [rope()], format="svg", dark=True)
    assert dict(matplotlib.rcParams) == before


def test_matplotlib_is_imported_only_when_drawing() -> None:
    code = "import sys, models, models.plots; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize(
    ("rows_read", "message"),
    [
        (lambda: draw("pie", [rope()]), "'pie' is not one of heatmap, spectrum, decay, error"),
        (lambda: draw("bias", [SUBJECTS["deberta"]()]), "'bias' is not one of bucket, heatmap, the figures of deberta"),
        (lambda: draw("heatmap", []), "at least one"),
        (lambda: draw("decay", [rope()] * 7), "holds up to 6"),
        (lambda: draw("decay", [rope()], format="gif"), "'gif' is not one of png, svg"),  # type: ignore[arg-type]
        (lambda: draw("decay", [rope()], width_px=WIDTHS[0] - 1), "it must be 600 to 4000"),
        (lambda: draw("decay", [rope()], height_px=9000), "height is 9000"),
        (lambda: draw("decay", [rope()], width_px=3999, height_px=240), "height is 240 pixels; with its text"),
        (lambda: draw("decay", [rope()], axis="cubic"), "'cubic' is not one of linear, log"),  # type: ignore[arg-type]
        (lambda: draw("spectrum", [rope()], axis="log"), "no axis of distances"),
        (lambda: draw("heatmap", [rope(), SUBJECTS["mask"]()]), "different things of rope, mask"),
        (lambda: draw("heatmap", [rope(), sinusoid()]), "the table has"),
        (lambda: draw("error", [replace(rope(), twin=None)]), "the table has no twin"),
        (lambda: draw("error", [rope(range(1))]), "positions above 0"),
        (lambda: draw("similarity", [sinusoid(range(1))]), "two rows"),
        (lambda: draw("heatmap", [replace(rope(), positions=range(9))]), "9 positions were given for 64 rows"),
        (lambda: default_plot("song"), "'song' has no figure"),
    ],
)
def test_rejects_what_cannot_be_drawn_with_the_reason(rows_read: Callable[[], object], message: str) -> None:
    with pytest.raises(BadEncoding, match=message):
        rows_read()


def test_label_may_contain_any_character() -> None:
    name = 'a<b> & \x07\n$x^2$ "c"'
    svg = draw("heatmap", [replace(rope(), name=name), rope()], format="svg")
    assert any('a<b> &   $x^2$ "c"' in line for line in words(svg))


@pytest.mark.parametrize("length", [1, 2, 3])
def test_tables_of_a_few_positions_are_drawn(length: int) -> None:
    for plot in ("heatmap", "spectrum", "decay"):
        draw(plot, [rope(range(length))])


def test_unordered_positions_are_drawn_in_their_place() -> None:
    positions = np.array([7, 0, 4096, 3, 100])
    band = curves.error(rope(positions))
    assert band.x.tolist() == [3, 7, 100, 4096]
    assert band.y.tolist() == [curves.error(rope(np.array([each]))).y[0] for each in (3, 7, 100, 4096)]
    draw("heatmap", [rope(positions)])


def test_first_figure_of_a_scheme_is_its_default() -> None:
    assert default_plot("rope") == "heatmap"
    assert default_plot("t5") == "bucket"
    assert list(figures_of("mask")) == ["heatmap"]


# The numbers of the curves


def test_score_is_the_mean_over_random_unit_vectors() -> None:
    waves = rope(rope_type="yarn").waves()
    pairs = np.random.default_rng(3).normal(size=(40_000, len(waves.inverse_frequency), 2))
    power = (pairs**2).sum(axis=2) / (pairs**2).sum(axis=(1, 2))[:, None]  # q^T R(m) q = sum_i |q_i|^2 cos(m w_i)
    for distance in (0, 1, 17, 400):
        simulated = (power @ np.cos(distance * waves.inverse_frequency)).mean() * waves.attention_factor**2
        assert curves.score(waves, np.array([distance]))[0] == pytest.approx(simulated, abs=3e-3)


def test_score_at_long_distance_matches_high_precision() -> None:
    waves = rope().waves()
    with mpmath.workdps(40):
        angles = [mpmath.mpf(float(each)) * 999_983 for each in waves.inverse_frequency]
        exact = float(mpmath.fsum(mpmath.cos(angle) for angle in angles) / len(angles))
    assert curves.score(waves, np.array([999_983]))[0] == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("axis", ["linear", "log"])
def test_decay_band_contains_the_scores_of_its_distances(axis: str) -> None:
    waves = rope().waves()
    band = curves.decay(waves, 200_000, axis)  # type: ignore[arg-type]
    assert len(band.x) <= curves.DECAY_BINS
    assert (band.low <= band.y).all()
    assert (band.y <= band.high).all()
    middle = len(band.x) // 2
    near = np.arange(int(band.x[middle]) - 20, int(band.x[middle]) + 20)
    assert band.low[middle] <= curves.score(waves, near).mean() <= band.high[middle]


def test_unscaled_frequencies_are_powers_of_theta() -> None:
    waves = rope().waves()
    assert waves.unscaled is not None
    assert waves.unscaled == pytest.approx(
        [float(mpmath.power(10000, -mpmath.mpf(i) / 16)) for i in range(16)], rel=1e-14
    )
    assert (waves.trained_context, waves.attention_factor) == (8192, 1.0)


def test_spectrum_shows_the_factor_of_a_scaling() -> None:
    panel = picture("spectrum", rope()).panels[1][0]
    assert isinstance(panel, LinePanel)
    slowed = panel.curves[0].y
    assert (slowed[0], slowed[-1]) == (pytest.approx(1.0), pytest.approx(LLAMA3["factor"]))


def test_wavelength_axis_is_two_pi_over_frequency() -> None:
    root = ET.fromstring(draw("spectrum", [sinusoid()], format="svg"))
    down = {text: float(each.get("y", "nan")) for each in root.iter(f"{SVG}text") if (text := each.text)}
    decade = down["10⁻²"] - down["10⁻¹"]
    for wavelength in ("100", "1,000", "10,000"):
        frequency = 2 * np.pi / int(wavelength.replace(",", ""))
        assert down[wavelength] == pytest.approx(down["10⁻¹"] - (np.log10(frequency) + 1) * decade, abs=0.1)


def test_similarity_is_the_mean_cosine_at_each_distance() -> None:
    table = weights(30, 8).astype(np.float64)
    band = curves.similarity(learned.tabulate(table, range(30)).outputs["table"], "linear")
    for distance in (0, 1, 13, 29):
        pairs = [
            float(
                np.dot(table[i], table[i + distance]) / np.linalg.norm(table[i]) / np.linalg.norm(table[i + distance])
            )
            for i in range(30 - distance)
        ]
        assert band.x[distance] == distance
        actual = (band.y[distance], band.low[distance], band.high[distance])
        assert actual == pytest.approx((np.mean(pairs), min(pairs), max(pairs)))


def test_similarity_of_a_sinusoid_equals_its_score() -> None:
    subject = sinusoid(range(100_000))
    band = curves.similarity(subject.table.outputs["table"], "log")
    assert band.y == pytest.approx(curves.score(subject.waves(), band.x), abs=1e-9)  # sum cos(k w) / (d/2), for any row


def test_error_is_the_largest_difference_of_float32_angles() -> None:
    subject = rope(range(90))
    band = curves.error(subject)
    frequencies = subject.waves().inverse_frequency
    assert subject.twin is not None
    single = np.asarray(subject.twin.facts["inverse_frequency"], np.float32)
    for position in (1, 7, 89):
        angles = np.float32(position) * single
        apart = [
            np.abs(np.cos(angles).astype(np.float64) - np.cos(position * frequencies)).max(),
            np.abs(np.sin(angles).astype(np.float64) - np.sin(position * frequencies)).max(),
        ]
        assert band.y[position - 1] == pytest.approx(max(apart), abs=2e-9)


def test_bucket_by_distance_matches_the_formula() -> None:
    table = buckets.tabulate_t5(2000, bidirectional=True).outputs["bucket"]
    relative, actual = curves.by_distance(table, range(2000))
    assert (relative[0], relative[-1]) == (-1999, 1999)
    assert set(range(-curves.NEAR_DISTANCES, curves.NEAR_DISTANCES + 1)) <= set(relative.tolist())
    assert actual.tolist() == buckets.t5_bucket(relative, bidirectional=True).tolist()


def test_queries_start_after_the_past() -> None:
    subject = Subject(buckets.tabulate_t5(4, bidirectional=False, past=60))
    relative, actual = curves.by_distance(subject.output("bucket"), subject.row_positions(4))
    assert (relative[0], relative[-1]) == (-63, 3)
    assert actual.tolist() == buckets.t5_bucket(relative, bidirectional=False).tolist()


def test_additive_and_boolean_masks_are_drawn_alike() -> None:
    both = [Subject(masks.tabulate(30, window=7, form=form)) for form in ("additive", "boolean")]
    shown = [picture("heatmap", each).panels[0][0] for each in both]
    judged = [[float(i - 7 < j <= i) for j in range(30)] for i in range(30)]
    assert all(isinstance(panel, HeatPanel) and panel.values.tolist() == judged for panel in shown)


# Sampling


@pytest.mark.parametrize("choose", [sampling.evenly, sampling.scattered])
def test_thinned_axis_takes_one_row_from_each_stretch(choose: Callable[[int, int], np.ndarray]) -> None:
    chosen = choose(MILLION, 700)
    assert len(chosen) == 700
    assert (np.diff(chosen) > 0).all()
    assert chosen[0] >= 0
    assert chosen[-1] < MILLION
    assert np.abs(chosen - np.linspace(0, MILLION, 700)).max() <= 2 * MILLION / 700
    assert choose(20, 700).tolist() == list(range(20))


def test_scattered_rows_do_not_alias_a_fast_wave() -> None:
    # Every 1024th position of a wave of length 1025 would draw a wave of a million positions.
    def strongest(rows: np.ndarray) -> float:
        spectrum = np.abs(np.fft.rfft(np.sin(2 * np.pi * rows / 1025)))
        return float(spectrum.max() / np.sqrt((spectrum**2).sum()))

    assert strongest(np.arange(0, 1024 * 1024, 1024)) > 0.9
    assert strongest(sampling.scattered(1024 * 1024, 1024)) < 0.25


def test_consecutive_rows_are_read_together() -> None:
    table, rows_read = recorded(sinusoidal.tabulate("marian", 8, range(1000)))
    indices = np.array([0, 1, 2, 500, 900, 901])
    actual = sampling.rows_at(table.outputs["table"], indices)
    assert rows_read == [3, 1, 2]
    assert (actual == sinusoidal.tabulate("marian", 8, indices).outputs["table"].whole()).all()


# Colour vision


def luminance(colour: str) -> float:
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


# Machado, Oliveira and Fernandes 2009, severity 1, on linear light
_EYES = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_and_lines_contrast_with_the_background(theme: object) -> None:
    assert theme in (LIGHT, DARK)
    chosen = LIGHT if theme is LIGHT else DARK
    paper = luminance(chosen.paper)

    def contrast(colour: str) -> float:
        light, dark = sorted((luminance(colour), paper), reverse=True)
        return (light + 0.05) / (dark + 0.05)

    assert contrast(chosen.ink) >= 7  # WCAG 2.2, AAA
    assert min(contrast(colour) for colour in chosen.lines) >= 2.2
    assert len(set(map(str, DASHES[: len(chosen.lines)]))) == len(chosen.lines)  # told apart without colour


@pytest.mark.parametrize("eyes", _EYES)
@pytest.mark.parametrize("name", [LIGHT.diverging, DARK.diverging])
def test_diverging_map_sides_differ_for_colour_blind_readers(eyes: str, name: str) -> None:
    import matplotlib

    colours = matplotlib.colormaps[name](np.linspace(0, 1, 9))[:, :3]
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    seen = (linear @ np.array(_EYES[eyes]).T).clip(0, 1) ** (1 / 2.4)
    assert np.linalg.norm(seen[[0, 1, 2]] - seen[[8, 7, 6]], axis=1).min() > 0.2


@pytest.mark.parametrize("name", [LIGHT.sequential, DARK.sequential])
def test_sequential_map_is_monotone_in_lightness(name: str) -> None:
    import matplotlib

    colours = matplotlib.colormaps[name](np.linspace(0, 1, 64))[:, :3]
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    assert (np.diff(linear @ [0.2126, 0.7152, 0.0722]) > 0).all()
