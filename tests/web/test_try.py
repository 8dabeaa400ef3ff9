"""The view Try as a person uses it: type, choose, read, download, share; numbers are held to the server's own."""

import csv
import io
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.served import Served, serving
from tests.web.browser import SIZES, Page, axe, expect, settled, sideways
from tests.web.conftest import CLASSIFIER, DEMO, RERANKER, SEVERAL, open_view

Open = Callable[[str], Page]
TEXTS = ("a cat sat on the mat", "the dog ran, unbelievably far", "Größe 東京 🙂")
SHIFTS = """() => {
  window.shifts = 0;
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifts += entry.value;
  }).observe({ type: "layout-shift", buffered: true });
}"""


def panel(page: Page, title: str) -> Any:
    return page.get_by_role("region", name=title, exact=True)


def write(page: Page, texts: tuple[str, ...]) -> None:
    """Replace the texts as a person would, and wait for their answers."""
    box = page.get_by_label("One a line")
    box.fill("")
    box.press_sequentially("\n".join(texts))
    expect(panel(page, "Tokens")).to_contain_text(f"{len(texts)} text")
    settled(page)


def choose_model(page: Page, name: str) -> None:
    page.get_by_label("Model", exact=True).select_option(name)
    settled(page)


def cosines_shown(page: Page) -> NDArray[np.float64]:
    """The cosines by the numbers of the texts, in whatever order they are shown."""
    table = panel(page, "Similarity").get_by_role("group", name="Cosine of the texts")
    order = [int(head) - 1 for head in table.locator("thead th").all_inner_texts()[1:]]
    assert [int(name.partition(".")[0]) - 1 for name in table.locator("tbody th").all_inner_texts()] == order
    rows = [[float(cell) for cell in row.locator("td").all_inner_texts()] for row in table.locator("tbody tr").all()]
    shown = np.empty((len(order), len(order)))
    shown[np.ix_(order, order)] = rows
    return shown


def vectors(server: Served, texts: tuple[str, ...], **options: Any) -> NDArray[np.float32]:
    answer = server.post({"inputs": texts, "model": DEMO, **options}).raise_for_status()
    return np.array(answer.json(), np.float32)


def downloaded(page: Page, where: Any, button: str, folder: Path) -> Path:
    with page.expect_download() as started:
        where.get_by_role("button", name=button, exact=True).click()
    path = folder / started.value.suggested_filename
    started.value.save_as(path)
    return path


def test_first_screen_shows_an_example(opened: Open) -> None:
    shown = cosines_shown(opened("try"))
    assert shown.shape == (6, 6)
    assert [int(row.argsort()[-2]) for row in shown] == [1, 0, 3, 2, 5, 4]  # each sentence's own topic


@pytest.mark.parametrize("width", SIZES)
def test_first_screen_fits_and_is_accessible(width: int, opened: Open, screenshots: Callable[..., None]) -> None:
    screenshots(opened("try"), "try", [width])


@pytest.mark.parametrize("width", SIZES)
def test_every_part_of_a_model_of_several_outputs(width: int, opened: Open, screenshots: Callable[..., None]) -> None:
    page = opened(f"try?model={SEVERAL}")
    for title in ("Similarity", "Rank", "Tokens", "Sparse weights", "Vectors", "Late interaction"):
        expect(panel(page, title)).to_be_visible()
    screenshots(page, "try-several", [width])


def test_typed_texts_are_cut_compared_and_restored(opened: Open, web_server: Served) -> None:
    page = opened("try")
    write(page, TEXTS)
    tokens = panel(page, "Tokens").locator(".token-text").nth(2).locator(".token").all_inner_texts()
    expected = web_server.http.post("/tokenize", json={"inputs": TEXTS[2]}).json()[0]
    assert [text.strip() for text in tokens] == [token["text"] for token in expected]
    rows = vectors(web_server, TEXTS)
    np.testing.assert_allclose(cosines_shown(page), rows @ rows.T, atol=0.0051)
    again = page.context.new_page()
    again.goto(page.url, wait_until="networkidle")
    assert again.get_by_label("One a line").input_value() == "\n".join(TEXTS)
    np.testing.assert_array_equal(cosines_shown(again), cosines_shown(page))


