"""The sentence-transformers files, old and new, and files that are rejected."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from models.artifacts.export import export
from models.checkpoints.sentence_transformers import Pooling, read
from models.errors import BadCheckpoint
from tests.golden_cases import case, write_checkpoint, write_json, write_sentence_files, write_tiny_bert
from tests.static_golden import static_case

MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_sentence_files(tmp_path / "x", "mean")
    return tmp_path / "x"


def pooling(folder: Path, **config: Any) -> Pooling | None:
    write_json(folder / "1_Pooling/config.json", config)
    return read(folder).pooling


@pytest.mark.parametrize("mode", MODES)
def test_reads_old_and_new_mode_spelling(mode: str, tmp_path: Path) -> None:
    write_sentence_files(tmp_path, mode)
    assert read(tmp_path).pooling == Pooling(mode, normalize=True)
    assert pooling(tmp_path, pooling_mode=mode, embedding_dimension=32) == Pooling(mode, normalize=True)
    assert pooling(tmp_path, pooling_mode=[mode]) == Pooling(mode, normalize=True)


def test_default_mode_is_mean(folder: Path) -> None:
    """As sentence-transformers 6.2 reads it."""
    assert pooling(folder, word_embedding_dimension=32) == Pooling("mean", normalize=True)
    assert pooling(folder, pooling_mode_cls_token=False) == Pooling("mean", normalize=True)


def test_reads_include_prompt(folder: Path) -> None:
    assert pooling(folder, pooling_mode="mean", include_prompt=False) == Pooling("mean", True, include_prompt=False)


def test_no_normalize_module_means_no_scaling(tmp_path: Path) -> None:
    write_sentence_files(tmp_path, "cls", normalize=False)
    assert read(tmp_path).pooling == Pooling("cls", normalize=False)


def test_reads_module_names_of_version_6(folder: Path) -> None:
    stem = "sentence_transformers."
    kinds = [
        "base.modules.transformer.Transformer",
        "sentence_transformer.modules.pooling.Pooling",
        "base.modules.normalize.Normalize",
    ]
    paths = ["", "1_Pooling", "2_Normalize"]
    write_json(
        folder / "modules.json", [{"type": stem + kind, "path": path} for kind, path in zip(kinds, paths, strict=True)]
    )
    assert read(folder).pooling == Pooling("mean", normalize=True)


def test_missing_files_give_defaults(tmp_path: Path) -> None:
    files = read(tmp_path)
    assert (files.pooling, files.prompts, files.default_prompt, files.max_tokens) == (None, {}, None, None)


def test_reads_prompts_and_default_prompt(folder: Path) -> None:
    prompts = {"query": "query: ", "passage": "passage: "}
    write_json(folder / "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": "query"})
    files = read(folder)
    assert (files.prompts, files.default_prompt) == (prompts, "query")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"prompts": {"a": 3}}, "must be an object of texts"),
        ({"prompts": ["a"]}, "must be an object of texts"),
        ({"prompts": {"a": "b"}, "default_prompt_name": "c"}, "default_prompt_name 'c' is not one .*: a"),
    ],
)
def test_rejects_invalid_prompts(config: dict[str, Any], message: str, folder: Path) -> None:
    write_json(folder / "config_sentence_transformers.json", config)
    with pytest.raises(BadCheckpoint, match=message):
        read(folder)


@pytest.mark.parametrize(
    "config",
    [
        {"pooling_mode": ["mean", "median"]},
        {"pooling_mode": "median"},
        {"pooling_mode": 3},
        {"pooling_mode": []},
    ],
)
def test_rejects_unsupported_pooling_with_remedy(config: dict[str, Any], folder: Path) -> None:
    with pytest.raises(BadCheckpoint, match="--pooling none"):
        pooling(folder, **config)
    assert read(folder, "none").pooling is None
    assert read(folder, "max").pooling == Pooling("max", normalize=True)


def test_several_modes_are_joined_in_their_order(folder: Path) -> None:
    """Those of version 5 in the order of sentence-transformers' table, as its 6.2 reads them."""
    assert pooling(folder, pooling_mode=["max", "cls"]) == Pooling("max+cls", normalize=True)
    switches = {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}
    assert pooling(folder, **switches) == Pooling("cls+mean+lasttoken", normalize=True)


UNSUPPORTED = [
    ["Transformer", "WeightedLayerPooling"],
    ["Transformer", "Pooling", "WeightedLayerPooling"],
    ["Transformer", "Dense", "Pooling"],
    ["Transformer", "Pooling", "LSTM"],
    ["Transformer", "Pooling", "Normalize", "Pooling"],
    ["Pooling"],
    [],
]


@pytest.mark.parametrize("kinds", UNSUPPORTED)
def test_rejects_unsupported_modules_with_remedy(kinds: list[str], tmp_path: Path) -> None:
    place = write_tiny_bert(tmp_path / "x", pooling="mean")
    entries = [
        {"type": f"sentence_transformers.models.{kind}", "path": "" if kind == "Transformer" else "1_Pooling"}
        for kind in kinds
    ]
    write_json(place / "modules.json", entries)
    if kinds:
        with pytest.raises(BadCheckpoint, match=r"modules\.json chains .* is not computed in place \d.*--pooling none"):
            export(place, tmp_path / "out")
    card = export(place, tmp_path / "out", pooling="none")
    assert card.default_output == "last_hidden_state"
    assert "sentence_embedding" not in card.outputs


