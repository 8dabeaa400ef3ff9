"""Charts and downloads of the view Positions: which curves, which ticks, what the files hold."""

import re
from collections.abc import Callable

from tests.served import Served
from tests.web.browser import DRAWN, Page, expect, settled
from tests.web.conftest import open_view


def test_unscaled_encoding_is_slowed_down_by_1(opened: Callable[[str], Page]) -> None:
    page = opened("positions")
    rows = page.get_by_role("row", name=re.compile("Llama 3, unscaled"))
    expect(rows).to_have_count(2)
    expect(rows.last.get_by_role("cell").last).to_have_text("1")


def test_both_axes_have_ticks_at_powers_of_ten(page: Page, web_server: Served) -> None:
    page.add_init_script(f"({DRAWN})()")
    open_view(page, web_server, "positions")
    expect(page.get_by_role("row", name=re.compile("Llama 3.1")).first).to_be_visible()
    settled(page)
    page.wait_for_function("() => window.drawn.has('10,000')")
    drawn = page.evaluate("[...window.drawn]")
    assert {"0.1", "0.01", "10", "100", "1,000", "1e6"} <= set(drawn)
    assert [text for text in drawn if "6.28" in text or "6,283" in text or "6.3e" in text] == []


def test_downloads_say_what_they_hold(opened: Callable[[str], Page]) -> None:
    page = opened("positions")
    expect(page.get_by_text("Download this figure", exact=True)).to_be_visible()
    expect(page.get_by_text("Download the table of Llama 3.1", exact=True)).to_be_visible()
