"""Measures the first paint of a running server's page in Chromium: `python -m tests.web.first_paint http://localhost:8080/`."""

import argparse
import statistics
from typing import Any

from tests.web.browser import executable, sync_api

# Milliseconds from the navigation to the first paint of anything, and to the heading of the view.
HEADING = """new MutationObserver((_, observer) => {
  if (!document.querySelector("h1")) return;
  window.headed = performance.now();
  observer.disconnect();
}).observe(document, { childList: true, subtree: true });"""
PAINT = "() => [performance.getEntriesByName('first-contentful-paint')[0]?.startTime, window.headed]"


def opened(context: Any, url: str) -> list[float]:
    """Open the page and return both times."""
    page = context.new_page()
    page.add_init_script(HEADING)
    page.goto(url)
    page.wait_for_function(f"() => ({PAINT})().every(Boolean)")
    times: list[float] = page.evaluate(PAINT)
    page.close()
    return times


def main() -> None:
    """Print the medians with an empty cache and with a filled one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--times", type=int, default=9)
    given = parser.parse_args()
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=["--no-sandbox"])
        kept = browser.new_context()
        opened(kept, given.url)
        for cache in ("an empty", "a filled"):
            contexts = [browser.new_context() if cache == "an empty" else kept for _ in range(given.times)]
            paints, headings = zip(*(opened(context, given.url) for context in contexts), strict=True)
            times = f"first paint {statistics.median(paints):.0f} ms, heading {statistics.median(headings):.0f} ms"
            print(f"{cache} cache: {times}, medians of {given.times}; slowest first paint {max(paints):.0f} ms")
        browser.close()


if __name__ == "__main__":
    main()
