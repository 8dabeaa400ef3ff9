"""Every code block of the documentation runs, in the order of its page: make docs-test, make docs-clients."""

from pathlib import Path

import pytest

from tests.docs.blocks import JAVASCRIPT, BadBlock, Block, read
from tests.docs.pages import NODE_PACKAGES, Page, Server, pages

QUICK = ("README.md",)
PAGES = pages()


def cases(*, clients: bool) -> list[object]:
    """Return the pages with blocks that run; those of `make test` carry no marker."""
    named = []
    for name, path in PAGES.items():
        if runs(name, path, clients=clients):
            marks = [pytest.mark.clients] if clients else [] if name in QUICK else [pytest.mark.docs]
            named.append(pytest.param(name, marks=marks))
    return named


def runs(name: str, path: Path, *, clients: bool) -> bool:
    """Return whether a page has blocks of this kind that run; a page that cannot be read fails when it runs."""
    try:
        return any(
            block.runs and ("clients" in block.modes) == clients for block in read(path, name) if _can_run(block)
        )
    except BadBlock:
        return not clients


def _can_run(block: Block) -> bool:
    """Return whether the block's language is here: without npm, JavaScript is not, and make docs-clients says so."""
    return block.language != JAVASCRIPT or NODE_PACKAGES.is_dir()


@pytest.mark.parametrize("name", cases(clients=False))
def test_blocks_of_a_page_run(name: str, tmp_path: Path, shared_server: Server) -> None:
    Page(tmp_path, shared_server).run(read(PAGES[name], name))


@pytest.mark.parametrize("name", cases(clients=True))
def test_blocks_with_clients_run(name: str, tmp_path: Path, shared_server: Server) -> None:
    Page(tmp_path, shared_server, clients=True).run([block for block in read(PAGES[name], name) if _can_run(block)])
