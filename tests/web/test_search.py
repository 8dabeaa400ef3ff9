"""The view Search, at `/`: texts of a file or the sample, found while one types, drawn on a map, kept and forgotten."""

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.served import Served
from tests.web.browser import SIZES, Page, axe, expect
from tests.web.conftest import DEMO, RERANKER, SEVERAL

Open = Callable[[str], Page]
PAGE_BYTES = 400_000
LOADED = """() => ["navigation", "resource"].flatMap((type) => performance.getEntriesByType(type))
  .filter((entry) => entry.initiatorType !== "fetch").map((entry) => [entry.name, entry.decodedBodySize])"""
MANY = 40_000  # rows of random vectors, which no axis tells apart: comparing all takes minutes
# Keeps texts with random vectors, as if they had been embedded on an earlier visit.
KEEP_RANDOM = """async ([model, version, count]) => {
  const { write } = await import("/web/views/search/kept.js");
  const width = 384;
  const vectors = Float32Array.from({ length: count * width }, () => (Math.random() - 0.5) * Math.sqrt(12 / width));
  const texts = Array.from({ length: count }, (_, row) => `text ${row}`);
  const run = { model, version, output: "sentence_embedding", mixed: true, width, vectors, rows: [], done: count };
  await write({ name: "random", texts, columns: [], pictures: null, runs: [{ ...run, milliseconds: 1 }] });
}"""
LINES = ("the cat sleeps", "a dog barks", "stocks fell on Monday", "the bank raised its rates")


def give(page: Page, name: str, content: str | bytes) -> None:
    """Choose a file of texts in place of what is searched."""
    buffer = content if isinstance(content, bytes) else content.encode()
    chosen = {"name": name, "mimeType": "text/plain", "buffer": buffer}
    page.get_by_text("Search your own").click()
    page.get_by_label("Your own").set_input_files(files=[chosen])  # type: ignore[list-item]


def found(page: Page) -> list[str]:
    return page.get_by_role("region", name="Texts found").locator("td.text").all_inner_texts()


def wait_for_map(page: Page, texts: int) -> None:
    expect(page.locator(".map canvas")).to_have_attribute("data-drawn", str(texts))


def test_sample_is_found_by_meaning(opened: Open) -> None:
    page = opened("search")
    wait_for_map(page, 144)
    page.get_by_label("Search", exact=True).fill("celestial bodies seen at night")
    first = page.locator(".hits tbody tr").first.locator("td.topic")
    expect(first).to_have_text("space")
    page.get_by_role("combobox", name="topic").select_option("music")
    expect(first).to_have_text("music")


def test_page_at_the_root_is_small(page: Page, web_server: Served) -> None:
    page.goto("http://{}:{}/".format(*web_server.address), wait_until="networkidle")
    wait_for_map(page, 144)
    loaded = page.evaluate(LOADED)
    assert any("/web/views/search.js" in name for name, _ in loaded)
    assert sum(size for _, size in loaded) < PAGE_BYTES


def test_answer_is_found_among_two_thousand_own_lines(opened: Open) -> None:
    page = opened("search")
    lines = [f"Shelf {number} holds {number % 7} boxes of paper" for number in range(1999)]
    lines.insert(1234, "Press the red lever to stop the machine in an emergency")
    give(page, "manual.txt", "\n".join(lines))
    page.get_by_label("Search", exact=True).fill("How do I halt the engine when there is danger?")
    expect(page.locator(".hits td.text").first).to_contain_text("red lever", timeout=240_000)


def test_words_that_count_are_those_of_the_sparse_vectors(opened: Open, web_server: Served) -> None:
    page = opened(f"search?model={SEVERAL}&query=a+dog+barks&reranker=none")
    give(page, "lines.txt", "\n".join(LINES))
    page.get_by_role("combobox", name="Find by").select_option(label="words (sparse vector)")
    body = {"model": SEVERAL, "inputs": ["a dog barks", LINES[1]]}
    query, row = (
        {each["index"]: each["value"] for each in sent}
        for sent in web_server.http.post("/embed_sparse", json=body).json()
    )
    parts = sorted((query[key] * row[key] for key in query.keys() & row.keys()), reverse=True)
    hit = page.locator(".hits tbody tr").filter(has_text=LINES[1])
    expect(hit.locator("td.number").first).to_have_text(f"{sum(parts):.3f}")
    expect(hit.locator(".words small")).to_have_text([f"{part:.2f}" for part in parts[:5]])
    axe(page)


