"""Vision checkpoints: sides, prefixes, dtypes, sizes that do not fit, and the files of an export."""

import json
from pathlib import Path
from typing import Any, get_args

import ml_dtypes
import numpy as np
import pytest

from models.artifacts import card as cards
from models.artifacts.comparison import Session
from models.artifacts.description import describe, families
from models.artifacts.export import export
from models.artifacts.verification import verify
from models.errors import BadCard, BadCheckpoint, ModelError, ReferenceMismatch
from models.recipes.typed_json import from_json, to_json
from models.reference import vision as reference
from models.vision.families import FAMILIES, TOWERS
from models.vision.similarity import Similarity, compared
from models.vision.steps import Insert, Step, Steps
from service.cli.main import main
from tests.golden_cases import case, write_folder, write_json
from tests.vision_cases import config_of, export_seen, seen, write_seen

VIT = case("vision_vit")


def rows(folder: Path, pixels: Any) -> Any:
    return Session(folder / "image.onnx").run({"pixel_values": pixels}, ["input_embeddings"])["input_embeddings"]


def dual(folder: Path, kind: str = "clip", **more: Any) -> Path:
    """A dual-encoder checkpoint that contains the golden tower."""
    tower = case(f"vision_{kind}")
    weights = {"vision_model." + name: array for name, array in tower.weights.items()}
    weights |= {"text_model.embeddings.token_embedding.weight": np.zeros((9, 8), np.float32)}
    weights |= {"logit_scale": np.array(2.5, np.float32)} | more
    return write_folder(folder, {"model_type": kind, "vision_config": tower.params["config"]}, weights)


@pytest.mark.parametrize("golden", seen(), ids=repr)
def test_export_has_its_files_and_card_round_trips(golden: Any, tmp_path: Path) -> None:
    card = export_seen(golden, tmp_path / "x", tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"card.json", *card.files}
    assert cards.read(tmp_path / "out") == card
    assert card.image is not None
    assert card.hidden_size == golden.arrays["hidden_states"].shape[-1]
    assert verify(tmp_path / "out") == card.largest_difference
    assert max(card.largest_difference.values()) < card.tolerance
    assert "input layer" in describe(str(tmp_path / "out"))


@pytest.mark.parametrize("golden", seen(), ids=repr)
def test_reference_matches_the_golden_rows(golden: Any, tmp_path: Path) -> None:
    from models.checkpoints import safetensors

    card = export_seen(golden, tmp_path / "x", tmp_path / "out")
    weights = safetensors.tensors_of(tmp_path / "out/weights.safetensors")
    feeds = {name: golden.arrays[name] for name in ("pixel_values", "input_features") if name in golden.arrays}
    assert card.image is not None
    actual = reference.outputs(card.image.steps, weights, feeds)["input_embeddings"]
    np.testing.assert_allclose(actual, golden.arrays["hidden_states"], **golden.tolerance["hidden_states"])


def test_every_family_is_listed_and_described() -> None:
    listed = families()
    for name in FAMILIES:
        assert name in listed
        assert "input layer" in describe(name)


def test_steps_survive_json() -> None:
    for family in FAMILIES.values():
        assert from_json(Steps, to_json(Steps, family.steps)) == family.steps
    used = {type(step) for family in FAMILIES.values() for step in family.steps}
    assert used == set(get_args(Step))


@pytest.mark.parametrize("prefix", ["", "vit.", "model.vision_tower.", "encoder.vit."])
def test_finds_tensors_under_any_single_prefix(prefix: str, tmp_path: Path) -> None:
    weights = {prefix + name: array for name, array in VIT.weights.items()}
    export(write_folder(tmp_path / "x", config_of(VIT), weights), tmp_path / "out")
    np.testing.assert_allclose(
        rows(tmp_path / "out", VIT.arrays["pixel_values"]), VIT.arrays["hidden_states"], atol=1e-5
    )


