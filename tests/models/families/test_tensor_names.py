"""Tensor names of a family in a file: prefixes, towers, tied tensors, sides, and unknown families."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from models.artifacts import card as cards
from models.artifacts.export import export
from models.errors import BadCheckpoint, UnknownFamily
from models.recipes.steps import tensors
from service.cli.main import main
from tests.golden_cases import case, write_folder

Weights = dict[str, NDArray[Any]]
LLAMA = {"model_type": "llama", "vocab_size": 20, "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}


def table(rows: int = 20, width: int = 8) -> NDArray[Any]:
    return np.random.default_rng(rows * width).normal(size=(rows, width)).astype(np.float32)


@pytest.mark.parametrize(
    "prefix", ["", "model.", "language_model.model.", "model.language_model.", "model.text_model.", "thinker.model."]
)
def test_finds_word_table_under_any_prefix(prefix: str, tmp_path: Path) -> None:
    weights = {f"{prefix}embed_tokens.weight": table(), f"{prefix}norm.weight": table(1)[0]}
    card = export(write_folder(tmp_path / "x", LLAMA, weights), tmp_path / "out")
    assert tensors(card.recipe) == (f"{prefix}embed_tokens.weight",)


def test_prefers_word_table_of_vocabulary_size(tmp_path: Path) -> None:
    """Qwen2.5-Omni's files hold a thinker, a talker and a table of codes."""
    weights = {"thinker.model.embed_tokens.weight": table(), "talker.model.embed_tokens.weight": table(9)}
    card = export(write_folder(tmp_path / "x", LLAMA, weights), tmp_path / "out")
    assert tensors(card.recipe) == ("thinker.model.embed_tokens.weight",)


