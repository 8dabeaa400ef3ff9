"""The frame of the page: navigation, theme, key dialog."""

from collections.abc import Callable

import pytest

from tests.served import Served
from tests.web.browser import Page, axe, expect

VIEWS = ("Try", "Positions", "Models", "Now")


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
