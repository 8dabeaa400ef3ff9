"""Classification heads in the service: logits against numpy, ranks, and bits that do not depend on other texts."""

from collections.abc import Sequence
from dataclasses import replace
from math import erf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.artifacts.export import export
from service.embedding.outputs.plan import planner
from service.embedding.requests import Ids, Text
from service.errors import StartError, TooLarge, WrongModelKind
from service.protocols.inlay.models import summary
from service.registry.warmup import warm_up
from tests.classifier_models import linear, write_classifier
from tests.embed_requests import embed_request
from tests.golden_cases import write_json, write_tiny_bert
from tests.service.registry.registry_service import Service

TEXTS = ["a b c", "a", "j i h g f e d c b a", "", "b b b b b b b b b b b b b b b b b b b b b b b b b b b b b"]
Rows = NDArray[np.float32]


def served(tmp_path: Path, *arguments: Any, settings: dict[str, Any] | None = None, **keys: Any) -> Service:
    export(write_classifier(tmp_path / "x", *arguments, **keys), tmp_path / "store/own")
    return Service(tmp_path / "store", **settings or {})


async def output(service: Service, name: str, inputs: Sequence[Any]) -> list[Rows]:
    request = embed_request(inputs, outputs=(name,), truncate=True)
    (own,) = (await service.pipeline.embed(request)).outputs
    return np.split(own.rows, np.cumsum(own.lengths)[:-1])


def texts(*pairs: str) -> list[Text]:
    return [Text("a c e", text) for text in pairs]


async def test_logits_are_the_head_of_the_first_row(tmp_path: Path) -> None:
    service = served(tmp_path, "bert", 3)
    got = await output(service, "class_logits", texts(*TEXTS))
    for row, hidden in zip(got, await output(service, "last_hidden_state", texts(*TEXTS)), strict=True):
        pooled = np.tanh(linear(tmp_path / "x", "bert.pooler.dense", hidden[0]))
        np.testing.assert_allclose(row[0], linear(tmp_path / "x", "classifier", pooled), atol=1e-5)


async def test_token_logits_are_the_head_of_each_row(tmp_path: Path) -> None:
    own = {"architectures": ["BertForTokenClassification"], "id2label": {"0": "O", "1": "B"}}
    service = served(tmp_path, "bert", None, **own)
    got = await output(service, "token_class_logits", texts(*TEXTS))
    for rows, hidden in zip(got, await output(service, "last_hidden_state", texts(*TEXTS)), strict=True):
        np.testing.assert_allclose(rows, linear(tmp_path / "x", "classifier", hidden), atol=1e-5)


async def test_the_last_token_that_is_no_padding_counts(tmp_path: Path) -> None:
    service = served(tmp_path, "qwen2", 2, num_key_value_heads=2)
    ids = [np.array(own) for own in ([5, 6, 7], [5, 6, 0, 0], [0, 0, 0], [4, 0, 9])]
    got = await output(service, "class_logits", [Ids(each) for each in ids])
    rows = await output(service, "last_hidden_state", [Ids(each) for each in ids])
    for row, hidden, last in zip(got, rows, (2, 1, 0, 2), strict=True):
        np.testing.assert_allclose(row[0], linear(tmp_path / "x", "score", hidden[last]), atol=1e-5)


async def test_late_pooling_is_the_mean_of_the_tokens_logits(tmp_path: Path) -> None:
    service = served(tmp_path, "eurobert", 2, num_key_value_heads=2)
    mask = np.array([1, 1, 1, 0])
    inputs = [Ids(np.array([5, 6, 7, 8]), mask), Ids(np.array([9]))]
    got = await output(service, "class_logits", inputs)
    rows = await output(service, "last_hidden_state", inputs)
    for row, hidden in zip(got, (rows[0][:3], rows[1]), strict=True):
        dense = linear(tmp_path / "x", "dense", hidden)
        gelu = dense * 0.5 * (1 + np.vectorize(erf)(dense / 2**0.5))
        np.testing.assert_allclose(row[0], linear(tmp_path / "x", "classifier", gelu).mean(axis=0), atol=1e-5)


