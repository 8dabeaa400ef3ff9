"""The view Positions: encodings chosen, dragged, compared, read, saved and found again."""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

from tests.served import Served
from tests.web.browser import Page, axe, expect, settled, sync_api
from tests.web.conftest import DEMO

ROPE = {"s": "rope", "p": {"head_dim": 64, "theta": 10000, "length": 64}}
Locator = sync_api.Locator
Open = Callable[[str], Page]


def link(*encodings: dict[str, object], **state: object) -> str:
    values = {"e": list(encodings), **state}
    return "positions?" + "&".join(f"{name}={quote(json.dumps(value))}" for name, value in values.items())


def field(page: Page, name: str) -> Locator:
    return page.get_by_role("textbox", name=name, exact=True)


def figure(page: Page, name: str) -> None:
    page.get_by_role("group", name="Figure").get_by_role("button", name=name, exact=True).click()


def example(page: Page, name: str) -> None:
    page.get_by_role("group", name="Examples").get_by_role("button", name=name, exact=True).click()


def curve(page: Page, name: str) -> str:
    """Return the row of a curve under the first chart."""
    return page.get_by_role("row", name=re.compile(f"^ *{re.escape(name)}")).first.inner_text()


def short(value: float) -> str:
    """Return a small number as the page writes it."""
    return f"{value:.3e}".replace("e-0", "e-")


def saved(page: Page, group: str, button: str) -> tuple[str, bytes]:
    with page.expect_download() as download:
        page.get_by_role("group", name=group).get_by_role("button", name=button, exact=True).click()
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


# ---- choose and drag


def test_first_screen_compares_two_scalings(opened: Open) -> None:
    page = opened("positions")
    expect(page.get_by_role("row", name=re.compile("Llama 3.1")).first).to_be_visible()
    assert "1 to 8" in page.get_by_role("row", name=re.compile("Llama 3.1")).nth(1).inner_text()
    expect(page.get_by_role("row", name=re.compile("Linear ×8")).nth(1)).to_contain_text("8")


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("YaRN and NTK vs unscaled", "YaRN ×4"),
        ("ALiBi vs T5 buckets", "ALiBi, 8 heads"),
        ("Sliding window mask", "Sliding window of 16"),
        ("Sinusoids alike and apart", "θ 100"),
        ("Error of float32", "float16 rounding"),
    ],
)
def test_every_example_is_one_click(name: str, seen: str, opened: Open) -> None:
    page = opened("positions")
    example(page, name)
    expect(page.get_by_role("region", name="Figure").get_by_text(seen, exact=False).first).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
    settled(page)
    axe(page)


def test_dragging_a_slider_redraws_while_it_moves(opened: Open) -> None:
    page = opened(link(ROPE | {"n": "A", "p": {**ROPE["p"], "rope_type": "linear", "factor": 2}}, f="spectrum"))
    expect(page.get_by_role("row", name=re.compile("^ *A"))).to_have_count(3)  # unscaled, scaled, slowed down by
    slider = page.get_by_label("factor slider", exact=True)
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + box["height"] / 2)
    page.mouse.down()
    seen = set()
    for share in (0.4, 0.6, 0.8):
        with page.expect_response(lambda answer: "/positions/rope.json" in answer.url):
            page.mouse.move(box["x"] + box["width"] * share, box["y"] + box["height"] / 2)
        value = float(field(page, "factor").input_value())
        expect(page.get_by_role("row", name=re.compile("^ *A")).last).to_contain_text(f"{value:g}")
        seen.add(value)
    page.mouse.up()
    assert len(seen) == 3


def test_only_the_newest_of_many_changes_is_asked(opened: Open) -> None:
    page = opened(link(ROPE, f="spectrum"))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if ".json" in request.url else None)
    slider = page.get_by_label("theta slider")
    slider.evaluate(
        "(slider) => { for (let place = 300; place <= 900; place += 10)"
        " { slider.value = place; slider.dispatchEvent(new Event('input', { bubbles: true })); } }"
    )
    expect(field(page, "theta")).to_have_value("25100000")  # place 900 of 1000
    expect(page.get_by_role("row", name=re.compile("rope")).first).to_contain_text(short(25_100_000 ** (-31 / 32)))
    assert len(asked) <= 3
    assert "theta=25100000" in asked[-1]


def test_controls_are_those_of_the_rope_type(opened: Open) -> None:
    page = opened(link(ROPE))
    expect(field(page, "factor")).to_have_count(0)
    page.get_by_label("rope_type").select_option("llama3")
    for name in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"):
        expect(field(page, name)).to_be_visible()
    expect(field(page, "beta_fast")).to_have_count(0)
    expect(page.get_by_role("alert")).to_have_count(0)