TOWERS: dict[str, tuple[dict[str, Any], str]] = {
    "the text says its type": ({"model_type": "llava", "text_config": LLAMA}, "llama"),
    "the text says none": (
        {"model_type": "llava", "text_config": {key: value for key, value in LLAMA.items() if key != "model_type"}},
        "llama",
    ),
    "towers within towers": (
        {"model_type": "qwen2_5_omni", "thinker_config": {"model_type": "x", "text_config": LLAMA}},
        "llama",
    ),
    "a text type of its own": (
        {"model_type": "gemma3", "text_config": LLAMA | {"model_type": "gemma3_text", "pad_token_id": 0}},
        "gemma3_text",
    ),
    "a flat file of a family with towers": (
        LLAMA | {"model_type": "qwen2_vl", "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 0]}},
        "qwen2_vl_text",
    ),
}


@pytest.mark.parametrize("name", TOWERS)
def test_exports_text_tower(name: str, tmp_path: Path) -> None:
    config, family = TOWERS[name]
    weights = {"language_model.model.embed_tokens.weight": table()}
    card = export(write_folder(tmp_path / "x", config, weights), tmp_path / "out")
    assert (card.family, card.vocab_size, card.hidden_size) == (family, 20, 8)


def bart(**changes: Any) -> tuple[dict[str, Any], Weights]:
    golden = case("input_bart_encoder")
    return golden.config | changes, dict(golden.weights)


def test_both_sides_are_exported_from_shared_table(tmp_path: Path) -> None:
    config, weights = bart()
    encoder = {name: value for name, value in weights.items() if ".encoder." in name}
    decoder = {name.replace(".encoder.", ".decoder."): value + 1 for name, value in encoder.items()}
    folder = write_folder(tmp_path / "x", config, weights | decoder)
    for side in ("encoder", "decoder"):
        card = export(folder, tmp_path / side, side=side)
        assert card.side == side
        assert tensors(card.recipe)[:2] == ("model.shared.weight", f"model.{side}.embed_positions.weight")
    assert export(folder, tmp_path / "usual").side == "encoder"


@pytest.mark.parametrize("held", ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"])
def test_finds_tied_table_under_any_stored_name(held: str, tmp_path: Path) -> None:
    config, weights = bart()
    weights[f"model.{held}"] = weights.pop("model.shared.weight")
    card = export(write_folder(tmp_path / "x", config, weights), tmp_path / "out")
    assert tensors(card.recipe)[0] == f"model.{held}"


@pytest.mark.parametrize(("name", "side"), [("input_bert", "decoder"), ("input_t5_encoder", "vision")])
def test_rejects_missing_side(name: str, side: str, tmp_path: Path) -> None:
    golden = case(name)
    with pytest.raises(UnknownFamily, match=f"--side {side}: of .* there is"):
        export(write_folder(tmp_path / "x", golden.config, golden.weights), tmp_path / "out", side=side)


def test_stored_sinusoids_override_formula(tmp_path: Path) -> None:
    """Pegasus and FSMT files hold them; a file of other rows is read as it is."""
    golden = case("input_marian_encoder")
    config = golden.config | {"model_type": "pegasus"}
    weights = {"model.shared.weight": golden.weights["model.shared.weight"]}
    assert export(write_folder(tmp_path / "x", config, weights), tmp_path / "a").position.rows == 40
    stored = weights | {"model.encoder.embed_positions.weight": table(17, 32)}
    card = export(write_folder(tmp_path / "y", config, stored), tmp_path / "b")
    assert (card.position.rows, tensors(card.recipe)[1]) == (17, "model.encoder.embed_positions.weight")


UNKNOWN = LLAMA | {"model_type": "llamma", "rope_theta": 10000.0}
PLAIN: Weights = {"model.embed_tokens.weight": table(), "lm_head.weight": table()}


def test_unknown_family_error_suggests_assume(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "x", UNKNOWN, PLAIN)
    said = r"'llamma' is not known; the nearest is 'llama'; `inlay list` .*with --assume"
    with pytest.raises(UnknownFamily, match=said):
        export(folder, tmp_path / "out")


def test_assume_exports_plain_decoder_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "x", UNKNOWN, PLAIN)
    assert main(["export", str(folder), str(tmp_path / "out"), "--assume"]) == 0
    card = cards.read(tmp_path / "out")
    assert (card.family, tensors(card.recipe)) == ("llamma", ("model.embed_tokens.weight",))
    assert set(card.encodings.ropes) == {"all"}
    assert "'model.embed_tokens.weight' is assumed to be its whole input layer" in card.assumed[0]
    assert f"assumed: {card.assumed[0]}" in capsys.readouterr().out
    held = load_file(tmp_path / "out/weights.safetensors")["model.embed_tokens.weight"]
    np.testing.assert_array_equal(held, PLAIN["model.embed_tokens.weight"])


NOT_PLAIN: dict[str, tuple[dict[str, Any], Weights, str]] = {
    "no rope": ({"rope_theta": None, "model_type": "zzz"}, {}, "no RoPE key"),
    "positions": ({}, {"model.embed_positions.weight": table()}, "embed_positions.weight' belongs to"),
    "a norm": ({}, {"model.embeddings.LayerNorm.weight": table(1)[0]}, "LayerNorm.weight' belongs to"),
    "a factor": ({"embedding_multiplier": 12.0}, {}, "embedding_multiplier 12.0"),
    "a scaled table": ({"scale_embedding": True}, {}, "scale_embedding True"),
    "another width": ({"hidden_size": 16}, {}, r"\[20, 16\] under a usual name, but holds none"),
    "two tables": ({}, {"talker.embed_tokens.weight": table()}, "talker.embed_tokens.weight"),
}


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_assume_rejects_other_models(name: str, tmp_path: Path) -> None:
    changes, more, message = NOT_PLAIN[name]
    config = {key: value for key, value in (UNKNOWN | changes).items() if value is not None}
    folder = write_folder(tmp_path / "x", config, PLAIN | more)
    for assume in (False, True):
        with pytest.raises(UnknownFamily, match=f"cannot be assumed to be a plain decoder: .*{message}"):
            export(folder, tmp_path / "out", assume=assume)


def test_side_and_extras_survive_card(tmp_path: Path) -> None:
    golden = case("input_ernie")
    card = export(write_folder(tmp_path / "x", golden.config, golden.weights), tmp_path / "out")
    assert [each.name for each in card.extras] == ["task_type_ids"]
    assert cards.read(tmp_path / "out") == card
    assert json.loads((tmp_path / "out/card.json").read_text())["mask_from"] == "sent"


def test_rejects_table_of_other_vocabulary_size(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match=r"has shape \[9, 8\], but config\.json makes it \[20, 8\]"):
        export(write_folder(tmp_path / "x", LLAMA, {"model.embed_tokens.weight": table(9)}), tmp_path / "out")
