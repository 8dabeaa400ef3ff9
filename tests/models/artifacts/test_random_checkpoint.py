"""Created checkpoints: whole models, their tensors as published files hold them, and the configs they come from."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from models.artifacts.export import export
from models.artifacts.random_checkpoint import add_head, create
from models.errors import ModelError
from models.families import FAMILIES
from models.families.classifiers import CLASSIFIERS
from tests.sweeps import sampled

SIZES = {"vocab_size": 61, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 24}
WITHOUT_HEAD = [
    name for name, family in FAMILIES.items() if family.block and not (name in CLASSIFIERS and CLASSIFIERS[name].layers)
]


def config_file(folder: Path, content: Any) -> Path:
    path = folder / "sizes.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def created(folder: Path, model_type: str, **keys: Any) -> dict[str, Any]:
    create(folder / "x", model_type=model_type, config=config_file(folder, SIZES | keys), whole=True)
    return dict(load_file(folder / "x/model.safetensors"))


@pytest.mark.parametrize("model_type", sampled(WITHOUT_HEAD, 5))
def test_every_family_without_a_head_exports_as_created(model_type: str, tmp_path: Path) -> None:
    more = {"num_key_value_heads": 2} if "num_key_value_heads" in FAMILIES[model_type].defaults else {}
    more |= {"rotary_dim": 4} if model_type in ("gptj", "codegen") else {}
    sections = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
    more |= {"rope_parameters": sections} if model_type in ("qwen2_vl_text", "qwen2_5_vl_text") else {}
    created(tmp_path, model_type, **more)
    card = export(tmp_path / "x", tmp_path / "out", encoder=True)
    assert card.encoder
    assert card.random  # a page and a start say so
    assert (card.vocab_size, card.hidden_size) == (61, 32)


# Names and shapes of transformers 5.23's state_dict of the same sizes, where nothing else is said.
STORED = {
    "modernbert": {"model.layers.1.attn.Wqkv.weight": (96, 32), "model.layers.1.mlp.Wi.weight": (48, 32)},
    "gpt2": {
        "transformer.h.1.attn.c_attn.weight": (32, 96),
        "transformer.h.1.attn.c_attn.bias": (96,),
        "transformer.h.1.mlp.c_fc.weight": (32, 24),
    },
    "phi3": {"model.layers.1.self_attn.qkv_proj.weight": (64, 32), "model.layers.1.mlp.gate_up_proj.weight": (48, 32)},
    "nomic_bert": {"encoder.layers.1.attn.Wqkv.weight": (96, 32)},  # of the published code, which transformers reads
    "mixtral": {
        "model.layers.1.block_sparse_moe.gate.weight": (8, 32),
        "model.layers.1.block_sparse_moe.experts.7.w2.weight": (32, 24),
    },
    "granitemoe": {"model.layers.1.block_sparse_moe.input_linear.weight": (8, 48, 32)},
    "gpt_neox": {"gpt_neox.layers.1.attention.query_key_value.weight": (96, 32)},
    "qwen3": {"model.layers.1.self_attn.q_proj.weight": (512, 32), "model.layers.1.self_attn.k_norm.weight": (128,)},
}


@pytest.mark.parametrize("model_type", STORED)
def test_tensors_are_stored_as_transformers_stores_them(model_type: str, tmp_path: Path) -> None:
    tensors = created(
        tmp_path, model_type, **({"num_key_value_heads": 2} if model_type in ("phi3", "qwen3", "mixtral") else {})
    )
    shapes = {name: tensors[name].shape for name in STORED[model_type]}
    assert shapes == STORED[model_type]


@pytest.mark.parametrize(("model_type", "weight"), [("gemma3_text", 0.0), ("llama", 1.0)])
def test_norms_multiply_by_one(model_type: str, weight: float, tmp_path: Path) -> None:
    norms = [tensor for name, tensor in created(tmp_path, model_type).items() if "norm" in name]
    assert len(norms) >= 5
    assert all((tensor == weight).all() for tensor in norms)


def test_a_transposed_matrix_spreads_by_its_inputs(tmp_path: Path) -> None:
    sizes = config_file(tmp_path, {"n_embd": 256, "n_head": 4, "n_layer": 1, "vocab_size": 50})
    create(tmp_path / "x", model_type="gpt2", config=sizes, whole=True, init="scaled")
    up = load_file(tmp_path / "x/model.safetensors")["transformer.h.0.mlp.c_fc.weight"]
    assert up.shape == (256, 1024)
    assert up.std() == pytest.approx(256**-0.5, rel=0.01)


def test_config_keys_replace_defaults_and_are_kept(tmp_path: Path) -> None:
    keys = {
        "model_type": "gpt2",
        "hidden_size": 32,
        "num_attention_heads": 4,
        "favourite": [1],
        "torch_dtype": "float16",
    }
    create(tmp_path / "x", config=config_file(tmp_path, keys), vocab_size=40)
    config = json.loads((tmp_path / "x/config.json").read_text())
    assert (config["hidden_size"], config["favourite"], config["n_layer"]) == (32, [1], 12)
    assert (config["vocab_size"], config["dtype"]) == (40, "float16")
    assert {"n_embd", "n_head", "torch_dtype"} & set(config) == set()
    tensors = load_file(tmp_path / "x/model.safetensors")
    assert tensors["transformer.wte.weight"].shape == (40, 32)
    assert tensors["transformer.wte.weight"].dtype == np.float16


def test_a_requested_size_replaces_the_configs(tmp_path: Path) -> None:
    keys = {"model_type": "gpt2", "hidden_size": 32, "n_head": 4}
    create(tmp_path / "x", config=config_file(tmp_path, keys), hidden_size=48)
    config = json.loads((tmp_path / "x/config.json").read_text())
    assert (config["n_embd"], config["n_head"], "hidden_size" in config) == (48, 4, False)


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no JSON": ("{", {}, "is not JSON"),
    "a list": ([1], {}, "must be an object"),
    "no family": ({"hidden_size": 8}, {}, "give --model-type NAME"),
    "a family that is a number": ({"model_type": 3}, {}, "says model_type 3"),
    "another family": ({"model_type": "bert"}, {"model_type": "llama"}, "--model-type llama is not .* --config, bert"),
    "an unknown family": ({"model_type": "berd"}, {}, "the nearest is 'bert'"),
    "heads that do not divide": (
        {"model_type": "bert", "hidden_size": 50},
        {},
        "num_attention_heads 12.* hidden_size 50",
    ),
    "key heads that do not divide": (
        {"model_type": "qwen3", "num_attention_heads": 6, "num_key_value_heads": 4},
        {},
        "num_key_value_heads 4; it must be a number that divides the 6",
    ),
    "a size of nothing": ({"model_type": "bert", "num_hidden_layers": -1}, {}, "num_hidden_layers -1"),
    "a size in words": ({"model_type": "bert", "intermediate_size": "many"}, {}, "intermediate_size 'many'"),
    "a pad id outside the vocabulary": (
        {"model_type": "bert", "vocab_size": 9, "pad_token_id": 9},
        {},
        "pad_token_id 9",
    ),
    "a dtype that is not written": ({"model_type": "bert", "dtype": "int8"}, {}, "dtype 'int8'"),
    "arithmetic that is not computed": (
        {"model_type": "gpt2", "scale_attn_weights": False},
        {},
        "cannot be created whole: its blocks are computed where scale_attn_weights",
    ),
    "positions that are not computed": (
        {"model_type": "roberta", "position_embedding_type": "relative_key"},
        {},
        "position_embedding_type 'relative_key'",
    ),
    "blocks that are not known": ({"model_type": "funnel"}, {}, "'funnel' cannot be created whole"),
    "a decoder of BERT's": ({"model_type": "bert", "is_decoder": True}, {}, "is_decoder true; leave out --whole"),
}


@pytest.mark.parametrize("name", BAD)
def test_rejects_a_config_that_makes_no_model(name: str, tmp_path: Path) -> None:
    content, options, says = BAD[name]
    with pytest.raises(ModelError, match=says):
        create(tmp_path / "x", config=config_file(tmp_path, content), whole=True, **options)
    assert not (tmp_path / "x").exists()


def test_uncomputed_blocks_still_leave_an_input_layer(tmp_path: Path) -> None:
    create(tmp_path / "x", model_type="funnel", vocab_size=30, hidden_size=16)
    assert not export(tmp_path / "x", tmp_path / "out").encoder


def test_added_head_replaces_one_with_other_labels(tmp_path: Path) -> None:
    config = config_file(tmp_path, SIZES)
    create(tmp_path / "three", model_type="bert", config=config, whole=True, labels=3)
    add_head(tmp_path / "one", tmp_path / "three", 1)
    assert load_file(tmp_path / "one/model.safetensors")["classifier.weight"].shape == (1, 32)
    card = export(tmp_path / "one", tmp_path / "out", encoder=True)
    assert (card.classifier.labels, card.random) == (("LABEL_0",), True)
    assert "random, of the head" in [setting.value for setting in card.provenance]
    add_head(tmp_path / "same", tmp_path / "three", 3, seed=1)
    kept = [load_file(tmp_path / name / "model.safetensors")["classifier.weight"] for name in ("three", "same")]
    np.testing.assert_array_equal(*kept)