def test_options_reach_the_request_and_the_link(opened: Open, web_server: Served) -> None:
    page = opened("try")
    write(page, TEXTS)
    page.get_by_label("Dimensions kept").fill("16")
    page.get_by_label("Pooling").select_option("max")
    page.get_by_label("Scale to unit length").select_option("false")
    expect(panel(page, "Vectors")).to_contain_text("3 texts × 16 dimensions")
    settled(page)
    rows = vectors(web_server, TEXTS, dimensions=16, pooling="max", normalize=False)
    norms = np.linalg.norm(rows, axis=1)
    np.testing.assert_allclose(cosines_shown(page), rows @ rows.T / np.outer(norms, norms), atol=0.0051)
    page.reload(wait_until="networkidle")
    assert page.get_by_label("Dimensions kept").input_value() == "16"
    page.get_by_label("Number format").select_option("binary")
    expect(panel(page, "Vectors")).to_contain_text("signs, 2 bytes a text")


def test_dimensions_beyond_the_model_are_not_sent(opened: Open) -> None:
    page = opened("try")
    page.get_by_label("Dimensions kept").fill("385")
    expect(page.get_by_text("Not sent: a whole number from 1 to 384 is needed.")).to_be_visible()
    axe(page)
    expect(panel(page, "Vectors")).to_contain_text("6 texts × 384 dimensions")


def test_rows_of_tokens_are_drawn_for_one_text(opened: Open, web_server: Served) -> None:
    page = opened("try?output=last_hidden_state&text=1")
    count = len(web_server.http.post("/tokenize", json={"inputs": "I cannot remember my login details."}).json()[0])
    expect(panel(page, "Vectors")).to_contain_text(f"{count} tokens × 384 dimensions")


@pytest.mark.parametrize("dtype", ["float32", "binary", "ubinary"])
def test_npy_and_csv_hold_what_the_server_sent(dtype: str, opened: Open, web_server: Served, tmp_path: Path) -> None:
    page = opened(f"try?dtype={dtype}")
    write(page, TEXTS)
    expected = np.array(web_server.post({"inputs": TEXTS, "model": DEMO, "dtype": dtype}).json())
    stored = np.load(downloaded(page, panel(page, "Vectors"), "NPY", tmp_path))
    assert stored.dtype == {"float32": np.float32, "binary": np.int8, "ubinary": np.uint8}[dtype]
    np.testing.assert_array_equal(stored, expected.astype(stored.dtype))
    lines = downloaded(page, panel(page, "Vectors"), "CSV", tmp_path).read_text(encoding="utf-8")
    head, *rows = csv.reader(io.StringIO(lines))
    assert head[:2] == ["text", "0"]
    assert [row[0].partition(".")[0] for row in rows] == ["1", "2", "3"]
    np.testing.assert_array_equal(np.array([row[1:] for row in rows], float).astype(stored.dtype), stored)


