"""Whole encoders whose code transformers does not have, or wraps: rows and vectors against the same model in torch."""

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from models.artifacts.export import export
from tests.parity.block_configs import CONFIGS, decoder, encoder, theta
from tests.parity.conftest import Ledger
from tests.parity.test_blocks_live import LENGTHS, SEEDS, TOLERANCE, Encoder, randomise, relative

pytestmark = pytest.mark.parity
WINDOW = "sliding_window"


class NeoBertLayer(nn.Module):
    """One block of NeoBERT."""

    def __init__(self, width: int, heads: int, inner: int, eps: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.wo = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.ffn = nn.ModuleDict(
            {"w12": nn.Linear(width, 2 * inner, bias=False), "w3": nn.Linear(inner, width, bias=False)}
        )
        self.attention_norm, self.ffn_norm = nn.RMSNorm(width, eps), nn.RMSNorm(width, eps)

    def forward(self, x: Any, turns: Any) -> Any:
        query, key, value = self.qkv(self.attention_norm(x)).view(len(x), self.heads, -1).chunk(3, dim=-1)
        query, key = (self.turned(rows, turns) for rows in (query, key))
        mixed = nn.functional.scaled_dot_product_attention(*(rows.transpose(0, 1) for rows in (query, key, value)))
        x = x + self.wo(mixed.transpose(0, 1).reshape(len(x), -1))
        gate, up = self.ffn["w12"](self.ffn_norm(x)).chunk(2, dim=-1)
        return x + self.ffn["w3"](nn.functional.silu(gate) * up)

    def turned(self, rows: Any, turns: Any) -> Any:
        pairs = torch.view_as_complex(rows.reshape(*rows.shape[:-1], -1, 2).contiguous())
        return torch.view_as_real(pairs * turns[:, None]).flatten(-2)


class NeoBert(nn.Module):
    """NeoBERT as chandar-lab/NeoBERT publishes it, of one text."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, heads = config["hidden_size"], config["num_attention_heads"]
        inner = (2 * config["intermediate_size"] // 3 + 7) // 8 * 8
        self.width = width // heads
        self.encoder = nn.Embedding(config["vocab_size"], width)
        self.transformer_encoder = nn.ModuleList(
            NeoBertLayer(width, heads, inner, config["norm_eps"]) for _ in range(config["num_hidden_layers"])
        )
        self.layer_norm = nn.RMSNorm(width, config["norm_eps"])

    def forward(self, ids: Any) -> Any:
        frequencies = 10000.0 ** -(torch.arange(0, self.width, 2).double() / self.width)
        angles = torch.outer(torch.arange(len(ids)).double(), frequencies)
        turns, x = torch.polar(torch.ones_like(angles), angles), self.encoder(ids)
        for layer in self.transformer_encoder:
            x = layer(x, turns)
        return self.layer_norm(x)


def neobert(draw: random.Random, folder: Path) -> Any:
    config = encoder(norm_eps=lambda draw: draw.choice((1e-6, 1e-3)), max_length=600)(draw)
    model = NeoBert(config)
    randomise(model, "neobert")
    save_file({f"model.{name}": tensor for name, tensor in model.state_dict().items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "neobert"}))
    return model.double()


def llama_bidirec(draw: random.Random, folder: Path) -> Any:
    config = transformers.LlamaConfig(**decoder(rope_parameters=theta)(draw), is_causal=False, use_cache=False)
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    randomise(model, "llama")
    model.save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    del written["is_causal"]
    (folder / "config.json").write_text(json.dumps(written | {"model_type": "llama_bidirec", "pooling": "avg"}))
    return lambda ids: model.double()(ids[None]).last_hidden_state[0]


class Latents(nn.Module):
    """NV-Embed's attention of each row to latent rows, and the gated step behind it."""

    def __init__(self, width: int, heads: int, head_width: int, count: int) -> None:
        super().__init__()
        self.heads, inner = heads, heads * head_width
        attention = {"to_q": nn.Linear(width, inner, bias=False), "to_kv": nn.Linear(width, 2 * inner, bias=False)}
        attention["to_out"] = nn.Linear(inner, width, bias=False)
        net = nn.ModuleDict({"0": nn.Linear(width, 8 * width), "2": nn.Linear(4 * width, width)})
        first = {"fn": nn.ModuleDict(attention), "norm": nn.LayerNorm(width), "norm_context": nn.LayerNorm(width)}
        second = {"fn": nn.ModuleDict({"net": net}), "norm": nn.LayerNorm(width)}
        self.cross_attend_blocks = nn.ModuleList([nn.ModuleDict(first), nn.ModuleDict(second)])
        self.latents = nn.Parameter(torch.randn(count, width))

    def forward(self, rows: Any) -> Any:
        attend, step = self.cross_attend_blocks
        context = attend["norm_context"](self.latents)
        key, value = attend["fn"]["to_kv"](context).chunk(2, dim=-1)
        parts = (attend["fn"]["to_q"](attend["norm"](rows)), key, value)
        parts = (part.view(len(part), self.heads, -1).transpose(0, 1) for part in parts)
        mixed = nn.functional.scaled_dot_product_attention(*parts).transpose(0, 1).reshape(len(rows), -1)
        rows = rows + attend["fn"]["to_out"](mixed)
        up, gate = step["fn"]["net"]["0"](step["norm"](rows)).chunk(2, dim=-1)
        return rows + step["fn"]["net"]["2"](up * nn.functional.gelu(gate))


class NvEmbed(nn.Module):
    """NV-Embed as nvidia publishes it: a Mistral that attends both ways, and latents; the rows of one text."""

    def __init__(self, text: dict[str, Any], latents: dict[str, Any]) -> None:
        super().__init__()
        self.text, self.nested = text, latents
        self.config = transformers.MistralConfig(**text, is_causal=False, sliding_window=None, use_cache=False)
        self.embedding_model = transformers.AutoModel.from_config(self.config, attn_implementation="eager")
        sizes = (latents[key] for key in ("num_cross_heads", "cross_dim_head", "num_latents_value"))
        self.latent_attention_model = Latents(self.config.hidden_size, *sizes)
        for part in self.children():
            randomise(part, "mistral")

    @classmethod
    def read(cls, folder: Path) -> "NvEmbed":
        config = json.loads((folder / "config.json").read_text())
        nested = {key: value for key, value in config["text_config"].items() if key not in ("model_type", WINDOW)}
        model = cls(nested, config["latent_attention_config"])
        model.load_state_dict(load_file(folder / "model.safetensors"))
        return model.double()

    def forward(self, ids: Any) -> Any:
        return self.latent_attention_model(self.embedding_model(ids[None]).last_hidden_state[0])

    def save_pretrained(self, folder: Path) -> None:
        tensors = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        nested = {"text_config": {**self.text, "model_type": "bidir_mistral", WINDOW: 4}}  # the window is not used
        nested |= {"latent_attention_config": {**self.nested, "model_type": "latent_attention"}}
        config = {"model_type": "nvembed", "architectures": ["NVEmbedModel"], "add_eos": True, **nested}
        config["auto_map"] = {"AutoModel": "modeling_nvembed.NVEmbedModel"}
        (folder / "config.json").write_text(json.dumps(config))


def nv_embed(draw: random.Random, **more: Any) -> NvEmbed:
    text = decoder(rope_parameters=None, rope_theta=1e4)(draw) | more
    sizes = {"num_latents_value": draw.randint(1, 9), "num_cross_heads": draw.randint(1, 3)}
    return NvEmbed(text, sizes | {"cross_dim_head": draw.choice((4, text["hidden_size"]))})


def nvembed(draw: random.Random, folder: Path) -> Any:
    model = nv_embed(draw)
    model.save_pretrained(folder)
    return model.double()


class Distances(nn.Module):
    """BERT's self-attention with an embedding of each distance of query and key, as transformers 4 has it."""

    def __init__(self, own: Any, config: Any, of_keys: bool) -> None:
        super().__init__()
        self.query, self.key, self.value, self.of_keys = own.query, own.key, own.value, of_keys
        self.heads, self.most = config.num_attention_heads, config.max_position_embeddings
        self.distance_embedding = nn.Embedding(2 * self.most - 1, config.hidden_size // self.heads)

    def forward(self, rows: Any, *_: Any, **__: Any) -> tuple[Any, None]:
        parts = (linear(rows[0]).view(rows.shape[1], self.heads, -1) for linear in (self.query, self.key, self.value))
        query, key, value = (part.transpose(0, 1) for part in parts)
        places = torch.arange(rows.shape[1])
        embedded = self.distance_embedding(places[:, None] - places + self.most - 1)
        scores = query @ key.transpose(1, 2) + torch.einsum("hld,lrd->hlr", query, embedded)
        if self.of_keys:
            scores = scores + torch.einsum("hrd,lrd->hlr", key, embedded)
        shares = (scores / query.shape[-1] ** 0.5).softmax(dim=-1)
        return (shares @ value).transpose(0, 1).reshape(rows.shape), None


def with_distances(kind: str, draw: random.Random, folder: Path) -> Any:
    config = transformers.BertConfig(**encoder()(draw), attn_implementation="eager")
    model = transformers.BertModel(config).eval()
    for layer in model.encoder.layer:
        layer.attention.self = Distances(layer.attention.self, config, kind == "relative_key_query")
    randomise(model, "bert")
    model.save_pretrained(folder)  # its table of positions too, which is not added
    (folder / "config.json").write_text(json.dumps(config.to_dict() | {"position_embedding_type": kind}))
    with torch.no_grad():
        model.embeddings.position_embeddings.weight.zero_()
    return lambda ids: model.double()(ids[None]).last_hidden_state[0]


def lfm2_bidirectional(draw: random.Random, folder: Path) -> Any:
    config = transformers.Lfm2Config(**CONFIGS["lfm2"](draw) | {"conv_L_cache": 3}, is_causal=False)
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    randomise(model, "lfm2")
    model.save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text()) | {"architectures": ["Lfm2BidirectionalModel"]}
    del written["is_causal"]
    written["auto_map"] = {"AutoModel": "modeling_lfm2_bidirectional.Lfm2BidirectionalModel"}
    (folder / "config.json").write_text(json.dumps(written))
    for layer in model.layers:
        if not layer.is_attention_layer:  # its convolution is centered
            layer.conv.forward = partial(centered, layer.conv)
    return lambda ids: model.double()(ids[None], use_cache=False).last_hidden_state[0]


def centered(own: Any, hidden_states: Any, **_: Any) -> Any:
    b, c, z = own.in_proj(hidden_states).transpose(1, 2).chunk(3, dim=1)
    mixed = nn.functional.conv1d(b * z, own.conv.weight, own.conv.bias, padding=1, groups=b.shape[1])
    return own.out_proj((c * mixed).transpose(1, 2))


MADE = {
    "neobert": neobert,
    "llama_bidirec": llama_bidirec,
    "nvembed": nvembed,
    "lfm2 bidirectional": lfm2_bidirectional,
    **{kind: partial(with_distances, kind) for kind in ("relative_key", "relative_key_query")},
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", MADE)
def test_rows_are_those_of_the_published_code(family: str, seed: int, tmp_path: Path, ledger: Ledger) -> None:
    draw = random.Random(f"published {family} {seed}")
    torch.manual_seed(draw.randrange(1 << 30))
    (tmp_path / "checkpoint").mkdir()
    model = MADE[family](draw, tmp_path / "checkpoint")
    graph = Encoder(tmp_path / "out", export(tmp_path / "checkpoint", tmp_path / "out", encoder=True))
    sequences = [np.random.default_rng(seed).integers(3, 40, length) for length in LENGTHS]
    for ids, mixed in zip(sequences, graph.rows(sequences), strict=True):
        (alone,) = graph.rows([ids])
        with torch.no_grad():
            ledger.check(family, "last_hidden_state", relative(alone, model(torch.tensor(ids)).numpy()), TOLERANCE)
        assert np.array_equal(alone, mixed), f"{len(ids)} tokens get other bits in a batch"
