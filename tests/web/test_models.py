"""The view Models: cards, a comparison, one model in detail."""

import re
from collections.abc import Callable

import numpy as np

from tests.served import Served
from tests.web.browser import Page, expect
from tests.web.conftest import DEMO, RERANKER


def test_every_model_has_a_card(opened: Callable[[str], Page], web_server: Served) -> None:
    page = opened("models")
    for model in web_server.http.get("/models").json()["models"]:
        card = page.get_by_role("region", name=model["name"], exact=True)
        expect(card).to_contain_text(f"{model['parameters']:,}")


def test_another_model_is_shown_and_in_the_link(opened: Callable[[str], Page]) -> None:
    page = opened("models")
    page.get_by_role("region", name=RERANKER, exact=True).get_by_role("button", name="Show details").click()
    page.get_by_role("heading", name=f"{RERANKER} in detail").wait_for()
    page.goto("about:blank")
    page.go_back()
    page.get_by_role("heading", name=f"{RERANKER} in detail").wait_for()


def test_computation_of_a_text_follows_the_slider(opened: Callable[[str], Page], web_server: Served) -> None:
    """By the numbers of GET /models: linear in the tokens, and quadratic in attention."""
    page = opened(f"models?model={DEMO}&tokens=128")
    card = page.get_by_role("region", name=DEMO, exact=True)
    facts = web_server.http.get(f"/models/{DEMO}").json()
    page.get_by_role("slider").press("ArrowRight")
    per_token = sum(value for part, value in facts["flops_per_token"].items() if part != "head")
    work = 256 * per_token + 256**2 * facts["flops_per_token_and_key"]
    expect(card).to_contain_text("computation for a text of 256 tokens")
    expect(card).to_contain_text(f"{float(f'{work / 1e9:.3g}'):g} GFLOP")


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
    with page.expect_download(timeout=60_000) as started:
        table.get_by_role("button", name="CSV").click(timeout=60_000)
    rows = [line.rsplit(",", 2) for line in started.value.path().read_text().splitlines()[1:]]
    values = [float(value) for what, _, value in rows if what.startswith("singular")]
    found = web_server.http.get(f"/models/{DEMO}/analysis").json()
    np.testing.assert_allclose(values, found["spectrum"]["singular_values"])


def test_figures_of_the_table_are_saved_as_pictures(opened: Callable[[str], Page]) -> None:
    page = opened(f"models?model={DEMO}")
    for figure in ("norms", "singular-values"):
        files = page.get_by_role("group", name=f"Download {DEMO}-{figure}")
        for suffix, beginning in (("PNG", b"\x89PNG"), ("SVG", b"<svg")):
            with page.expect_download(timeout=60_000) as started:
                files.get_by_role("button", name=suffix).click(timeout=60_000)
            assert started.value.path().read_bytes().startswith(beginning)


def test_nearest_tokens_of_an_analogy(opened: Callable[[str], Page]) -> None:
    page = opened(f"models?model={DEMO}")
    nearest = page.get_by_role("region", name="Nearest tokens of its word table")
    expect(nearest.get_by_role("row").nth(1)).to_contain_text("queen")
    nearest.get_by_label("Subtract").fill("")
    nearest.get_by_label("Add").fill("monday")
    expect(nearest.get_by_role("row").nth(1)).to_contain_text(re.compile("day"))


def test_models_are_compared_in_a_table(opened: Callable[[str], Page], web_server: Served) -> None:
    page = opened("models")
    page.get_by_text("All models in one table").click()
    rows = page.get_by_role("region", name="Comparison of the models").get_by_role("row")
    expect(rows).to_have_count(1 + len(web_server.http.get("/models").json()["models"]))


def test_code_of_a_model_names_its_message(opened: Callable[[str], Page]) -> None:
    page = opened(f"models?model={DEMO}")
    page.get_by_text(f"GET /models/{DEMO} as code").click()
    open_part = page.locator("details[open]")
    open_part.get_by_role("button", name="grpcurl").click()
    expect(open_part.locator("pre")).to_contain_text('{"name":"all-MiniLM-L6-v2"}')


def test_fits_every_width_and_theme(opened: Callable[[str], Page], screenshots: Callable[[Page, str], None]) -> None:
    page = opened("models")
    page.get_by_role("region", name="Its word table").get_by_role("button", name="CSV").wait_for(timeout=60_000)
    screenshots(page, "models")