@pytest.mark.parametrize("title", ["Vectors", "Similarity", "Rank", "Sparse weights", "Late interaction"])
def test_pictures_are_saved_as_png_and_svg(title: str, opened: Open, tmp_path: Path) -> None:
    page = opened(f"try?model={SEVERAL}")
    drawn = ElementTree.fromstring(downloaded(page, panel(page, title), "SVG", tmp_path).read_text(encoding="utf-8"))
    words = [text.text or "" for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert any("reset" in word for word in words)
    with Image.open(downloaded(page, panel(page, title), "PNG", tmp_path)) as picture:
        assert picture.size == (2 * round(float(drawn.attrib["width"])), 2 * round(float(drawn.attrib["height"])))
        assert len(picture.convert("RGB").getcolors(1 << 24) or ()) > 10


@pytest.mark.parametrize("name", [RERANKER, SEVERAL])
def test_ranking_is_the_servers(name: str, opened: Open, web_server: Served) -> None:
    page = opened("try")
    write(page, TEXTS)
    panel(page, "Rank").get_by_label("Ranked by").select_option(name)
    panel(page, "Rank").get_by_label("Query").fill("a dog")
    expected = web_server.http.post("/rerank", json={"model": name, "query": "a dog", "texts": TEXTS}).json()
    lines = [f"{rank['index'] + 1}. {TEXTS[rank['index']]}" for rank in expected]
    expect(panel(page, "Rank").locator(".bar-name")).to_have_text(lines)
    expect(panel(page, "Rank").locator(".bar-value")).to_have_text([f"{rank['score']:.4f}" for rank in expected])


def test_cosines_rank_where_no_model_does(minilm_store: Path, page: Page) -> None:
    with serving(minilm_store) as server:
        open_view(page, server, "try?query=bread")
        expect(panel(page, "Rank")).to_contain_text("make reranker")
        assert "The dough needs" in panel(page, "Rank").locator(".bar-name").first.inner_text()
        axe(page)


def test_sparse_weights_are_the_servers(opened: Open, web_server: Served) -> None:
    page = opened(f"try?model={SEVERAL}&weights=2")
    write(page, TEXTS[:1])
    sent = web_server.http.post(
        "/embed_sparse", json={"model": SEVERAL, "inputs": TEXTS[:1], "max_active_dims": 2}
    ).json()[0]
    expected = sorted((f"{each['value']:.4f}" for each in sent), reverse=True)
    expect(panel(page, "Sparse weights").locator(".bar-value")).to_have_text(expected)


def test_late_interaction_score_is_the_servers(opened: Open, web_server: Served) -> None:
    page = opened(f"try?model={SEVERAL}&query=a+dog")
    write(page, TEXTS)
    scores = web_server.http.post("/rerank", json={"model": SEVERAL, "query": "a dog", "texts": TEXTS}).json()
    score = next(each["score"] for each in scores if each["index"] == 1)
    panel(page, "Late interaction").get_by_label("Text compared").select_option("1")
    expect(panel(page, "Late interaction").locator("strong")).to_have_text(f"{score:.4f}")


def test_labels_are_the_servers(opened: Open, web_server: Served) -> None:
    page = opened(f"try?model={CLASSIFIER}")
    write(page, ("hello world",))
    sent = web_server.http.post("/predict", json={"model": CLASSIFIER, "inputs": "hello world"}).json()
    expect(panel(page, "Labels").locator(".bar-name")).to_have_text([each["label"] for each in sent])
    expect(panel(page, "Labels").locator(".bar-value")).to_have_text([f"{each['score']:.4f}" for each in sent])
    axe(page)


@pytest.mark.parametrize(("cut", "struck"), [("end", "wordz"), ("beginning", "worda")])
def test_tokens_that_are_not_read_are_struck_out(cut: str, struck: str, opened: Open) -> None:
    page = opened(f"try?model={CLASSIFIER}&cut={cut}")
    write(page, ("worda " + "hello " * 30 + "wordz",))
    expect(panel(page, "Tokens")).to_contain_text("10 of them not read")
    unread = panel(page, "Tokens").locator(".unread")
    text = "".join(unread.all_inner_texts()).replace(" ", "")
    assert (text.startswith if cut == "beginning" else text.endswith)(struck)
    expect(panel(page, "Vectors")).to_contain_text("Cut, because too long: text 1")


def test_too_long_texts_that_are_refused_say_so(opened: Open) -> None:
    page = opened(f"try?model={CLASSIFIER}&cut=refuse")
    page.get_by_label("One a line").fill("hello " * 40)
    expect(panel(page, "Vectors").get_by_role("alert")).to_contain_text("42 tokens")


def topics(count: int) -> list[str]:
    """Texts of three topics, which alternate."""
    words = ("reset my password, please, number", "bake a lemon cake for guest", "rain over the hills on day")
    return [f"{words[number % 3]} {number}" for number in range(count)]


def test_like_texts_lie_beside_each_other(opened: Open) -> None:
    page = opened("try")
    page.get_by_label("One a line").fill("\n".join(topics(32)))
    table = panel(page, "Similarity").get_by_role("group", name="Cosine of the texts")
    expect(table.locator("tbody tr")).to_have_count(32)
    shown = [(int(head) - 1) % 3 for head in table.locator("thead th").all_inner_texts()[1:]]
    assert sum(a != b for a, b in pairwise(shown)) == 2  # each topic in one piece
    expect(panel(page, "Similarity")).to_contain_text("3 groups")
    expect(table.locator("tr.group")).to_have_count(3)


def test_numbers_of_32_texts_are_readable(opened: Open) -> None:
    page = opened("try")
    page.get_by_label("One a line").fill("\n".join(topics(32)))
    table = panel(page, "Similarity").get_by_role("group", name="Cosine of the texts")
    expect(table.locator("tbody tr")).to_have_count(32)
    fits = "(cells) => cells.every((cell) => cell.scrollWidth <= cell.clientWidth + 1)"
    assert table.locator("td").evaluate_all(fits)
    size = table.locator("td").first.evaluate("(cell) => parseFloat(getComputedStyle(cell).fontSize)")
    assert size >= 12


def test_200_texts_are_sent_and_scroll(opened: Open) -> None:
    page = opened("try")
    page.get_by_label("One a line").fill("\n".join(topics(210)))
    expect(page.locator("#texts-count")).to_contain_text("210 texts: the first 200 are sent")
    expect(panel(page, "Vectors")).to_contain_text("200 texts × 384")
    strips = panel(page, "Similarity").get_by_role("group", name="Cosine of the texts")
    expect(strips.locator(".strip-row")).to_have_count(200)
    assert strips.evaluate("(own) => own.scrollHeight > own.clientHeight && own.scrollWidth > own.clientWidth")
    strips.focus()
    page.keyboard.press("ArrowRight")
    expect(panel(page, "Similarity").locator("figcaption")).to_have_text(re.compile(r"\d+\. .+, \d+\. .+: 0\.\d{4}"))
    settled(page)
    axe(page)


def test_scores_stay_in_sight_beside_long_texts(opened: Open) -> None:
    page = opened("try")
    page.set_viewport_size({"width": 360, "height": 780})
    page.get_by_label("One a line").fill("\n".join(f"{topic} " * 80 for topic in topics(3)))
    scores = panel(page, "Rank").locator(".bar-value")
    expect(scores).to_have_count(3)
    settled(page)
    for score in scores.all():
        box = score.bounding_box()
        assert box["x"] + box["width"] <= 360
    names = panel(page, "Rank").locator(".bar-name").evaluate_all("(all) => all.map((one) => one.clientHeight)")
    assert max(names) < 120


def test_an_emptied_box_stays_empty(opened: Open) -> None:
    page = opened("try")
    page.get_by_role("button", name="Clear").click()
    expect(page.get_by_text("Type a text, or choose an example.")).to_be_visible()
    page.reload(wait_until="networkidle")
    assert page.get_by_label("One a line").input_value() == ""


def test_clear_takes_the_query_too_and_examples_bring_it(opened: Open) -> None:
    page = opened("try")
    for _ in range(2):  # the same example again
        page.get_by_label("Example").select_option(label="A question and its candidates")
        expect(panel(page, "Rank").get_by_label("Query")).to_have_value("What do pandas eat?")
        page.get_by_role("button", name="Clear").click()
        page.get_by_label("One a line").fill("one text\nanother")
        expect(panel(page, "Rank").get_by_label("Query")).to_have_value("")


def test_bars_of_cosines_begin_at_0_and_end_at_1(opened: Open) -> None:
    page = opened(f"try?ranker={DEMO}")
    expect(panel(page, "Rank")).to_contain_text("Bars: cosine from 0 to 1; a negative cosine has no bar.")
    ranks = panel(page, "Rank").locator(".ranked li")
    for rank in ranks.all():
        score = float(rank.locator(".bar-value").inner_text())
        shares = "(bar) => bar.getBoundingClientRect().width / bar.parentElement.getBoundingClientRect().width"
        assert rank.locator(".bar").evaluate(shares) == pytest.approx(max(0, score), abs=0.001)
    assert score < 0  # the last: the case is among them


@pytest.mark.parametrize("width", SIZES)
def test_downloads_of_a_ranking_are_below_its_texts(width: int, opened: Open) -> None:
    page = opened("try")
    page.set_viewport_size({"width": width, "height": 900})
    settled(page)
    last = panel(page, "Rank").locator(".ranked li").last.bounding_box()
    buttons = panel(page, "Rank").get_by_role("group", name="Download ranking").bounding_box()
    assert last["y"] + last["height"] < buttons["y"]


def test_nearest_texts_are_a_table_without_a_gap(opened: Open) -> None:
    page = opened("try?texts=a+cat%0Aa+kitten")
    rows = panel(page, "Similarity").get_by_role("group", name="The nearest other text").locator("tbody tr")
    expect(rows.nth(0)).to_contain_text("1. a cat2. a kitten")
    table = rows.last.bounding_box()
    buttons = panel(page, "Similarity").get_by_role("group", name="Download similarity").bounding_box()
    assert buttons["y"] - table["y"] - table["height"] < 30


def test_an_error_shows_what_the_server_answered(opened: Open) -> None:
    page = opened(f"try?model={CLASSIFIER}&cut=refuse")
    page.get_by_label("One a line").fill("hello " * 40)
    panel(page, "Vectors").get_by_text("What the server answered").click()
    facts = panel(page, "Vectors").locator(".refusal dl")
    expect(facts).to_contain_text("too_long")
    expect(facts).to_contain_text("request id")
    axe(page)


def test_examples_are_loaded(opened: Open) -> None:
    page = opened("try")
    page.get_by_label("Example").select_option(label="A question and its candidates")
    expect(panel(page, "Rank").get_by_label("Query")).to_have_value("What do pandas eat?")
    expect(panel(page, "Similarity")).to_contain_text("A panda spends half of the day eating bamboo.")


def test_keyboard_alone_reaches_and_reads_everything(opened: Open) -> None:
    page = opened("try")
    reached = []
    for _ in range(80):
        page.keyboard.press("Tab")
        name = "(own) => own.getAttribute('aria-label') ?? own.labels?.[0]?.innerText ?? own.innerText"
        reached.append(str(page.evaluate_handle("document.activeElement").evaluate(name))[:60])
        if reached[-1].startswith("Text 1,"):
            page.keyboard.press("ArrowRight")
            page.keyboard.press("ArrowRight")
            expect(panel(page, "Tokens").locator(".readout")).to_contain_text('Text 1, token 1: "How", id ')
        if reached[-1].startswith("Sentence vectors"):
            page.keyboard.press("ArrowDown")
            expect(panel(page, "Vectors").locator("figcaption")).to_contain_text("2. I cannot")
            break
    wanted = ("Skip", "One a line", "Clear", "Model", "Pooling", "Query", "PNG", "Similarity with text 1", "Show ids")
    assert [each for each in wanted if not any(each in name for name in reached)] == []


def test_nothing_moves_while_it_loads_and_is_typed(page: Page, web_server: Served) -> None:
    page.add_init_script(f"({SHIFTS})()")
    page.goto("http://{}:{}/#/try".format(*web_server.address), wait_until="networkidle")
    expect(panel(page, "Vectors").locator("canvas").first).to_be_visible()
    settled(page)
    assert page.evaluate("window.shifts") < 0.02
    write(page, TEXTS)
    assert page.evaluate("window.shifts") < 0.1


def test_narrow_page_with_long_words_does_not_scroll(opened: Open) -> None:
    page = opened(f"try?model={SEVERAL}")
    page.set_viewport_size({"width": 360, "height": 780})
    page.get_by_label("One a line").fill("x" * 300 + "\n" + "Donaudampfschifffahrt" * 10)
    expect(panel(page, "Similarity")).to_contain_text("xxxx")
    for summary in page.locator(".snippets summary").all():
        summary.click()
    settled(page)
    assert sideways(page) <= 0
    axe(page)