def test_half_precision_checkpoint_is_widened_exactly(tmp_path: Path) -> None:
    halved = {name: array.astype(ml_dtypes.bfloat16) for name, array in VIT.weights.items()}
    export(write_folder(tmp_path / "x", config_of(VIT), halved), tmp_path / "out")
    wide = {name: array.astype(np.float32) for name, array in halved.items()}
    export(write_folder(tmp_path / "y", config_of(VIT), wide), tmp_path / "wide")
    pixels = VIT.arrays["pixel_values"]
    assert np.array_equal(rows(tmp_path / "out", pixels), rows(tmp_path / "wide", pixels))


def test_registers_follow_cls_and_have_no_position(tmp_path: Path) -> None:
    """DINOv2 with registers: cls + its position, registers as they are, patches."""
    golden = case("vision_dinov2_interp")
    registers = np.random.default_rng(1).normal(0, 1, (1, 3, 24)).astype(np.float32)
    config = config_of(golden) | {"model_type": "dinov2_with_registers", "num_register_tokens": 3}
    weights = golden.weights | {"embeddings.register_tokens": registers}
    export(write_folder(tmp_path / "x", config, weights), tmp_path / "out")
    actual = rows(tmp_path / "out", golden.arrays["pixel_values"][:, :, :24, :18])
    np.testing.assert_array_equal(actual[:, 1:4], registers)
    cls = weights["embeddings.cls_token"][0, 0] + weights["embeddings.position_embeddings"][0, 0]
    np.testing.assert_allclose(actual[0, 0], cls, atol=1e-6)


def test_patches_are_counted_row_by_row(tmp_path: Path) -> None:
    """A change in the lower left patch of four columns moves the row after three full ones."""
    export_seen(case("vision_siglip"), tmp_path / "x", tmp_path / "out")
    pixels = case("vision_siglip").arrays["pixel_values"].copy()
    before = rows(tmp_path / "out", pixels)
    pixels[:, :, 20, 2] += 1
    moved = (rows(tmp_path / "out", pixels) != before).any(axis=-1)[0]
    assert moved.nonzero()[0].tolist() == [12]


def test_incomplete_patches_are_dropped(tmp_path: Path) -> None:
    export_seen(case("vision_siglip"), tmp_path / "x", tmp_path / "out")
    pixels = np.random.default_rng(1).normal(0, 1, (1, 3, 17, 29)).astype(np.float32)
    assert np.array_equal(rows(tmp_path / "out", pixels), rows(tmp_path / "out", pixels[:, :, :12, :24]))


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_checkpoint_with_two_towers_requires_side(kind: str, tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="give --side text or --side vision"):
        export(dual(tmp_path / "x", kind), tmp_path / "out")
    card = export(dual(tmp_path / "x", kind), tmp_path / "out", side="vision")
    assert card.family == f"{kind}_vision_model"
    assert card.similarity == Similarity("softmax" if kind == "clip" else "sigmoid", np.exp(2.5), 0.0)


def test_both_towers_of_a_dual_encoder_export_similarity(tmp_path: Path) -> None:
    text = {"vocab_size": 9, "hidden_size": 8, "max_position_embeddings": 5}
    tables = {
        "text_model.embeddings.token_embedding.weight": np.ones((9, 8), np.float32),
        "text_model.embeddings.position_embedding.weight": np.ones((5, 8), np.float32),
    }
    folder = dual(tmp_path / "x", **tables)
    config = json.loads((folder / "config.json").read_text()) | {"text_config": text}
    write_json(folder / "config.json", config)
    cards_of = {side: export(folder, tmp_path / side, side=side) for side in ("text", "vision")}
    assert cards_of["vision"].similarity is not None
    assert cards_of["text"].similarity == cards_of["vision"].similarity
    assert cards_of["text"].vocab_size == 9
    assert cards_of["text"].image is None


def test_export_command_accepts_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = dual(tmp_path / "x")
    assert main(["export", str(folder), str(tmp_path / "out")]) == 1
    assert "give --side text or --side vision" in capsys.readouterr().err
    assert main(["export", str(folder), str(tmp_path / "out"), "--side", "vision"]) == 0
    assert "clip_vision_model" in capsys.readouterr().out
    assert main(["describe", str(tmp_path / "out")]) == 0
    assert "takes tensors" in capsys.readouterr().out


