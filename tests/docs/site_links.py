"""Checks the built site: every link and anchor inside it, every picture, that pages load nothing from elsewhere, and
that the search ranks guides above the reference and the design.

python -m tests.docs.site_links site
"""

import json
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"img": "src", "script": "src", "iframe": "src", "source": "src", "link": "href", "object": "data"}
"""Attributes of what a browser loads by itself."""
LEFT_OUT = ("canonical", "next", "prev", "alternate")
"""Kinds of <link> that are not loaded."""
NOT_FOUND_PAGE = "404.html"
"""Its links begin with the site's address, which the file system does not have."""


INTERNALS = ("reference/", "design/")
"""Pages that the search ranks behind the others."""


class Page(HTMLParser):
    """The ids, links and loaded files of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag's id and what it points to."""
        values = {name: value for name, value in attrs if value is not None}
        if "id" in values:
            self.ids.add(values["id"])
        if tag == "a":
            self.ids |= {values["name"]} if "name" in values else set()
            self.links += [values["href"]] if "href" in values else []
        elif tag in LOADED and not (tag == "link" and values.get("rel") in LEFT_OUT):
            self.loaded += [values[LOADED[tag]]] if LOADED[tag] in values else []


def broken(site: Path) -> Iterator[str]:
    """Yield a line for each fault of the built site."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    if not pages:
        yield f"{site} holds no pages"
    for path, page in pages.items():
        if path.name == NOT_FOUND_PAGE:
            continue
        name = path.relative_to(site.resolve())
        for target in page.loaded:
            if urlsplit(target).scheme not in ("", "data") or target.startswith("//"):
                yield f"{name}: loads {target} from elsewhere"
        for target in dict.fromkeys((*page.links, *page.loaded)):
            if fault := _fault(target, path, pages):
                yield f"{name}: {target}: {fault}"


def _fault(target: str, path: Path, pages: dict[Path, Page]) -> str:
    """Return what is wrong with a link of a page; empty if nothing is, or it leads out of the site."""
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return ""
    to = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if to.is_dir():
        return "a folder; pages that are opened as files need index.html"
    if not to.exists():
        return "there is no such file"
    anchor = unquote(parts.fragment)
    if anchor and to in pages and anchor not in pages[to].ids and anchor != "__skip":
        return "the page has no such anchor"
    return ""


def misranked(site: Path) -> Iterator[str]:
    """Yield a line for each page whose weight in the search is not that of its kind."""
    weights: dict[str, float] = {}
    for entry in json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))["docs"]:
        weights[entry["location"].partition("#")[0]] = entry.get("boost", 1)
    for location, weight in weights.items():
        if (weight < 1) != location.startswith(INTERNALS):
            yield f"{location}: its weight in the search is {weight}"


def main() -> None:
    """Print the faults of a site; end with 1 where there are any."""
    site = Path(sys.argv[1])
    faults = [*broken(site), *misranked(site)]
    print(*faults, sep="\n")
    if faults:
        sys.exit(f"{len(faults)} faults in {site}")
    print(f"{site}: all links, anchors and pictures of {sum(1 for _ in site.rglob('*.html'))} pages are there")


if __name__ == "__main__":
    main()
