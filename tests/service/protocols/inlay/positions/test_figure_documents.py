"""GET {scheme}.json: the numbers of a figure, and what `compare` may name."""

import base64
from typing import Any

import httpx
import numpy as np
import pytest

from tests.served import Served

ROPE = {"head_dim": 64, "theta": 500_000}


def figure(served: Served, path: str, **query: Any) -> httpx.Response:
    return served.http.get(path, params=query)


def curves(answer: httpx.Response, row: int = 0) -> list[dict[str, Any]]:
    (panel,) = answer.raise_for_status().json()["panels"][row]
    assert panel["kind"] == "curves"
    named: list[dict[str, Any]] = panel["curves"]
    return named


def grid(panel: dict[str, Any]) -> np.ndarray[Any, Any]:
    values = np.frombuffer(base64.b64decode(panel["data"]), "<f4")
    return values.reshape(panel["rows"], panel["columns"])


def test_spectrum_holds_the_inverse_frequencies(served: Served) -> None:
    (curve,) = curves(figure(served, "/positions/rope.json", plot="spectrum", **ROPE))
    np.testing.assert_allclose(curve["y"], 500_000.0 ** (-np.arange(32) / 32), rtol=1e-12, atol=1e-18)


def test_grid_equals_the_table(served: Served) -> None:
    document = figure(served, "/positions/rope.json", start=5, length=12, **ROPE).raise_for_status().json()
    table = served.http.get("/positions/rope", params={**ROPE, "start": 5, "length": 12}).raise_for_status().json()
    panels = {panel["title"]: panel for panel in document["panels"][0]}
    for name in ("cos", "sin"):
        np.testing.assert_array_equal(grid(panels[name]), np.array(table[name], np.float32))
    assert panels["cos"]["y"]["limits"] == [4.5, 16.5]
    assert document["tables"][0]["shapes"] == {"cos": [12, 32], "sin": [12, 32]}


def test_grids_stay_below_their_limit_and_say_so(served: Served) -> None:
    answer = figure(served, "/positions/alibi.json", heads=16, query_length=600)
    panels = [panel for row in answer.raise_for_status().json()["panels"] for panel in row]
    assert len(panels) == 16
    assert sum(panel["rows"] * panel["columns"] for panel in panels) <= 2**18
    assert any("rows and columns of each grid" in note for note in answer.json()["notes"])


def test_gaps_of_a_curve_are_null(served: Served) -> None:
    query = {"rope_type": "proportional", "partial_rotary_factor": 0.5, "head_dim": 64, "theta": 10_000}
    values = curves(figure(served, "/positions/rope.json", plot="spectrum", **query))[-1]["y"]
    assert values[-1] is None
    assert all(value > 0 for value in values[:16])


def test_document_takes_no_size(served: Served) -> None:
    answer = figure(served, "/positions/rope.json", width=800, **ROPE)
    assert answer.status_code == 422
    assert "width" in answer.json()["detail"]


COMPARED = [
    ("scheme=rope&head_dim=32", "rope, 32 channels"),
    ("scheme=rope&head_dim=32&label=short", "short"),
    ("label=other theta&theta=1000", "other theta"),
]


@pytest.mark.parametrize(("compare", "label"), COMPARED)
def test_compared_table_can_stand_alone_and_have_a_label(served: Served, compare: str, label: str) -> None:
    scaled = {"rope_type": "linear", "factor": 4}
    answer = figure(served, "/positions/rope.json", plot="decay", compare=compare, label="own", **ROPE, **scaled)
    tables = answer.raise_for_status().json()["tables"]
    assert tables[0]["label"] == "own"
    if "scheme" in compare:
        assert tables[1]["facts"]["rope_type"] == "default"
    else:
        assert tables[1]["facts"]["rope_type"] == "linear"
    if "label" in compare:
        assert tables[1]["label"] == label


def test_compares_with_the_encoding_of_a_model(served: Served) -> None:
    models = served.http.get("/models").json()["models"]
    (name, *_) = [model["name"] for model in models if "learned" in model["positions"]]
    compare = f"model={name}&scheme=learned&length=32"
    query = {"dim": 64, "length": 32, "plot": "similarity", "compare": compare}
    answer = figure(served, "/positions/sinusoidal.json", **query).raise_for_status()
    assert [table["scheme"] for table in answer.json()["tables"]] == ["sinusoidal", "learned"]
    picture = figure(served, "/positions/sinusoidal.svg", **query).raise_for_status()
    assert picture.headers["cache-control"] == "no-cache"  # the model may be exchanged


def test_long_parameters_can_be_compared(served: Served) -> None:
    factors = ",".join(["1.25"] * 32)
    compare = f"scheme=rope&head_dim=64&rope_type=longrope&short_factor={factors}&long_factor={factors}"
    compare += "&original_max_position_embeddings=4096&factor=4"
    answer = figure(served, "/positions/rope.json", plot="spectrum", compare=compare, **ROPE)
    assert len(answer.raise_for_status().json()["tables"]) == 2


def test_every_model_lists_the_schemes_it_answers(served: Served) -> None:
    for model in served.http.get("/models").json()["models"]:
        for scheme in model["positions"]:
            lengths = {"query_length": 4} if scheme in ("mask", "alibi", "t5", "deberta") else {"length": 4}
            answer = served.http.get(f"/models/{model['name']}/{scheme}", params=lengths)
            assert answer.status_code == 200, (model["name"], scheme, answer.text[:200])
