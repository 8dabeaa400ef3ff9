"""Modules behind pooling end to end: checkpoint, export, service, HTTP and gRPC, judged by sentence-transformers.

golden/chains.json says by which version.
"""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.artifacts.export import export
from models.artifacts.verification import verify
from proto import embed_pb2 as pb
from tests.served import Served, array_of, serving

GOLDEN = Path(__file__).parent / "golden"
TOLERANCE = 1e-5


@cache
def golden() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((GOLDEN / "chains.json").read_text(encoding="utf-8"))
    return document


NAMES = tuple(entry["name"] for entry in golden()["models"])
WIDTHS = {"cls_tanh_unit": (16, 16, 16), "two_dense_cut": (16, 16, 8), "several_modes": (16, 5, 5)}


def expected(name: str, prompt: str | None = None) -> NDArray[np.float64]:
    entry = next(entry for entry in golden()["models"] if entry["name"] == name)
    return np.array(entry["prompted"][prompt] if prompt else entry["vectors"])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    store = tmp_path_factory.mktemp("chains")
    for name in NAMES:
        card = export(GOLDEN / "chains" / name, store / name)
        assert verify(store / name) == card.largest_difference
    with serving(store) as running:
        yield running


def embed(served: Served, name: str, **fields: Any) -> NDArray[np.float64]:
    answer = served.post({"model": name, "inputs": golden()["texts"], "truncate": True} | fields)
    assert answer.status_code == 200, answer.text
    return np.array(answer.json())


@pytest.mark.parametrize("name", NAMES)
def test_texts_give_the_vectors_of_the_library_over_http(name: str, served: Served) -> None:
    np.testing.assert_allclose(embed(served, name), expected(name), atol=TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
def test_texts_give_the_vectors_of_the_library_over_grpc(name: str, served: Served) -> None:
    request = pb.EmbedRequest(model=name, truncate=True)
    for text in golden()["texts"]:
        request.inputs.add(text=text)
    (output,) = served.stub.Embed(request).outputs
    np.testing.assert_allclose(array_of(output.tensor), expected(name), atol=TOLERANCE)


@pytest.mark.parametrize("prompt", ["query", "passage"])
def test_prompts_are_left_out_of_every_mode(prompt: str, served: Served) -> None:
    got = embed(served, "several_modes", prompt_name=prompt)
    np.testing.assert_allclose(got, expected("several_modes", prompt), atol=TOLERANCE)


def test_openai_and_tei_give_the_same_vectors(served: Served) -> None:
    texts = golden()["texts"][2:4]
    answer = served.http.post("/v1/embeddings", json={"model": "cls_tanh_unit", "input": texts}).json()
    vectors = np.array([each["embedding"] for each in answer["data"]])
    np.testing.assert_allclose(vectors, expected("cls_tanh_unit")[2:4], atol=TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
def test_every_description_gives_the_widths_of_the_chain(name: str, served: Served) -> None:
    hidden, whole, default = WIDTHS[name]
    shown = served.http.get(f"/models/{name}").json()
    assert (shown["hidden_size"], shown["sentence_width"], shown["default_width"]) == (hidden, whole, default)
    described = served.stub.GetModel(pb.GetModelRequest(name=name))
    assert (described.hidden_size, described.sentence_width, described.default_width) == (hidden, whole, default)
    outputs = served.http.get(f"/v2/models/{name}").json()["outputs"]
    shapes = {output["name"]: output["shape"] for output in outputs}
    assert (shapes["sentence_embedding"], shapes["last_hidden_state"]) == ([-1, default], [-1, -1, hidden])


def test_model_names_its_modules_and_similarity_function(served: Served) -> None:
    shown = served.http.get("/models/several_modes").json()
    assert shown["modules"] == ["Normalize", "LayerNorm", "Dense"]
    assert shown["similarity_function"] == "euclidean"
    assert shown["pooling"]["mode"] == "max+mean+lasttoken"
    shown = served.http.get("/models/two_dense_cut").json()
    assert (shown["similarity_function"], shown["pooling"]["dimensions"]) == ("dot", 8)


@pytest.mark.parametrize(("name", "width"), [("two_dense_cut", 16), ("several_modes", 5)])
def test_dimensions_go_up_to_the_width_of_the_chain(name: str, width: int, served: Served) -> None:
    assert embed(served, name, dimensions=width).shape == (6, width)
    answer = served.post({"model": name, "inputs": ["a"], "dimensions": width + 1})
    assert answer.status_code == 422
    assert f"1 to {width}" in answer.text
