"""The view Search with pictures: found by a sentence or a picture, which finds texts too, and given labels."""

import base64
import io
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from PIL import Image

from models.artifacts.export import export
from tests.served import Served, serving
from tests.test_dual_encoders import CASES, write
from tests.web.browser import Page, axe, expect
from tests.web.conftest import open_view

GOLDEN = CASES[0]
TEXT, VISION = f"{GOLDEN.name}_text", f"{GOLDEN.name}_vision"
COLORS = ("red", "green", "blue", "white", "black", "yellow")


@pytest.fixture(scope="module")
def dual_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Both sides of a tiny CLIP."""
    folder = tmp_path_factory.mktemp("dual")
    checkpoint = write(GOLDEN, folder / GOLDEN.name)
    for side in ("text", "vision"):
        export(checkpoint, folder / f"store/{GOLDEN.name}_{side}", side=side)
    with serving(folder / "store", default_model=TEXT) as running:
        yield running


def picture(color: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (24, 24), color).save(file, "PNG")
    return file.getvalue()


def files(*colors: str) -> list[dict[str, object]]:
    return [{"name": f"{color}.png", "mimeType": "image/png", "buffer": picture(color)} for color in colors]


def vectors(server: Served) -> dict[str, np.ndarray]:
    urls = ["data:image/png;base64," + base64.b64encode(picture(color)).decode() for color in COLORS]
    sent = server.http.post(f"/models/{VISION}/images", json={"inputs": urls}).raise_for_status().json()
    return dict(zip(COLORS, np.array(sent), strict=True))


@pytest.fixture
def pictures(page: Page, dual_server: Served) -> Page:
    """The page once six pictures are embedded."""
    open_view(page, dual_server, "search")
    page.get_by_text("Search your own").click()
    page.get_by_label("Your own").set_input_files(files=files(*COLORS))  # type: ignore[arg-type]
    expect(page.locator(".map canvas")).to_have_attribute("data-drawn", "6")
    return page


def found(page: Page) -> list[str]:
    return [name.removesuffix(".png") for name in page.locator(".hits td.text").all_inner_texts()]


def test_which_picture_fits_a_sentence(pictures: Page, dual_server: Served) -> None:
    pictures.get_by_label("Search", exact=True).fill("b c")
    expect(pictures.locator(".hits tbody tr")).to_have_count(6)
    (query,) = dual_server.post({"inputs": ["b c"], "model": TEXT}).raise_for_status().json()
    expected = {color: float(vector @ np.array(query)) for color, vector in vectors(dual_server).items()}
    assert found(pictures) == sorted(COLORS, key=lambda color: -expected[color])
    axe(pictures)


def test_picture_finds_its_like_and_labels_are_the_servers(
    pictures: Page, dual_server: Served, screenshots: Callable[..., None]
) -> None:
    pictures.get_by_label("Search", exact=True).fill("b c")
    pictures.locator(".hits button").filter(has_text="blue").click()
    expect(pictures.locator(".hits td.text").first).to_contain_text("blue")
    own = vectors(dual_server)
    assert found(pictures) == sorted(COLORS, key=lambda color: -float(own[color] @ own["blue"]))
    pictures.get_by_label("Labels, by commas").fill("a, b c")
    pictures.get_by_label("Sentence of a label").fill("{}")
    texts = dual_server.post({"inputs": ["a", "b c"], "model": TEXT}).json()
    body = {"text_embeds": texts, "image_embeds": [own["blue"].tolist()]}
    sent = dual_server.http.post(f"/models/{VISION}/similarity", json=body).json()["probabilities"][0]
    bars = pictures.get_by_role("region", name="Labels of a picture").locator(".bar-value")
    expect(bars).to_have_text([f"{share:.4f}" for share in sorted(sent, reverse=True)])
    screenshots(pictures, "search-pictures", [360])


def test_picture_finds_texts(page: Page, dual_server: Served) -> None:
    open_view(page, dual_server, "search")
    page.get_by_text("Search your own").click()
    page.get_by_label("Or paste lines").fill("a\nb c\nc")
    page.get_by_role("button", name="Embed these lines").click()
    page.get_by_label("or by a picture").set_input_files(files=files("green"))  # type: ignore[arg-type]
    texts = np.array(dual_server.post({"inputs": ["a", "b c", "c"], "model": TEXT}).json())
    scores = texts @ vectors(dual_server)["green"]
    expect(page.locator(".hits td.text")).to_have_text([("a", "b c", "c")[place] for place in np.argsort(-scores)])
    expect(page.get_by_text("Like green.png")).to_be_visible()


def test_no_model_for_pictures_is_said(opened: Callable[[str], Page]) -> None:
    page = opened("search")
    page.get_by_text("Search your own").click()
    page.get_by_label("Your own").set_input_files(files=files("red"))  # type: ignore[arg-type]
    expect(page.get_by_role("alert")).to_contain_text("No model of this server makes vectors of pictures")


def test_picture_that_cannot_be_read_is_left_out_by_name(page: Page, dual_server: Served) -> None:
    open_view(page, dual_server, "search")
    page.get_by_text("Search your own").click()
    broken = {"name": "broken.png", "mimeType": "image/png", "buffer": b"\x89PNG"}
    page.get_by_label("Your own").set_input_files(files=[*files("red"), broken, *files("blue")])  # type: ignore[arg-type]
    expect(page.locator(".map canvas")).to_have_attribute("data-drawn", "2")
    expect(page.locator(".own-name")).to_contain_text("without broken.png: not read")
    page.get_by_label("or by a picture").set_input_files(files=files("blue"))  # type: ignore[arg-type]
    expect(page.locator(".hits td.number").first).to_have_text("1.000")
    assert found(page) == ["blue", "red"]
    page.get_by_text("Search your own").click()
    page.get_by_role("button", name="Use the sample").click()  # texts again
    expect(page.locator(".map canvas")).to_have_attribute("data-drawn", "144")
