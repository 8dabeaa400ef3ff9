"""The modules behind Pooling as files say them, and every file that is rejected."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from models.artifacts import card as cards
from models.artifacts.description import describe, store
from models.artifacts.export import export
from models.checkpoints.sentence_modules import ACTIVATIONS, layer_mean, read_modules
from models.checkpoints.sentence_transformers import read, read_pooling
from models.errors import BadCheckpoint
from models.recipes.sentence_modules import Dense, Normalize
from models.recipes.steps import Collect, LayerNorm, Linear
from tests.golden_cases import write_json
from tests.sentence_chains import (
    DROPOUT,
    HIDDEN,
    NORMALIZE,
    TORCH,
    Behind,
    add_layer_mean,
    dense,
    layer_norm,
    tensors_of,
    write_chain,
)
from tests.torch_files import pickle_weights

DENSE = dense(HIDDEN, 48)


def test_reads_steps_and_widths_in_their_order(tmp_path: Path) -> None:
    place = write_chain(tmp_path, "mean", NORMALIZE, DENSE, DROPOUT, layer_norm(48), NORMALIZE, DROPOUT)
    found = read_modules(place, HIDDEN)
    linear = Linear("modules.3_Dense.linear.weight", "modules.3_Dense.linear.bias")
    norm = LayerNorm("modules.5_LayerNorm.norm.weight", "modules.5_LayerNorm.norm.bias", 1e-5)
    assert found.steps == (Normalize(), Dense(linear, "tanh"), norm)
    assert (found.inner, found.width, found.flops_per_text) == (HIDDEN, 48, 2 * HIDDEN * 48)
    assert (pooling := read(place).pooling)
    assert pooling.normalize


@pytest.mark.parametrize("behind", [(), (NORMALIZE,), (NORMALIZE, DROPOUT), (DROPOUT,)])
def test_normalize_alone_is_no_step(behind: tuple[Behind, ...], tmp_path: Path) -> None:
    place = write_chain(tmp_path, "mean", *behind)
    assert read_modules(place, HIDDEN).steps == ()
    assert (pooling := read(place).pooling)
    assert pooling.normalize == (NORMALIZE in behind)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_reads_activation_by_class_name(name: str, tmp_path: Path) -> None:
    place = write_chain(tmp_path, "mean", dense(HIDDEN, 8, f"torch.nn.modules.anything.{name}"))
    (step,) = read_modules(place, HIDDEN).steps
    assert isinstance(step, Dense)
    assert step.activation == ACTIVATIONS[name]


def test_missing_keys_have_the_defaults_of_the_library(tmp_path: Path) -> None:
    """Those of Dense in sentence-transformers 6.2: Tanh, a bias, no residual."""
    config = {"in_features": HIDDEN, "out_features": 48}
    place = write_chain(tmp_path, "mean", Behind("Dense", config, DENSE.tensors))
    (step,) = read_modules(place, HIDDEN).steps
    assert step == Dense(Linear("modules.2_Dense.linear.weight", "modules.2_Dense.linear.bias"), "tanh")


REJECTED: dict[str, tuple[Behind, str]] = {
    "activation": (dense(HIDDEN, 8, TORCH + "Softmax"), r"activation_function 'torch.*Softmax' is not one of"),
    "own activation": (dense(HIDDEN, 8, "mine.Tanh"), "activation_function 'mine.Tanh' is not one of torch.nn's Ident"),
    "no text": (dense(HIDDEN, 8, activation_function=3), "activation_function 3 is not one of"),
    "input": (dense(HIDDEN, 8, module_input_name="token_embeddings"), "module_input_name 'token_embeddings'; a Dense"),
    "output": (dense(HIDDEN, 8, module_output_name="x"), "says module_output_name 'x'; a Dense of"),
    "other width": (dense(24, 8), "in_features is 24, and the vectors before it are 32 wide"),
    "other norm": (layer_norm(24), "dimension is 24, and the vectors before it are 32 wide"),
    "no width": (dense(HIDDEN, 8, out_features=None), "out_features is None; it must be a whole number from 1 on"),
    "flag": (dense(HIDDEN, 8, bias="yes"), "bias is 'yes'; it must be true or false"),
    "shape": (dense(HIDDEN, 8, out_features=9), r"'linear.weight' has shape \[8, 32\], and config.json makes"),
    "no bias": (Behind("Dense", DENSE.config, {"linear.weight": DENSE.tensors["linear.weight"]}), "no 'linear.bias'"),
    "more": (dense(HIDDEN, 8)._replace(tensors=dense(HIDDEN, 8, use_residual=True).tensors), "does not ask for"),
    "no weights": (Behind("Dense", DENSE.config), "2_Dense holds neither model.safetensors"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_rejects_module_and_says_why(name: str, tmp_path: Path) -> None:
    module, message = REJECTED[name]
    place = write_chain(tmp_path / "x", "mean", module)
    with pytest.raises(BadCheckpoint, match=message):
        export(place, tmp_path / "out")


@pytest.mark.parametrize("key", ["module_input_name", "module_output_name"])
def test_rejects_normalize_of_other_outputs_behind_dense(key: str, tmp_path: Path) -> None:
    place = write_chain(tmp_path / "x", "mean", DENSE, Behind("Normalize", {key: "token_embeddings"}))
    with pytest.raises(BadCheckpoint, match="only 'sentence_embedding' is normalised"):
        export(place, tmp_path / "out")


def test_pickled_modules_export_the_same_weights(tmp_path: Path) -> None:
    place = write_chain(tmp_path / "x", "mean", dense(32, 8))
    card = export(place, tmp_path / "safe")
    pickle_weights(place)
    assert export(place, tmp_path / "pickled").modules == card.modules
    held = [(tmp_path / name / "weights.safetensors").read_bytes() for name in ("safe", "pickled")]
    assert held[0] == held[1]


def test_rejects_weight_that_is_not_finite(tmp_path: Path) -> None:
    place = write_chain(tmp_path / "x", "mean", DENSE)
    weight = DENSE.tensors["linear.weight"].copy()
    weight[3, 5] = np.nan
    save_file(DENSE.tensors | {"linear.weight": weight}, place / "2_Dense/model.safetensors")
    with pytest.raises(BadCheckpoint, match=r"'modules\.2_Dense\.linear\.weight' holds a value that is infinite"):
        export(place, tmp_path / "out")


@pytest.mark.parametrize(("pooling", "expected"), [("none", "last_hidden_state"), ("mean", "sentence_embedding")])
def test_modules_are_left_out_where_the_operator_pools(pooling: str, expected: str, tmp_path: Path) -> None:
    place = write_chain(tmp_path / "x", "mean", Behind("Dense", DENSE.config), truncate_dim=4)
    card = export(place, tmp_path / "out", pooling=pooling)
    assert (card.modules, card.default_output, card.sentence_width) == (None, expected, HIDDEN)
    assert not (tmp_path / "out/modules.onnx").exists()


def test_export_holds_the_modules_tensors_and_graph(tmp_path: Path) -> None:
    card = export(write_chain(tmp_path / "x", "mean", NORMALIZE, DENSE, truncate_dim=40), tmp_path / "out")
    assert cards.read(tmp_path / "out") == card
    held = tensors_of(tmp_path / "out")
    np.testing.assert_array_equal(held["modules.3_Dense.linear.weight"], DENSE.tensors["linear.weight"])
    assert {"modules.onnx", "weights.safetensors"} <= set(card.files)
    plain = export(tmp_path / "x", tmp_path / "plain", pooling="mean")
    assert card.parameters - plain.parameters == 48 * HIDDEN + 48
    assert (card.hidden_size, card.sentence_width, card.default_width, card.answer_width) == (HIDDEN, 48, 40, 40)
    assert card.largest_difference["sentence_embedding"] < 1e-6


def test_bfloat16_weights_are_widened(tmp_path: Path) -> None:
    import ml_dtypes

    place = write_chain(tmp_path / "x", "mean", DENSE)
    narrow: dict[str, Any] = {name: each.astype(ml_dtypes.bfloat16) for name, each in DENSE.tensors.items()}
    save_file(narrow, place / "2_Dense/model.safetensors")
    export(place, tmp_path / "out")
    held = tensors_of(tmp_path / "out")["modules.2_Dense.linear.weight"]
    np.testing.assert_array_equal(held, narrow["linear.weight"].astype(np.float32))


def test_modules_lie_beside_a_transformer_in_its_own_folder(tmp_path: Path) -> None:
    """As sentence-transformers 1 saved them."""
    place = write_chain(tmp_path / "x", "mean", DENSE)
    (place / "0_Transformer").mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "sentence_bert_config.json"):
        (place / name).rename(place / "0_Transformer" / name)
    modules = json.loads((place / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    write_json(place / "modules.json", modules)
    card = export(place, tmp_path / "out")
    assert (card.sentence_width, card.max_tokens) == (48, 24)


def test_similarity_function_is_no_dual_encoders(tmp_path: Path) -> None:
    card = export(write_chain(tmp_path / "x", "mean", similarity_fn_name="dot"), tmp_path / "out")
    assert (card.similarity_function, card.similarity) == ("dot", None)


def test_module_folder_outside_the_checkpoint_is_rejected(tmp_path: Path) -> None:
    place = write_chain(tmp_path / "x", "mean", DENSE)
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Dense": "../y"}
    write_json(place / "modules.json", [{"type": f"a.{kind}", "path": path} for kind, path in kinds.items()])
    with pytest.raises(BadCheckpoint, match="lies outside the checkpoint"):
        export(place, tmp_path / "out")


def test_description_names_modules_and_widths(tmp_path: Path) -> None:
    place = write_chain(tmp_path / "x", ["cls", "max"], layer_norm(64), dense(64, 40), truncate_dim=7)
    write_json(place / "config_sentence_transformers.json", {"truncate_dim": 7, "similarity_fn_name": "manhattan"})
    export(place, tmp_path / "store/x")
    lines = describe(str(tmp_path / "store/x")).splitlines()
    assert "modules        LayerNorm, Dense: vectors of 40" in lines
    assert "pooling        cls+max, its first 7 values" in lines
    assert "compared by    manhattan" in lines
    assert store(tmp_path / "store").splitlines()[2].split()[2] == "7"


def test_a_mean_of_layers_is_read_as_shares(tmp_path: Path) -> None:
    place = add_layer_mean(write_chain(tmp_path / "x", "mean"), 1, (1.0, 3.0))
    assert layer_mean(place, {"output_hidden_states": True}) == (1, (0.25, 0.75))
    assert layer_mean(place, {}) is None  # sentence-transformers 6.2 then has no layers to mix
    assert layer_mean(write_chain(tmp_path / "y", "mean"), {"output_hidden_states": True}) is None


def test_a_mean_of_layers_changes_what_is_pooled(tmp_path: Path) -> None:
    place = add_layer_mean(write_chain(tmp_path / "x", "mean"), 0, (0.5, 2.0, 1.0))
    card = export(place, tmp_path / "out")
    assert [step.last for step in card.encoder if isinstance(step, Collect)] == [False, False, True]
    assert card.head is None
    plain = export(place, tmp_path / "plain", pooling="mean")
    assert not any(isinstance(step, Collect) for step in plain.encoder)


FAULTY_MEANS: dict[str, tuple[dict[str, Any], list[float], str]] = {
    "more weights than layers": ({}, [1.0] * 4, r"'layer_weights' has shape \[4\], and config.json makes it \[3\]"),
    "other layers": ({"num_hidden_layers": 3}, [1.0] * 4, "the model has 2, and layer 0 is its input"),
    "no sum": ({}, [1.0, -2.0, 1.0], "layer_weights whose sum is 0.0; no mean"),
    "a layer below 0": ({"layer_start": -1}, [1.0] * 3, "layer_start is -1; it must be a whole number from 0 on"),
}


@pytest.mark.parametrize("name", FAULTY_MEANS)
def test_a_faulty_mean_of_layers_is_rejected(name: str, tmp_path: Path) -> None:
    changes, weights, fault = FAULTY_MEANS[name]
    place = add_layer_mean(write_chain(tmp_path / "x", "mean"), 0, (1.0, 1.0, 1.0))
    own = place / "9_WeightedLayerPooling"
    write_json(own / "config.json", json.loads((own / "config.json").read_text()) | changes)
    save_file({"layer_weights": np.array(weights, np.float32)}, own / "model.safetensors")
    with pytest.raises(BadCheckpoint, match=fault):
        export(place, tmp_path / "out")


def test_an_adopted_graph_has_no_layers_to_mix(tmp_path: Path) -> None:
    place = add_layer_mean(write_chain(tmp_path / "x", "mean"), 0, (1.0, 1.0, 1.0))
    with pytest.raises(BadCheckpoint, match="WeightedLayerPooling is not computed in place 1"):
        read_pooling(place, None)
