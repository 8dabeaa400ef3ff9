"""The word tables of other models than transformers in float32: static, quantised, half precision, adopted, images."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.artifacts import card as cards
from models.artifacts import weights
from models.artifacts.adoption import adopt
from models.artifacts.export import export
from models.tables.similar import MEASURES
from tests.golden_cases import case, write_checkpoint, write_tiny_bert
from tests.models.artifacts.test_adoption import folder_of, model
from tests.served import Served, serving
from tests.static_golden import static_case

DTYPES = ("int8", "float16", "bfloat16")
ADOPTED = [
    ("GET", "/models/adopted/analysis", None),
    ("POST", "/models/adopted/similar", {"token": 1}),
    ("POST", "/models/adopted/gradient", {"hidden": [[1.0]], "targets": [1]}),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    export(static_case("model2vec_mapping").folder, folder / "store/static")
    checkpoint = write_checkpoint(case("input_llama_tied"), folder / "x")
    for dtype in DTYPES:
        export(checkpoint, folder / "store" / dtype, dtype=dtype)
    adopt(folder_of(folder / "onnx", model()), folder / "store/adopted")
    return folder / "store"


@pytest.fixture(scope="module")
def others(store: Path) -> Iterator[Served]:
    with serving(store) as service:
        yield service


@pytest.mark.parametrize(("method", "path", "body"), ADOPTED)
def test_adopted_model_has_no_word_table(others: Served, method: str, path: str, body: Any) -> None:
    answer = others.http.request(method, path, json=body)
    assert (answer.status_code, "its ONNX files hold its tables" in answer.text) == (404, True)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_searches_dequantized_rows(others: Served, store: Path, dtype: str, measure: str) -> None:
    card = cards.read(store / dtype)
    rows = weights.tensors(store / dtype, card)["model.embed_tokens.weight"][:].astype(np.float64)
    scores = {
        "dot": rows @ rows[5],
        "cosine": rows @ rows[5] / np.linalg.norm(rows, axis=1) / np.linalg.norm(rows[5]),
        "euclidean": -np.linalg.norm(rows - rows[5], axis=1),
    }[measure]
    document = others.http.post(f"/models/{dtype}/similar", json={"token": 5, "measure": measure, "top_k": 6}).json()
    best = [row for row in np.argsort(-scores, kind="stable") if row != 5][:6]
    assert [entry["id"] for entry in document["results"]] == best
    np.testing.assert_allclose([entry["score"] for entry in document["results"]], scores[best], atol=1e-12)
    assert document["table"]["dtype"] == dtype
    said = others.http.get(f"/models/{dtype}/analysis").json()
    values = np.linalg.svd(rows, compute_uv=False)
    np.testing.assert_allclose(said["spectrum"]["singular_values"], values, rtol=1e-6, atol=1e-6)
    assert said["table"]["bytes"] < rows.size * 4


def test_ids_sharing_a_static_row_are_nearest_to_each_other(others: Served, store: Path) -> None:
    card = cards.read(store / "static")
    tensors = weights.tensors(store / "static", card)
    mapping = tensors["mapping"][:]
    values, counts = np.unique(mapping, return_counts=True)
    shared = int(values[counts.argmax()])
    twins = np.flatnonzero(mapping == shared).tolist()
    rows = tensors["embeddings"][:].astype(np.float64)[mapping]
    response = others.http.post("/models/static/similar", json={"token": twins[0], "measure": "euclidean", "top_k": 19})
    results = response.raise_for_status().json()["results"]
    expected = -np.linalg.norm(rows - rows[twins[0]], axis=1)
    assert [entry["id"] for entry in results[: len(twins) - 1]] == twins[1:]
    np.testing.assert_allclose([entry["score"] for entry in results], expected[[entry["id"] for entry in results]])


def test_static_model_has_no_input_layer(others: Served) -> None:
    assert others.http.get("/models/static/analysis").raise_for_status().json()["table"]["shape"] == [19, 8]
    answer = others.http.post("/models/static/gradient", json={"input_ids": [1], "gradient": [[0.0] * 8]})
    assert (answer.status_code, "has no input layer" in answer.text) == (422, True)


def test_gradient_of_a_quantized_table_is_of_its_rows(others: Served) -> None:
    upstream = np.random.default_rng(0).standard_normal((3, 32))
    body = {"input_ids": [7, 9, 7], "gradient": upstream.tolist(), "dtype": "float64"}
    gradients = others.http.post("/models/int8/gradient", json=body).raise_for_status().json()
    assert gradients["token_indices"] == [7, 9]
    np.testing.assert_allclose(gradients["token_rows"], [upstream[0] + upstream[2], upstream[1]], atol=1e-15)


def test_tokens_are_nearest_to_themselves_in_every_dtype(tmp_path: Path) -> None:
    checkpoint = write_tiny_bert(tmp_path / "x")
    for dtype in DTYPES:
        export(checkpoint, tmp_path / "store" / dtype, dtype=dtype)
    with serving(tmp_path / "store") as service:
        for dtype in DTYPES:
            body = {"token": "hello", "exclude_inputs": False, "top_k": 1}
            best = service.http.post(f"/models/{dtype}/similar", json=body).raise_for_status().json()["results"][0]
            assert (best["token"], best["score"]) == ("hello", pytest.approx(1, abs=1e-12))
