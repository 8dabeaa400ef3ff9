"""The code that Try shows for its requests, copied by its button and run: each gives what the page got."""

import ast
import base64
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import json_format
from google.protobuf.message import Message

from proto import embed_pb2, open_inference_pb2, tei_pb2
from tests.served import Served, serving
from tests.web.browser import Page, expect, settled
from tests.web.conftest import CLASSIFIER, DEMO, RERANKER, SEVERAL, open_view
from tests.web.test_try import cosines_shown

Open = Callable[[str], Page]
TEXTS = ("it's a cat", 'a "dog" \\ far', "Größe 東京 🙂")
QUERY = "an animal's name"
FILES = {"inlay.v1": embed_pb2, "tei.v1": tei_pb2, "inference": open_inference_pb2}
KEY = "correct-horse-battery-staple"
ENVIRONMENT = {**os.environ, "NO_PROXY": "*", "no_proxy": "*", "INLAY_API_KEY": KEY}
OPTIONS = "&dimensions=16&normalize=false&cut=beginning&purpose=query"


def shown(opened: Open, model: str, options: str = "") -> Page:
    page = opened(f"try?model={model}&query=x{options}")
    page.get_by_label("One a line").fill("\n".join(TEXTS))
    page.get_by_role("region", name="Rank").get_by_label("Query").fill(QUERY)
    page.get_by_role("region", name="Rank").get_by_label("Ranked by").select_option(
        model if model in (SEVERAL, RERANKER) else RERANKER
    )
    expect(page.get_by_role("region", name="Tokens")).to_contain_text("3 texts")
    settled(page)
    return page


def copied(page: Page, label: str, client: str) -> str:
    """The text that the button copies."""
    box = page.locator("details.snippets").filter(has=page.get_by_text(f"{label} as code", exact=True))
    if box.get_attribute("open") is None:
        box.locator("summary").click()
    box.get_by_role("button", name=client, exact=True).click()
    page.evaluate("navigator.clipboard.writeText('')")
    box.get_by_role("button", name="Copy", exact=True).click()
    expect(box.get_by_role("button", name="Copied", exact=True)).to_be_visible()
    text: str = page.evaluate("navigator.clipboard.readText()")
    assert text == box.locator("pre").inner_text()
    return text


def ran(command: list[str], folder: Path | None = None) -> str:
    if not shutil.which(command[0]):
        pytest.skip(f"no {command[0]}: on Debian apt-get install {'nodejs' if command[0] == 'node' else command[0]}")
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=ENVIRONMENT, check=False, cwd=folder
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def called(text: str, server: Served) -> Message:
    """What a grpcurl command's message gets, without grpcurl: its JSON is read as the method's request."""
    words = shlex.split(text.replace("\\\n", ""))
    assert words[:2] == ["grpcurl", "-plaintext"]
    message, (service, method) = words[words.index("-d") + 1], words[-1].split("/")
    package = service.rpartition(".")[0]
    description = FILES[package].DESCRIPTOR.services_by_name[service.rpartition(".")[2]].methods_by_name[method]
    request = json_format.Parse(message, getattr(FILES[package], description.input_type.name)())
    answer = getattr(FILES[package], description.output_type.name)
    with grpc.insecure_channel(server.rpc_address) as channel:
        call = channel.unary_unary(
            f"/{service}/{method}", type(request).SerializeToString, answer.FromString, _registered_method=False
        )
        received: Message = call(request, timeout=30)
        return received


def body_of(curl: str) -> tuple[str, dict[str, Any]]:
    words = shlex.split(curl.replace("\\\n", ""))
    sent: dict[str, Any] = json.loads(words[words.index("-d") + 1])
    return words[1], sent


CASES = [
    (DEMO, "Vectors", ""),
    (DEMO, "Vectors", OPTIONS + "&pooling=max&dtype=float16"),
    (DEMO, "Similarity with text 1", ""),
    (DEMO, "Tokens", ""),
    (DEMO, "Ranking", ""),
    (SEVERAL, "Ranking", ""),
    (SEVERAL, "Sparse vectors", "&weights=2"),
    (SEVERAL, "The query's vectors", ""),
    (SEVERAL, "The text's vectors", "&text=1"),
    (CLASSIFIER, "Labels", ""),
    (CLASSIFIER, "Vectors", "&output=last_hidden_state&text=2"),
]


CLIENTS = {
    "Python": [sys.executable, "-I", "-S", "-c"],  # without the packages of any environment
    "httpx": [sys.executable, "-c"],
    "JavaScript": ["node", "--input-type=module", "--eval"],
}