@pytest.mark.parametrize(("model_type", "labels"), [("bert", 1), ("eurobert", 3), ("modernbert", 2), ("qwen2", 1)])
async def test_logits_do_not_depend_on_other_texts(model_type: str, labels: int, tmp_path: Path) -> None:
    service = served(tmp_path, model_type, labels, **({} if model_type == "bert" else {"num_key_value_heads": 4}))
    inputs = texts(*TEXTS * 8)
    together = await output(service, "class_logits", inputs)
    for text, row in zip(inputs[: len(TEXTS)], together, strict=False):
        (alone,) = await output(service, "class_logits", [text])
        assert alone.tobytes() == row.tobytes()


async def test_ranks_are_sigmoids_of_the_logits_best_first(tmp_path: Path) -> None:
    service = served(tmp_path)
    logits = np.concatenate(await output(service, "class_logits", texts(*TEXTS)))[:, 0].astype(np.float64)
    ranks = await service.rank("a c e", TEXTS)
    np.testing.assert_allclose(ranks.scores, 1 / (1 + np.exp(-logits)), rtol=1e-12, atol=1e-12)
    assert [number for number, _ in ranks.best_first()] == np.argsort(-logits, kind="stable").tolist()
    raw = await service.rank("a c e", TEXTS, activation="identity")
    np.testing.assert_array_equal(raw.scores, logits)


async def test_rejects_ranking_without_one_score(tmp_path: Path) -> None:
    service = served(tmp_path, "bert", 2)
    with pytest.raises(WrongModelKind, match="not a re-ranker"):
        await service.rank("a", ["b"])


async def test_memory_of_rows_that_a_head_reads_is_counted(tmp_path: Path) -> None:
    own = {"architectures": ["BertForTokenClassification"], "id2label": {"0": "O", "1": "B"}}
    service = served(tmp_path, "bert", None, settings={"max_answer_bytes": 4 * 34 * 50}, **own)
    assert len(await output(service, "token_class_logits", [Ids(np.full(50, 5))])) == 1
    with pytest.raises(TooLarge):
        await output(service, "token_class_logits", [Ids(np.full(51, 5))])


async def test_segment_ids_are_left_out_where_the_files_leave_them_out(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "x")
    export(folder, tmp_path / "store/a")
    write_json(folder / "tokenizer_config.json", {"model_input_names": ["input_ids", "attention_mask"]})
    export(folder, tmp_path / "store/b")
    service = Service(tmp_path / "store")
    request = embed_request([Text("a", "b")], "a", ("token_type_embeddings",))
    first = (await service.pipeline.embed(request)).outputs[0].rows
    second = (await service.pipeline.embed(request._replace(model="b"))).outputs[0].rows
    assert (first != second).any()
    np.testing.assert_array_equal(second, np.broadcast_to(second[:1], second.shape))


def test_a_models_summary_names_its_labels(tmp_path: Path) -> None:
    service = served(tmp_path, "bert", 2)
    described = summary(service.registry.get(None), service.registry)
    assert described["classifier"] == {
        "labels": ["LABEL_0", "LABEL_1"],
        "pooling": "cls",
        "activation": "identity",
        "problem_type": None,
        "ranks": False,
    }
    assert described["no_classifier_reason"] is None


async def test_the_reference_engine_gives_the_same_logits(tmp_path: Path) -> None:
    service = served(tmp_path, "bert", 3)
    judge = Service(tmp_path / "store", engine="reference")
    got = await output(service, "class_logits", texts(*TEXTS))
    np.testing.assert_allclose(got, await output(judge, "class_logits", texts(*TEXTS)), atol=1e-5)


async def test_warmup_runs_the_classifier(tmp_path: Path) -> None:
    model = served(tmp_path, "bert", 3).registry.get(None)
    await warm_up(model)
    assert model.card.classifier is not None
    two = replace(model.card, classifier=replace(model.card.classifier, labels=("a", "b")))
    with pytest.raises(StartError, match="gives class_logits 3 wide where its card promises 2"):
        await warm_up(replace(model, card=two, plan=planner(two, model.engine, model.weights)))
