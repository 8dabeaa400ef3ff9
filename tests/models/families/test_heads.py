"""Output heads: the rule of tying and the numbers of a config, compared with transformers; dtypes; errors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.artifacts import card as cards
from models.artifacts import weights
from models.artifacts.comparison import Session
from models.artifacts.export import export
from models.checkpoints.checkpoint import open_checkpoint
from models.checkpoints.safetensors import read_header
from models.errors import BadCheckpoint
from models.families import FAMILIES
from models.families.head_fitting import fit_head
from models.families.heads import HEADS
from models.recipes.heads import OutputHead, Transform
from models.recipes.steps import LayerNorm, Linear
from models.recipes.typed_json import from_json, to_json
from models.reference import head as head_reference
from tests.golden_cases import case, write_folder

Tensors = dict[str, NDArray[Any]]
V, D = 23, 16
RANDOM = np.random.default_rng(11)


def array(*shape: int) -> NDArray[np.float32]:
    return RANDOM.normal(size=shape).astype(np.float32)


def fitted(
    folder: Path, model_type: str, names: dict[str, tuple[int, ...]], **config: Any
) -> tuple[OutputHead | None, str]:
    """Return the head of a file with tensors of these names and shapes, the first the input table."""
    tensors = {name: array(*shape) for name, shape in names.items()}
    checkpoint = open_checkpoint(write_folder(folder, {"model_type": model_type, **config}, tensors))
    head, why = fit_head(checkpoint, model_type, next(iter(names)))
    return head, why or ""


E = "model.embed_tokens.weight"
OWN, SHARED = "lm_head.weight", "shared.weight"
DECODER = "decoder.embed_tokens.weight"
# model_type, names that the file holds, config -> the matrix and whether it is an input table; None: no head
TYING: list[tuple[str, tuple[str, ...], dict[str, Any], tuple[str, bool] | None]] = [
    ("llama", (E, OWN), {}, (OWN, False)),
    ("llama", (E, OWN), {"tie_word_embeddings": True}, (OWN, False)),  # both there: they are what they are
    ("llama", (E,), {"tie_word_embeddings": True}, (E, True)),
    ("llama", (E,), {}, None),
    ("llama", (E,), {"tie_word_embeddings": False}, None),
    ("gemma", (E,), {}, (E, True)),
    ("gemma", (E,), {"tie_word_embeddings": False}, None),
    ("gemma", (E, OWN), {"tie_word_embeddings": False}, (OWN, False)),
    ("t5", (SHARED,), {}, (SHARED, True)),
    ("t5", (SHARED,), {"tie_word_embeddings": False}, (SHARED, True)),  # T5 1.1: the flag says how h is scaled
    ("t5", (SHARED, OWN), {"tie_word_embeddings": False}, (OWN, False)),
    ("mt5", (SHARED,), {"tie_word_embeddings": False}, (SHARED, True)),
    ("switch_transformers", (SHARED,), {"tie_word_embeddings": False}, None),
    ("rembert", (E,), {"tie_word_embeddings": True}, None),
    ("fsmt", ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"), {}, None),
    ("marian", (f"model.{SHARED}",), {}, (f"model.{SHARED}", True)),
    ("marian", ("model.encoder.embed_tokens.weight", f"model.{DECODER}"), {}, (f"model.{DECODER}", True)),
    ("whisper", (f"model.{DECODER}",), {}, (f"model.{DECODER}", True)),
    (
        "llava",
        ("language_model.model.embed_tokens.weight", f"language_model.{OWN}"),
        {},
        (f"language_model.{OWN}", False),
    ),
    ("qwen2_vl", (E,), {"text_config": {"tie_word_embeddings": True}}, None),  # the outer config alone is asked
    ("qwen2_vl", (E,), {"tie_word_embeddings": True}, (E, True)),
    ("paligemma_of_tomorrow", (E, OWN), {}, None),
]


@pytest.mark.parametrize(("model_type", "names", "config", "expected"), TYING)
def test_own_tensor_wins_over_tying(
    model_type: str, names: tuple[str, ...], config: dict[str, Any], expected: tuple[str, bool] | None, tmp_path: Path
) -> None:
    head, why = fitted(tmp_path, model_type, dict.fromkeys(names, (V, D)), **config)
    assert (head and (head.matrix, head.tied)) == expected
    assert (why == "") == (expected is not None)
    assert head is None or (head.vocab_size, head.width) == (V, D)


ROOT = D**-0.5
NUMBERS: list[tuple[str, dict[str, Any], tuple[float, float, float | None]]] = [
    ("t5", {}, (ROOT, 1.0, None)),
    ("t5", {"tie_word_embeddings": False}, (1.0, 1.0, None)),
    ("t5", {"tie_word_embeddings": True, "scale_decoder_outputs": False}, (1.0, 1.0, None)),  # 1.1, saved again by 5.23
    ("longt5", {}, (ROOT, 1.0, None)),
    ("mt5", {"tie_word_embeddings": True}, (1.0, 1.0, None)),
    ("umt5", {"tie_word_embeddings": False}, (ROOT, 1.0, None)),
    ("switch_transformers", {}, (ROOT, 1.0, None)),
    ("minicpm3", {"dim_model_base": 4}, (4 / D, 1.0, None)),
    ("minicpm3", {"dim_model_base": None}, (1.0, 1.0, None)),
    ("granite", {"logits_scaling": 8.0}, (1.0, 0.125, None)),
    ("hyperclovax", {"logits_scaling": 8.0}, (1.0, 8.0, None)),
    ("falcon_h1", {"lm_head_multiplier": 0.3}, (1.0, 0.3, None)),
    ("cohere", {}, (1.0, 0.0625, None)),
    ("cohere2", {"logit_scale": 0.25}, (1.0, 0.25, None)),
    ("gemma2", {}, (1.0, 1.0, 30.0)),
    ("gemma2", {"final_logit_softcapping": None}, (1.0, 1.0, None)),
    ("gemma3_text", {}, (1.0, 1.0, None)),
    ("gemma4_text", {"final_logit_softcapping": 7.5}, (1.0, 1.0, 7.5)),
    ("gemma3n", {"text_config": {"final_logit_softcapping": 9.0}}, (1.0, 1.0, 9.0)),
    ("nanochat", {}, (1.0, 1.0, 15.0)),
    ("recurrent_gemma", {}, (1.0, 1.0, 30.0)),
]


@pytest.mark.parametrize(("model_type", "config", "expected"), NUMBERS)
def test_head_numbers_come_from_config_or_defaults(
    model_type: str, config: dict[str, Any], expected: tuple[float, float, float | None], tmp_path: Path
) -> None:
    head, _ = fitted(tmp_path, model_type, {E: (V, D), OWN: (V, D)}, **config)
    assert head is not None
    assert (head.before, head.after) == pytest.approx(expected[:2], abs=0, rel=1e-15)
    assert head.cap == expected[2]


def test_every_language_model_family_has_a_head() -> None:
    towers = {"clip_text_model", "siglip_text_model", "siglip2_text_model"}
    two_hidden_layers = {"ultrabert"}  # its head has, which no other has
    embedders = {"embedding_gemma2_text", "dpr", "nvembed"}
    assert set(FAMILIES) - set(HEADS) == towers | two_hidden_layers | embedders


def test_checkpoint_without_head_is_exported_with_reason(tmp_path: Path) -> None:
    golden = case("input_bert")
    bare = {name: value for name, value in golden.weights.items() if not name.startswith("cls.")}
    card = export(write_folder(tmp_path / "x", golden.config, bare), tmp_path / "out")
    assert card.head is None
    assert "cls.predictions.transform.dense.weight" in (card.no_head_reason or "")
    assert "embedding" in card.graphs
    assert not (tmp_path / "out/head.onnx").exists()
    assert cards.read(tmp_path / "out") == card


def test_newest_bias_spelling_wins(tmp_path: Path) -> None:
    golden = case("input_bert")
    both = golden.weights | {"cls.predictions.decoder.bias": array(61)}
    checkpoint = open_checkpoint(write_folder(tmp_path, golden.config, both))
    head, _ = fit_head(checkpoint, "bert", "bert.embeddings.word_embeddings.weight")
    assert head is not None
    assert head.bias == "cls.predictions.decoder.bias"


def test_reads_tensorflow_norm_names(tmp_path: Path) -> None:
    golden = case("input_bert")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in golden.weights.items()
    }
    card = export(write_folder(tmp_path / "x", golden.config, old), tmp_path / "out")
    assert card.head
    assert card.head.transform
    assert card.head.transform.norm.weight.endswith("transform.LayerNorm.gamma")


def test_deberta_falls_back_to_its_own_head(tmp_path: Path) -> None:
    golden = case("input_deberta_v2_rel_only")
    renamed = {
        name.replace("cls.predictions.transform.", "lm_predictions.lm_head.").replace(
            "cls.predictions.", "lm_predictions.lm_head."
        ): value
        for name, value in golden.weights.items()
    }
    out = tmp_path / "out"
    card = export(write_folder(tmp_path / "x", golden.config | {"legacy": False}, renamed), out)
    assert card.head
    hidden = golden.arrays["head_in"].reshape(-1, 32)
    logits = Session(out / "head.onnx").run({"hidden": hidden}, ("logits",))["logits"]
    np.testing.assert_allclose(logits, golden.arrays["logits"].reshape(logits.shape), atol=1e-5)


BAD: dict[str, tuple[str, dict[str, tuple[int, ...]], dict[str, Any], str]] = {
    "a matrix of one dimension": ("llama", {E: (V, D), OWN: (V,)}, {}, "must have 2 dimensions"),
    "a bias of another length": ("phi", {E: (V, D), OWN: (V, D), "lm_head.bias": (V + 1,)}, {}, f"has {V} rows"),
    "a cap below zero": ("gemma2", {E: (V, D)}, {"final_logit_softcapping": -3}, "must be a number above 0"),
    "a cap of zero": ("gemma2", {E: (V, D)}, {"final_logit_softcapping": 0}, "must be a number above 0"),
    "a cap beyond floats": ("gemma2", {E: (V, D)}, {"final_logit_softcapping": 10**400}, "must be a number above 0"),
    "a multiplier that is a text": ("granite", {E: (V, D), OWN: (V, D)}, {"logits_scaling": "8"}, "logits_scaling '8'"),
    "a norm of another width": (
        "roberta",
        {E: (V, D), "lm_head.dense.weight": (D, D), "lm_head.dense.bias": (D,), "lm_head.layer_norm.weight": (D + 1,)}
        | {"lm_head.layer_norm.bias": (D,), "lm_head.bias": (V,)},
        {},
        "is 16 columns wide",
    ),
    "an unknown activation": (
        "bert",
        {E: (V, D), "cls.predictions.transform.dense.weight": (D, D), "cls.predictions.transform.dense.bias": (D,)}
        | {"cls.predictions.transform.LayerNorm.weight": (D,), "cls.predictions.transform.LayerNorm.bias": (D,)}
        | {"cls.predictions.bias": (V,)},
        {"hidden_act": "snake"},
        "hidden_act 'snake'",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_rejects_inconsistent_head(what: str, tmp_path: Path) -> None:
    model_type, names, config, message = BAD[what]
    with pytest.raises(BadCheckpoint, match=message):
        fitted(tmp_path, model_type, names, **config)


def test_adaptive_softmax_is_not_a_head(tmp_path: Path) -> None:
    head, why = fitted(tmp_path, "xlm", {E: (V, D), "pred_layer.proj.bias": (V,)}, asm=True)
    assert head is None
    assert "asm" in why


def big(tmp_path: Path, tied: bool, seed: int = 3) -> tuple[Path, Tensors]:
    """Write a plain decoder whose matrix is multiplied in more than one block."""
    random = np.random.default_rng(seed)
    tensors = {E: random.normal(size=(9001, 256)).astype(np.float32)}
    if not tied:
        tensors[OWN] = random.normal(size=(9001, 256)).astype(np.float32)
    sizes = {"hidden_size": 256, "num_attention_heads": 2, "vocab_size": 9001, "tie_word_embeddings": tied}
    return write_folder(tmp_path / "x", {"model_type": "llama", **sizes}, tensors), tensors


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", ["keep", "bfloat16", "float16", "int8"])
def test_matrix_of_any_dtype_gives_row_products(dtype: str, tied: bool, tmp_path: Path) -> None:
    checkpoint, tensors = big(tmp_path, tied)
    out = tmp_path / "out"
    card = export(checkpoint, out, dtype=dtype)
    assert card.head
    assert card.head.tied == tied
    stored = np.asarray(weights.tensors(out, card)[card.head.matrix]).astype(np.float64)
    hidden = np.random.default_rng(5).normal(size=(7, 256)).astype(np.float32)
    logits = Session(out / "head.onnx").run({"hidden": hidden}, ("logits",))["logits"]
    expected = hidden.astype(np.float64) @ stored.T
    np.testing.assert_allclose(logits, expected, atol=2e-6 * np.abs(expected).max())
    exact = head_reference.logits(card.head, weights.tensors(out, card), hidden)
    np.testing.assert_allclose(exact, expected, rtol=1e-12, atol=1e-12)
    loss = {"keep": 0.0, "bfloat16": 2**-8, "float16": 2**-11}.get(dtype, 0.3)
    kept = tensors[E if tied else OWN]
    assert np.abs(stored - kept).max() <= loss * np.abs(kept).max()
    assert 0 <= card.largest_difference["logits"] < 1e-5
    assert card.flops_per_token["head"] == 2 * 9001 * 256


def test_tied_matrix_is_stored_once(tmp_path: Path) -> None:
    checkpoint, _ = big(tmp_path, tied=True)
    export(checkpoint, tmp_path / "out")
    assert list(read_header(tmp_path / "out/weights.safetensors")) == [E]
    assert (tmp_path / "out/head.onnx").stat().st_size < 2000


def test_logits_row_does_not_depend_on_other_rows(tmp_path: Path) -> None:
    checkpoint, _ = big(tmp_path, tied=True)
    export(checkpoint, tmp_path / "out", dtype="bfloat16")
    session = Session(tmp_path / "out/head.onnx")
    hidden = np.random.default_rng(6).normal(size=(5, 256)).astype(np.float32)
    together = session.run({"hidden": hidden}, ("logits",))["logits"]
    for row in range(5):
        alone = session.run({"hidden": hidden[row : row + 1]}, ("logits",))["logits"][0]
        np.testing.assert_allclose(alone, together[row], atol=1e-6 * np.abs(together).max())


def test_head_survives_card() -> None:
    transform = Transform(Linear("d.weight", None), "gelu", LayerNorm("n.weight", None, 1e-5))
    head = OutputHead(8, 4, 100, "m", True, "b", transform, 0.5, 2.0, 30.0)
    assert from_json(OutputHead, to_json(OutputHead, head)) == head
