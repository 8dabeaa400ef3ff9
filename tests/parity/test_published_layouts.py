"""Checkpoints as code published beside them writes them: other tensor names, fused tensors, other config keys."""

import json
import math
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from models.artifacts.export import export
from models.positions.alibi import slopes
from tests.parity.block_configs import CONFIGS
from tests.parity.conftest import Ledger
from tests.parity.test_blocks_live import TOLERANCE, Encoder, expected, made, relative

pytestmark = pytest.mark.parity
SEEDS = range(6)
LENGTHS = (1, 2, 17, 64, 300)
NOMIC_KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
}


def _check(family: str, folder: Path, model: Any, seed: int, ledger: Ledger) -> None:
    card = export(folder / "checkpoint", folder / "out")
    encoder, draw = Encoder(folder / "out", card), np.random.default_rng(seed)
    for length in LENGTHS:
        ids = draw.integers(3, model.config.vocab_size, length)
        difference = relative(encoder.rows([ids])[0], expected(model, ids))
        ledger.check(f"{family}, published", "last_hidden_state", difference, TOLERANCE)


def _rewrite(folder: Path, **changes: Any) -> dict[str, Any]:
    """Change config.json; None removes a key."""
    path = folder / "checkpoint/config.json"
    config = {**json.loads(path.read_text()), **changes}
    config = {key: value for key, value in config.items() if value is not None}
    path.write_text(json.dumps(config))
    return config


def _theta(config: Any) -> float:
    return float(config.rope_parameters["rope_theta"])


@pytest.mark.parametrize("seed", SEEDS)
def test_nomic(seed: int, tmp_path: Path, ledger: Ledger) -> None:
    model = made("nomic_bert", seed, tmp_path / "checkpoint")
    old: dict[str, Any] = {own: getattr(model.config, key) for key, own in NOMIC_KEYS.items()}
    old |= {"activation_function": "swiglu", "rotary_emb_base": _theta(model.config), "rotary_emb_fraction": 1.0}
    old |= {"prenorm": False, "qkv_proj_bias": False, "rotary_emb_interleaved": False}
    _rewrite(tmp_path, **dict.fromkeys((*NOMIC_KEYS, "hidden_act", "rope_parameters", "head_dim")), **old)
    assert "encoder.layers.0.attn.Wqkv.weight" in load_file(tmp_path / "checkpoint/model.safetensors")
    _check("nomic_bert", tmp_path, model, seed, ledger)


@pytest.mark.parametrize("seed", SEEDS)
def test_gte(seed: int, tmp_path: Path, ledger: Ledger) -> None:
    model = made("gte", seed, tmp_path / "checkpoint")
    theta = _theta(model.config)
    _rewrite(tmp_path, model_type="new", position_embedding_type="rope", rope_parameters=None, rope_theta=theta)
    tensors = load_file(tmp_path / "checkpoint/model.safetensors")
    assert any(name.endswith("attention.qkv_proj.weight") for name in tensors)
    assert any(name.endswith("mlp.up_gate_proj.weight") for name in tensors)
    _check("gte", tmp_path, model, seed, ledger)


@pytest.mark.parametrize("seed", SEEDS)
def test_jina_v3(seed: int, tmp_path: Path, ledger: Ledger) -> None:
    model = made("jina_embeddings_v3", seed, tmp_path / "checkpoint")
    theta, changes = _theta(model.config), {"model_type": "xlm-roberta", "position_embedding_type": "rotary"}
    _rewrite(tmp_path, **changes, rope_parameters=None, rotary_emb_base=theta)
    tensors = load_file(tmp_path / "checkpoint/model.safetensors")
    assert any(name.endswith("mixer.Wqkv.weight") for name in tensors)
    _check("jina_embeddings_v3", tmp_path, model, seed, ledger)


class Gated(torch.nn.Module):
    """The published feed-forward module of jina-embeddings-v2 in BERT's place."""

    def __init__(self, hidden: int, inner: int, activation: Any) -> None:
        super().__init__()
        self.gated_layers = torch.nn.Linear(hidden, 2 * inner, bias=False)
        self.wo = torch.nn.Linear(inner, hidden)
        self.layernorm = torch.nn.LayerNorm(hidden, eps=1e-12)
        self.activation, self.inner = activation, inner

    def forward(self, rows: Any) -> Any:
        """Return the rows behind the block."""
        gate, up = self.gated_layers(rows).split(self.inner, dim=-1)
        return self.layernorm(self.wo(self.activation(gate) * up) + rows)


@pytest.mark.parametrize("seed", SEEDS)
def test_jina_v2(seed: int, tmp_path: Path, ledger: Ledger) -> None:
    """BERT with ALiBi as an additive mask, and gated feed-forward modules."""
    draw = random.Random(f"jina {seed}")
    sizes = CONFIGS["bert"](draw) | {"hidden_act": "gelu", "layer_norm_eps": 1e-12}
    torch.manual_seed(seed)
    model = transformers.BertModel(transformers.BertConfig(**sizes, attn_implementation="eager")).eval()
    kind = draw.choice(("geglu", "reglu"))
    activation = torch.nn.functional.gelu if kind == "geglu" else torch.nn.functional.relu
    for layer in model.encoder.layer:
        layer.mlp = Gated(sizes["hidden_size"], sizes["intermediate_size"], activation)
        layer.feed_forward_chunk = layer.mlp.forward
    with torch.no_grad():
        model.embeddings.position_embeddings.weight.zero_()
    replaced = ("position", ".intermediate.", "pooler")
    state = {
        name: tensor
        for name, tensor in model.state_dict().items()
        if not any(part in name for part in replaced) and not re.search(r"layer\.\d+\.output\.", name)
    }
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / "model.safetensors")
    changes = {"model_type": "bert", "position_embedding_type": "alibi", "feed_forward_type": kind}
    (folder / "config.json").write_text(json.dumps(sizes | changes))
    card = export(folder, tmp_path / "out")
    encoder, random_ids = Encoder(tmp_path / "out", card), np.random.default_rng(seed)
    model = model.double()
    for length in LENGTHS:
        ids = random_ids.integers(3, sizes["vocab_size"], length)
        places = torch.arange(length)
        falling = torch.tensor(slopes(sizes["num_attention_heads"]))[:, None, None] * (places - places[:, None]).abs()
        with torch.no_grad():
            wanted = model(torch.tensor(ids)[None], attention_mask=-falling[None].double()).last_hidden_state[0]
        assert math.isfinite(float(wanted.sum()))
        difference = relative(encoder.rows([ids])[0], wanted.numpy())
        ledger.check("jina v2, published", "last_hidden_state", difference, TOLERANCE)
