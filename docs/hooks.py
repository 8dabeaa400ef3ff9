"""Hooks of mkdocs: the reference is made from the code while the site is built, and ranks behind guides in the search.

mkdocs.yml names this file. mkdocs puts its folder on the path while it is imported.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from reference_pages.site import pages

INDEX = "/index.md"
RANKS = {"reference/python/": 0.05, "reference/": 0.1, "design/": 0.1}
"""Weights of pages in the search, by the beginning of their paths, the first that fits: guides have 1."""


@cache
def made() -> Mapping[str, tuple[str, str]]:
    """Return the generated pages, made once a build."""
    return pages()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List in the navigation what lies beside each generated index."""
    config.nav = _expanded(config.nav)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for path, (_, text) in made().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> None:
    """Rank guides above the reference and the design where both have a word."""
    boost = next((boost for begins, boost in RANKS.items() if page.file.src_uri.startswith(begins)), 1)
    page.meta.setdefault("search", {"boost": boost})


def _expanded(entry: Any) -> Any:
    if isinstance(entry, list):
        return [_expanded(each) for each in entry]
    if not isinstance(entry, dict):
        return entry
    return {title: _section(value) if isinstance(value, str) else _expanded(value) for title, value in entry.items()}


def _section(path: str) -> str | list[Any]:
    """Return a page, or the pages of its folder where it is a generated index."""
    if not path.endswith(INDEX) or path not in made():
        return path
    folder = path.removesuffix("index.md")
    beside = [{title: other} for other, (title, _) in made().items() if other.startswith(folder) and other != path]
    return [path, *beside]
