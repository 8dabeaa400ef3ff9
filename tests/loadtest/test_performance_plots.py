"""The pictures of the documentation: drawn from the committed figures, on a page, small, every axis labelled."""

import re
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import pytest
from matplotlib.figure import Figure

from loadtest.performance_plots import IMAGES, PICTURES, SETTINGS, draw
from loadtest.processes import RESULTS

DOCS = IMAGES.parent
MOST_BYTES = 150_000


@pytest.fixture(scope="module")
def figures() -> Iterator[dict[str, Figure]]:
    """Every picture as matplotlib's objects."""
    drawn = {}
    with matplotlib.rc_context(SETTINGS):
        for name, (picture, size) in PICTURES.items():
            drawn[name] = Figure(figsize=size, layout="constrained")
            picture(drawn[name])
        yield drawn


def test_pictures_in_docs_are_those_that_are_drawn() -> None:
    assert {path.stem for path in IMAGES.glob("performance-*.svg")} == set(PICTURES)


@pytest.mark.parametrize("name", PICTURES)
def test_every_picture_is_on_a_page_with_its_command(name: str) -> None:
    pages = [page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md")]
    (page,) = [page for page in pages if f"{name}.svg" in page]
    assert re.search(rf"!\[[^]]{{20,}}\]\((\.\./)?images/{name}\.svg\)", page)  # with words for who cannot see it
    assert re.search(r"`(make|python -m loadtest)[^`]*`", page.partition(f"{name}.svg")[2].partition("\n## ")[0])


@pytest.mark.parametrize("name", PICTURES)
def test_every_axis_is_labelled(figures: dict[str, Figure], name: str) -> None:
    for axes in figures[name].axes:
        assert axes.get_title()
        assert axes.get_xlabel()
        assert axes.get_ylabel() or any(label.get_text()[0].isalpha() for label in axes.get_yticklabels())
        assert axes.get_legend() or figures[name].legends


def test_bars_are_the_ratios_that_the_reports_state(figures: dict[str, Figure]) -> None:
    """loadtest/results/encoders.md, written by the measurement itself, is the judge."""
    report = (RESULTS / "encoders.md").read_text(encoding="utf-8")
    row = re.search(r"^\| Inlay int8 \|.*$", report, re.MULTILINE)
    assert row
    stated = [float(cell.split("/")[0]) for cell in row[0].split("|")[3:9:2]]
    (axes,) = figures["performance-encoders"].axes
    place = [label.get_text() for label in axes.get_yticklabels()].index("Inlay int8")
    drawn = [bars[place].get_width() for bars in axes.containers if hasattr(bars[place], "get_width")]
    assert drawn == pytest.approx(stated, abs=0.006)


def test_the_same_figures_give_the_same_bytes(tmp_path: Path) -> None:
    for folder in ("one", "other"):
        draw(tmp_path / folder)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "other" / path.name).read_bytes()
        assert path.stat().st_size < MOST_BYTES
