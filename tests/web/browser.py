"""What tests of the web page do with a page of Chromium: axe-core's audit, widths, pictures for the documentation."""

import io
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

# Importing this skips a test module where Playwright is missing.
sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: make web-test installs it")
Page, expect = sync_api.Page, sync_api.expect
PICTURES = Path(__file__).parents[2] / "docs/images/page"
OF_README = ("search", 1280, "light")
SIZES = {360: 780, 1280: 900, 2560: 1440}  # CSS pixels: a phone, a laptop, a large screen
THEMES = ("light", "dark")
COLORS = 255  # of a saved picture: a palette takes a third of the bytes, and the page has fewer colours than that

SECONDS = 60  # that a step may take: on a busy machine one takes seconds
expect.set_options(timeout=1000 * SECONDS)

# A script for add_init_script: window.quiet() says whether no timer below a second runs and no answer is awaited, so
# that nothing of what was typed or chosen is still on its way. Preact's effects wait by such timers, too; where
# Playwright's clock is installed, one runs all the time.
QUIET = """() => {
  const open = new Set();
  const counted = (act) => function (...given) {
    const promise = act.apply(this, given);
    open.add(promise);
    const done = () => open.delete(promise);
    promise.then(done, done);
    return promise;
  };
  window.fetch = counted(window.fetch);
  const answers = Response.prototype;
  for (const name of ["json", "arrayBuffer", "blob", "text"]) answers[name] = counted(answers[name]);
  const [start, stop] = [window.setTimeout, window.clearTimeout];
  window.setTimeout = (act, delay = 0, ...given) => {
    const timer = start(() => (open.delete(timer), act(...given)), delay);
    if (delay < 1000) open.add(timer);
    return timer;
  };
  window.clearTimeout = (timer) => (open.delete(timer), stop(timer));
  window.quiet = () => !open.size && !document.querySelector("main[aria-busy=true]");
}"""

# A script for add_init_script: collects the texts that are drawn on any canvas in window.drawn.
DRAWN = """() => {
  window.drawn = new Set();
  const draw = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
    window.drawn.add(text);
    return draw.call(this, text, ...rest);
  };
}"""


def executable() -> str:
    """Chromium: CHROMIUM names another one."""
    found = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if not found:
        pytest.skip("no Chromium: on Debian apt-get install chromium, else CHROMIUM=/path/to/chrome")
    return found


def axe(page: Page) -> None:
    """Assert that axe-core finds nothing in the page as it is shown now."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    places = [f"{each['id']}: {each['help']}\n{_places(each['nodes'])}" for each in found]
    assert not places, "\n".join(places)


def _places(nodes: list[dict[str, Any]]) -> str:
    return "\n".join(f"  {node['target']} {node['html'][:200]}" for node in nodes[:5])


def looks(page: Page, widths: Iterable[int] = SIZES) -> Iterator[tuple[int, str]]:
    """Show the page at each width in each theme in turn, and yield both."""
    for width in widths:
        page.set_viewport_size({"width": width, "height": SIZES[width]})
        for theme in THEMES:
            page.emulate_media(color_scheme=theme, reduced_motion="reduce")
            settled(page)
            yield width, theme


def settled(page: Page) -> None:
    """Wait until what was typed or chosen is answered, and resized drawings are drawn."""
    for _ in range(2):  # a drawing that has a new size may ask again
        page.wait_for_function("() => window.quiet()", polling="raf")
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))")


def sideways(page: Page) -> int:
    """The CSS pixels by which the page is wider than its window, less the room that is kept for the scroll bar."""
    wide: int = page.evaluate("() => document.scrollingElement.scrollWidth - document.body.clientWidth")
    return wide


def screenshots(page: Page, name: str, config: pytest.Config, widths: Iterable[int] = SIZES) -> None:
    """Assert that the page fits and is readable at these widths in both themes; save each with --save-screenshots."""
    before = page.viewport_size
    for width, theme in looks(page, widths):
        assert sideways(page) <= 0, f"{width} px: the page scrolls sideways"
        axe(page)
        if config.getoption("--save-screenshots"):
            _save(page.screenshot(full_page=True), PICTURES / f"{name}-{width}-{theme}.png")
            if (name, width, theme) == OF_README:
                top: Any = {"x": 0, "y": 0, "width": width, "height": 1150}
                _save(page.screenshot(full_page=True, clip=top), PICTURES.with_suffix(".png"))
    if before:
        page.set_viewport_size(before)


def _save(png: bytes, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.open(io.BytesIO(png)).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(path, optimize=True)
