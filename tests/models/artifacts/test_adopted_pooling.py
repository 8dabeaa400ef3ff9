"""How adopted graphs make sentence vectors: their own output, or their tokens pooled as the files beside them say."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from models.artifacts.adoption import adopt
from models.artifacts.card import Card
from models.artifacts.verification import verify
from models.checkpoints.sentence_transformers import Pooling
from models.errors import BadCheckpoint
from service.embedding.requests import EmbedRequest, Ids, Text
from tests.golden_cases import write_json, write_sentence_files
from tests.models.artifacts.test_adoption import TABLE, folder_of, model
from tests.service.registry.registry_service import Service

MEAN = TABLE[[5, 6, 7]].astype(np.float64).mean(axis=0)
UNIT = MEAN / np.linalg.norm(MEAN)


def adopted(
    place: Path, mode: str = "mean", chain: tuple[str, ...] = (), pooling: str | None = None, **graph: Any
) -> Card:
    """Adopt a graph that pools by the mean, with files that say `mode`; `chain` goes behind Pooling."""
    folder = folder_of(place / "x", model(pooled=True, **graph))
    write_sentence_files(folder, mode, normalize=False)
    modules = json.loads((folder / "modules.json").read_text())
    modules += [
        {"idx": 2 + at, "name": kind, "path": f"{2 + at}_{kind}", "type": kind} for at, kind in enumerate(chain)
    ]
    write_json(folder / "modules.json", modules)
    return adopt(folder, place / "store/tiny", pooling=pooling)


async def vectors(store: Path, *inputs: Ids | Text, **fields: Any) -> Any:
    (output,) = (await Service(store).pipeline.embed(EmbedRequest(inputs, **fields))).outputs
    return output.rows


@pytest.mark.parametrize("hidden", ["token_embeddings", None], ids=["with tokens", "pooled alone"])
@pytest.mark.parametrize(("chain", "expected"), [((), MEAN), (("Normalize",), UNIT)], ids=["plain", "normalised"])
async def test_vectors_are_normalised_as_the_files_say(
    hidden: str | None, chain: tuple[str, ...], expected: Any, tmp_path: Path
) -> None:
    card = adopted(tmp_path, chain=chain, hidden=hidden)
    assert card.pooling == Pooling("mean", bool(chain), in_graph=hidden is None)
    got = await vectors(tmp_path / "store", Ids(np.array([5, 6, 7])))
    np.testing.assert_allclose(got[0], expected, atol=1e-6)
    assert verify(tmp_path / "store/tiny") == card.largest_difference


def exclude_prompt(folder: Path, prompts: dict[str, str]) -> None:
    config = json.loads((folder / "1_Pooling/config.json").read_text())
    write_json(folder / "1_Pooling/config.json", config | {"include_prompt": False})
    write_json(folder / "config_sentence_transformers.json", {"prompts": prompts})


async def test_excluded_prompt_is_not_pooled_where_the_graph_gives_tokens(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "x", model(pooled=True))
    write_sentence_files(folder, "mean", normalize=False)
    exclude_prompt(folder, {"query": "hello "})
    adopt(folder, tmp_path / "store/tiny")
    prompted = await vectors(tmp_path / "store", Text("world"), prompt_name="query")
    whole = await vectors(tmp_path / "store", Text("hello world"), outputs=("last_hidden_state",))
    np.testing.assert_allclose(prompted[0], whole[2:].mean(axis=0), atol=1e-6)  # [CLS] and "hello" are the prompt's


def test_excluded_prompt_is_refused_where_the_graph_pools_alone(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "x", model(hidden=None, pooled=True))
    write_sentence_files(folder, "mean")
    exclude_prompt(folder, {"query": "hello "})
    with pytest.raises(BadCheckpoint, match="export it with token_embeddings too"):
        adopt(folder, tmp_path / "out")
    exclude_prompt(folder, {"query": ""})
    assert adopt(folder, tmp_path / "out").pooling == Pooling("mean", True, False, in_graph=True)


def test_rejects_vectors_that_are_not_what_the_files_describe(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match=r"--pooling cls takes the files', --pooling graph the graph's"):
        adopted(tmp_path, "cls")
    assert adopted(tmp_path / "files", "cls", pooling="cls").pooling == Pooling("cls", False)
    assert adopted(tmp_path / "graph", "cls", pooling="graph").pooling == Pooling("cls", False, in_graph=True)


@pytest.mark.parametrize("chain", [("Dense",), ("LayerNorm",), ("Dense", "Normalize")])
def test_rejects_graphs_without_the_modules_behind_pooling(chain: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match=f"has {', '.join(chain)} behind pooling.*: export all modules"):
        adopted(tmp_path, chain=chain)
    with pytest.raises(BadCheckpoint, match="cannot be seen from its sentence_embedding alone: if it is their output"):
        adopted(tmp_path / "alone", chain=chain, hidden=None)
    card = adopted(tmp_path / "chosen", chain=chain, hidden=None, pooling="graph")
    assert card.pooling == Pooling("mean", chain[-1] == "Normalize", in_graph=True)


def with_dense(made: Any) -> Any:
    """Put a module behind a graph's pooling: every second value turned."""
    nodes = made.graph.node
    next(node for node in nodes if "sentence_embedding" in node.output).output[0] = "pooled"
    made.graph.initializer.append(helper.make_tensor("signs", TensorProto.FLOAT, [8], [1.0, -1.0] * 4))
    nodes.append(helper.make_node("Mul", ["pooled", "signs"], ["sentence_embedding"]))
    return made


async def test_graph_that_holds_the_modules_behind_pooling_is_served(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "x", with_dense(model(pooled=True)))
    write_sentence_files(folder, "mean", normalize=False)
    modules = json.loads((folder / "modules.json").read_text())
    write_json(folder / "modules.json", [*modules, {"idx": 2, "name": "2", "path": "2_Dense", "type": "a.Dense"}])
    assert adopt(folder, tmp_path / "store/tiny").pooling == Pooling("mean", False, in_graph=True)
    got = await vectors(tmp_path / "store", Ids(np.array([5, 6, 7])))
    np.testing.assert_allclose(got[0], MEAN * np.tile([1.0, -1.0], 4), atol=1e-6)


def test_choosing_no_pooling_leaves_token_vectors_alone(tmp_path: Path) -> None:
    card = adopted(tmp_path, pooling="none")
    assert (card.outputs, card.pooling) == (("last_hidden_state",), None)
    assert verify(tmp_path / "store/tiny") == card.largest_difference
    with pytest.raises(BadCheckpoint, match="gives sentence_embedding alone: leave out --pooling none"):
        adopted(tmp_path / "alone", pooling="none", hidden=None)


def test_rejects_graph_pooling_of_a_graph_that_pools_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="gives no sentence_embedding: leave out --pooling graph"):
        adopt(folder_of(tmp_path / "x", model()), tmp_path / "out", pooling="graph")


def test_chosen_mode_keeps_the_files_rule_for_prompts(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "x", model())
    write_sentence_files(folder, "mean")
    exclude_prompt(folder, {"query": "hello "})
    assert adopt(folder, tmp_path / "out", pooling="max").pooling == Pooling("max", True, include_prompt=False)
