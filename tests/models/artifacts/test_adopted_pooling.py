"""How adopted graphs make sentence vectors: their own output, or their tokens pooled as the files beside them say."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

from models.artifacts import card as cards
from models.artifacts.adoption import adopt
from models.artifacts.card import Card
from models.artifacts.verification import verify
from models.checkpoints.sentence_transformers import Pooling
from models.errors import BadCheckpoint
from service.embedding.requests import Ids, Text
from tests.embed_requests import embed_request
from tests.golden_cases import write_json, write_sentence_files
from tests.models.artifacts.test_adoption import TABLE, folder_of, model
from tests.sentence_chains import Behind, dense, layer_norm, vectors
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


async def embedded(store: Path, *inputs: Ids | Text, **fields: Any) -> Any:
    (output,) = (await Service(store).pipeline.embed(embed_request(inputs, **fields))).outputs
    return output.rows


@pytest.mark.parametrize("hidden", ["token_embeddings", None], ids=["with tokens", "pooled alone"])
@pytest.mark.parametrize(("chain", "expected"), [((), MEAN), (("Normalize",), UNIT)], ids=["plain", "normalised"])
async def test_vectors_are_normalised_as_the_files_say(
    hidden: str | None, chain: tuple[str, ...], expected: Any, tmp_path: Path
) -> None:
    card = adopted(tmp_path, chain=chain, hidden=hidden)
    assert card.pooling == Pooling("mean", bool(chain), in_graph=hidden is None)
    got = await embedded(tmp_path / "store", Ids(np.array([5, 6, 7])))
    np.testing.assert_allclose(got[0], expected, atol=1e-6)
    assert verify(tmp_path / "store/tiny") == card.largest_difference


def exclude_prompt(folder: Path, prompts: dict[str, str]) -> None:
    config = json.loads((folder / "1_Pooling/config.json").read_text())
    write_json(folder / "1_Pooling/config.json", config | {"include_prompt": False})
    write_json(folder / "config_sentence_transformers.json", {"prompts": prompts})


async def test_excluded_prompt_is_not_pooled_if_graph_returns_tokens(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "x", model(pooled=True))
    write_sentence_files(folder, "mean", normalize=False)
    exclude_prompt(folder, {"query": "hello "})
    adopt(folder, tmp_path / "store/tiny")
    prompted = await embedded(tmp_path / "store", Text("world"), prompt_name="query")
    whole = await embedded(tmp_path / "store", Text("hello world"), outputs=("last_hidden_state",))
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
    got = await embedded(tmp_path / "store", Ids(np.array([5, 6, 7])))
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


CHAIN = (dense(8, 12), layer_norm(12))
CHAINED = vectors(CHAIN, MEAN[None])[0]


def with_modules(place: Path, made: Any, *behind: Behind) -> Path:
    """A folder of a graph whose files hold the modules behind pooling, weights included."""
    folder = folder_of(place, made)
    write_sentence_files(folder, "mean", normalize=False)
    modules = json.loads((folder / "modules.json").read_text())
    for number, module in enumerate(behind, 2):
        path = f"{number}_{module.kind}"
        modules.append({"idx": number, "name": path, "path": path, "type": f"a.{module.kind}"})
        write_json(folder / path / "config.json", module.config)
        if module.tensors:
            save_file(module.tensors, folder / path / "model.safetensors")
    write_json(folder / "modules.json", modules)
    return folder


@pytest.mark.parametrize("pooled", [False, True], ids=["tokens", "tokens and their mean"])
async def test_modules_run_behind_a_graph_that_gives_tokens(pooled: bool, tmp_path: Path) -> None:
    card = adopt(with_modules(tmp_path / "x", model(pooled=pooled), *CHAIN), tmp_path / "store/tiny")
    assert (card.hidden_size, card.sentence_width, card.weights) == (8, 12, None)
    assert {"modules.onnx", "weights.safetensors"} <= set(card.files)
    assert cards.read(tmp_path / "store/tiny") == card
    assert verify(tmp_path / "store/tiny") == card.largest_difference
    got = await embedded(tmp_path / "store", Ids(np.array([5, 6, 7])))
    np.testing.assert_allclose(got[0], CHAINED, atol=1e-5)
    first = await embedded(tmp_path / "store", Ids(np.array([5, 6, 7])), pooling="cls", normalize=False)
    np.testing.assert_allclose(first[0], TABLE[5], atol=1e-6)


def with_linear(made: Any, module: Behind) -> Any:
    """Put a Dense without bias and activation behind a graph's pooling."""
    nodes = made.graph.node
    next(node for node in nodes if "sentence_embedding" in node.output).output[0] = "pooled"
    weight = module.tensors["linear.weight"]
    made.graph.initializer.append(numpy_helper.from_array(weight, "dense"))
    nodes.append(helper.make_node("Gemm", ["pooled", "dense"], ["sentence_embedding"], transB=1))
    made.graph.output[-1].type.tensor_type.shape.dim[1].dim_value = len(weight)
    return made


LINEAR = dense(8, 12, "torch.nn.modules.linear.Identity", False)


async def test_graph_that_holds_the_modules_of_the_files_is_the_same(tmp_path: Path) -> None:
    folder = with_modules(tmp_path / "x", with_linear(model(pooled=True), LINEAR), LINEAR)
    card = adopt(folder, tmp_path / "store/files")
    assert card.modules
    chosen = adopt(folder, tmp_path / "store/graph", pooling="graph")
    assert (chosen.modules, chosen.sentence_width, chosen.default_width) == (None, 12, 12)
    files, graph = [
        await embedded(tmp_path / "store", Ids(np.array([5, 6, 7])), model=name) for name in ("files", "graph")
    ]
    np.testing.assert_allclose(files, graph, atol=1e-6)
    np.testing.assert_allclose(files, vectors((LINEAR,), MEAN[None]), atol=1e-5)


def test_rejects_graph_whose_modules_differ_from_the_files(tmp_path: Path) -> None:
    other = dense(8, 12, "torch.nn.modules.linear.Identity", False)
    other.tensors["linear.weight"][:] *= np.where(np.arange(12) % 2, 1, -1)[:, None]
    folder = with_modules(tmp_path / "x", with_linear(model(pooled=True), other), LINEAR)
    with pytest.raises(BadCheckpoint, match=r"\(mean pooling, Dense\), .*: --pooling graph the graph's"):
        adopt(folder, tmp_path / "out")


def test_graph_that_pools_alone_may_hold_the_modules_or_not(tmp_path: Path) -> None:
    folder = with_modules(tmp_path / "x", with_linear(model(hidden=None, pooled=True), LINEAR), LINEAR)
    with pytest.raises(BadCheckpoint, match=r"has Dense behind pooling, and whether .* cannot be seen"):
        adopt(folder, tmp_path / "out")
    assert adopt(folder, tmp_path / "out", pooling="graph").sentence_width == 12


async def test_default_dimensions_cut_the_graphs_own_vector(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "x", model(hidden=None, pooled=True))
    write_sentence_files(folder, "mean")
    write_json(folder / "config_sentence_transformers.json", {"truncate_dim": 3})
    assert adopt(folder, tmp_path / "store/tiny").default_width == 3
    got = await embedded(tmp_path / "store", Ids(np.array([5, 6, 7])))
    np.testing.assert_allclose(got[0], UNIT[:3], atol=1e-6)