def results(page: Page, label: str) -> list[Any]:
    """What each client of a request prints, curl's first."""
    by_curl = ran(["bash", "-c", copied(page, label, "curl").replace("curl", "curl -sS --fail-with-body", 1)])
    by_python, by_httpx, by_node = [ran([*command, copied(page, label, client)]) for client, command in CLIENTS.items()]
    return [json.loads(by_curl), ast.literal_eval(by_python), ast.literal_eval(by_httpx), json.loads(by_node)]


@pytest.mark.parametrize(("model", "label", "options"), CASES)
def test_curl_python_and_javascript_get_the_same(model: str, label: str, options: str, opened: Open) -> None:
    page = shown(opened, model, options)
    first, *others = results(page, label)
    assert [each == first for each in others] == [True] * 3
    _, body = body_of(copied(page, label, "curl"))
    assert body["model"] == (RERANKER if label == "Ranking" and model == DEMO else model)
    assert "texts" in body or "inputs" in body


def test_code_of_tables_and_pictures_saves_them(opened: Open, tmp_path: Path) -> None:
    page = opened("positions")
    table = page.locator("details.snippets summary").filter(has_text="The table of").first.inner_text()
    for client, command in CLIENTS.items():
        for label, beginning in ((table.removesuffix(" as code"), b"\x93NUMPY"), ("This picture", b"<")):
            ran([*command, copied(page, label, client)], tmp_path)
            (saved,) = tmp_path.iterdir()
            assert saved.read_bytes().startswith(beginning)
            saved.unlink()


def test_code_with_a_key_reads_it_from_the_environment(page: Page, web_store: Path) -> None:
    with serving(web_store, default_model=DEMO, models=(DEMO,), api_keys=KEY) as server:
        open_view(page, server, "models")
        page.get_by_role("dialog", name="API key").get_by_label("Key").fill(KEY)
        page.get_by_role("button", name="Use it").click()
        page.get_by_text("GET /models as code").wait_for()
        for client in ("curl", "Python", "httpx", "JavaScript"):
            assert KEY not in copied(page, "GET /models", client)
        answers = results(page, "GET /models")
        assert [each["models"][0]["name"] for each in answers] == [DEMO] * 4


def test_tei_client_gets_the_same_vectors_and_cosines(opened: Open, web_server: Served) -> None:
    page = shown(opened, DEMO)
    _, body = body_of(copied(page, "Vectors", "curl"))
    rows = np.array(web_server.http.post("/embed", json=body).json()["outputs"]["sentence_embedding"])
    printed = ran([sys.executable, "-c", copied(page, "Vectors", "TEI")])
    assert printed.startswith("(3, 384)")
    np.testing.assert_allclose(
        np.array(printed.partition("\n")[2].replace("[", " ").replace("]", " ").split(), float),
        rows[:, :4].ravel(),
        atol=1e-6,
    )
    cosines = ast.literal_eval(ran([sys.executable, "-c", copied(page, "Similarity with text 1", "TEI")]))
    np.testing.assert_allclose(cosines, rows[1:] @ rows[0], atol=1e-5)


def test_cohere_client_gets_the_same_order(opened: Open, web_server: Served) -> None:
    page = shown(opened, RERANKER)
    expected = web_server.http.post("/rerank", json=body_of(copied(page, "Ranking", "curl"))[1]).json()
    printed = ran([sys.executable, "-c", copied(page, "Ranking", "Cohere")]).splitlines()
    assert [int(line.split()[0]) for line in printed] == [each["index"] for each in expected]


@pytest.mark.parametrize("options", ["", OPTIONS])
def test_openai_client_gets_the_same_vectors(options: str, opened: Open, web_server: Served) -> None:
    page = shown(opened, DEMO, options)
    _, body = body_of(copied(page, "Vectors", "curl"))
    rows = web_server.http.post("/embed", json=body).json()["outputs"]["sentence_embedding"]
    printed = ran([sys.executable, "-c", copied(page, "Vectors", "OpenAI")]).splitlines()
    assert printed[0] == f"3 vectors of {len(rows[0])} numbers; the first 4 of each:"
    assert len(printed) == len(TEXTS) + 2
    for number, (line, row) in enumerate(zip(printed[1:], rows, strict=False)):
        index, values = line.split(" ", 1)
        assert int(index) == number
        np.testing.assert_allclose(json.loads(values), row[:4], rtol=1e-6, atol=1e-6)


