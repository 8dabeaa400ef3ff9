"""Adapters of the peft library: what is merged, where the base is found, and every one that is refused."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from models.artifacts.adoption import adopt
from models.artifacts.description import describe
from models.artifacts.export import export
from models.checkpoints.checkpoint import read_tensors
from models.errors import BadCheckpoint, ModelError
from models.families import opening
from models.families.opening import AdapterOptions
from tests.golden_cases import tiny_bert, tiny_config, write_folder, write_json, write_tiny_bert
from tests.hub_server import COMMIT, serving
from tests.peft_adapters import ALPHA, LINEARS, RANK, Tensors, matrices, merged, write_adapter
from tests.torch_files import write_torch

QUERY = "encoder.layer.0.attention.self.query"
STEM = f"base_model.model.{QUERY}"
WORDS = "embeddings.word_embeddings"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_tiny_bert(tmp_path / "base", pooling="mean")


def held_by(what: Path | str, **options: Any) -> Tensors:
    """The tensors of a checkpoint, its adapter merged."""
    with opening.located(what, **options) as place:
        checkpoint = place.checkpoint()
        tensors = read_tensors(checkpoint, checkpoint.tensors)
        return {name: np.array(rows[:], np.float32) for name, rows in tensors.items()}


def check(held: Tensors, expected: Tensors) -> None:
    assert held.keys() == expected.keys()
    for name, wanted in expected.items():
        np.testing.assert_allclose(held[name], wanted, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({}, ALPHA / RANK),
        ({"use_rslora": True}, ALPHA / math.sqrt(RANK)),
        ({"alpha_pattern": {"nothing": 7, "self.query|self.value|dense": 5}}, 5 / RANK),
        ({"r": 9, "rank_pattern": {r".*\.layer\.[01]\..*": RANK}}, ALPHA / RANK),
        ({"target_modules": "all-linear", "lora_dropout": 0.5, "layers_to_transform": [0]}, ALPHA / RANK),
    ],
)
def test_lora_is_added_to_the_weights(config: dict[str, Any], scale: float, base: Path) -> None:
    adapter = matrices(1)
    folder = write_adapter(base.parent / "adapter", str(base), adapter, **config)
    check(held_by(folder), merged(tiny_bert(), adapter, scale))


def test_adapters_that_torch_saved_are_read(base: Path) -> None:
    folder = write_adapter(base.parent / "adapter", str(base), adapter := matrices(1))
    (folder / "adapter_model.safetensors").unlink()
    write_torch(folder / "adapter_model.bin", adapter)
    check(held_by(folder), merged(tiny_bert(), adapter))


def test_dora_scales_each_output(base: Path) -> None:
    adapter, weights = matrices(1, (QUERY,)), tiny_bert()
    magnitude = np.linspace(0.5, 2, 32, dtype=np.float32)
    folder = base.parent / "adapter"
    write_adapter(folder, str(base), adapter | {f"{STEM}.lora_magnitude_vector": magnitude}, use_dora=True)
    expected = merged(weights, adapter)
    rows = expected[f"{QUERY}.weight"].astype(np.float64)
    expected[f"{QUERY}.weight"] = rows / np.linalg.norm(rows, axis=1, keepdims=True) * magnitude[:, None]
    check(held_by(folder), expected)
    assert np.linalg.norm(held_by(folder)[f"{QUERY}.weight"], axis=1) == pytest.approx(magnitude, rel=1e-5)


def test_tables_and_transposed_matrices_take_the_transposed_product(base: Path) -> None:
    draw, weights = np.random.default_rng(1), tiny_bert()
    vocabulary, width = weights[f"{WORDS}.weight"].shape
    lora_a, lora_b = draw.normal(size=(RANK, vocabulary)), draw.normal(size=(width, RANK))
    held = {"lora_embedding_A": lora_a.astype(np.float32), "lora_embedding_B": lora_b.astype(np.float32)}
    held = {f"base_model.model.{WORDS}.{name}": each for name, each in held.items()}
    added = {f"{WORDS}.weight": weights[f"{WORDS}.weight"] + ALPHA / RANK * (lora_b @ lora_a).T}
    check(held_by(write_adapter(base.parent / "tables", str(base), held)), weights | added)
    square = matrices(1, (QUERY,))
    turned = merged(weights, square)
    turned[f"{QUERY}.weight"] = weights[f"{QUERY}.weight"] + (turned[f"{QUERY}.weight"] - weights[f"{QUERY}.weight"]).T
    check(held_by(write_adapter(base.parent / "turned", str(base), square, fan_in_fan_out=True)), turned)


def test_other_tensors_replace_the_base_s(base: Path) -> None:
    weights, bias = tiny_bert(), np.full(32, 0.5, np.float32)
    held = matrices(1, (QUERY,)) | {f"{STEM}.lora_B.bias": bias, "base_model.model.embeddings.LayerNorm.bias": bias}
    held["base_model.model.encoder.layer.1.output.dense.base_layer.bias"] = bias
    expected = merged(weights, held) | {f"{QUERY}.bias": weights[f"{QUERY}.bias"] + ALPHA / RANK * bias}
    expected |= {"embeddings.LayerNorm.bias": bias, "encoder.layer.1.output.dense.bias": bias}
    check(held_by(write_adapter(base.parent / "adapter", str(base), held)), expected)


@pytest.mark.parametrize(("of_file", "of_adapter"), [("bert.", ""), ("", "bert."), ("bert.", "bert.")])
def test_names_of_either_class_are_read(of_file: str, of_adapter: str, tmp_path: Path) -> None:
    weights, adapter = tiny_bert(), matrices(1)
    base = {f"{of_file}{name}": each for name, each in weights.items()}
    write_folder(tmp_path / "base", tiny_config(weights), base)
    named = {
        name.replace("base_model.model.", f"base_model.model.{of_adapter}"): each for name, each in adapter.items()
    }
    held = held_by(write_adapter(tmp_path / "adapter", "base", named))
    check(held, {f"{of_file}{name}": each for name, each in merged(weights, adapter).items()})


def test_an_adapter_s_files_come_before_its_base_s(base: Path, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter", "/trained/on/base", matrices(1))
    write_json(folder / "config_sentence_transformers.json", {"prompts": {"query": "a "}})
    card = export(folder, tmp_path / "out")
    assert (card.name, card.source) == ("out", "adapter")
    assert (card.prompts, card.max_tokens, card.default_output) == ({"query": "a "}, 24, "sentence_embedding")
    assert describe(str(folder)).startswith("adapter")


def test_a_head_that_the_base_lacks_makes_a_classifier(base: Path, tmp_path: Path) -> None:
    head = {"base_model.model.classifier.weight": np.ones((3, 32), np.float32)}
    pooler = {"bert.pooler.dense.weight": np.eye(32, dtype=np.float32)}
    weights = {f"bert.{name}": each for name, each in tiny_bert().items()} | pooler
    weights["bert.pooler.dense.bias"] = np.zeros(32, np.float32)
    write_folder(tmp_path / "plain", tiny_config(tiny_bert()), weights)
    adapter = {name.replace("base_model.model.", "base_model.model.bert."): each for name, each in matrices(1).items()}
    folder = write_adapter(tmp_path / "adapter", "plain", adapter | head, task_type="SEQ_CLS")
    card = export(folder, tmp_path / "out")
    assert card.classifier
    assert card.classifier.labels == ("LABEL_0", "LABEL_1", "LABEL_2")


# ---- where the base is


def test_the_base_is_found_beside_on_the_hub_or_by_option(base: Path, tmp_path: Path) -> None:
    adapter = matrices(1)
    expected = merged(tiny_bert(), adapter)
    beside = write_adapter(tmp_path / "adapter", "someone/base", adapter)
    check(held_by(beside), expected)
    elsewhere = write_adapter(tmp_path / "far/adapter", "org/name", adapter, revision="main")
    with serving(base) as hub:
        check(held_by(elsewhere, endpoint=hub.endpoint), expected)
    check(held_by(elsewhere, adapters=AdapterOptions(str(base))), expected)


def test_an_adapter_on_the_hub_is_merged(base: Path, tmp_path: Path) -> None:
    adapter = matrices(1)
    folder = write_adapter(tmp_path / "far/adapter", "base", adapter)
    with (
        serving(folder) as hub,
        opening.located("org/name", endpoint=hub.endpoint, adapters=AdapterOptions(str(base))) as place,
    ):
        assert place.name == f"org/name@{COMMIT}"
        checkpoint = place.checkpoint()
        name = f"{QUERY}.weight"
        np.testing.assert_allclose(
            read_tensors(checkpoint, [name])[name], merged(tiny_bert(), adapter)[name], rtol=1e-6, atol=1e-6
        )


def test_the_adapter_of_a_task_is_merged(base: Path) -> None:
    by_task = {"retrieval": matrices(1), "code": matrices(2)}
    stored = {
        name.replace(".weight", f".{task}.weight"): matrix
        for task, held in by_task.items()
        for name, matrix in held.items()
    }
    write_adapter(base / "adapters", "org/name", stored)
    for task, held in by_task.items():
        check(held_by(base, route=task), merged(tiny_bert(), held))
    with serving(base) as hub, opening.located("org/name", endpoint=hub.endpoint, route="code") as place:
        name = f"{QUERY}.weight"
        expected = merged(tiny_bert(), by_task["code"])[name]
        np.testing.assert_allclose(read_tensors(place.checkpoint(), [name])[name], expected, rtol=1e-6, atol=1e-6)
    for route in (None, "classification"):
        with pytest.raises(BadCheckpoint, match="a model each here: add --route code or retrieval"):
            held_by(base, route=route)


def test_an_adapter_may_name_its_modules_by_another_prefix(base: Path) -> None:
    adapter = matrices(1)
    save_file({f"model.{name}": held for name, held in tiny_bert().items()}, base / "model.safetensors")
    other = {name.replace("encoder.", "model.language_model.encoder."): held for name, held in adapter.items()}
    expected = {f"model.{name}": held for name, held in merged(tiny_bert(), adapter).items()}
    check(held_by(write_adapter(base.parent / "adapter", "base", other)), expected)


# ---- what is refused

CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    **{kind: ({"peft_type": kind}, f"says peft_type '{kind}'") for kind in ("IA3", "VERA", "LOHA", "PROMPT_TUNING")},
    "before its base": ({"peft_type": "IA3", "base_model_name_or_path": "/gone"}, "says peft_type 'IA3'"),
    "no kind": ({"peft_type": None}, "says peft_type None"),
    "tokens": ({"trainable_token_indices": [1]}, "sets trainable_token_indices, which is not computed"),
    "aLoRA": ({"alora_invocation_tokens": [1]}, "sets alora_invocation_tokens"),
    "PiSSA": ({"init_lora_weights": "pissa_niter_4"}, "'pissa_niter_4', which changed the base model's weights too"),
    "other rank": ({"r": 3}, "have rank 2, and adapter_config.json says 3"),
    "no rank": ({"r": None}, "r of .* is None; it must be a number above 0"),
    "text": ({"lora_alpha": "3"}, "lora_alpha of .* is '3'"),
    "DoRA without magnitudes": ({"use_dora": True}, "disagree on use_dora"),
    "slow pattern": ({"alpha_pattern": {"(a+)+": 1}}, r"alpha_pattern has '\(a\+\)\+', which is not read"),
    "broken pattern": ({"rank_pattern": {"(": 1}}, "rank_pattern has"),
    "no base": ({"base_model_name_or_path": None}, "names no base model: add --base"),
    "lost base": ({"base_model_name_or_path": "/gone"}, "was trained on '/gone', which is not here: add --base"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_adapters_that_are_not_computed_are_refused(name: str, base: Path) -> None:
    changes, message = CONFIGS[name]
    folder = write_adapter(base.parent / "adapter", str(base), matrices(1), **changes)
    with pytest.raises(BadCheckpoint, match=message):
        held_by(folder)


FILES: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "half a pair": (lambda held: {f"{STEM}.lora_A.weight": held[f"{STEM}.lora_A.weight"]}, "does not hold both"),
    "other module": (
        lambda held: {name.replace("query", "other"): each for name, each in held.items()},
        "self.other', whose weight is .* and base holds none",
    ),
    "other width": (
        lambda held: held | {f"{STEM}.lora_A.weight": np.ones((RANK, 31), np.float32)},
        r"whose weight is \[32, 31\], and base holds one of shape \[32, 32\]: it was trained on another",
    ),
    "unknown part": (
        lambda held: held | {f"{STEM}.lora_diag": np.ones(RANK, np.float32)},
        "lora_diag'; what it changes is not known",
    ),
    "short bias": (lambda held: held | {f"{STEM}.lora_B.bias": np.ones(3, np.float32)}, "has not 32 values"),
    "codes": (lambda held: {name: each.astype(np.int8) for name, each in held.items()}, "is I8; weights are read as"),
    "other model": (
        lambda held: {name.replace("encoder", "decoder"): each for name, each in held.items()},
        "decoder.layer.0.attention.self.query.weight', of which base holds no weight",
    ),
    "nothing": (lambda held: {}, "holds no tensor"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_do_not_fit_are_refused(name: str, base: Path) -> None:
    changed, message = FILES[name]
    folder = write_adapter(base.parent / "adapter", str(base), changed(matrices(1)))
    with pytest.raises(BadCheckpoint, match=message):
        held_by(folder)


def test_what_is_no_adapter_takes_no_option_of_one(base: Path, tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match=r"is no adapter .* so leave out --base"):
        export(base, tmp_path / "out", base="other")
    with pytest.raises(BadCheckpoint, match="--adapter a: base is no adapter"):
        export(base, tmp_path / "out", adapters={"a": str(base)})
    adapter = write_adapter(tmp_path / "adapter", "base", matrices(1))
    (tmp_path / "second").mkdir()
    second = write_adapter(tmp_path / "second", "adapter", matrices(2))
    with pytest.raises(BadCheckpoint, match="adapter, the base of second, is an adapter itself"):
        export(second, tmp_path / "out")
    with pytest.raises(ModelError):
        adopt(adapter, tmp_path / "out")
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(BadCheckpoint, match=r"holds adapter_config.json and no adapter_model.safetensors"):
        export(adapter, tmp_path / "out")


# ---- side by side


def test_adapters_of_other_ranks_share_their_tensors(base: Path, tmp_path: Path) -> None:
    """The vectors are judged in tests/test_peft_tasks.py and by peft itself in tests/parity."""
    write_adapter(tmp_path / "a", "base", matrices(1))
    write_adapter(tmp_path / "b", "base", matrices(2, LINEARS[:1], 4), r=4)
    card = export(base, tmp_path / "out", adapters={name: str(tmp_path / name) for name in "ab"})
    assert (card.tasks, card.default_task) == (("a", "b"), None)
    held = json.loads((tmp_path / "out/card.json").read_text())["encoder"][0]["query"]["adapter"]
    assert (held["tasks"], held["rank"], held["scale"]) == (2, 4, 1.0)


ALONE: dict[str, tuple[dict[str, Any], Tensors, str]] = {
    "DoRA": ({"use_dora": True}, {f"{STEM}.lora_magnitude_vector": np.ones(32, np.float32)}, "scales weights"),
    "bias": ({}, {f"{STEM}.base_layer.bias": np.ones(32, np.float32)}, "replaces 'encoder.* of its base"),
}


@pytest.mark.parametrize("name", ALONE)
def test_adapters_that_do_more_are_merged_alone(name: str, base: Path, tmp_path: Path) -> None:
    config, more, message = ALONE[name]
    folder = write_adapter(tmp_path / "a", "base", matrices(1, (QUERY,)) | more, **config)
    with pytest.raises(BadCheckpoint, match=message):
        export(base, tmp_path / "out", adapters={"a": str(folder)})
    export(folder, tmp_path / "out")


@pytest.mark.parametrize(("task", "message"), [("query", "is a prompt of base"), ("a:b", "is not of letters")])
def test_names_that_mean_something_else_are_refused(task: str, message: str, base: Path, tmp_path: Path) -> None:
    write_json(base / "config_sentence_transformers.json", {"prompts": {"query": "a "}})
    folder = write_adapter(tmp_path / "a", "base", matrices(1))
    with pytest.raises(BadCheckpoint, match=message):
        export(base, tmp_path / "out", adapters={task: str(folder)})