def rope_types(served: Served) -> list[str]:
    schemes = served.http.get("/positions").json()["schemes"]
    return [row["name"] for row in schemes[0]["rope_types"]]


def test_every_rope_type_starts_from_values_that_work(opened: Open, web_server: Served) -> None:
    page = opened(link(ROPE | {"p": {**ROPE["p"], "head_dim": 128}}, f="spectrum"))
    for name in rope_types(web_server):
        page.get_by_label("rope_type").select_option(name)
        settled(page)
        assert page.get_by_role("alert").count() == 0, (name, page.get_by_role("alert").all_inner_texts())


def test_every_scheme_starts_from_values_that_work(opened: Open, web_server: Served) -> None:
    page = opened(link(ROPE))
    names = [row["name"] for row in web_server.http.get("/positions").json()["schemes"] if row["figures"]]
    for name in names:
        page.get_by_label("Scheme").select_option(name)
        buttons = page.get_by_role("group", name="Figure").get_by_role("button")
        for number in range(buttons.count()):
            buttons.nth(number).click()
            settled(page)
            errors = page.get_by_role("alert").all_inner_texts()
            wants_weights = name == "t5" and buttons.nth(number).inner_text() == "Bias by distance"
            assert bool(errors) == wants_weights, (name, buttons.nth(number).inner_text(), errors)


def test_preset_fills_the_controls(opened: Open) -> None:
    page = opened(link(ROPE))
    page.get_by_label("Preset").select_option("llama-3.1-8b")
    expect(field(page, "theta")).to_have_value("500000")
    expect(field(page, "factor")).to_have_value("8")
    expect(page.get_by_label("rope_type")).to_have_value("llama3")
    expect(page.get_by_role("radio", name="Llama 3.1 8B")).to_be_checked()
    field(page, "factor").fill("16")
    expect(page.get_by_label("Preset")).to_have_value("")  # it is that preset no more


def test_shows_the_encodings_of_models_of_the_server(opened: Open) -> None:
    page = opened(link(ROPE))
    page.get_by_role("combobox", name="From").select_option(DEMO)
    assert page.get_by_label("Scheme").locator("option").all_inner_texts()
    page.get_by_label("Scheme").select_option("learned")
    figure(page, "Similarity by distance")
    expect(page.get_by_role("row", name=re.compile(f"{DEMO} learned")).first).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_link_to_an_encoding_of_a_model_needs_no_parameters(opened: Open) -> None:
    page = opened(link({"s": "mask", "m": DEMO}))
    expect(page.get_by_role("img", name=re.compile(f"{DEMO} mask, mask"))).to_be_visible()
    expect(field(page, "query_length")).to_have_value("64")


def test_a_config_is_read_by_the_server(opened: Open) -> None:
    page = opened(link(ROPE, f="spectrum"))
    page.get_by_label("Rope given as").select_option(label="a config.json")
    field(page, "config").fill(
        '{"model_type": "llama", "head_dim": 32, "rope_theta": 100, "max_position_embeddings": 64}'
    )
    expect(page.get_by_text("one turn in 64 tokens, the trained length")).to_be_visible()


# ---- compare


def test_six_encodings_are_compared(opened: Open) -> None:
    page = opened(link(ROPE | {"n": "first"}, f="spectrum"))
    for number in range(2, 7):
        page.get_by_role("button", name="Copy", exact=True).click()
        page.get_by_label("Name").fill(f"number {number}")
        field(page, "theta").fill(str(10000 * number))
    assert page.get_by_role("radio").count() == 6
    expect(page.get_by_role("button", name="Add", exact=True)).to_be_disabled()
    for number in range(2, 7):
        lowest = (10000.0 * number) ** (-31 / 32)
        expect(page.get_by_role("row", name=re.compile(f"number {number}"))).to_contain_text(short(lowest))
    figure(page, "Heat map")
    expect(page.get_by_role("img", name=re.compile("number 6, cos"))).to_be_visible()
    assert page.locator("canvas[role=img]").count() == 12  # cos and sin of each
    settled(page)
    axe(page)
    page.get_by_role("button", name="Remove", exact=True).click()
    assert page.get_by_role("radio").count() == 5


def test_name_and_colour_of_an_encoding_are_chosen(opened: Open) -> None:
    page = opened(link(ROPE, f="spectrum"))
    page.get_by_label("Name").fill("My own")
    page.get_by_label("Colour").select_option(label="violet")
    row = page.get_by_role("row", name=re.compile("My own"))
    expect(row.locator("line")).to_have_attribute("stroke", "var(--series-6)")


# ---- read


