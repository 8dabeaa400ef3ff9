"""Logits over HTTP: transformers' golden ones in every form, the laws of softmax, and every error."""

import base64
import io
from collections.abc import Iterator
from typing import Any

import httpx
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load

from models.artifacts.export import export
from service.embedding import logits
from tests.golden_cases import WORDS, case, write_checkpoint, write_tokenizer
from tests.served import Served, serving

PATH = "/models/bert/logits"
GOLDEN = case("input_bert")
HIDDEN = GOLDEN.arrays["head_in"]
LOGITS = GOLDEN.arrays["logits"].astype(np.float64)
V = LOGITS.shape[-1]
Array = NDArray[Any]


@pytest.fixture(scope="module", params=["onnx", "reference"])
def heads(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`bert` with a head and a tokenizer of fewer tokens, `llama` with neither."""
    folder = tmp_path_factory.mktemp("heads")
    checkpoint = write_checkpoint(GOLDEN, folder / "bert")
    write_tokenizer(checkpoint / "tokenizer.json")
    export(checkpoint, folder / "store/bert")
    bare = write_checkpoint(case("input_bert"), folder / "bare")
    export(bare, folder / "store/plain")
    with serving(folder / "store", default_model="bert", engine=request.param) as service:
        yield service


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows at a time."""
    monkeypatch.setattr(logits, "BLOCK_VALUES", 2 * V)


def ask(served: Served, path: str = PATH, accept: str = "application/json", **body: Any) -> httpx.Response:
    if isinstance(hidden := body.get("hidden"), np.ndarray):
        body["hidden"] = hidden.tolist()
    return served.http.post(path, json=body, headers={"accept": accept})


def logits_of(served: Served, **body: Any) -> dict[str, Any]:
    document: dict[str, Any] = ask(served, **body).raise_for_status().json()
    return document


def softmax(values: Array) -> Array:
    powers = np.exp(values - values.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def test_sends_logits_in_every_format(heads: Served, small_blocks: None) -> None:
    document = logits_of(heads, hidden=HIDDEN)
    assert (document["model"], document["vocab_size"], document["tied"]) == ("bert", V, True)
    whole = np.array(document["logits"])
    np.testing.assert_allclose(whole, LOGITS, atol=1e-5)
    as_base64 = logits_of(heads, hidden=HIDDEN, encoding_format="base64")["logits"]
    raw = ask(heads, hidden=HIDDEN, format="raw")
    npy = ask(heads, hidden=HIDDEN, accept="application/x-npy")
    tensors = load(ask(heads, hidden=HIDDEN, format="safetensors").content)
    assert raw.headers["inlay-shape"] == ",".join(map(str, LOGITS.shape))
    assert raw.headers["inlay-dtype"] == "float32"
    for other in (
        np.frombuffer(base64.b64decode(as_base64["data"]), np.float32).reshape(as_base64["shape"]),
        np.frombuffer(raw.content, np.float32).reshape(LOGITS.shape),
        np.load(io.BytesIO(npy.content)),
        tensors["logits"],
    ):
        np.testing.assert_array_equal(other, whole.astype(np.float32))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_sends_logits_in_every_dtype(heads: Served, dtype: str) -> None:
    answer = ask(heads, hidden=HIDDEN, format="raw", dtype=dtype)
    kind: Any = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    values = np.frombuffer(answer.content, kind).reshape(LOGITS.shape).astype(np.float64)
    np.testing.assert_allclose(
        values, LOGITS, rtol={"float16": 1e-3, "bfloat16": 8e-3, "float64": 1e-9}[dtype], atol=1e-5
    )


def test_reads_hidden_states_of_every_form_and_shape(heads: Served) -> None:
    row = HIDDEN[0, 0]
    one = np.array(logits_of(heads, hidden=row)["logits"])
    assert one.shape == (V,)
    sent = {"dtype": "float32", "shape": list(row.shape), "data": base64.b64encode(row.tobytes()).decode()}
    np.testing.assert_array_equal(logits_of(heads, hidden=sent)["logits"], one)
    answer = logits_of(heads, hidden=HIDDEN, top_k=2, temperature=0.5)
    np.testing.assert_allclose(answer["logits"], -np.sort(-LOGITS * 2)[..., :2], atol=2e-5)
    half = row.astype(np.float16)
    sent = {"dtype": "float16", "shape": list(row.shape), "data": base64.b64encode(half.tobytes()).decode()}
    np.testing.assert_array_equal(
        logits_of(heads, hidden=sent)["logits"], logits_of(heads, hidden=half.astype(np.float64))["logits"]
    )


@pytest.mark.parametrize("temperature", [1.0, 0.25, 3.0])
def test_probabilities_are_the_softmax_of_scaled_logits(heads: Served, temperature: float) -> None:
    body = {"hidden": HIDDEN, "temperature": temperature, "dtype": "float64"}
    own = np.array(logits_of(heads, **body)["logits"])
    np.testing.assert_allclose(own, LOGITS / temperature, atol=1e-5 / temperature)
    shares = np.array(logits_of(heads, **body, output="probabilities")["probabilities"])
    logs = np.array(logits_of(heads, **body, output="log_probabilities")["log_probabilities"])
    np.testing.assert_allclose(shares.sum(axis=-1), 1.0, rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(shares, softmax(own), rtol=1e-13, atol=1e-20)
    np.testing.assert_allclose(np.exp(logs), shares, rtol=1e-13, atol=1e-20)


@pytest.mark.parametrize("top_k", [1, 5, V])
def test_top_k_are_the_first_of_all_sorted(heads: Served, small_blocks: None, top_k: int) -> None:
    body = {"hidden": HIDDEN, "temperature": 0.7, "dtype": "float64"}
    whole = {name: np.array(logits_of(heads, **body, output=name)[name]) for name in logits.OUTPUTS}
    best = logits_of(heads, **body, top_k=top_k)
    order = np.argsort(-whole["logits"], axis=-1, kind="stable")[..., :top_k]
    np.testing.assert_array_equal(best["ids"], order)
    for name, values in whole.items():
        np.testing.assert_allclose(best[name], np.take_along_axis(values, order, -1), rtol=1e-13, atol=1e-20)
    assert (best["top_k"], best["temperature"]) == (top_k, 0.7)


def test_names_the_tokens_that_the_tokenizer_has(heads: Served) -> None:
    best = logits_of(heads, hidden=HIDDEN[0], top_k=V)
    known = dict(enumerate(WORDS))
    for ids, tokens, texts in zip(best["ids"], best["tokens"], best["texts"], strict=True):
        assert tokens == [known.get(id_) for id_ in ids]
        assert texts[ids.index(WORDS.index("hello"))] == "hello"
    tensors = ask(heads, hidden=HIDDEN[0], top_k=2, format="safetensors")
    assert set(load(tensors.content)) == {"ids", *logits.OUTPUTS}
    assert b'"tokens"' in tensors.content[: 1 << 16]
    assert "tokens" not in logits_of(heads, path="/models/plain/logits", hidden=HIDDEN[0], top_k=2)


def test_one_output_of_top_k_is_one_array(heads: Served) -> None:
    ids = ask(heads, hidden=HIDDEN, top_k=3, output="ids", format="raw")
    assert ids.headers["inlay-dtype"] == "int64"
    expected = logits_of(heads, hidden=HIDDEN, top_k=3)
    np.testing.assert_array_equal(np.frombuffer(ids.content, np.int64).reshape(3, -1, 3), expected["ids"])
    several = ask(heads, hidden=HIDDEN, top_k=3, format="npy")
    assert several.status_code == 406
    assert "output=ids" in several.json()["detail"]


def test_responses_of_one_shape_are_not_confused(heads: Served) -> None:
    for form in ({"format": "raw"}, {"format": "raw", "top_k": 2, "output": "logits"}):
        first, second = (ask(heads, hidden=hidden, **form).content for hidden in (HIDDEN[0], HIDDEN[1]))
        assert first != second
        assert first == ask(heads, hidden=HIDDEN[0], **form).content


def test_model_without_a_head_says_why(served: Served) -> None:
    answer = ask(served, path="/models/bert/logits", hidden=[0.0] * 32)
    assert answer.status_code == 404
    assert "bert has no output head: the checkpoint holds no cls.predictions" in answer.json()["detail"]


def sent(data: str, shape: list[int], dtype: str = "float32") -> dict[str, Any]:
    return {"hidden": {"dtype": dtype, "shape": shape, "data": data}}


REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {
    "another width": ({"hidden": [[0.0] * 31]}, 422, r"the head of bert reads [..., 32]"),
    "a number": ({"hidden": 1.0}, 422, "nested lists of numbers"),
    "no row": ({"hidden": {"dtype": "float32", "shape": [0, 32], "data": ""}}, 422, "send at least one row"),
    "no lists of one length": ({"hidden": [[0.0], [0.0, 1.0]]}, 422, "of different lengths"),
    "true in a list": ({"hidden": [[1, True, 3, 4]]}, 422, "only numbers can stand in the lists"),
    "texts": ({"hidden": [["a"]]}, 422, "only numbers can stand in the lists"),
    "no data": ({"hidden": {"dtype": "float32", "shape": [1, 4]}}, 422, "an object of dtype, shape and data"),
    "an unknown dtype": (sent("", [1, 4], "int8"), 422, "dtype is int8; it is one of float64"),
    "too few bytes": (sent("AAAA", [1, 4]), 422, "data has 3 bytes; float32 of shape [1, 4] takes 16"),
    "a negative size": (sent("AAAA", [-1]), 422, "shape is a list of integers, 0 or more"),
    "too many dimensions": (sent("AAAA", [2**31 - 1] * 8000), 422, "shape has 8000 dimensions; allowed: up to 32"),
    "no base64": (sent("!", [1, 1]), 422, "data is not base64"),
    "a value beyond float32": ({"hidden": [1e39] * 32}, 422, "beyond float32"),
    "nothing": ({}, 422, "hidden is missing"),
    "null": ({"hidden": None}, 422, "hidden cannot be read: send nested lists"),
    "a temperature of zero": ({"hidden": [0.0] * 32, "temperature": 0}, 422, "above 0"),
    "a temperature below zero": ({"hidden": [0.0] * 32, "temperature": -1.0}, 422, "above 0"),
    "more tokens than there are": ({"hidden": [0.0] * 32, "top_k": V + 1}, 422, f"bert has {V} tokens"),
    "no tokens": ({"hidden": [0.0] * 32, "top_k": 0}, 422, "top_k is 0"),
    "ids of all": ({"hidden": [0.0] * 32, "output": "ids"}, 422, "goes with top_k"),
    "an unknown output": ({"hidden": [0.0] * 32, "output": "odds"}, 422, "output is"),
    "an unknown field": ({"hidden": [0.0] * 32, "topk": 3}, 422, 'did you mean "top_k"?'),
}


@pytest.mark.parametrize("what", REFUSED)
def test_rejects_impossible_requests_with_the_reason(what: str, heads: Served) -> None:
    body, status, message = REFUSED[what]
    answer = ask(heads, **body)
    assert answer.status_code == status, answer.text
    assert message in answer.json()["detail"]


def test_rejects_tensors_with_nan(heads: Served) -> None:
    data = base64.b64encode(np.full(32, np.nan, np.float32).tobytes()).decode()
    answer = heads.http.post(PATH, json={"hidden": {"dtype": "float32", "shape": [1, 32], "data": data}})
    assert answer.status_code == 422
    assert "every number must be finite" in answer.json()["detail"]


def test_document_and_model_describe_the_head(heads: Served) -> None:
    document = heads.http.get("/openapi.json").json()
    assert "LogitsParameters" in document["components"]["schemas"]
    assert set(document["paths"]["/models/{name}/logits"]) == {"post"}
    summary = heads.http.get("/models/bert").json()
    assert summary["head"] == {
        "width": 32,
        "vocab_size": V,
        "matrix": "bert.embeddings.word_embeddings.weight",
        "tied": True,
    }
    assert summary["no_head_reason"] is None
    assert "logits" not in summary["outputs"]


def test_equal_logits_are_sorted_by_id() -> None:
    values = np.array([1.0, 3.0, 2.0, 3.0, 2.0, 2.0], np.float32)
    assert logits.largest(values, 4).tolist() == [1, 3, 2, 4]


def test_softmax_is_computed_in_float64() -> None:
    from mpmath import mp, mpf

    values = np.random.default_rng(4).normal(0, 30, 50_000).astype(np.float32)
    mp.dps = 40
    total = sum(mp.e ** (mpf(float(value)) / mpf("0.5")) for value in values[:200])
    exact = [float(mp.e ** (mpf(float(value)) / mpf("0.5")) / total) for value in values[:200]]
    np.testing.assert_allclose(logits.TRANSFORMS["probabilities"](values[:200], 0.5), exact, rtol=1e-12, atol=1e-20)
    assert abs(np.exp(logits.TRANSFORMS["log_probabilities"](values, 0.5)).sum() - 1) < 1e-12


def test_rejects_logits_that_overflow(served: Served) -> None:
    answer = ask(served, path="/models/llama/logits", hidden=[3e38, -3e38] * 16, top_k=1)
    assert answer.status_code == 422
    assert "overflow float32" in answer.json()["detail"]
