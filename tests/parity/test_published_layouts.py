"""Checkpoints as code published beside them writes them: other tensor names, fused tensors, other config keys."""

import json
import math
import random
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from models.artifacts.export import export
from models.positions.alibi import slopes
from tests.gguf_files import write_gguf
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


def _check(family: str, folder: Path, model: Any, seed: int, ledger: Ledger, encoder: bool | None = None) -> None:
    card = export(folder / "checkpoint", folder / "out", encoder=encoder)
    graph, draw = Encoder(folder / "out", card), np.random.default_rng(seed)
    for length in LENGTHS:
        ids = draw.integers(3, model.config.vocab_size, length)
        difference = relative(graph.rows([ids])[0], expected(model, ids))
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


EXPERTS = {  # a tensor of published files, and one of those with the matrices of all experts
    "mixtral": ("block_sparse_moe.experts.0.w1.weight", "mlp.experts.gate_up_proj"),
    "phimoe": ("block_sparse_moe.experts.0.w1.weight", "mlp.experts.gate_up_proj"),
    "qwen2_moe": ("mlp.experts.0.gate_proj.weight", "mlp.experts.gate_up_proj"),
    "qwen3_moe": ("mlp.experts.0.gate_proj.weight", "mlp.experts.gate_up_proj"),
    "olmoe": ("mlp.experts.0.gate_proj.weight", "mlp.experts.gate_up_proj"),
    "granitemoe": ("block_sparse_moe.input_linear.weight", "block_sparse_moe.experts.gate_up_proj"),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", EXPERTS)
def test_experts_as_published_and_as_the_class_holds_them(
    family: str, seed: int, tmp_path: Path, ledger: Ledger
) -> None:
    model, file = made(family, seed, tmp_path / "checkpoint"), tmp_path / "checkpoint/model.safetensors"
    published, own = EXPERTS[family]
    mixed = any("experts.gate_up_proj" in name for name in model.state_dict())
    assert mixed == any(name.endswith(published) for name in load_file(file))
    _check(family, tmp_path, model, seed, ledger, encoder=True)
    save_file({name: tensor.float().contiguous() for name, tensor in model.state_dict().items()}, file)
    assert mixed == any(name.endswith(own) for name in load_file(file))
    _check(family, tmp_path, model, seed, ledger, encoder=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_embedding_gemma_2_of_several_towers(seed: int, tmp_path: Path, ledger: Ledger) -> None:
    made("embedding_gemma2_text", seed, tmp_path / "text")
    text = transformers.AutoConfig.from_pretrained(tmp_path / "text")
    tokens = dict.fromkeys(("image_token_id", "video_token_id", "audio_token_id"), text.vocab_size + 1)
    whole = transformers.EmbeddingGemma2Config(text_config=text, vision_config=None, audio_config=None, **tokens)
    model = transformers.AutoModel.from_config(whole, attn_implementation="eager").eval()
    text_model = transformers.AutoModel.from_pretrained(tmp_path / "text", attn_implementation="eager")
    model.language_model.load_state_dict(text_model.state_dict())
    model.save_pretrained(tmp_path / "checkpoint")
    assert all("language_model." in name for name in load_file(tmp_path / "checkpoint/model.safetensors"))
    model.config.vocab_size = text.vocab_size
    _check("embedding_gemma2", tmp_path, model.double(), seed, ledger)


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
    as_gguf = None
    if kind == "geglu":  # llama.cpp knows no other
        place = tmp_path / "gguf"
        as_gguf = Encoder(place, export(_jina_gguf(tmp_path / "x.gguf", state, sizes), place, encoder=True))
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
        if as_gguf:
            difference = relative(as_gguf.rows([ids])[0], wanted.numpy())
            ledger.check("jina v2, GGUF", "last_hidden_state", difference, TOLERANCE)


class JinaCodeLayer(torch.nn.Module):
    """A block of jina-embeddings-v2-base-code, with the module names of its published code."""

    def __init__(self, hidden: int, inner: int, heads: int, eps: float, activation: Any) -> None:
        super().__init__()

        def norm() -> Any:
            return torch.nn.LayerNorm(hidden, eps=eps)

        def tree(**modules: Any) -> Any:
            return torch.nn.ModuleDict(modules)

        own: dict[str, Any] = {name: torch.nn.Linear(hidden, hidden) for name in ("query", "key", "value")}
        own |= {"layer_norm_q": norm(), "layer_norm_k": norm()}
        self.attention = tree(self=tree(**own), output=tree(dense=torch.nn.Linear(hidden, hidden), LayerNorm=norm()))
        up, down = torch.nn.Linear(hidden, 2 * inner, bias=False), torch.nn.Linear(inner, hidden)
        self.mlp = tree(up_gated_layer=up, down_layer=down)
        self.layer_norm_1, self.layer_norm_2 = norm(), norm()
        self.heads, self.activation = heads, activation

    def forward(self, rows: Any, bias: Any) -> Any:
        """Return the rows [S, d] behind the block; bias [heads, S, S] is added to the scores."""
        own, output = self.attention["self"], self.attention["output"]
        query, key = own["layer_norm_q"](own["query"](rows)), own["layer_norm_k"](own["key"](rows))
        query, key, value = (
            x.unflatten(1, (self.heads, -1)).transpose(0, 1) for x in (query, key, own["value"](rows))
        )  # [heads, S, d / heads]
        scores = query @ key.transpose(1, 2) / math.sqrt(query.shape[2]) + bias
        mixed = (scores.softmax(dim=-1) @ value).transpose(0, 1).flatten(1)
        attended = output["LayerNorm"](output["dense"](mixed) + rows)
        rows = self.layer_norm_1(rows + attended)
        up, gate = self.mlp["up_gated_layer"](rows).chunk(2, dim=-1)
        return self.layer_norm_2(rows + self.mlp["down_layer"](up * self.activation(gate)))


@pytest.mark.parametrize("seed", SEEDS)
def test_jina_code(seed: int, tmp_path: Path, ledger: Ledger) -> None:
    """No library has this class; the module above is judged by nothing but its published description."""
    draw = random.Random(f"jina code {seed}")
    sizes = CONFIGS["bert"](draw) | {"layer_norm_eps": draw.choice((1e-12, 1e-5))}
    hidden, heads, eps = sizes["hidden_size"], sizes["num_attention_heads"], sizes["layer_norm_eps"]
    kind = draw.choice(("geglu", "reglu"))
    activation = torch.nn.functional.gelu if kind == "geglu" else torch.nn.functional.relu
    torch.manual_seed(seed)
    count = range(sizes["num_hidden_layers"])
    layers = [JinaCodeLayer(hidden, sizes["intermediate_size"], heads, eps, activation) for _ in count]
    tables = {
        "word_embeddings": torch.nn.Embedding(sizes["vocab_size"], hidden),
        "token_type_embeddings": torch.nn.Embedding(sizes["type_vocab_size"], hidden),
        "LayerNorm": torch.nn.LayerNorm(hidden, eps=eps),
    }
    encoder = torch.nn.ModuleDict({"layer": torch.nn.ModuleList(layers)})
    model = torch.nn.ModuleDict({"embeddings": torch.nn.ModuleDict(tables), "encoder": encoder})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            near = 1.0 if parameter.ndim == 1 and "norm" in name.lower() and name.endswith("weight") else 0.0
            spread = 0.3 if parameter.ndim == 1 else 1.0 if "embeddings" in name else 0.7 / parameter.shape[-1] ** 0.5
            parameter.copy_(near + spread * torch.randn_like(parameter))
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    prefix = draw.choice(("", "bert."))
    save_file({prefix + name: tensor for name, tensor in model.state_dict().items()}, folder / "model.safetensors")
    changes = {"model_type": "bert", "position_embedding_type": "alibi", "feed_forward_type": kind}
    (folder / "config.json").write_text(json.dumps(sizes | changes))
    ours, ids_drawn = Encoder(tmp_path / "out", export(folder, tmp_path / "out")), np.random.default_rng(seed)
    model = model.double()
    sequences = [ids_drawn.integers(3, sizes["vocab_size"], length) for length in LENGTHS]
    together = ours.rows(sequences)
    for ids, batched in zip(sequences, together, strict=True):
        places = torch.arange(len(ids))
        falling = torch.tensor(slopes(heads))[:, None, None] * (places - places[:, None]).abs()
        with torch.no_grad():
            rows = tables["word_embeddings"](torch.tensor(ids)) + tables["token_type_embeddings"].weight[0]
            rows = tables["LayerNorm"](rows)
            for layer in layers:
                rows = layer(rows, -falling.double())
        (alone,) = ours.rows([ids])
        ledger.check("jina code, published", "last_hidden_state", relative(alone, rows.numpy()), TOLERANCE)
        assert np.array_equal(alone, batched)


def _jina_gguf(path: Path, state: dict[str, Any], sizes: dict[str, Any]) -> Path:
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.JINA_BERT_V2, 8)
    tensors = {
        names.get_name(name, try_suffixes=(".weight", ".bias")): tensor.numpy() for name, tensor in state.items()
    }
    metadata = {
        "embedding_length": sizes["hidden_size"],
        "block_count": sizes["num_hidden_layers"],
        "feed_forward_length": sizes["intermediate_size"],
        "attention.head_count": sizes["num_attention_heads"],
        "context_length": sizes["max_position_embeddings"],
        "attention.layer_norm_epsilon": 1e-12,
    }
    return write_gguf(path, "jina-bert-v2", metadata, tensors)
