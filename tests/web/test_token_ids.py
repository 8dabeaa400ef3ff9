"""Models without a tokenizer: they are run, searched and shown by token ids."""

import csv
import io
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.artifacts.export import export
from tests.golden_cases import case, write_checkpoint, write_tiny_bert
from tests.served import Served, serving
from tests.web.browser import Page, axe, expect, settled
from tests.web.conftest import open_view
from tests.web.test_try import cosines_shown, downloaded, panel
from tests.web.test_try_snippets import called, copied, ran

GPT2, ENCODER = "gpt2", "tiny-bert"
IDS = [[1, 2, 3], [4, 5]]
Open = Callable[[str], Page]


@pytest.fixture(scope="module")
def ids_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An input layer and an encoder, neither with a tokenizer."""
    folder = tmp_path_factory.mktemp("ids")
    export(write_checkpoint(case("input_gpt2"), folder / "a"), folder / "store" / GPT2)
    export(write_tiny_bert(folder / "b", pooling="mean", tokenizer=False), folder / "store" / ENCODER)
    with serving(folder / "store") as running:
        yield running


@pytest.fixture
def opened(page: Page, ids_server: Served) -> Iterator[Open]:
    """Open a view; no answer may be an error."""
    failed: list[str] = []
    page.on("response", lambda answer: failed.append(answer.url) if answer.status >= 400 else None)
    yield partial(open_view, page, ids_server)
    assert failed == []


def rows(server: Served, model: str, inputs: list[list[int]], output: str) -> Any:
    body = {"model": model, "inputs": inputs, "outputs": [output]}
    return server.post(body).raise_for_status().json()["outputs"][output]


def write_ids(page: Page, text: str) -> None:
    page.get_by_label("Ids with spaces or commas").fill(text)
    settled(page)


def test_typed_ids_give_the_servers_rows(opened: Open, ids_server: Served, tmp_path: Path) -> None:
    page = opened(f"try?model={GPT2}")
    expect(panel(page, "Vectors")).to_contain_text("6 tokens")  # of the example
    axe(page)
    write_ids(page, "1, 2 3\n4 5")
    expect(panel(page, "Vectors")).to_contain_text("3 tokens")
    text = downloaded(page, panel(page, "Vectors"), "CSV", tmp_path).read_text(encoding="utf-8")
    head, *drawn = csv.reader(io.StringIO(text))
    assert head[:2] == ["token", "0"]
    assert [row[0] for row in drawn] == [f"id {token}" for token in IDS[0]]
    np.testing.assert_allclose(
        np.array([row[1:] for row in drawn], float), rows(ids_server, GPT2, IDS, "input_embeddings")[0]
    )
    page.reload(wait_until="networkidle")
    expect(page.get_by_label("Ids with spaces or commas")).to_have_value("1, 2 3\n4 5")


def test_every_offered_output_of_ids_is_answered(opened: Open) -> None:
    page = opened(f"try?model={GPT2}")
    for output in page.get_by_label("Output").locator("option").all_inner_texts():
        page.get_by_label("Output").select_option(output)
        settled(page)
        expect(panel(page, "Vectors").locator("figcaption")).to_contain_text("values")
        expect(page.get_by_role("alert")).to_have_count(0)


def test_words_in_place_of_ids_are_named_and_not_sent(opened: Open) -> None:
    page = opened(f"try?model={GPT2}")
    write_ids(page, "1 2\n3 cat")
    expect(page.get_by_role("alert")).to_contain_text("Line 2 is not sent: “cat” is not a token id.")
    expect(panel(page, "Vectors")).to_contain_text("2 tokens")
    axe(page)
    write_ids(page, "99999999")
    expect(page.get_by_role("alert")).to_contain_text("whole numbers from 0 to")


def test_sentence_vectors_of_ids_are_compared(opened: Open, ids_server: Served) -> None:
    page = opened("try")
    page.get_by_role("combobox", name="Model", exact=True).select_option(ENCODER)
    write_ids(page, "1 2 3\n4 5")
    vectors = np.array(rows(ids_server, ENCODER, IDS, "sentence_embedding"))
    np.testing.assert_allclose(cosines_shown(page), vectors @ vectors.T, atol=0.0051)


@pytest.mark.parametrize("model", [GPT2, ENCODER])
def test_code_of_ids_gets_the_same(model: str, opened: Open, ids_server: Served) -> None:
    page = opened(f"try?model={model}")
    write_ids(page, "1 2 3\n4 5")
    words = shlex.split(copied(page, "Vectors", "curl").replace("\\\n", ""))
    body = json.loads(words[words.index("-d") + 1])
    assert body["inputs"] == (IDS[:1] if model == GPT2 else IDS)  # rows are drawn for one sequence
    expected = ids_server.post(body).json()
    assert ran([sys.executable, "-c", copied(page, "Vectors", "Python")]).strip() == str(expected)
    answer: Any = called(copied(page, "Vectors", "grpcurl"), ids_server)
    got = np.frombuffer(answer.outputs[0].tensor.data, np.float32)
    (sent,) = expected["outputs"].values()
    np.testing.assert_allclose(got, np.ravel(sent), rtol=1e-6, atol=1e-6)


def test_card_of_a_model_of_ids_leads_to_try(opened: Open) -> None:
    page = opened("models")
    page.get_by_role("region", name=GPT2, exact=True).get_by_role("link", name="Try it").click()
    expect(page.get_by_role("heading", name="Token ids")).to_be_visible()
    expect(page.get_by_role("combobox", name="Model", exact=True)).to_have_value(GPT2)


def test_nearest_tokens_are_searched_by_ids(opened: Open, ids_server: Served) -> None:
    page = opened(f"models?model={GPT2}")
    nearest = page.get_by_role("region", name="Nearest tokens of its word table")
    nearest.get_by_label("Add").fill("7")
    sent = ids_server.http.post(f"/models/{GPT2}/similar", json={"positive": [7], "top_k": 8}).json()["results"]
    expect(nearest.get_by_role("row").nth(1).get_by_role("cell").first).to_have_text(str(sent[0]["id"]))
    assert called(copied(page, "The nearest tokens", "grpcurl"), ids_server)
    nearest.get_by_label("Subtract").fill("cat")
    expect(nearest.get_by_role("alert")).to_contain_text("“cat” is not a token id")


def test_code_of_embed_beside_a_model_works(opened: Open) -> None:
    page = opened(f"models?model={GPT2}")
    assert "input_embeddings" in ran([sys.executable, "-c", copied(page, "POST /embed", "Python")])


def test_now_sends_ids_where_no_model_reads_text(opened: Open) -> None:
    page = opened("now")
    page.get_by_role("button", name="Send a request").click()
    expect(page.get_by_role("status").filter(has_text="Answered in")).to_be_visible()