@pytest.mark.parametrize("path", ["../..", "/etc"])
def test_rejects_module_outside_checkpoint(path: str, folder: Path) -> None:
    write_json(folder / "modules.json", [{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": path}])
    with pytest.raises(BadCheckpoint, match="lies outside the checkpoint"):
        read(folder)


def test_finds_transformer_in_its_own_folder(tmp_path: Path) -> None:
    """As sentence-transformers 1 saved it; the folder is one that sentence-transformers 6.2 wrote."""
    case = static_case("transformer_in_a_folder")
    card = export(case.folder, tmp_path / "out")
    assert (card.source, card.family, card.max_tokens) == (case.name, "bert", 64)
    assert card.pooling == Pooling("mean", normalize=True)
    assert (tmp_path / "out/tokenizer.json").is_file()


def test_reads_limits_in_transformer_folder(tmp_path: Path) -> None:
    place = tmp_path / "x"
    write_sentence_files(place, "cls")
    modules = [{"type": "a.Transformer", "path": "0_Transformer"}, {"type": "a.Pooling", "path": "1_Pooling"}]
    write_json(place / "modules.json", modules)
    write_json(place / "0_Transformer/sentence_bert_config.json", {"max_seq_length": 11, "do_lower_case": True})
    files = read(place)
    assert (files.max_tokens, files.lowercase) == (11, True)


@pytest.mark.parametrize("key", ["module_input_name", "module_output_name"])
def test_rejects_normalize_of_other_outputs(key: str, folder: Path) -> None:
    write_json(folder / "2_Normalize/config.json", {key: "token_embeddings"})
    with pytest.raises(BadCheckpoint, match=f"{key} 'token_embeddings'; only 'sentence_embedding' is normalised"):
        read(folder)
    assert read(folder, "none").pooling is None


@pytest.mark.parametrize("modules", [{"a": 1}, [3], [{"type": "a.Transformer"}]])
def test_rejects_invalid_module_list(modules: Any, folder: Path) -> None:
    write_json(folder / "modules.json", modules)
    with pytest.raises(BadCheckpoint, match="not a list of modules"):
        read(folder)


def test_transformer_alone_has_no_pooling(folder: Path) -> None:
    write_json(folder / "modules.json", [{"type": "a.Transformer", "path": ""}])
    assert read(folder).pooling is None


def test_operator_may_choose_mode_without_files(tmp_path: Path) -> None:
    card = export(write_tiny_bert(tmp_path / "x"), tmp_path / "out", pooling="cls")
    assert card.pooling == Pooling("cls", normalize=False)
    assert card.default_output == "sentence_embedding"


def test_rejects_unknown_mode(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="--pooling 'median' is not one of cls, max, mean"):
        export(write_tiny_bert(tmp_path / "x"), tmp_path / "out", pooling="median")


def test_rejects_pooling_of_input_layer_only(tmp_path: Path) -> None:
    place = write_checkpoint(case("input_bert"), tmp_path / "x")
    write_sentence_files(place, "mean")
    with pytest.raises(BadCheckpoint, match=r"input layer alone is exported: .*; export that with --pooling none"):
        export(place, tmp_path / "out")
    assert export(place, tmp_path / "out", pooling="none").default_output == "input_embeddings"


def test_reads_default_dimensions(folder: Path) -> None:
    """sentence-transformers 6.2 reads truncate_dim of config_sentence_transformers.json and cuts every vector."""
    pooling(folder, pooling_mode="mean")
    write_json(folder / "config_sentence_transformers.json", {"prompts": {}, "truncate_dim": 8})
    assert read(folder).pooling == Pooling("mean", True, dimensions=8)
    assert read(folder, "mean").pooling == Pooling("mean", True)
    assert read(folder, "none").pooling is None
    write_json(folder / "config_sentence_transformers.json", {"prompts": {}, "truncate_dim": None})
    assert read(folder).pooling == Pooling("mean", True)


@pytest.mark.parametrize("size", [0, -1, "8", 8.5, True])
def test_rejects_invalid_default_dimensions(size: Any, folder: Path) -> None:
    write_json(folder / "config_sentence_transformers.json", {"truncate_dim": size})
    with pytest.raises(BadCheckpoint, match=r"truncate_dim is .*; it must be a whole number from 1 on"):
        read(folder)


@pytest.mark.parametrize(("name", "expected"), [("dot", "dot"), ("cosine", "cosine"), ("maxsim", None), (None, None)])
def test_reads_similarity_function(name: str | None, expected: str | None, folder: Path) -> None:
    """sentence-transformers 6.2 does not take those of other kinds of models."""
    write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": name})
    assert read(folder).similarity_function == expected


@pytest.mark.parametrize(
    "kinds",
    [
        ("BoW",),
        ("WordEmbeddings", "CNN", "Pooling"),
        ("WordEmbeddings", "LSTM", "Pooling"),
        ("WordEmbeddings", "WordWeights", "Pooling"),
    ],
)
def test_other_modules_of_words_are_refused_by_name(kinds: tuple[str, ...], tmp_path: Path) -> None:
    entries = [{"idx": number, "path": f"{number}_{name}", "type": f"x.{name}"} for number, name in enumerate(kinds)]
    write_json(tmp_path / "x/modules.json", entries)
    if len(kinds) > 1:
        (tmp_path / "x/0_WordEmbeddings").mkdir()
        save_file({"emb_layer.weight": np.zeros((2, 4), np.float32)}, tmp_path / "x/0_WordEmbeddings/model.safetensors")
        write_json(tmp_path / f"x/{len(kinds) - 1}_Pooling/config.json", {"pooling_mode": "mean"})
    with pytest.raises(BadCheckpoint, match=rf"modules.json chains {', '.join(kinds)}.*(Normalize or nothing|by mean)"):
        export(tmp_path / "x", tmp_path / "out")
