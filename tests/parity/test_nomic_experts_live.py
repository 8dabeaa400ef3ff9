"""nomic-embed-text-v2-moe in small, as its repository holds it: against a torch module written from its description."""

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

from models.artifacts.export import export
from tests.parity.conftest import Ledger
from tests.parity.test_blocks_live import TOLERANCE, Encoder, relative

pytestmark = pytest.mark.parity
LENGTHS = (1, 2, 12, 63, 64, 65, 512)
PROMPTS = {"query": "search_query: ", "passage": "search_document: "}


def drawn(draw: random.Random) -> dict[str, Any]:
    """A config with the keys of the published one."""
    heads = draw.choice((1, 2, 4))
    return {
        "model_type": "nomic_bert",
        "vocab_size": draw.randint(40, 90),
        "n_embd": heads * draw.choice((16, 32)),
        "n_head": heads,
        "n_layer": draw.randint(1, 4),
        "n_inner": 16 * draw.randint(1, 4),
        "n_positions": 2048,
        "type_vocab_size": draw.choice((1, 2)),
        "layer_norm_epsilon": draw.choice((1e-5, 1e-12)),
        "rotary_emb_base": draw.choice((1000, 10000)),
        "num_experts": draw.choice((3, 4, 8)),
        "moe_top_k": draw.randint(1, 3),
        "moe_every_n_layers": draw.choice((2, 2, 3)),
        "activation_function": "gelu",
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "rotary_scaling_factor": None,
        "expert_choice_router": False,
        "num_shared_experts": 0,
        "moe_normalize_expert_weights": False,
        "ffn_div": 1,
        "prenorm": False,
        "parallel_block": False,
        "causal": False,
        "qkv_proj_bias": True,
        "mlp_fc1_bias": True,
        "mlp_fc2_bias": True,
        "use_rms_norm": False,
        "pad_token_id": 1,
        "max_trained_positions": 2048,
    }


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors of a file."""
    d, inner, experts = config["n_embd"], config["n_inner"], config["num_experts"]
    held: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], d),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], d),
    }
    norms = ["emb_ln"]
    for layer in range(config["n_layer"]):
        stem = f"encoder.layers.{layer}."
        norms += [f"{stem}norm1", f"{stem}norm2"]
        own: dict[str, tuple[int, ...]] = {"attn.Wqkv.weight": (3 * d, d), "attn.Wqkv.bias": (3 * d,)}
        own |= {"attn.out_proj.weight": (d, d), "attn.out_proj.bias": (d,)}
        if layer % config["moe_every_n_layers"] == 1:
            own |= {"mlp.router.layer.weight": (experts, d), "mlp.experts.bias": (d,)}
            own |= {f"mlp.experts.mlp.{name}": (experts * inner, d) for name in ("w1", "w2")}
        else:
            own |= {"mlp.fc1.weight": (inner, d), "mlp.fc1.bias": (inner,)}
            own |= {"mlp.fc2.weight": (d, inner), "mlp.fc2.bias": (d,)}
        held |= {stem + name: shape for name, shape in own.items()}
    return held | {f"{name}.{kind}": (d,) for name in norms for kind in ("weight", "bias")}


class Judge:
    """The model in float64, every expert over every row."""

    def __init__(self, config: dict[str, Any], tensors: dict[str, Any]) -> None:
        self.config = config
        self.tensors = {name: tensor.double() for name, tensor in tensors.items()}

    def linear(self, name: str, x: Any) -> Any:
        return functional.linear(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))

    def norm(self, name: str, x: Any) -> Any:
        weight, bias = (self.tensors[f"{name}.{kind}"] for kind in ("weight", "bias"))
        return functional.layer_norm(x, x.shape[-1:], weight, bias, self.config["layer_norm_epsilon"])

    def attention(self, stem: str, x: Any) -> Any:
        n, heads = len(x), self.config["n_head"]
        query, key, value = self.linear(f"{stem}.Wqkv", x).view(n, 3, heads, -1).permute(1, 2, 0, 3)
        width = query.shape[-1]
        rates = self.config["rotary_emb_base"] ** (-torch.arange(0, width, 2).double() / width)
        turns = torch.polar(torch.ones(1).double(), torch.arange(n).double()[:, None] * rates)

        def rotated(rows: Any) -> Any:
            first, second = rows.chunk(2, dim=-1)
            turned = torch.complex(first, second) * turns
            return torch.cat((turned.real, turned.imag), dim=-1)

        scores = rotated(query) @ rotated(key).transpose(1, 2) / math.sqrt(width)
        return self.linear(f"{stem}.out_proj", (scores.softmax(-1) @ value).transpose(0, 1).reshape(n, -1))

    def experts(self, stem: str, x: Any) -> Any:
        count, inner = self.config["num_experts"], self.config["n_inner"]
        shares = self.linear(f"{stem}.router.layer", x).softmax(-1)
        smallest = shares.topk(self.config["moe_top_k"], dim=-1).values[:, -1:]
        kept = torch.where(shares >= smallest, shares, 0.0)
        up, down = (self.tensors[f"{stem}.experts.mlp.{name}"].view(count, inner, -1) for name in ("w1", "w2"))
        given = torch.einsum("enf,efd->end", functional.gelu(torch.einsum("nd,efd->enf", x, up)), down)
        return torch.einsum("ne,end->nd", kept, given) + self.tensors[f"{stem}.experts.bias"]

    def rows(self, ids: Any) -> Any:
        """The last hidden state of one sequence."""
        words, types = (self.tensors[f"embeddings.{name}_embeddings.weight"] for name in ("word", "token_type"))
        x = self.norm("emb_ln", words[torch.tensor(ids)] + types[0])
        for layer in range(self.config["n_layer"]):
            stem = f"encoder.layers.{layer}"
            x = self.norm(f"{stem}.norm1", x + self.attention(f"{stem}.attn", x))
            if layer % self.config["moe_every_n_layers"] == 1:
                more = self.experts(f"{stem}.mlp", x)
            else:
                more = self.linear(f"{stem}.mlp.fc2", functional.gelu(self.linear(f"{stem}.mlp.fc1", x)))
            x = self.norm(f"{stem}.norm2", x + more)
        return x.numpy()


def written(seed: int, folder: Path, **changes: Any) -> Judge:
    """The judge of a random checkpoint with the files of the published one."""
    draw = random.Random(f"nomic experts {seed}")
    torch.manual_seed(draw.randrange(1 << 30))
    config = drawn(draw) | changes
    tensors = {}
    for name, shape in shapes(config).items():
        noise = torch.randn(shape)
        if "embeddings" in name:
            tensors[name] = noise
        elif len(shape) == 1:
            is_norm = name.endswith(("norm1.weight", "norm2.weight", "emb_ln.weight"))
            tensors[name] = 0.3 * noise + is_norm
        else:
            fan_in = config["n_inner"] if name.endswith((".w2", "fc2.weight")) else config["n_embd"]
            tensors[name] = 0.7 * noise / fan_in**0.5
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    listed = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for place, (path, kind) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": config["n_embd"], "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling | {"pooling_mode_cls_token": False}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": PROMPTS}))
    return Judge(config, tensors)


@pytest.mark.parametrize("seed", range(12))
def test_rows_are_those_of_the_description(seed: int, tmp_path: Path, ledger: Ledger) -> None:
    judge = written(seed, tmp_path / "checkpoint")
    card = export(tmp_path / "checkpoint", tmp_path / "out")
    assert card.pooling
    assert card.pooling.modes == ("mean",)
    assert card.prompts == PROMPTS
    encoder, draw = Encoder(tmp_path / "out", card), np.random.default_rng(seed)
    sequences = [draw.integers(3, judge.config["vocab_size"], length) for length in LENGTHS]
    order = draw.permutation(len(sequences))
    mixed = dict(zip(order, encoder.rows([sequences[place] for place in order]), strict=True))
    for place, ids in enumerate(sequences):
        (alone,) = encoder.rows([ids])
        wanted = judge.rows(ids)
        ledger.check("nomic_bert, experts", "last_hidden_state", relative(alone, wanted), TOLERANCE)
        ledger.check("nomic_bert, experts", "mean", relative(alone.mean(axis=0), wanted.mean(axis=0)), TOLERANCE)
        assert np.array_equal(alone, mixed[place]), f"{len(ids)} tokens get other bits in a batch"