def test_nested_tower_uses_the_family_in_its_config(tmp_path: Path) -> None:
    tower = case("vision_siglip")
    weights = {"model.vision_tower.vision_model." + name: array for name, array in tower.weights.items()}
    config = {"model_type": "llava", "vision_config": config_of(tower)}
    card = export(write_folder(tmp_path / "x", config, weights), tmp_path / "out", side="vision")
    assert card.family == "siglip_vision_model"


def test_every_tower_has_a_known_family() -> None:
    assert {tower.family for tower in TOWERS.values()} <= set(FAMILIES)


def changed(**changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return changes, {}


def without(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return {}, {name: None}


TABLE = "embeddings.position_embeddings"
BROKEN: dict[str, tuple[tuple[dict[str, Any], dict[str, Any]], str]] = {
    "another width": (changed(hidden_size=32), r"projection.weight' has shape \[24, 3, 6, 6\], but .* \[32, 3, 6, 6\]"),
    "another patch": (changed(patch_size=4), r"config.json makes it \[24, 3, 4, 4\]"),
    "an oblong patch": (changed(patch_size=[6, 3]), "only square patches are supported"),
    "a patch of zero": (changed(patch_size=0), "patch_size 0; it must be a whole number from 1"),
    "another image": (changed(image_size=30), r"position_embeddings' has shape .* makes it \[26, 24\]"),
    "an image below a patch": (changed(image_size=5), "image_size in .*config.json:1 is below patch_size"),
    "an image of three sizes": (changed(image_size=[1, 2, 3]), r"image_size \[1, 2, 3\]"),
    "no patches": (without("embeddings.patch_embeddings.projection.weight"), "should hold .* but holds none"),
    "no bias": (without("embeddings.patch_embeddings.projection.bias"), "holds no tensor .*projection.bias"),
    "no positions": (without(TABLE), "holds no tensor"),
    "no cls": (without("embeddings.cls_token"), "holds no tensor"),
    "a position that is no number": (({}, {TABLE: np.full((1, 17, 24), np.nan, np.float32)}), "in row 0"),
    "integers": (({}, {TABLE: np.zeros((1, 17, 24), np.int32)}), "is I32; weights are read as"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_rejects_unfitting_checkpoint_and_leaves_no_files(name: str, tmp_path: Path) -> None:
    (config, tensors), message = BROKEN[name]
    weights = {key: array for key, array in (VIT.weights | tensors).items() if array is not None}
    folder = write_folder(tmp_path / "x", config_of(VIT) | config, weights)
    with pytest.raises(BadCheckpoint, match=message):
        export(folder, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


AXIAL_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a theta in words": ({"rope_theta": "100"}, "rope_theta"),
    "heads that do not divide": ({"num_attention_heads": 5}, "num_attention_heads 5"),
    "an odd head": ({"num_attention_heads": 12}, "must be a multiple of 4"),
}


@pytest.mark.parametrize("name", AXIAL_REFUSED)
def test_impossible_axial_rope_costs_the_table_and_not_the_tower(name: str, tmp_path: Path) -> None:
    config, reason = AXIAL_REFUSED[name]
    tower = case("vision_dinov3")
    card = export(write_folder(tmp_path / "x", config_of(tower) | config, tower.weights), tmp_path / "out")
    assert card.image is not None
    assert card.image.axial is None
    assert reason in card.encodings.refused["axial"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a side it has not": ({"side": "text"}, "a vit has only the side vision"),
    "quantised tables": ({"dtype": "int8"}, "no table of it is looked up"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rejects_options_a_tower_does_not_have(name: str, tmp_path: Path) -> None:
    options, message = REFUSED[name]
    with pytest.raises(ModelError, match=message):
        export(write_seen(VIT, tmp_path / "x"), tmp_path / "out", **options)


def test_rejects_tower_config_that_is_not_an_object(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "x", {"model_type": "clip", "vision_config": 3}, VIT.weights)
    with pytest.raises(BadCheckpoint, match=r"vision_config in .*config\.json:1 is 3; it must be an object"):
        export(folder, tmp_path / "out", side="vision")


@pytest.mark.parametrize("scale", [np.array(np.nan, np.float32), np.zeros(2, np.float32), np.array(90, np.float32)])
def test_rejects_invalid_logit_scale(scale: Any, tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="logit_scale"):
        export(dual(tmp_path / "x", logit_scale=scale), tmp_path / "out", side="vision")


def test_positions_of_an_oblong_image_fit_only_that_size(tmp_path: Path) -> None:
    """transformers resizes square grids only."""
    tables = {TABLE: np.random.default_rng(1).normal(0, 1, (1, 1 + 4 * 2, 24)).astype(np.float32)}
    folder = write_folder(tmp_path / "x", config_of(VIT) | {"image_size": [24, 12]}, VIT.weights | tables)
    card = export(folder, tmp_path / "out")
    assert card.image is not None
    assert card.image.fixed == (24, 12)


def test_rejects_patch_processor_for_a_pixel_model(tmp_path: Path) -> None:
    folder = write_seen(VIT, tmp_path / "x")
    write_json(folder / "preprocessor_config.json", {"image_processor_type": "Qwen2VLImageProcessor"})
    with pytest.raises(BadCheckpoint, match="cuts patches, and a vit takes pixels"):
        export(folder, tmp_path / "out")


def test_rejects_processor_with_other_patch_size(tmp_path: Path) -> None:
    golden = case("vision_qwen2_vl_patch")
    folder = write_seen(golden, tmp_path / "x")
    write_json(folder / "preprocessor_config.json", {"patch_size": 8})
    with pytest.raises(BadCheckpoint, match="makes patches of 384 values, and the checkpoint takes 96"):
        export(folder, tmp_path / "out", side="vision")


def test_reads_processor_from_processor_config_json(tmp_path: Path) -> None:
    folder = write_seen(VIT, tmp_path / "x")
    write_json(folder / "processor_config.json", {"image_processor": {"size": {"height": 24, "width": 24}}})
    card = export(folder, tmp_path / "out")
    assert card.image is not None
    assert card.image.preprocessor is not None
    assert card.image.preprocessor.sizes == (24, 24)


def test_rejects_graph_that_differs_from_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = reference.run

    def moved(*arguments: Any) -> Any:
        actual = run(*arguments)
        return actual | {"input_embeddings": actual["input_embeddings"] + 1e-3}

    monkeypatch.setattr(reference, "run", moved)
    with pytest.raises(ReferenceMismatch, match=r"input_embeddings differs from the float64 reference by 1\.\d+e-03"):
        export(write_seen(VIT, tmp_path / "x"), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_rejects_card_of_another_shape(tmp_path: Path) -> None:
    export(write_seen(VIT, tmp_path / "x"), tmp_path / "out")
    text = (tmp_path / "out/card.json").read_text()
    (tmp_path / "out/card.json").write_text(text.replace('"Patchify"', '"Splat"'))
    with pytest.raises(BadCard, match="Splat"):
        cards.read(tmp_path / "out")


def test_cls_precedes_tokens_inserted_first() -> None:
    """DeiT: [CLS][DIST] patches, so distillation goes in first."""
    names = [step.table for step in FAMILIES["deit"].steps if isinstance(step, Insert)]
    assert names == ["embeddings.distillation_token", "embeddings.cls_token"]


def test_softmax_rows_sum_to_one_and_sigmoid_is_per_pair() -> None:
    random = np.random.default_rng(2)
    texts, images = random.normal(0, 1, (5, 7)), random.normal(0, 1, (3, 7))
    soft = compared(Similarity("softmax", 100.0, 0.0), texts, images)
    np.testing.assert_allclose(soft["probabilities"].sum(axis=1), 1.0)
    single = compared(Similarity("sigmoid", 10.0, -4.0), texts, images)
    np.testing.assert_allclose(single["probabilities"], 1 / (1 + np.exp(-single["logits_per_image"])))


def test_similarity_is_independent_of_vector_lengths() -> None:
    random = np.random.default_rng(2)
    texts, images = random.normal(0, 1, (5, 7)), random.normal(0, 1, (3, 7))
    how = Similarity("softmax", 14.0, 0.0)
    actual, longer = compared(how, texts, images), compared(how, texts * 3, images * 0.1)
    np.testing.assert_allclose(actual["logits_per_text"], longer["logits_per_text"])
    none = compared(how, np.zeros((1, 7)), images)
    assert np.array_equal(none["logits_per_text"], np.zeros((1, 3)))
