"""Pairs and labels over the Open Inference Protocol, REST and gRPC."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.score_models import CLASSIFIER, EMBEDDER, LABELS, RANKER
from tests.score_roads import strings
from tests.served import Served, serving

QUERY, DOCUMENTS = strings("text", ["a b"]), strings("text_pair", ["c", "d e"])
TEXT, PAIR = strings("text", ["a b", "c"]), strings("text_pair", ["c", "d e"])
IDS = {"name": "input_ids", "datatype": "INT64", "shape": [1, 4], "data": [[2, 5, 6, 3]]}
ERRORS: list[tuple[str, list[dict[str, Any]], str]] = [
    (RANKER, [PAIR], '"text" is missing; "text_pair" came'),
    (RANKER, [QUERY, DOCUMENTS, IDS], "inputs.text came with input_ids"),
    (RANKER, [TEXT, IDS], "inputs.text came with input_ids"),
    (RANKER, [strings("text", ["a", "b", "c"]), DOCUMENTS], "inputs.text_pair has shape [2]"),
    (RANKER, [TEXT, strings("text_pair", ["c"])], "inputs.text_pair has shape [1]"),
    (RANKER, [QUERY, strings("text_pair", [])], "empty"),
    (RANKER, [QUERY, strings("text_pair", ["a"] * 9)], "holds 9 inputs"),
    (EMBEDDER, [QUERY, DOCUMENTS], "embedder has no input 'text_pair'"),
]


@pytest.fixture(scope="module")
def served(score_store: Path) -> Iterator[Served]:
    with serving(score_store, max_inputs=8) as service:
        yield service


def infer(served: Served, model: str, *inputs: dict[str, Any], outputs: tuple[str, ...] = ()) -> dict[str, Any]:
    document = {"inputs": inputs} | ({"outputs": [{"name": name} for name in outputs]} if outputs else {})
    response = served.http.post(f"/v2/models/{model}/infer", json=document)
    assert response.status_code == 200, response.text
    return {
        output["name"]: np.array(output["data"], np.float32).reshape(output["shape"])
        for output in response.json()["outputs"]
    }


@pytest.mark.parametrize(("model", "inputs", "message"), ERRORS)
def test_errors_name_the_tensor(served: Served, model: str, inputs: list[dict[str, Any]], message: str) -> None:
    response = served.http.post(f"/v2/models/{model}/infer", json={"inputs": inputs})
    assert (response.status_code, set(response.json())) == (400, {"error"})
    assert message in response.json()["error"]


def test_logits_are_the_default_and_scores_their_activation(served: Served) -> None:
    logits = infer(served, RANKER, QUERY, DOCUMENTS)
    assert set(logits) == {"class_logits"}
    both = infer(served, RANKER, QUERY, DOCUMENTS, outputs=("scores", "class_logits", "lengths"))
    assert list(both) == ["scores", "class_logits", "lengths"]
    assert [array.shape for array in both.values()] == [(2, 1), (2, 1), (2,)]
    np.testing.assert_array_equal(both["class_logits"], logits["class_logits"])
    np.testing.assert_allclose(both["scores"], 1 / (1 + np.exp(-logits["class_logits"])), atol=1e-6)
    assert both["lengths"].tolist() == [6, 7]


def test_pairs_are_one_to_many_or_each_with_its_own(served: Served) -> None:
    many = infer(served, RANKER, QUERY, DOCUMENTS)["class_logits"]
    own = infer(served, RANKER, TEXT, PAIR)["class_logits"]
    assert own[0] == many[0]
    assert own[1] != many[1]


def test_token_ids_give_labels_too(served: Served) -> None:
    texts = infer(served, CLASSIFIER, strings("text", ["a b"]), outputs=("scores",))["scores"]
    np.testing.assert_array_equal(infer(served, CLASSIFIER, IDS, outputs=("scores",))["scores"], texts)
    assert texts.sum() == pytest.approx(1, abs=1e-6)


def test_metadata_lists_tensors_of_pairs_and_scores(served: Served) -> None:
    def described(model: str, kind: str) -> dict[str, list[int]]:
        return {each["name"]: each["shape"] for each in served.http.get(f"/v2/models/{model}").json()[kind]}

    assert [described(RANKER, "inputs")[name] for name in ("text", "text_pair")] == [[-1], [-1]]
    for model, labels in ((RANKER, 1), (CLASSIFIER, len(LABELS))):
        outputs = described(model, "outputs")
        assert outputs["class_logits"] == outputs["scores"] == [-1, labels]
    assert "text_pair" not in described(EMBEDDER, "inputs")
    assert "scores" not in described(EMBEDDER, "outputs")
    config = served.http.get(f"/v2/models/{RANKER}/config").json()
    assert {"name": "text_pair", "data_type": "TYPE_STRING", "dims": [-1], "optional": True} in config["input"]