def test_values_of_a_grid_are_read_by_the_keyboard(opened: Open, web_server: Served) -> None:
    page = opened(link(ROPE | {"p": {**ROPE["p"], "start": 100}}, f="heatmap"))
    canvas = page.get_by_role("img", name=re.compile("rope, cos"))
    canvas.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    table = web_server.http.get("/positions/rope", params={**ROPE["p"], "start": 100}).json()
    said = canvas.get_attribute("aria-label")
    assert said
    found = re.search(r"position \(tokens\) (\d+), channel pair \(index\) (\d+): (-?\d+\.\d+)", said)
    assert found
    position, pair = int(found[1]), int(found[2])
    assert (position, pair) in {(101, 2), (102, 3)}
    assert float(found[3]) == pytest.approx(table["cos"][position - 100][pair], rel=1e-4)


def test_values_of_curves_are_read_by_the_keyboard(opened: Open) -> None:
    page = opened(link(ROPE | {"n": "A"}, f="spectrum"))
    chart = page.get_by_role("group", name=re.compile("Arrow keys read single values"))
    chart.focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    expect(page.get_by_role("status").filter(has_text="channel pair (index) 4: A 0.3162")).to_have_count(1)
    assert "0.31623" in curve(page, "A")  # 10000^(-4/32)
    assert f"{2 * np.pi / 10000 ** (-4 / 32):.3f}" in curve(page, "A")  # tokens a turn


# ---- files and snippets


def test_numpy_file_equals_the_table_of_the_server(opened: Open, web_server: Served) -> None:
    page = opened(link(ROPE | {"n": "Llama like"}, f="heatmap"))
    name, body = saved(page, "Download Llama-like", "NPY")
    table = web_server.http.get("/positions/rope", params=ROPE["p"]).json()
    np.testing.assert_array_equal(np.load(io.BytesIO(body)), np.array([table["cos"], table["sin"]], np.float32))
    assert name == "Llama-like.npy"


def test_numpy_file_of_outputs_that_differ_holds_one(opened: Open, web_server: Served) -> None:
    page = opened(link({"s": "alibi", "p": {"heads": 4, "query_length": 8}}, f="slopes"))
    _, body = saved(page, "Download alibi-slopes", "NPY")
    table = web_server.http.get("/positions/alibi", params={"heads": 4, "query_length": 8}).json()
    np.testing.assert_array_equal(np.load(io.BytesIO(body)).ravel(), np.array(table["slopes"], np.float32).ravel())


def test_pictures_of_a_comparison_are_the_servers(opened: Open) -> None:
    page = opened(
        link(ROPE | {"n": "one name"}, ROPE | {"n": "other name", "p": {"head_dim": 32, "length": 64}}, f="decay")
    )
    name, svg = saved(page, "Download positions-decay", "SVG")
    assert name == "positions-decay.svg"
    assert b"one name" in svg
    assert b"other name" in svg
    _, png = saved(page, "Download positions-decay", "PNG")
    assert png.startswith(b"\x89PNG")


def test_picture_of_unlike_quantities_holds_the_chosen_ones(opened: Open) -> None:
    page = opened("positions")
    example(page, "ALiBi vs T5 buckets")
    expect(page.get_by_text("PNG and SVG hold T5 decoder, T5 encoder")).to_be_visible()
    _, svg = saved(page, "Download positions-heatmap", "SVG")
    assert b"T5 encoder" in svg


def test_csv_holds_the_drawn_numbers(opened: Open) -> None:
    page = opened(link(ROPE | {"n": 'with, comma and "'}, f="spectrum"))
    _, body = saved(page, "Download positions-spectrum", "CSV")
    header, first, *_ = body.decode().split("\r\n")
    assert header == "encoding,quantity,curve,x,y,low,high"
    assert first.startswith('"with, comma and """,inverse frequency (radians per position),')
    assert first.endswith(",0,1,,")


def test_snippets_name_the_same_requests(opened: Open) -> None:
    page = opened(link(ROPE | {"n": "A"}, ROPE | {"n": "B", "p": {"head_dim": 32, "length": 64}}, f="spectrum"))
    page.get_by_text("This picture as code").click()
    text = page.get_by_label("This picture as curl").inner_text()
    assert "/positions/rope.svg?plot=spectrum" in text
    assert "compare=scheme%3Drope" in text
    page.get_by_text("The table of A as code").click()
    page.get_by_role("group", name="Client").last.get_by_role("button", name="grpcurl").click()
    assert "inlay.v1.Embedder/Positions" in page.get_by_label("The table of A as grpcurl").inner_text()


# ---- links


