"""Links that anybody may have written, and links of the page to itself."""

import json
from collections.abc import Callable
from urllib.parse import quote
from xml.etree import ElementTree

import pytest

from tests.web.browser import Page, expect, settled, sideways
from tests.web.conftest import DEMO

Open = Callable[[str], Page]
OBJECT = quote('{"toString": 1, "valueOf": 1}')  # which cannot become a text


@pytest.mark.parametrize("view", ["toString", "__proto__", "nothing"])
def test_unknown_view_shows_search(view: str, opened: Open) -> None:
    expect(opened(view).get_by_role("heading", level=1)).to_contain_text("Search")


def test_a_slash_behind_a_view_is_nothing(opened: Open) -> None:
    expect(opened("try/").get_by_role("heading", level=1)).to_contain_text("Try")


@pytest.mark.parametrize(
    "view",
    [
        f"try?texts={OBJECT}&query={OBJECT}&pooling={OBJECT}&dimensions={OBJECT}&model={OBJECT}",
        f"models?model={OBJECT}&tokens={OBJECT}",
        f"positions?e=[{{%22s%22:%22rope%22,%22p%22:{{%22theta%22:[{OBJECT}],%22rope_type%22:{OBJECT}}}}}]",
        "positions?e=" + quote('[{"s": "rope", "m": "\\ud800"}]'),
    ],
)
def test_hostile_values_leave_the_view_usable(view: str, opened: Open) -> None:
    page = opened(view)
    expect(page.get_by_role("alert").filter(has_text="This view failed")).to_have_count(0)
    assert page.locator("main button").count() > 3


def test_failing_view_says_so_and_is_left(page: Page, opened: Open) -> None:
    page.route("**/models", lambda route: route.fulfill(json={"models": [{"name": "x"}]}))
    opened("models")
    expect(page.get_by_role("alert")).to_contain_text("This view failed")
    page.get_by_role("link", name="Now", exact=True).click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()


def test_halves_of_surrogate_pairs_are_replaced(opened: Open) -> None:
    page = opened("try?texts=" + quote('"\\ud800 one\\ntwo"'))
    expect(page.get_by_label("One a line")).to_have_value("\ufffd one\ntwo")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_control_characters_stay_out_of_pictures(opened: Open) -> None:
    page = opened("try?texts=" + quote("a\x08b\x1bc\nsecond \uffff"))
    with page.expect_download() as started:
        page.get_by_role("region", name="Similarity").get_by_role("button", name="SVG").click()
    texts = [each.text or "" for each in ElementTree.parse(started.value.path()).getroot().iter()]
    assert "1. a\ufffdb\ufffdc" in texts


def test_skip_link_stays_in_the_view(opened: Open) -> None:
    page = opened("positions")
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Positions")


def test_model_links_to_its_encodings(opened: Open) -> None:
    page = opened(f"models?model={DEMO}")
    page.get_by_role("link", name=f"Show learned of {DEMO}").click()
    expect(page.get_by_role("group", name="Encodings")).to_contain_text(f"{DEMO} learned")
    expect(page.get_by_role("radio")).to_have_count(1)


def test_error_of_an_encoding_without_parameters(opened: Open) -> None:
    page = opened("positions?e=" + quote(json.dumps([{"s": "mrope", "m": DEMO}])))
    expect(page.get_by_role("region", name="Parameters").get_by_role("alert")).to_contain_text(
        f"no model '{DEMO}/mrope.json' here"
    )


@pytest.mark.parametrize("view", ["try", "models", "positions?e=" + quote(json.dumps([{"s": "mask", "n": "N" * 80}]))])
def test_fits_a_window_of_320_pixels(view: str, page: Page, opened: Open) -> None:
    """1280 pixels at 400 %, which WCAG asks for (1.4.10)."""
    page.set_viewport_size({"width": 320, "height": 640})
    opened(view)
    settled(page)
    assert sideways(page) <= 0


def test_nothing_moves_as_positions_open(page: Page, opened: Open) -> None:
    page.add_init_script(
        "window.shifts = 0; new PerformanceObserver((list) => { for (const each of list.getEntries())"
        " window.shifts += each.value; }).observe({ type: 'layout-shift', buffered: true });"
    )
    opened("positions")
    expect(page.get_by_role("button", name="NPY")).to_be_visible()
    settled(page)
    assert page.evaluate("window.shifts") < 0.02