def test_openai_client_gets_the_shown_cosines(opened: Open) -> None:
    page = shown(opened, DEMO)
    printed = ran([sys.executable, "-c", copied(page, "Similarity with text 1", "OpenAI")])
    numbers = [float(word) for word in printed.replace("[", " ").replace("]", " ").split()]
    np.testing.assert_allclose(numbers, cosines_shown(page).ravel(), atol=0.0051)


def test_openai_snippet_says_what_its_route_lacks(opened: Open) -> None:
    page = shown(opened, DEMO, "&pooling=max")
    box = page.locator("details.snippets").filter(has=page.get_by_text("Vectors as code", exact=True))
    box.locator("summary").click()
    box.get_by_role("button", name="OpenAI", exact=True).click()
    expect(box).to_contain_text("OpenAI's route has no pooling")


@pytest.mark.parametrize(
    ("label", "has"), [("Vectors", True), ("Similarity with text 1", True), ("Tokens", False), ("Ranking", False)]
)
def test_openai_tab_is_left_out_where_it_has_no_call(label: str, has: bool, opened: Open) -> None:
    page = shown(opened, DEMO)
    box = page.locator("details.snippets").filter(has=page.get_by_text(f"{label} as code", exact=True))
    box.locator("summary").click()
    expect(box.get_by_role("button", name="OpenAI", exact=True)).to_have_count(int(has))


@pytest.mark.parametrize(
    ("model", "label", "options"),
    [case for case in CASES if case[1] in ("Vectors", "Sparse vectors", "The query's vectors", "The text's vectors")],
)
def test_grpcurl_messages_get_the_same_vectors(
    model: str, label: str, options: str, opened: Open, web_server: Served
) -> None:
    page = shown(opened, model, options)
    _, body = body_of(copied(page, label, "curl"))
    text = copied(page, label, "grpcurl")
    assert text.endswith(":50051 inlay.v1.Embedder/Embed")  # the port that a page cannot know
    answer: Any = called(text, web_server)
    (output,) = answer.outputs
    sent = web_server.http.post("/embed", json=body).json()["outputs"][output.name]
    dtype = {embed_pb2.FLOAT32: np.float32, embed_pb2.FLOAT16: np.float16}[output.tensor.dtype]
    got = np.frombuffer(output.tensor.data, dtype)
    expected = [each["values"] if isinstance(each, dict) else np.ravel(each) for each in sent]
    np.testing.assert_array_equal(got, np.concatenate(expected).astype(dtype))


def test_grpcurl_messages_get_the_same_scores(opened: Open, web_server: Served) -> None:
    page = shown(opened, CLASSIFIER)
    answer: Any = called(copied(page, "Ranking", "grpcurl"), web_server)
    sent = web_server.http.post("/rerank", json=body_of(copied(page, "Ranking", "curl"))[1]).json()
    got = np.frombuffer(answer.raw_output_contents[0], np.float32)
    np.testing.assert_allclose(
        [got[each["index"]] for each in sent], [each["score"] for each in sent], rtol=1e-6, atol=1e-6
    )
    answer = called(copied(page, "Labels", "grpcurl"), web_server)
    labels = web_server.http.post("/predict", json=body_of(copied(page, "Labels", "curl"))[1]).json()
    got = np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(len(TEXTS), -1)
    np.testing.assert_allclose(got.max(axis=1), [each[0]["score"] for each in labels], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("ranker", [RERANKER, SEVERAL])
def test_grpcurl_messages_of_default_models_are_teis(ranker: str, page: Page, web_store: Path) -> None:
    with serving(web_store, default_model=ranker, models=(ranker, CLASSIFIER)) as server:
        page = shown(partial(open_view, page, server), ranker)
        answer: Any = called(copied(page, "Ranking", "grpcurl"), server)
        sent = server.http.post("/rerank", json={"query": QUERY, "texts": TEXTS}).json()
        assert [rank.index for rank in answer.ranks] == [each["index"] for each in sent]
        answer = called(copied(page, "Tokens", "grpcurl"), server)
        tokens = server.http.post("/tokenize", json={"inputs": TEXTS[0]}).json()[0]
        assert [token.id for token in answer.tokens] == [token["id"] for token in tokens]


def test_texts_are_base64_for_the_open_inference_protocol(opened: Open) -> None:
    words = shlex.split(copied(shown(opened, DEMO), "Ranking", "grpcurl").replace("\\\n", ""))
    query, documents = json.loads(words[words.index("-d") + 1])["inputs"]
    assert [base64.b64decode(each).decode() for each in query["contents"]["bytes_contents"]] == [QUERY]
    assert [base64.b64decode(each).decode() for each in documents["contents"]["bytes_contents"]] == [*TEXTS]