def test_link_restores_all_that_is_compared(opened: Open, page: Page) -> None:
    opened("positions")
    example(page, "YaRN and NTK vs unscaled")
    page.get_by_role("button", name="Copy", exact=True).click()
    page.get_by_label("Name").fill("Stretched & bent, 100 %")
    field(page, "factor").fill("16")
    page.get_by_label("Axis").select_option("log")
    settled(page)
    names = page.locator("fieldset.encodings label").all_inner_texts()
    address = page.url
    page.goto("about:blank")
    page.goto(address, wait_until="networkidle")
    assert page.locator("fieldset.encodings label").all_inner_texts() == names
    assert len(names) == 4
    expect(field(page, "factor")).to_have_value("16")
    expect(page.get_by_label("Axis")).to_have_value("log")
    expect(page.get_by_role("button", name="Score over distance")).to_have_attribute("aria-pressed", "true")


@pytest.mark.parametrize(
    "state",
    [
        "e=7",
        "e=%5B1%2Cnull%5D",
        "e=%5B%7B%22s%22%3A%22pie%22%7D%5D&i=9&f=pie",
        "e=%5B%7B%22s%22%3A%22rope%22%2C%22p%22%3A7%7D%5D",
        "e=%",
    ],
)
def test_a_broken_link_shows_something_usable(state: str, opened: Open) -> None:
    page = opened(f"positions?{state}")
    expect(page.get_by_role("radio").first).to_be_visible()
    page.get_by_role("group", name="Examples").get_by_role("button").first.click()
    expect(page.get_by_role("row", name=re.compile("Linear ×8")).first).to_be_visible()


# ---- errors


def test_message_of_the_server_stands_beside_the_control(opened: Open) -> None:
    page = opened(link(ROPE | {"p": {**ROPE["p"], "rope_type": "linear", "factor": 4}}, f="spectrum"))
    field(page, "factor").fill("0.5")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("factor")
    described = field(page, "factor").get_attribute("aria-describedby") or ""
    assert (alert.get_attribute("id") or "-") in described
    expect(field(page, "factor")).to_have_attribute("aria-invalid", "true")
    axe(page)
    field(page, "factor").fill("2")
    expect(alert).to_have_count(0)


def test_others_are_drawn_while_one_is_wrong(opened: Open) -> None:
    page = opened(link(ROPE | {"n": "good"}, ROPE | {"n": "bad", "p": {"head_dim": 63, "length": 8}}, f="spectrum"))
    expect(page.get_by_role("row", name=re.compile("good"))).to_be_visible()
    expect(page.locator("fieldset.encodings .error")).to_contain_text("63")


def test_busy_server_is_asked_again(page: Page, web_server: Served) -> None:
    refusing = True

    def answer(route: object) -> None:
        if refusing:
            body = json.dumps({"detail": "the queue is full", "code": "overloaded"})
            route.fulfill(status=429, headers={"retry-after": "1"}, content_type="application/problem+json", body=body)
        else:
            route.continue_()

    page.route("**/positions/rope.json*", answer)
    page.goto("http://{}:{}/#/{}".format(*web_server.address, link(ROPE | {"n": "A"}, f="spectrum")))
    expect(page.get_by_role("alert").filter(has_text="the queue is full")).to_be_visible()
    refusing = False
    expect(page.get_by_role("row", name=re.compile("A"))).to_be_visible()


def test_figure_stays_while_the_server_is_gone(page: Page, opened: Open) -> None:
    opened(link(ROPE | {"n": "A"}, f="spectrum"))
    expect(page.get_by_role("row", name=re.compile("A"))).to_be_visible()
    page.route("**/*", lambda route: route.abort())
    field(page, "theta").fill("20000")
    expect(page.get_by_text("The server does not answer. It was stopped")).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("A"))).to_be_visible()
    page.unroute("**/*")
    lowest = 20000.0 ** (-31 / 32)
    expect(page.get_by_role("row", name=re.compile("A"))).to_contain_text(short(lowest))


# ---- looks


def test_fits_every_width_in_both_themes(opened: Open, screenshots: Callable[[Page, str], None]) -> None:
    page = opened("positions")
    expect(page.get_by_role("row", name=re.compile("Llama 3.1")).first).to_be_visible()
    screenshots(page, "positions")
    example(page, "ALiBi vs T5 buckets")
    expect(page.get_by_role("img").first).to_be_visible()
    screenshots(page, "positions-bias")


def test_nothing_moves_while_values_change(opened: Open) -> None:
    page = opened(link(ROPE | {"n": "A"}, f="spectrum"))
    expect(page.get_by_role("row", name=re.compile("A"))).to_be_visible()
    page.evaluate(
        "() => { window.shift = 0; new PerformanceObserver((list) => { for (const entry of list.getEntries())"
        " window.shift += entry.value; }).observe({ type: 'layout-shift' }); }"
    )
    for theta in ("20000", "5", "1e6"):
        field(page, "theta").fill(theta)
        settled(page)
    assert page.evaluate("() => window.shift") < 0.02
