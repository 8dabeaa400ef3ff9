"""Checkpoint folders: shards, tensor names under any prefix, and folders that cannot be read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from models.artifacts.export import export
from models.checkpoints.checkpoint import open_checkpoint, read_tensors
from models.errors import BadCheckpoint, ModelError, UnknownFamily
from models.families.fitting import fit
from models.recipes.steps import tensors
from tests.golden_cases import case, tiny_bert, tiny_config, write_checkpoint, write_folder, write_json
from tests.torch_files import pickle_weights, write_torch

Weights = dict[str, NDArray[Any]]


def bert(folder: Path) -> Path:
    return write_checkpoint(case("input_bert"), folder)


def written(folder: Path) -> Weights:
    return load_file(folder / "weights.safetensors")


def shard(folder: Path, **changes: str) -> Path:
    """Write the bert checkpoint in two shards and an index; `changes` alter the index."""
    bert(folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"model-1.safetensors": names[:4], "model-2.safetensors": names[4:]}
    for file, held in parts.items():
        save_file({name: weights[name] for name in held}, folder / file)
    weight_map = {name: file for file, held in parts.items() for name in held} | changes
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    return folder


def test_shards_export_same_weights_as_one_file(tmp_path: Path) -> None:
    export(bert(tmp_path / "one"), tmp_path / "a")
    export(shard(tmp_path / "two"), tmp_path / "b")
    assert (tmp_path / "a/weights.safetensors").read_bytes() == (tmp_path / "b/weights.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("../model-1.safetensors", "not a file of this folder"),
        ("/etc/passwd", "not a file of this folder"),
        ("model-3.safetensors", "not in this folder"),
        ("", "not a file of this folder"),
        ("model-1.safetensors", "does not hold it"),
    ],
)
def test_rejects_index_that_leads_out_of_folder(place: str, message: str, tmp_path: Path) -> None:
    folder = shard(tmp_path / "x", **{"made.up.weight": place})
    with pytest.raises(BadCheckpoint, match=message):
        open_checkpoint(folder)


@pytest.mark.parametrize("weight_map", [None, [], {"a": 3}])
def test_rejects_index_without_weight_map(weight_map: Any, tmp_path: Path) -> None:
    folder = shard(tmp_path / "x")
    write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})
    with pytest.raises(BadCheckpoint, match="no weight_map"):
        open_checkpoint(folder)


@pytest.mark.parametrize("prefix", ["", "bert.", "model.", "encoder.bert."])
def test_finds_tensors_under_any_prefix(prefix: str, tmp_path: Path) -> None:
    golden = case("input_bert")
    weights = {prefix + name.removeprefix("bert."): value for name, value in golden.weights.items() if "bert." in name}
    card = export(write_folder(tmp_path / "x", golden.config, weights), tmp_path / "out")
    assert set(written(tmp_path / "out")) == set(tensors(card.recipe)) == set(weights)


def test_usual_prefix_wins(tmp_path: Path) -> None:
    golden = case("input_bert")
    other = {"teacher." + name: np.zeros_like(value) for name, value in golden.weights.items()}
    card = export(write_folder(tmp_path / "x", golden.config, golden.weights | other), tmp_path / "out")
    assert all(name.startswith("bert.") for name in tensors(card.recipe))


def test_rejects_two_word_tables_without_usual_prefix(tmp_path: Path) -> None:
    golden = case("input_bert")
    both = {f"{side}.{name}": value for name, value in golden.weights.items() for side in ("left", "right")}
    with pytest.raises(BadCheckpoint, match=r"left\.bert\.embeddings\.word.*right\.bert"):
        export(write_folder(tmp_path / "x", golden.config, both), tmp_path / "out")


def test_reads_norms_named_gamma_and_beta(tmp_path: Path) -> None:
    golden = case("input_bert")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in golden.weights.items()
    }
    card = export(write_folder(tmp_path / "x", golden.config, old), tmp_path / "out")
    assert tensors(card.recipe)[-2:] == ("bert.embeddings.LayerNorm.gamma", "bert.embeddings.LayerNorm.beta")


def test_tensor_name_is_not_a_pattern(tmp_path: Path) -> None:
    golden = case("input_bert")
    odd = {name.replace("word_embeddings", "word*embeddings"): value for name, value in golden.weights.items()}
    with pytest.raises(BadCheckpoint, match="word table"):
        export(write_folder(tmp_path / "x", golden.config, odd), tmp_path / "out")


def test_reads_and_writes_only_needed_tensors(tmp_path: Path) -> None:
    golden = case("input_bert")
    poisoned = golden.weights | {"unused.weight": np.full((3, 3), np.nan, np.float32), "ids": np.arange(4)}
    export(write_folder(tmp_path / "x", golden.config, poisoned), tmp_path / "out")
    kept = golden.weights
    tensors = written(tmp_path / "out")
    assert set(tensors) == set(kept)
    for name, value in kept.items():
        np.testing.assert_array_equal(tensors[name], value)


def without(name: str) -> Callable[[Path], None]:
    def remove(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        del weights[name]
        save_file(weights, folder / "model.safetensors")

    return remove


def altered(name: str, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Callable[[Path], None]:
    def alter(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        save_file(weights | {name: change(weights[name])}, folder / "model.safetensors")

    return alter


def configured(**values: Any) -> Callable[[Path], None]:
    def configure(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        write_json(folder / "config.json", {k: v for k, v in (config | values).items() if v != "absent"})

    return configure


def renamed(old: str, new: str) -> Callable[[Path], None]:
    return lambda folder: (folder / old).rename(folder / new) and None


def infinite(values: NDArray[Any]) -> NDArray[Any]:
    values = values.copy()
    values[5, 1] = np.inf
    return values


WORDS = "bert.embeddings.word_embeddings.weight"
BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
    "no model_type": (configured(model_type="absent"), "names no model_type"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "holds neither model.safetensors nor"),
    "no word table": (without(WORDS), "word table"),
    "no norm": (without("bert.embeddings.LayerNorm.bias"), r"no tensor 'bert\.embeddings\.LayerNorm\.bias'"),
    "a table of other rows": (configured(vocab_size=60), r"has shape \[61, 32\], but config.json makes it \[60, 32\]"),
    "a table of other width": (configured(hidden_size=28), "has shape"),
    "half of a table": (altered(WORDS, lambda table: table[:30]), r"shape \[30, 32\]"),
    "float64": (altered(WORDS, lambda table: table.astype(np.float64)), "is F64; weights are read as F32, F16, BF16"),
    "int8": (altered(WORDS, lambda table: table.astype(np.int8)), "is I8"),
    "infinite in half precision": (
        altered(WORDS, lambda table: infinite(table).astype(np.float16)),
        "infinite or not a number in row 5",
    ),
    "hidden_size a text": (configured(hidden_size="32"), "hidden_size '32'; it must be a whole number"),
    "hidden_size 0": (configured(hidden_size=0), "hidden_size 0"),
    "vocab_size true": (configured(vocab_size=True), "vocab_size True"),
    "eps not a number": (configured(layer_norm_eps=None), "layer_norm_eps None"),
    "pad outside the vocabulary": (configured(pad_token_id=61), "pad_token_id 61"),
    "relative positions": (
        configured(position_embedding_type="odd"),
        "position_embedding_type 'odd'",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_rejects_unreadable_checkpoint_in_one_line(name: str, tmp_path: Path) -> None:
    break_it, message = BROKEN[name]
    folder = bert(tmp_path / "x")
    break_it(folder)
    with pytest.raises(BadCheckpoint, match=message) as caught:
        export(folder, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_rejects_unknown_family_and_names_similar_one(tmp_path: Path) -> None:
    folder = bert(tmp_path / "x")
    configured(model_type="t6")(folder)
    with pytest.raises(UnknownFamily, match=r"'t6' is not known; the nearest is 't5'.*`inlay list` names"):
        export(folder, tmp_path / "out")


def test_an_unknown_family_like_no_other_names_none(tmp_path: Path) -> None:
    write_json(bert(tmp_path / "x") / "config.json", {"model_type": "vits"})
    with pytest.raises(UnknownFamily, match=r"'vits' is not known; `inlay list` names"):
        export(tmp_path / "x", tmp_path / "out")


def test_error_names_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere is not a folder"):
        export(tmp_path / "nowhere", tmp_path / "out")


def test_rejects_roberta_without_pad_id(tmp_path: Path) -> None:
    folder = write_checkpoint(case("input_roberta"), tmp_path / "x")
    configured(pad_token_id=None)(folder)
    with pytest.raises(BadCheckpoint, match="counts positions from the pad id"):
        export(folder, tmp_path / "out")


def test_rejects_checkpoint_with_missing_blocks(tmp_path: Path) -> None:
    weights = tiny_bert(2)
    folder = write_folder(tmp_path / "x", tiny_config(weights, num_hidden_layers=3), weights)
    with pytest.raises(BadCheckpoint, match=r"no tensor 'encoder\.layer\.2\.attention\.self\.query\.weight'"):
        export(folder, tmp_path / "out")


def test_checkpoint_without_blocks_gives_input_layer(tmp_path: Path) -> None:
    card = export(bert(tmp_path / "x"), tmp_path / "out")
    assert card.encoder == ()
    assert set(card.graphs) == {"embedding", "components"}


def test_bert_decoder_gives_only_input_layer(tmp_path: Path) -> None:
    weights = tiny_bert(1)
    card = export(write_folder(tmp_path / "x", tiny_config(weights, is_decoder=True), weights), tmp_path / "out")
    assert card.encoder == ()


def test_missing_config_values_are_family_defaults(tmp_path: Path) -> None:
    """eps 1e-12 and type_vocab_size 2, as BertConfig of transformers 5.23 has them."""
    weights = tiny_bert(0)
    config = {key: value for key, value in tiny_config(weights).items() if key != "type_vocab_size"}
    fitted = fit(open_checkpoint(write_folder(tmp_path / "x", config, weights)))
    assert fitted.recipe[-1].eps == 1e-12  # type: ignore[union-attr]
    assert fitted.type_rows == 2


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_pickled_weights_export_the_same_bytes(shards: int, tmp_path: Path) -> None:
    export(bert(tmp_path / "x"), tmp_path / "a")
    pickle_weights(tmp_path / "x", shards)
    export(tmp_path / "x", tmp_path / "b")
    assert (tmp_path / "a/weights.safetensors").read_bytes() == (tmp_path / "b/weights.safetensors").read_bytes()


def test_safetensors_are_read_before_pickled_weights(tmp_path: Path) -> None:
    (bert(tmp_path / "x") / "pytorch_model.bin").write_bytes(b"other")
    export(tmp_path / "x", tmp_path / "a")


def test_pickled_views_with_strides_export_their_values(tmp_path: Path) -> None:
    """Every matrix is the transpose of what its storage holds, row by row."""
    weights = load_file(bert(tmp_path / "x") / "model.safetensors")
    export(tmp_path / "x", tmp_path / "a")
    (tmp_path / "x/model.safetensors").unlink()
    views = {name: np.asfortranarray(array) for name, array in weights.items()}
    write_torch(tmp_path / "x/pytorch_model.bin", views)
    export(tmp_path / "x", tmp_path / "b")
    assert (tmp_path / "a/weights.safetensors").read_bytes() == (tmp_path / "b/weights.safetensors").read_bytes()


def test_tensors_are_views_of_the_file(tmp_path: Path) -> None:
    source = open_checkpoint(bert(tmp_path / "x"))
    assert not read_tensors(source, [WORDS])[WORDS].flags.owndata
