"""The web page in a real browser: a server with models of each kind, Chromium, and a page that reports its errors."""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from models.artifacts.export import export
from models.artifacts.random_checkpoint import add_head
from tests.late_interaction import write_bge
from tests.minilm_golden import checkpoint
from tests.score_models import CLASSIFIER, LABELS, write_classifier
from tests.served import Served, serving
from tests.torch_files import write_torch

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

DEMO, RERANKER, SEVERAL = "all-MiniLM-L6-v2", "random-reranker", "random-bge-m3"
WIDTH = 384  # of the demo model
UNIMPORTANT = "Failed to load resource"  # what Chromium logs of each answer with an error status


@pytest.fixture(scope="session")
def web_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model; the same with a random ranking head, and with BGE-M3's two; a tiny classifier."""
    folder = tmp_path_factory.mktemp("web")
    export(checkpoint(), folder / "store" / DEMO)
    add_head(folder / "ranker", checkpoint(), 1, init="scaled")
    export(folder / "ranker", folder / "store" / RERANKER)
    several = shutil.copytree(checkpoint(), folder / "several")
    write_bge(several, WIDTH)
    weight = np.random.default_rng(5).normal(0, 0.05, (1, WIDTH)).astype(np.float32)
    write_torch(several / "sparse_linear.pt", {"weight": weight, "bias": np.array([0.3], np.float32)})
    export(several, folder / "store" / SEVERAL)
    export(write_classifier(folder / "classifier", LABELS), folder / "store" / CLASSIFIER)
    return folder / "store"


@pytest.fixture(scope="session")
def web_server(web_store: Path) -> Iterator[Served]:
    """All of them, the demo model the default."""
    with serving(web_store, default_model=DEMO) as running:
        yield running


@pytest.fixture(scope="session")
def chromium() -> Iterator["Browser"]:
    """One browser for the session."""
    from tests.web.browser import executable, sync_api

    path = executable()
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def page(chromium: "Browser") -> Iterator["Page"]:
    """An empty page, 1280 × 900, that may use the clipboard; errors of its scripts fail the test."""
    from tests.web.browser import QUIET, SECONDS

    context = chromium.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    context.add_init_script(f"({QUIET})()")
    own = context.new_page()
    own.set_default_timeout(1000 * SECONDS)
    errors: list[str] = []
    own.on("pageerror", lambda error: errors.append(str(error)))
    own.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    yield own
    context.close()
    assert [error for error in errors if UNIMPORTANT not in error] == []


@pytest.fixture
def opened(page: "Page", web_server: Served) -> Callable[..., "Page"]:
    """Open a view of the server, such as `opened("try?model=x")`."""
    return partial(open_view, page, web_server)


def open_view(page: "Page", server: Served, view: str) -> "Page":
    """Show a view and wait until it has asked what it asks first."""
    page.goto("http://{}:{}/#/{}".format(*server.address, view), wait_until="networkidle")
    return page


@pytest.fixture
def screenshots(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`screenshots(page, "name")`: check a page at each width in both themes; with --save-screenshots, save it.

    `screenshots(page, "name", [360])`: at this width alone. On a busy machine a width takes seconds.
    """
    from tests.web.browser import screenshots

    return lambda page, name, *widths: screenshots(page, name, request.config, *widths)
