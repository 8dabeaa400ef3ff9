"""Links of the repository's Markdown files lead somewhere; the checkers notice those that do not."""

import json
from pathlib import Path

import pytest
from reference_pages.site import pages

from tests.docs import site_links
from tests.docs.markdown_links import anchors, broken, links

ROOT = Path(__file__).parents[2]
ELSEWHERE = ("node_modules", "site")


def markdown_files() -> list[Path]:
    """Return the repository's Markdown files, without those of environments and of the built site."""
    return [
        path
        for path in sorted(ROOT.rglob("*.md"))
        if not any(part.startswith(".") or part in ELSEWHERE for part in path.relative_to(ROOT).parts)
    ]


def test_links_of_markdown_files_lead_somewhere() -> None:
    made = {ROOT / "docs" / path: text for path, (_, text) in pages().items()}
    assert broken(markdown_files(), ROOT, made) == []


def test_links_are_found_outside_code() -> None:
    text = """
[a](one.md) and ![b](two.png "title"), [`code`](three.md#x), [c][d], `[e](no.md)`
<img src="four.png"> <!-- [f](no.md) -->
```text
[g](no.md)
```
[d]: five.md
"""
    assert sorted(links(text)) == ["five.md", "four.png", "one.md", "three.md#x", "two.png"]


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("## Two words", "two-words"),
        ("## `POST /embed`, again", "post-embed-again"),
        ("## What's new?", "whats-new"),
        ("## a & b", "a--b"),  # of GitHub
        ("## a & b", "a-b"),  # of mkdocs
        ("## Own { #chosen }", "chosen"),
        ('<span id="INLAY_PORT"></span>', "INLAY_PORT"),
    ],
)
def test_headings_have_anchors(heading: str, anchor: str) -> None:
    assert anchor in anchors(heading)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("missing.md", "there is no such file"),
        ("other.md#absent", "no such anchor"),
        ("#absent", "no such anchor"),
        ("../outside.md", "outside the repository"),
    ],
)
def test_broken_link_of_a_file_is_found(target: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "outside.md").write_text("# Out")
    root = tmp_path / "root"
    root.mkdir()
    (root / "other.md").write_text("# There\n")
    (root / "page.md").write_text(f"# Here\n[right](other.md#there) [too](#here) [wrong]({target})\n")
    (fault,) = broken([root / "page.md"], root, {})
    assert fault.startswith(f"page.md: {target}: ")
    assert said in fault


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('<a href="missing.html">x</a>', "there is no such file"),
        ('<a href="other.html#absent">x</a>', "no such anchor"),
        ('<a href="folder">x</a>', "index.html"),
        ('<img src="missing.png">', "there is no such file"),
        ('<script src="https://example.org/x.js"></script>', "from elsewhere"),
        ('<link rel="stylesheet" href="//example.org/x.css">', "from elsewhere"),
    ],
)
def test_fault_of_a_built_page_is_found(body: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "other.html").write_text('<h1 id="there">x</h1>')
    right = '<a href="other.html#there">x</a><a href="https://example.org">y</a><a href="#own" id="own">z</a>'
    (tmp_path / "page.html").write_text(right + body)
    faults = list(site_links.broken(tmp_path))
    assert faults
    assert all(fault.startswith("page.html: ") for fault in faults)
    assert said in faults[0]


@pytest.mark.parametrize(
    ("location", "boost", "said"),
    [
        ("clients.html#openai", None, ""),
        ("reference/settings.html", 0.1, ""),
        ("reference/settings.html", None, "reference/settings.html: its weight in the search is 1"),
        ("rank/rerank.html", 0.5, "rank/rerank.html: its weight in the search is 0.5"),
    ],
)
def test_internals_that_rank_with_guides_are_found(
    location: str, boost: float | None, said: str, tmp_path: Path
) -> None:
    (tmp_path / "search").mkdir()
    entry = {"location": location} | ({"boost": boost} if boost else {})
    (tmp_path / "search/search_index.json").write_text(json.dumps({"docs": [entry]}))
    assert "".join(site_links.misranked(tmp_path)) == said
