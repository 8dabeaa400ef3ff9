"""Nearest tokens over HTTP: what numpy's float64 finds in the checkpoint's own table, and every error."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from tests.golden_cases import WORDS
from tests.served import Served

Floats = NDArray[np.float64]
PATH = "/models/bert/similar"


@pytest.fixture(scope="module")
def table(tiny_store: Path) -> Floats:
    """The word table of the checkpoint that `bert` was exported from."""
    tensors = load_file(tiny_store.parent / "checkpoints/bert/model.safetensors")
    return next(array for name, array in tensors.items() if name.endswith("word_embeddings.weight")).astype(np.float64)


def ask(served: Served, path: str = PATH, **body: Any) -> dict[str, Any]:
    document: dict[str, Any] = served.http.post(path, json=body).raise_for_status().json()
    return document


def cosines(table: Floats, query: Floats) -> Floats:
    return np.asarray(table @ query / np.linalg.norm(table, axis=1) / np.linalg.norm(query))


def check(document: dict[str, Any], scores: Floats, left_out: list[int], top_k: int) -> None:
    allowed = np.delete(np.arange(len(scores)), left_out)
    best = allowed[np.argsort(-scores[allowed], kind="stable")][:top_k]
    assert [entry["id"] for entry in document["results"]] == best.tolist()
    np.testing.assert_allclose([entry["score"] for entry in document["results"]], scores[best], atol=1e-12)
    for entry in document["results"] + document["inputs"]:
        assert entry["token"] == WORDS[entry["id"]]


def test_finds_tokens_nearest_to_a_token(served: Served, table: Floats) -> None:
    hello = WORDS.index("hello")
    for token in (hello, "hello"):
        document = ask(served, token=token, top_k=7)
        check(document, cosines(table, table[hello]), [hello], 7)
        assert document["inputs"] == [{"id": hello, "token": "hello"}]
    assert ask(served, token="hello", exclude_inputs=False)["results"][0]["id"] == hello
    assert ask(served, token="[CLS]")["inputs"][0]["id"] == WORDS.index("[CLS]")


def test_text_is_the_mean_of_its_tokens(served: Served, table: Floats) -> None:
    ids = [WORDS.index(word) for word in ("hello", "world", "hello")]
    document = ask(served, text="hello world hello", measure="dot")
    check(document, table @ table[ids].mean(axis=0), ids, 10)
    document = ask(served, text="hello " * 3000 + "world", measure="dot")  # more tokens than are read at a time
    check(document, table @ (3000 * table[ids[0]] + table[ids[1]]) / 3001, ids, 10)


def test_searches_a_vector_of_every_form(served: Served, table: Floats) -> None:
    query = np.linspace(-1, 1, table.shape[1])
    expected = -np.linalg.norm(table - query, axis=1)
    data = {"dtype": "float64", "shape": query.shape, "data": base64.b64encode(query.tobytes()).decode()}
    for vector in (query.tolist(), data):
        check(ask(served, vector=vector, measure="euclidean", top_k=5), expected, [], 5)


@pytest.mark.parametrize("normalize", [True, False])
def test_analogy_adds_and_subtracts(served: Served, table: Floats, normalize: bool) -> None:
    a, b, c = 8, 9, WORDS.index("hello")
    rows = table / np.linalg.norm(table, axis=1, keepdims=True) if normalize else table
    document = ask(served, positive=[a, "hello"], negative=[b], normalize=normalize)
    check(document, cosines(table, rows[a] - rows[b] + rows[c]), [a, b, c], 10)
    check(ask(served, positive=["hello"]), cosines(table, table[c]), [c], 10)
    with_vector = ask(served, positive=[a, table[c].tolist()], negative=[b], normalize=normalize)
    assert [entry["id"] for entry in with_vector["inputs"]] == [a, b]


def test_searches_ids_without_a_tokenizer(served: Served) -> None:
    document = ask(served, "/models/llama/similar", token=3, top_k=2)
    assert [entry["token"] for entry in document["results"]] == [None, None]
    assert document["table"]["name"] == "model.embed_tokens.weight"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "send one of token, text, vector and positive"),
        ({"token": 1, "text": "a"}, "token and text came"),
        ({"negative": [1]}, "send positive as well"),
        ({"positive": []}, "positive came"),
        ({"token": 1, "normalize": True}, "normalize is read with positive alone"),
        ({"token": 99}, "token is 99; bert has ids from 0 to"),
        ({"token": -1}, "token is -1; bert has ids from 0 to"),
        ({"positive": [1], "negative": [99]}, "negative is 99"),
        ({"token": "hello world"}, "is 2 tokens: 25 'hello', 26 'world'"),
        ({"token": True}, "token is true; allowed: an id"),
        ({"token": 1.5}, "token is 1.5; allowed: an id"),
        ({"text": ""}, "gives no token"),
        ({"text": 5}, "text is 5; allowed: a text"),
        ({"vector": [1.0, 2.0]}, "the table's rows have"),
        ({"vector": [1.0, None]}, "only numbers can stand in the lists"),
        ({"vector": [0.0] * 32}, "length 0"),
        ({"positive": [1], "negative": [1]}, "length 0"),
        ({"positive": [None]}, "null is not an id, a text or a vector"),
        ({"text": "a" * 65537}, "the texts have 65537 characters; a search reads 65536"),
        ({"positive": ["a" * 32768] * 2, "negative": ["a"]}, "the texts have 65537 characters"),
        ({"positive": [1] * 1025}, "1025 entries of positive and negative; this server takes 1024"),
        ({"token": 1, "measure": "manhattan"}, "one of cosine, dot, euclidean"),
        ({"token": 1, "top_k": 0}, "an integer from 1 to 1000 (how many tokens)"),
        ({"token": 1, "tok_k": 5}, 'did you mean "top_k"'),
    ],
)
def test_rejects_impossible_requests(served: Served, body: dict[str, Any], says: str) -> None:
    answer = served.http.post(PATH, json=body)
    assert (answer.status_code, says in answer.json()["detail"]) == (422, True), answer.text


def test_rejects_text_without_a_tokenizer(served: Served) -> None:
    answer = served.http.post("/models/llama/similar", json={"text": "hello"})
    assert "without a tokenizer: send ids" in answer.json()["detail"]


def test_unknown_model_is_not_found(served: Served) -> None:
    assert served.http.post("/models/bort/similar", json={"token": 1}).status_code == 404
