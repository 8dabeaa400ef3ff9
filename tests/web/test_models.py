"""The view Models: a row a model that opens, search, loading and unloading."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.served import Served, serving
from tests.web.browser import Page, axe, expect
from tests.web.conftest import CLASSIFIER, DEMO, RERANKER, SEVERAL, open_view


def test_every_model_has_a_row(opened: Callable[[str], Page], web_server: Served) -> None:
    page = opened("models")
    for model in web_server.http.get("/models").json()["models"]:
        row = page.get_by_role("region", name=model["name"], exact=True)
        expect(row.get_by_title(f"{model['parameters']:,}")).to_be_visible()
        expect(row.get_by_text("random weights")).to_have_count(int(model["name"] == RERANKER))


def test_a_row_opens_and_is_in_the_link(opened: Callable[[str], Page]) -> None:
    page = opened("models")
    expect(page.get_by_role("heading", level=2)).to_have_count(0)
    row = page.get_by_role("button", name=RERANKER, exact=True)
    row.click()
    page.get_by_role("heading", name=f"{RERANKER} in detail").wait_for()
    page.goto("about:blank")
    page.go_back()
    page.get_by_role("heading", name=f"{RERANKER} in detail").wait_for()
    row.click()
    expect(page.get_by_role("heading", name=f"{RERANKER} in detail")).to_have_count(0)
    assert page.url.endswith("#/models")


def test_search_finds_models_by_what_they_give(opened: Callable[[str], Page]) -> None:
    page = opened("models")
    names = page.locator(".model .opens")
    for words, found in (("rankings", [RERANKER]), ("MINILM", [DEMO]), ("sparse late", [SEVERAL])):
        page.get_by_role("searchbox", name="Find").fill(words)
        expect(names).to_have_text(found)
    page.get_by_role("searchbox", name="Find").fill("nothing")
    page.get_by_role("button", name="Show all").click()
    expect(names).to_have_count(4)


def test_models_are_unloaded_and_loaded_where_allowed(page: Page, web_store: Path) -> None:
    with serving(web_store, default_model=DEMO, models=(DEMO, CLASSIFIER), model_control="explicit") as server:
        open_view(page, server, f"models?model={CLASSIFIER}")
        row = page.get_by_role("region", name=CLASSIFIER, exact=True)
        row.get_by_role("button", name="Unload").click()
        row.get_by_role("button", name=f"Really unload {CLASSIFIER}?").click()
        expect(row).to_contain_text("not loaded")
        assert [each["name"] for each in server.http.get("/models").json()["models"]] == [DEMO]
        row.get_by_role("button", name="Load").click()
        expect(row.get_by_role("button", name=CLASSIFIER, exact=True)).to_be_visible()
        axe(page)


def test_models_cannot_be_unloaded_where_it_is_not_allowed(opened: Callable[[str], Page]) -> None:
    page = opened(f"models?model={DEMO}")
    page.get_by_role("heading", name=f"{DEMO} in detail").wait_for()
    expect(page.get_by_role("button", name="Unload")).to_have_count(0)


def test_computation_of_a_text_follows_the_slider(opened: Callable[[str], Page], web_server: Served) -> None:
    """By the numbers of GET /models: linear in the tokens, and quadratic in attention."""
    page = opened(f"models?model={DEMO}&tokens=128")
    facts = web_server.http.get(f"/models/{DEMO}").json()
    page.get_by_role("slider").press("ArrowRight")
    per_token = sum(value for part, value in facts["flops_per_token"].items() if part != "head")
    work = 256 * per_token + 256**2 * facts["flops_per_token_and_key"]
    shown = page.get_by_role("region", name=DEMO, exact=True).get_by_title("Computation for a text of 256 tokens")
    expect(shown).to_contain_text(f"{float(f'{work / 1e9:.3g}'):g} GFLOP")


def test_its_encodings_lead_to_the_view_positions(opened: Callable[[str], Page]) -> None:
    page = opened(f"models?model={DEMO}")
    page.get_by_role("link", name="show").first.click()
    expect(page.get_by_role("radio", name=f"{DEMO} learned")).to_be_checked()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_unknown_model_of_a_link_is_named(opened: Callable[[str], Page]) -> None:
    page = opened("models?model=nothing")
    expect(page.get_by_role("alert")).to_contain_text("There is no model nothing here")


def test_csv_holds_the_norms_and_singular_values(opened: Callable[[str], Page], web_server: Served) -> None:
    page = opened(f"models?model={DEMO}")
    table = page.get_by_role("region", name="Its word table")
    with page.expect_download() as started:
        table.get_by_role("button", name="CSV").click()
    rows = [line.rsplit(",", 2) for line in started.value.path().read_text().splitlines()[1:]]
    values = [float(value) for what, _, value in rows if what.startswith("singular")]
    found = web_server.http.get(f"/models/{DEMO}/analysis").json()
    np.testing.assert_allclose(values, found["spectrum"]["singular_values"])


def test_figures_of_the_table_are_saved_as_pictures(opened: Callable[[str], Page]) -> None:
    page = opened(f"models?model={DEMO}")
    for figure in ("norms", "singular-values"):
        files = page.get_by_role("group", name=f"Download {DEMO}-{figure}")
        for suffix, beginning in (("PNG", b"\x89PNG"), ("SVG", b"<svg")):
            with page.expect_download() as started:
                files.get_by_role("button", name=suffix).click()
            assert started.value.path().read_bytes().startswith(beginning)


def test_nearest_tokens_of_an_analogy(opened: Callable[[str], Page]) -> None:
    page = opened(f"models?model={DEMO}")
    nearest = page.get_by_role("region", name="Nearest tokens of its word table")
    expect(nearest.get_by_role("row").nth(1)).to_contain_text("queen")
    nearest.get_by_label("Subtract").fill("")
    nearest.get_by_label("Add").fill("monday")
    expect(nearest.get_by_role("row").nth(1)).to_contain_text(re.compile("day"))


def test_code_of_a_model_names_its_message(opened: Callable[[str], Page]) -> None:
    page = opened(f"models?model={DEMO}")
    page.get_by_text(f"GET /models/{DEMO} as code").click()
    open_part = page.locator("details[open]")
    open_part.get_by_role("button", name="grpcurl").click()
    expect(open_part.locator("pre")).to_contain_text('{"name":"all-MiniLM-L6-v2"}')


def test_fits_every_width_and_theme(opened: Callable[[str], Page], screenshots: Callable[[Page, str], None]) -> None:
    page = opened(f"models?model={DEMO}")
    page.get_by_role("region", name="Its word table").get_by_role("button", name="CSV").wait_for()
    screenshots(page, "models")