def test_near_duplicates_are_listed_above_a_threshold(opened: Open) -> None:
    page = opened("search")
    give(page, "lines.txt", "\n".join([*LINES, "the cat is sleeping", "a dog barks"]))
    wait_for_map(page, 6)
    page.get_by_text("Near-duplicates").click()
    pairs = page.get_by_role("list", name="Pairs that are nearly the same").locator("li")
    threshold = page.get_by_label("Cosine of at least")
    threshold.fill("0.99")
    expect(pairs).to_have_count(1)
    expect(pairs).to_contain_text("1.000")
    threshold.fill("0.8")
    expect(pairs).to_have_count(2)
    expect(pairs.nth(1)).to_contain_text("the cat is sleeping")
    axe(page)


def test_search_for_pairs_among_many_shows_progress_and_is_stopped(opened: Open, web_server: Served) -> None:
    page = opened("models")
    (version,) = [
        model["version"] for model in web_server.http.get("/models").json()["models"] if model["name"] == DEMO
    ]
    page.evaluate(KEEP_RANDOM, [DEMO, version, MANY])
    page.get_by_role("link", name="Search", exact=True).click()
    page.get_by_text("Near-duplicates").click()
    expect(page.get_by_role("progressbar", name="Compared")).to_be_visible()
    expect(page.locator(".duplicates")).to_contain_text("so far")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("progressbar", name="Compared")).to_have_count(0)
    expect(page.locator(".duplicates").get_by_role("status")).to_contain_text("stopped before all were compared")


def test_words_and_columns_filter_results_and_export(opened: Open, tmp_path: Path) -> None:
    page = opened("search?query=pets&reranker=none")
    give(page, "table.csv", "text,kind,id\nwhite cats,a,7\nblack cats,b,8\nblack dogs,a,9\nwhite dogs,b,10\n")
    page.get_by_role("button", name="Embed 4 rows").click()
    wait_for_map(page, 4)
    page.get_by_label("with the word").fill("black")
    expect(page.locator(".hits tbody tr")).to_have_count(2)
    page.get_by_role("combobox", name="kind").select_option("a")
    expect(page.locator(".hits td.text")).to_have_text(["black dogs"])
    with page.expect_download() as started:
        page.get_by_role("group", name="Download results").get_by_role("button", name="CSV").click()
    started.value.save_as(tmp_path / "results.csv")
    (row,) = csv.DictReader((tmp_path / "results.csv").read_text().splitlines())
    assert (row["text"], row["kind"], row["id"]) == ("black dogs", "a", "9")


def test_exported_vectors_are_those_of_the_server(opened: Open, web_server: Served, tmp_path: Path) -> None:
    page = opened("search")
    give(page, "lines.txt", "\n".join(LINES))
    wait_for_map(page, len(LINES))
    with page.expect_download() as started:
        page.get_by_role("group", name="Download vectors").get_by_role("button", name="NPY").click()
    started.value.save_as(tmp_path / "vectors.npy")
    expected = web_server.post({"inputs": list(LINES), "model": DEMO}).raise_for_status().json()
    np.testing.assert_allclose(np.load(tmp_path / "vectors.npy"), expected, rtol=0, atol=1e-5)


def test_scores_are_those_of_the_server(opened: Open, web_server: Served, tmp_path: Path) -> None:
    page = opened("search?query=animals&reranker=none")
    give(page, "lines.txt", "\n".join(LINES))
    wait_for_map(page, len(LINES))
    with page.expect_download() as started:
        page.get_by_role("group", name="Download results").get_by_role("button", name="CSV").click()
    started.value.save_as(tmp_path / "results.csv")
    rows = list(csv.DictReader((tmp_path / "results.csv").read_text().splitlines()))
    vectors = np.array(web_server.post({"inputs": [*LINES, "animals"], "model": DEMO}).raise_for_status().json())
    expected = dict(zip(LINES, vectors[:-1] @ vectors[-1], strict=True))
    assert [row["text"] for row in rows] == sorted(LINES, key=lambda line: -expected[line])
    np.testing.assert_allclose(
        [float(row["score"]) for row in rows], sorted(expected.values())[::-1], rtol=0, atol=1e-4
    )


