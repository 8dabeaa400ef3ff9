"""Whole encoders whose code transformers does not have, or wraps: rows and vectors against the same model in torch."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import nn

from models.artifacts.export import export
from tests.parity.block_configs import decoder, encoder, theta
from tests.parity.conftest import Ledger
from tests.parity.test_blocks_live import LENGTHS, SEEDS, TOLERANCE, Encoder, randomise, relative

pytestmark = pytest.mark.parity


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


MADE = {"neobert": neobert, "llama_bidirec": llama_bidirec}


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
