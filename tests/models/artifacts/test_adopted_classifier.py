"""Adopted ONNX classifiers: logits that the graph itself gives, their labels, and ranks by them."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.artifacts import card as cards
from models.artifacts.adoption import adopt
from models.artifacts.verification import verify
from models.errors import BadCheckpoint
from service.embedding.requests import Ids
from tests.embed_requests import embed_request
from tests.golden_cases import write_json
from tests.models.artifacts.test_adoption import CONFIG, TABLE, WIDTH, folder_of
from tests.service.registry.registry_service import Service

SEQUENCE, TOKENS = (
    {"architectures": ["BertForSequenceClassification"]},
    {"architectures": ["BertForTokenClassification"]},
)


def head(labels: int) -> Any:
    return np.random.default_rng(labels).normal(size=(WIDTH, labels)).astype(np.float32)


def graph(labels: int, tokens: bool = False, known: bool = True) -> Any:
    """The logits of each token, or of the first token of each text, as optimum names them."""
    constants = [numpy_helper.from_array(TABLE, "table"), numpy_helper.from_array(head(labels), "head")]
    constants.append(numpy_helper.from_array(np.array(0), "first"))
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["rows"])]
    nodes.append(helper.make_node("Gather", ["rows", "first"], ["cls"], axis=1))
    nodes.append(helper.make_node("MatMul", ["rows" if tokens else "cls", "head"], ["logits"]))
    shape = ["batch", *["sequence"] * tokens, labels if known else "labels"]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape)]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ("batch", "sequence"))
        for name in ("input_ids", "attention_mask")
    ]
    made = helper.make_graph(nodes, "tiny", inputs, outputs, constants)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def adopted(tmp_path: Path, made: Any, config: dict[str, Any]) -> Any:
    return adopt(folder_of(tmp_path / "x", made, config), tmp_path / "store/own")


async def logits(tmp_path: Path, inputs: list[Ids]) -> list[Any]:
    (output,) = (await Service(tmp_path / "store").pipeline.embed(embed_request(inputs))).outputs
    return np.split(output.rows, np.cumsum(output.lengths)[:-1])


@pytest.mark.parametrize("known", [True, False])
async def test_logits_of_texts_are_the_graphs(known: bool, tmp_path: Path) -> None:
    labels = {"id2label": {"0": "a", "1": "b", "2": "c"}, "problem_type": "single_label_classification"}
    card = adopted(tmp_path, graph(3, known=known), SEQUENCE | labels)
    assert card.classifier is not None
    assert (card.classifier.labels, card.classifier.activation) == (("a", "b", "c"), "identity")
    assert card.classifier.problem_type == "single_label_classification"
    assert (card.outputs, card.default_output) == (("class_logits",), "class_logits")
    assert cards.read(tmp_path / "store/own") == card
    assert verify(tmp_path / "store/own")["class_logits"] < 1e-5
    ids = [np.array(each) for each in ([5, 6], [7], [8, 9, 10, 11])]
    for row, own in zip(await logits(tmp_path, [Ids(each) for each in ids]), ids, strict=True):
        np.testing.assert_allclose(row, TABLE[own[:1]] @ head(3), rtol=1e-5, atol=1e-5)


async def test_logits_of_tokens_are_the_graphs(tmp_path: Path) -> None:
    card = adopted(tmp_path, graph(2, tokens=True), TOKENS)
    assert card.default_output == "token_class_logits"
    ids = [np.array(each) for each in ([5, 6], [7], [8, 9, 10, 11])]
    for rows, own in zip(await logits(tmp_path, [Ids(each) for each in ids]), ids, strict=True):
        np.testing.assert_allclose(rows, TABLE[own] @ head(2), rtol=1e-5, atol=1e-5)


async def test_a_graph_of_one_label_ranks(tmp_path: Path) -> None:
    adopted(tmp_path, graph(1), SEQUENCE)
    ranks = await Service(tmp_path / "store").rank("a", ["b", "c d"])
    score = 1 / (1 + np.exp(-float((TABLE[2] @ head(1))[0])))  # of [CLS]
    np.testing.assert_allclose(ranks.scores, score, rtol=1e-6, atol=1e-6)


def test_rejects_logits_of_another_shape(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="of 3 axes"):
        adopted(tmp_path, graph(2), TOKENS)


def test_rejects_another_number_of_labels(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="id2label has 2 labels"):
        adopted(tmp_path, graph(3), SEQUENCE | {"id2label": {"0": "a", "1": "b"}})


def test_rejects_logits_of_a_class_that_does_not_classify(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="gives logits; one of"):
        adopted(tmp_path, graph(3), {"architectures": ["BertForMaskedLM"]})


def test_rejects_pooling_of_logits(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "x", graph(3), SEQUENCE)
    with pytest.raises(BadCheckpoint, match="leave out --pooling mean"):
        adopt(folder, tmp_path / "out", pooling="mean")
    onnx.save(graph(3), folder / "onnx/model_quantized.onnx")
    write_json(folder / "config.json", CONFIG | SEQUENCE)
    card = adopt(folder, tmp_path / "out", file="onnx/model_quantized.onnx")
    assert card.adopted is not None
    assert "logits of labels" in (card.adopted.uncompared or "")
