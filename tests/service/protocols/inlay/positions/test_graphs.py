"""The ONNX graph of a scheme over HTTP computes, in ONNX Runtime, the table the same parameters give."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.onnx_sessions import open_session
from tests.served import Served

QUERIES, KEYS = np.arange(5), np.arange(9)
ROWS = np.array([0, 1, 7, 4095])
SQUARE = {"query_length": 5, "key_length": 9}
BATCH = {"query_positions": QUERIES[None], "key_positions": KEYS[None]}
EDGES = {"query_positions": QUERIES, "key_positions": KEYS}
CELLS = np.array([[row, column] for row in range(2) for column in range(3)])
YARN = {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 64}

# scheme, parameters of both, parameters of the table alone, what the graph is fed, its outputs by the table's names
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], dict[str, str]]] = {
    "rope": ("rope", {"head_dim": 16, **YARN}, {"positions": "0,1,7,4095"}, {"positions": ROWS}, {"rope_cos": "cos"}),
    "a preset": ("rope", {"preset": "llama-3.1-8b"}, {"length": 3}, {"positions": np.arange(3)}, {"rope_sin": "sin"}),
    "mrope": (
        "mrope",
        {"head_dim": 16, "sections": "4,2,2", "positions": "0,1,2;0,0,1;0,1,0"},
        {},
        {"positions": np.array([[0, 1, 2], [0, 0, 1], [0, 1, 0]])},
        {"rope_cos": "cos", "rope_sin": "sin"},
    ),
    "axial": (
        "axial",
        {"kind": "pixtral", "head_dim": 16, "grid": "2x3"},
        {},
        {"positions": CELLS},
        {"rope_cos": "cos"},
    ),
    "sinusoidal": ("sinusoidal", {"dim": 9}, {"positions": "0,1,7,4095"}, {"positions": ROWS}, {"table": "table"}),
    "sinusoidal-2d": ("sinusoidal-2d", {"dim": 16, "grid": "2x3"}, {}, {"cells": CELLS}, {"table": "table"}),
    "alibi": ("alibi", {"heads": 3}, SQUARE, BATCH, {"bias": "bias"}),
    "t5": ("t5", {"bidirectional": "true"}, SQUARE, EDGES, {"bucket": "bucket"}),
    "deberta": (
        "deberta",
        {"position_buckets": 4, "max_relative_positions": 16},
        SQUARE,
        EDGES,
        {"bucket": "bucket", "c2p": "c2p"},
    ),
}


def run(file: bytes, feeds: dict[str, NDArray[Any]], names: list[str]) -> list[NDArray[Any]]:
    arrays: list[NDArray[Any]] = open_session(file).run(names, feeds)
    return arrays


@pytest.mark.parametrize("arithmetic", ["exact", "parity"])
@pytest.mark.parametrize("name", CASES)
def test_graph_computes_the_table(served: Served, name: str, arithmetic: str) -> None:
    scheme, both, own, feeds, outputs = CASES[name]
    both = both | {"arithmetic": arithmetic}
    table = served.http.get(f"/positions/{scheme}", params=both | own).raise_for_status().json()
    answer = served.http.get(f"/positions/{scheme}.onnx", params=both).raise_for_status()
    assert answer.headers["content-disposition"] == f'attachment; filename="{scheme}.onnx"'
    assert "immutable" in answer.headers["cache-control"]
    for array, output in zip(run(answer.content, feeds, list(outputs)), outputs.values(), strict=True):
        np.testing.assert_allclose(array.squeeze(), np.squeeze(table[output]), rtol=2e-7, atol=3e-7)


def test_graph_of_a_model_matches_its_card(served: Served) -> None:
    file = served.http.get("/models/llama/rope.onnx").raise_for_status()
    table = served.http.get("/models/llama/rope", params={"length": 8}).raise_for_status().json()
    assert file.headers["cache-control"] == "no-cache"
    (cos,) = run(file.content, {"positions": np.arange(8)}, ["rope_cos"])
    np.testing.assert_allclose(cos, table["cos"], atol=3e-7)


def test_graph_has_an_etag_and_others_have_none(served: Served) -> None:
    answer = served.http.get("/positions/alibi.onnx", params={"heads": 4})
    again = served.http.get(
        "/positions/alibi.onnx", params={"heads": 4}, headers={"if-none-match": answer.headers["etag"]}
    )
    assert (answer.status_code, again.status_code) == (200, 304)
    for scheme in ("learned", "mask"):
        assert served.http.get(f"/positions/{scheme}.onnx").status_code == 404
    refused = served.http.get("/positions/rope.onnx", params={"head_dim": 7})
    assert (refused.status_code, refused.json()["code"]) == (422, "bad_parameters")
