"""Adopted models that are not float32: how far their vectors are from the float32 ones, and that company moves none."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from models.artifacts import card as cards
from models.artifacts.adoption import adopt
from models.artifacts.card import Card
from models.artifacts.closeness import VectorComparison
from models.artifacts.description import describe
from models.artifacts.int8_encoder import EVALUATION, read_texts
from models.artifacts.verification import verify
from models.errors import BadCheckpoint
from service.embedding.requests import Ids, Text
from service.protocols.inlay.models import summary
from tests.embed_requests import embed_request
from tests.golden_cases import tiny_bert, write_json, write_sentence_files
from tests.models.artifacts.test_adopted_pooling import with_modules
from tests.models.artifacts.test_adoption import TABLE, folder_of, model
from tests.sentence_chains import Behind, dense, layer_norm
from tests.service.registry.registry_service import Service

QUANTIZED = "onnx/model_quantized.onnx"
TEXTS = len(read_texts(EVALUATION))
WORDS = tiny_bert()["embeddings.word_embeddings.weight"]


def with_float32(place: Path, float32: Any, other: Any, at: str = "onnx/model.onnx") -> Path:
    """Write a folder that holds a float32 graph and another one, at QUANTIZED."""
    folder = folder_of(place, other, at=QUANTIZED)
    onnx.save(float32, folder / at)
    return folder


def comparison(card: Card) -> VectorComparison:
    assert card.adopted
    assert card.adopted.uncompared is None
    assert card.adopted.comparison
    return card.adopted.comparison


def uncompared(card: Card) -> str:
    assert card.adopted
    assert card.adopted.comparison is None
    return card.adopted.uncompared or ""


async def vectors(store: Path, *inputs: Ids | Text, **fields: Any) -> NDArray[np.float32]:
    (output,) = (await Service(store).pipeline.embed(embed_request(inputs, **fields))).outputs
    return output.rows


@pytest.mark.parametrize("at", ["onnx/model.onnx", "model.onnx"])
@pytest.mark.parametrize(("sign", "cosine"), [(1, 1.0), (-1, -1.0)], ids=["the same", "opposite"])
def test_folder_is_compared_with_its_float32_graph(at: str, sign: int, cosine: float, tmp_path: Path) -> None:
    place = with_float32(tmp_path / "x", model(table=sign * TABLE), model(), at)
    card = adopt(place, tmp_path / "out", file=QUANTIZED)
    got = comparison(card)
    assert (got.reference, got.texts) == (at, TEXTS)
    np.testing.assert_allclose([got.min_cosine, got.mean_cosine], cosine, atol=1e-6)
    assert f"cosine to {at} over {TEXTS} texts: min {cosine:.5f}" in describe(str(tmp_path / "out"))
    assert cards.read(tmp_path / "out") == card


def test_model_summary_states_the_comparison(tmp_path: Path) -> None:
    place = with_float32(tmp_path / "x", model(), model(scale="dynamic"))
    got = comparison(adopt(place, tmp_path / "store/a", file=QUANTIZED))
    registry = Service(tmp_path / "store").registry
    summarised = summary(registry.get("a"), registry)
    assert summarised["adopted"] == {"path": QUANTIZED, "comparison": asdict(got), "uncompared": None}
    assert summarised["graphs"]["encoder"]["one_by_one"]


@pytest.mark.parametrize("mode", ["max", "mean"])
async def test_cosines_are_those_of_served_vectors(mode: str, tmp_path: Path) -> None:
    place = with_float32(tmp_path / "x", model(), model(table=np.round(TABLE)))
    write_sentence_files(place, mode)
    adopt(place, tmp_path / "float32/a")
    got = comparison(adopt(place, tmp_path / "other/a", file=QUANTIZED))
    texts = [Text(text) for text in read_texts(EVALUATION)]
    one, other = [await vectors(tmp_path / store, *texts) for store in ("float32", "other")]
    cosines = (one.astype(np.float64) * other).sum(axis=1)
    np.testing.assert_allclose([got.min_cosine, got.mean_cosine], [cosines.min(), cosines.mean()], atol=1e-6)
    assert got.min_cosine < got.mean_cosine < 1


def test_float32_graph_is_compared_on_request_alone(tmp_path: Path) -> None:
    place = with_float32(tmp_path / "x", model(), model())
    assert adopt(place, tmp_path / "out").adopted == cards.AdoptedFile("onnx/model.onnx")
    onnx.save(model(), place / "model.onnx")
    assert comparison(adopt(place, tmp_path / "out", compare=True)).reference == "model.onnx"


def test_comparison_can_be_left_out(tmp_path: Path) -> None:
    card = adopt(with_float32(tmp_path / "x", model(), model()), tmp_path / "out", file=QUANTIZED, compare=False)
    assert "--no-compare" in uncompared(card)


def without_tokenizer(place: Path) -> None:
    onnx.save(model(), place / "model.onnx")
    (place / "tokenizer.json").unlink()


def with_quantized_reference(place: Path) -> None:
    onnx.save(model(scale="dynamic"), place / "model.onnx")


def with_wider_reference(place: Path) -> None:
    onnx.save(model(table=WORDS), place / "model.onnx")


def with_logits(place: Path) -> None:
    onnx.save(model(hidden="logits"), place / "model.onnx")


INCOMPARABLE = {
    "nothing": (lambda place: None, "no float32 ONNX lies beside it, as onnx/model.onnx or model.onnx"),
    "no tokenizer": (without_tokenizer, "no tokenizer.json, and vectors are compared by texts"),
    "a quantized model.onnx": (with_quantized_reference, "x/model.onnx is not float32 either"),
    "a float32 graph that is no encoder": (with_logits, "x/model.onnx gives logits; one of last_hidden_state"),
    "another width": (with_wider_reference, "8 wide, and those of model.onnx 32"),
}


@pytest.mark.parametrize("name", INCOMPARABLE)
def test_missing_comparison_is_explained_or_refused(name: str, tmp_path: Path) -> None:
    prepare, reason = INCOMPARABLE[name]
    place = folder_of(tmp_path / "x", model(), at=QUANTIZED)
    prepare(place)
    config = json.loads((place / "config.json").read_text())
    write_json(place / "config.json", config | {"hidden_size": 8, "vocab_size": 27})
    explained = uncompared(adopt(place, tmp_path / "out", file=QUANTIZED))
    assert re.search(reason, explained)
    assert str(tmp_path) not in explained
    with pytest.raises(BadCheckpoint, match=f"cannot be compared with float32 weights: .*{reason}") as caught:
        adopt(place, tmp_path / "again", file=QUANTIZED, compare=True)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "again").exists()


SEQUENCES = [Ids(np.array(ids)) for ids in ([5, 6, 7], [8], [9, 26, 4, 11, 12], [1, 2])]


@pytest.mark.parametrize("scale", ["dynamic", "all"])
async def test_company_moves_no_bit_of_graphs_that_batches_move(scale: str, tmp_path: Path) -> None:
    card = adopt(folder_of(tmp_path / "x", model(scale=scale)), tmp_path / "store/a", pooling="mean")
    assert card.graphs["encoder"].one_by_one
    assert cards.read(tmp_path / "store/a") == card
    assert verify(tmp_path / "store/a") == card.largest_difference
    assert "one sequence a run" in describe(str(tmp_path / "store/a"))
    together = await vectors(tmp_path / "store", *SEQUENCES)
    alone = np.concatenate([await vectors(tmp_path / "store", each) for each in SEQUENCES])
    assert np.array_equal(together, alone)


def test_graph_that_batches_do_not_move_runs_in_batches(tmp_path: Path) -> None:
    assert not adopt(folder_of(tmp_path / "x", model()), tmp_path / "out").graphs["encoder"].one_by_one


@pytest.mark.parametrize("hidden", ["last_hidden_state", None], ids=["tokens", "pooled alone"])
async def test_float16_outputs_are_served_as_float32(hidden: str | None, tmp_path: Path) -> None:
    half = TABLE.astype(np.float16)
    place = folder_of(tmp_path / "x", model(hidden=hidden, pooled=True, table=half))
    write_sentence_files(place, "mean", normalize=False)
    card = adopt(place, tmp_path / "store/a")
    assert (card.dtype, card.tolerance) == ("float16", 1e-2)
    assert verify(tmp_path / "store/a") == card.largest_difference
    ids = Ids(np.array([5, 6, 7]))
    pooled = await vectors(tmp_path / "store", ids)
    assert pooled.dtype == np.float32
    np.testing.assert_allclose(pooled[0], half[[5, 6, 7]].mean(axis=0, dtype=np.float64), rtol=2e-3, atol=2e-3)
    if hidden:
        rows = await vectors(tmp_path / "store", ids, outputs=("last_hidden_state",))
        assert rows.dtype == np.float32
        np.testing.assert_array_equal(rows, half[[5, 6, 7]].astype(np.float32))


CHAIN = (dense(8, 12), layer_norm(12), dense(12, 8))


@pytest.mark.parametrize("behind", [(), CHAIN], ids=["pooled", "modules"])
@pytest.mark.parametrize("pooled", [False, True], ids=["tokens", "tokens and their mean"])
async def test_cosines_are_those_of_vectors_behind_modules(
    pooled: bool, behind: tuple[Behind, ...], tmp_path: Path
) -> None:
    place = with_modules(tmp_path / "x", model(pooled=pooled), *behind)
    onnx.save(model(pooled=pooled, table=np.round(TABLE)), place / QUANTIZED)
    adopt(place, tmp_path / "float32/a")
    got = comparison(adopt(place, tmp_path / "other/a", file=QUANTIZED))
    expected = await served_cosines(tmp_path / "float32", tmp_path / "other")
    np.testing.assert_allclose([got.min_cosine, got.mean_cosine], expected, atol=1e-6)
    assert got.min_cosine < got.mean_cosine < 1


async def served_cosines(*stores: Path) -> list[float]:
    """The least and the mean cosine between the vectors that two stores serve."""
    texts = [Text(text) for text in read_texts(EVALUATION)]
    one, other = [(await vectors(store, *texts, normalize=True)).astype(np.float64) for store in stores]
    cosines = (one * other).sum(axis=1)
    return [cosines.min(), cosines.mean()]
