"""The frame of the page: navigation, theme, key dialog."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.served import Served, serving
from tests.web.browser import Page, axe, expect
from tests.web.conftest import DEMO

VIEWS = ("Search", "Try", "Positions", "Models", "Now")


def test_every_view_is_reached_by_its_name(opened: Callable[[str], Page]) -> None:
    page = opened("")
    for name in VIEWS:
        page.get_by_role("link", name=name, exact=True).click()
        page.get_by_role("heading", level=1).filter(has_text=name).wait_for()
        expect(page).to_have_title(f"{name} · Inlay")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_chosen_theme_outlasts_a_reload(theme: str, opened: Callable[[str], Page]) -> None:
    page = opened("models")
    button = page.get_by_role("button", name="Theme")
    while theme not in button.inner_text():
        button.click()
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == theme


def test_key_dialog_is_left_by_escape(opened: Callable[[str], Page]) -> None:
    page = opened("models")
    page.get_by_role("button", name="API key").click()
    page.get_by_role("dialog", name="API key").wait_for()
    axe(page)
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")


def test_page_asks_no_other_server(page: Page, web_server: Served) -> None:
    own = "http://{}:{}/".format(*web_server.address)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for view in VIEWS:
        page.goto(f"{own}#/{view.lower()}", wait_until="networkidle")
    assert asked
    assert [url for url in asked if not url.startswith((own, "blob:", "data:"))] == []


def test_views_keep_their_state_while_the_page_is_open(opened: Callable[[str], Page]) -> None:
    page = opened("try")
    page.get_by_label("One a line").fill("my own text")
    page.get_by_role("link", name="Models", exact=True).click()  # at once: before typing has paused
    page.get_by_role("heading", level=1).filter(has_text="Models").wait_for()
    page.get_by_role("link", name="Positions", exact=True).click()
    page.get_by_label("Name").fill("my encoding")
    page.get_by_role("link", name="Try", exact=True).click()
    expect(page.get_by_label("One a line")).to_have_value("my own text")
    assert page.url.endswith("#/try?texts=my+own+text")
    page.get_by_role("link", name="Positions", exact=True).click()
    expect(page.get_by_label("Name")).to_have_value("my encoding")


def test_a_link_with_a_state_of_its_own_wins(opened: Callable[[str], Page]) -> None:
    page = opened("models?tokens=256")
    page.get_by_role("link", name="Try", exact=True).click()
    page.get_by_label("One a line").fill("my own text")
    page.goto(page.url.split("#")[0] + "#/try?texts=another")
    expect(page.get_by_label("One a line")).to_have_value("another")
    page.get_by_role("link", name="Models", exact=True).click()
    expect(page.get_by_text("Tokens of a text, for the estimates: 256")).to_be_visible()


def test_frame_names_the_api_reference_and_the_command(opened: Callable[[str], Page]) -> None:
    foot = opened("now").get_by_role("contentinfo")
    expect(foot.get_by_role("link", name="API reference")).to_have_attribute("href", "/docs")
    expect(foot).to_contain_text("inlay --help")


def test_frame_links_the_documentation_where_it_is_known(page: Page, web_store: Path) -> None:
    address = "https://docs.example/inlay/"
    with serving(web_store, default_model=DEMO, models=(DEMO,), docs_url=address) as running:
        page.goto("http://{}:{}/".format(*running.address))
        expect(page.get_by_role("banner").get_by_role("link", name="Guides")).to_have_attribute("href", address)
