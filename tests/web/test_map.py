"""The map of the view Search: moved and enlarged, asked with a lasso, two models beside each other."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.served import Served
from tests.web.browser import DRAWN, Page, axe, expect
from tests.web.conftest import DEMO, SEVERAL
from tests.web.test_search import give, wait_for_map

Open = Callable[[str], Page]
K = 10
# Writes down the names of the canvas's calls, and draws 20 000 points in eight groups.
COUNTED = """async () => {
  const { Scene } = await import("/web/views/search/scene.js");
  const canvas = document.body.appendChild(document.createElement("canvas"));
  const scene = Object.assign(new Scene(canvas), { width: 900, height: 600, ratio: 2 });
  scene.setPoints(Float32Array.from({ length: 40000 }, (_, at) => Math.sin(at * at)));
  scene.setLook(Uint8Array.from({ length: 20000 }, (_, at) => at % 8));
  let calls = 0;
  for (const name of ["fill", "stroke", "fillRect", "putImageData", "drawImage"]) {
    const own = CanvasRenderingContext2D.prototype[name];
    CanvasRenderingContext2D.prototype[name] = function (...given) {
      calls += 1;
      return own.apply(this, given);
    };
  }
  scene.draw();
  const filled = new Set(new Uint32Array(canvas.getContext("2d").getImageData(0, 0, 1800, 1200).data.buffer)).size;
  return { calls, filled };
}"""


def test_points_are_drawn_in_one_pass(opened: Open) -> None:
    drawn = opened("models").evaluate(COUNTED)
    assert drawn["calls"] < 10  # however many points
    assert drawn["filled"] > 8


def drag(page: Page, points: list[tuple[float, float]]) -> None:
    """Press at the first place of the map, given as parts of its width and height, and let go at the last."""
    page.locator(".map canvas").scroll_into_view_if_needed()
    box: Any = page.locator(".map canvas").bounding_box()
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in points]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place)
    page.mouse.up()


def test_lasso_lists_its_texts_and_narrows_the_search(opened: Open) -> None:
    page = opened("search")
    wait_for_map(page, 144)
    page.get_by_role("button", name="Lasso").click()
    drag(page, [(0.01, 0.01), (0.99, 0.01), (0.99, 0.99), (0.01, 0.99)])
    chosen = page.get_by_role("region", name="Chosen on the map")
    expect(chosen.get_by_role("heading")).to_have_text("144 chosen")
    chosen.get_by_role("button", name="Let go").click()
    page.get_by_role("list", name="Groups on the map").get_by_role("button", name="music").click()
    expect(chosen.get_by_role("listitem")).to_have_count(12)
    chosen.get_by_label("search these alone").check()
    expect(page.locator(".hits tbody tr")).to_have_count(12)
    expect(page.locator(".hits td.topic").first).to_have_text("music")
    axe(page)


def test_part_of_the_map_is_enlarged_by_drawing_around_it(page: Page, opened: Open) -> None:
    page.add_init_script(f"({DRAWN})()")
    opened("search?reranker=none")
    wait_for_map(page, 144)
    texts = set(page.evaluate("async () => (await import('/web/views/search/sample.js')).SAMPLE.texts"))
    assert not texts & set(page.evaluate("[...window.drawn]"))
    page.get_by_role("button", name="Zoom", exact=True).click()
    drag(page, [(0.4, 0.4), (0.5, 0.5), (0.6, 0.6)])
    shown = "(texts) => texts.filter((text) => window.drawn.has(text) || window.drawn.has(`${text.slice(0, 31)}…`))"
    page.wait_for_function(f"(texts) => ({shown})(texts).length", arg=sorted(texts))
    assert len(page.evaluate(shown, sorted(texts))) < 60  # those in sight


def test_keys_move_the_map_and_a_press_searches_for_the_like(opened: Open) -> None:
    page = opened("search?reranker=none")
    wait_for_map(page, 144)
    canvas = page.locator(".map canvas")
    before = canvas.screenshot()
    canvas.focus()
    for key in ("+", "ArrowLeft", "ArrowUp"):
        page.keyboard.press(key)
    page.wait_for_function(
        "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"
    )
    assert canvas.screenshot() != before
    page.keyboard.press("0")
    box: Any = canvas.bounding_box()
    for step in range(1, 40):  # until the pointer meets a text
        page.mouse.move(box["x"] + step * box["width"] / 40, box["y"] + box["height"] / 2)
        if page.locator(".tip").count():
            break
    text = page.locator(".tip").evaluate("(tip) => tip.firstChild.textContent")
    page.mouse.down()
    page.mouse.up()
    expect(page.get_by_label("Search", exact=True)).to_have_value(text)
    expect(page.locator(".hits td.text").first).to_have_text(text)


def shares(vectors: np.ndarray, topics: list[str]) -> float:
    """The share of the ten nearest neighbours of each text that have its topic."""
    scores = vectors @ vectors.T
    np.fill_diagonal(scores, -np.inf)
    nearest = np.argsort(-scores, axis=1)[:, :K]
    names = np.array(topics)
    return float((names[nearest] == names[:, None]).mean())


def test_clusters_of_the_same_words_stay_apart(opened: Open) -> None:
    names = opened("models").evaluate("""async () => {
      const { labelsOf } = await import("/web/views/search/plane.js");
      return labelsOf(["number line", "line number", "number line"], [0, 1, 2], 3);
    }""")
    assert len(set(names)) == 3


def test_which_of_two_models_separates_topics_better(
    opened: Open, web_server: Served, screenshots: Callable[..., None]
) -> None:
    page = opened("search")
    topics = ["pets"] * 8 + ["money"] * 8
    pets = [
        f"the {animal} sleeps" for animal in ("cat", "dog", "hamster", "parrot", "pony", "rabbit", "goldfish", "puppy")
    ]
    money = [
        f"the {thing} fell" for thing in ("bond", "share", "currency", "loan", "rate", "budget", "dividend", "tax")
    ]
    table = "\n".join(f"{text},{topic}" for text, topic in zip(pets + money, topics, strict=True))
    give(page, "table.csv", f"text,topic\n{table}\n")
    page.get_by_role("button", name="Embed 16 rows").click()
    page.get_by_label("Compare with").select_option(SEVERAL)
    scored = page.get_by_role("region", name="Scores by topic")
    expect(scored.locator("tbody tr")).to_have_count(2)
    expected = {}
    for model in (DEMO, SEVERAL):
        body = {"inputs": pets + money, "model": model, "normalize": True, "input_type": "document"}
        expected[model] = shares(np.array(web_server.post(body).raise_for_status().json()), topics)
    verdict = page.locator(".verdict")
    for model in (DEMO, SEVERAL):
        expect(verdict).to_contain_text(f"{100 * expected[model]:.0f} %")
    page.get_by_role("list", name="Texts whose neighbours differ most").get_by_role("button").first.click()
    for model in (DEMO, SEVERAL):
        expect(page.get_by_role("list", name=f"Neighbours by {model}").get_by_role("listitem")).to_have_count(K)
    axe(page)
    screenshots(page, "search-two", [360])