def test_column_of_a_table_is_chosen(opened: Open) -> None:
    page = opened("search?query=pets")
    give(page, "table.csv", 'id,text,kind\n1,"cats, and kittens",a\n2,dogs,a\n3,"a ""bond""",b\n4,shares,b\n')
    page.get_by_role("button", name="Embed 4 rows").click()
    wait_for_map(page, 4)
    assert sorted(found(page)) == ['a "bond"', "cats, and kittens", "dogs", "shares"]
    page.get_by_role("combobox", name="kind").select_option("b")
    expect(page.locator(".hits tbody tr")).to_have_count(2)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.txt", b"", "it holds no texts"),
        ("table.csv", b'id,text\n1,dogs\n2,"cats\n3,birds\n', "line 3 opens a quote that is not closed"),
        ("lines.jsonl", b'{"text": "a"}\n{oops\n', "line 2 is not JSON"),
        ("program.txt", b"\x7fELF\x00\x00\x01", "it is no text"),
        ("old.csv", "text\nGr\u00fc\u00dfe\n".encode("latin-1"), "save it as CSV or text in UTF-8"),
    ],
)
def test_file_that_cannot_be_read_is_refused_by_name(name: str, content: bytes, said: str, opened: Open) -> None:
    page = opened("search")
    give(page, name, content)
    alert = page.get_by_role("region", name="Texts", exact=True).get_by_role("alert")
    expect(alert).to_contain_text(f"{name} is not taken: ")
    expect(alert).to_contain_text(said)
    wait_for_map(page, 144)  # of the sample


def test_text_in_utf16_is_read(opened: Open) -> None:
    page = opened("search")
    give(page, "lines.txt", "Gr\u00fc\u00dfe\nzwei".encode("utf-16"))
    page.get_by_label("Search", exact=True).fill("hello")
    expect(page.locator(".hits td.text")).to_have_count(2)
    assert set(found(page)) == {"Gr\u00fc\u00dfe", "zwei"}


def test_longer_files_say_how_much_of_them_is_taken(opened: Open) -> None:
    page = opened("search")
    page.route("**/embed", lambda route: route.abort())
    give(page, "many.txt", "line\n" * 20_001)
    expect(page.locator(".own-name")).to_contain_text("many.txt, the first 20,000 of 20,001")


def test_searches_where_the_browser_keeps_nothing(page: Page, opened: Open) -> None:
    page.add_init_script("IDBFactory.prototype.open = () => { throw new DOMException('denied', 'SecurityError'); }")
    opened("search")
    wait_for_map(page, 144)


def test_texts_outlast_a_reload_until_forgotten(opened: Open) -> None:
    page = opened("search?query=animals")
    give(page, "lines.txt", "\n".join(LINES))
    wait_for_map(page, len(LINES))
    page.reload(wait_until="networkidle")
    wait_for_map(page, len(LINES))
    page.get_by_text("Search your own").click()
    page.get_by_role("button", name="Forget these texts").click()
    expect(page.get_by_text("Drop a file of texts")).to_be_visible()


def test_embedding_is_paused_and_goes_on(opened: Open) -> None:
    page = opened("search")
    wait_for_map(page, 144)
    page.route("**/embed", lambda route: None)  # no answer comes, so that the last one does not end it
    give(page, "lines.txt", "\n".join(LINES))
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("paused")).to_be_visible()
    page.unroute("**/embed")
    page.get_by_role("button", name="Go on").click()
    wait_for_map(page, len(LINES))


def test_embedding_goes_on_once_the_server_answers_again(opened: Open) -> None:
    page = opened("search")
    wait_for_map(page, 144)
    page.route("**/embed", lambda route: route.abort())
    give(page, "lines.txt", "\n".join(LINES))
    expect(page.get_by_role("region", name="Texts", exact=True).get_by_role("alert")).to_contain_text("does not answer")
    page.unroute("**/embed")
    wait_for_map(page, len(LINES))


def test_random_reranker_is_never_the_choice_of_the_page(opened: Open) -> None:
    page = opened("search")
    wait_for_map(page, 144)
    choice = page.get_by_label("Rerank by")
    expect(choice).not_to_have_value(RERANKER)
    choice.select_option(RERANKER)
    expect(page.get_by_text(f"The weights of {RERANKER} are random")).to_be_visible()
    expect(page.locator(".hits .moved")).to_have_count(20)


@pytest.mark.parametrize("width", SIZES)
def test_fits_every_width_and_is_accessible(width: int, opened: Open, screenshots: Callable[..., None]) -> None:
    page = opened("search?reranker=none")
    wait_for_map(page, 144)
    page.mouse.move(0, 0)
    screenshots(page, "search", [width])
