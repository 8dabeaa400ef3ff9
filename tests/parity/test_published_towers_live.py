"""Towers of published code, written anew in torch: nomic-embed-vision's, and jina-clip's EVA-02."""

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from models.artifacts.export import export
from tests.parity.conftest import Ledger
from tests.parity.test_dual_encoders_live import images, randomize, relative
from tests.served import Served, serving

pytestmark = pytest.mark.parity
SEEDS = range(8)
SPAN = 16  # of the grid that the rotation was trained with


def turned(rows: Any, side: int) -> Any:
    """Rotate queries or keys [B, heads, 1 + side * side, w] of patches by their row and column; not the first row."""
    width = rows.shape[-1]
    places = torch.arange(side).double() / side * SPAN
    frequencies = 10000.0 ** -(torch.arange(0, width // 2, 2).double() / (width // 2))
    angles = torch.outer(places, frequencies)
    down = angles[:, None].expand(side, side, -1)
    both = torch.cat([down, down.transpose(0, 1)], -1).reshape(side * side, -1)
    pairs = torch.view_as_complex(rows[:, :, 1:].reshape(*rows.shape[:2], side * side, -1, 2).contiguous())
    moved = torch.view_as_real(pairs * torch.polar(torch.ones_like(both), both)).flatten(-2)
    return torch.cat([rows[:, :, :1], moved], 2)


def attended(query: Any, key: Any, value: Any, heads: int, side: int | None) -> Any:
    query, key, value = (rows.unflatten(-1, (heads, -1)).transpose(1, 2) for rows in (query, key, value))
    if side is not None:
        query, key = turned(query, side), turned(key, side)
    return functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


class Parts(nn.Module):
    """A module with children and parameters by dotted-free names."""

    def __init__(self, **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


def patches(convolution: Any, cls: Any, table: Any, pixels: Any) -> Any:
    rows = convolution(pixels).flatten(2).transpose(1, 2)
    return torch.cat([cls.expand(len(rows), -1, -1), rows], 1) + table


class NomicVision(nn.Module):
    """NomicVisionModel of nomic-bert-2048's code."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.config, width = config, config["n_embd"]
        inner, eps = -(-config["n_inner"] // 256) * 256, config["layer_norm_epsilon"]
        biased, side = config["qkv_proj_bias"], config["img_size"] // config["patch_size"]
        self.side = side

        def mlp(normed: bool) -> Any:
            linears = {name: nn.Linear(width, inner, config["mlp_fc1_bias"]) for name in ("fc11", "fc12")}
            last = nn.Linear(inner, width, config["mlp_fc2_bias"])
            return Parts(**linears, fc2=last, norm=nn.LayerNorm(inner) if normed else nn.Identity())

        projection = nn.Linear(config["num_channels"] * config["patch_size"] ** 2, width)
        self.embeddings = Parts(
            proj=projection,
            cls_token=nn.Parameter(torch.zeros(1, 1, width)),
            pos_embed=nn.Parameter(torch.zeros(1, side**2 + 1, width)),
        )
        self.layers = nn.ModuleList(
            Parts(
                attn=Parts(Wqkv=nn.Linear(width, 3 * width, biased), out_proj=nn.Linear(width, width, biased)),
                mlp=mlp(config["norm_mlp"]),
                norm1=nn.LayerNorm(width, eps),
                norm2=nn.LayerNorm(width, eps),
            )
            for _ in range(config["n_layer"])
        )
        attention = {"Wq": nn.Linear(width, width), "Wkv": nn.Linear(width, 2 * width)}
        attention |= {"out_proj": nn.Linear(width, width), "latent": nn.Parameter(torch.zeros(1, 1, width))}
        self.selector = Parts(attn=Parts(**attention), mlp=mlp(False), norm1=nn.LayerNorm(width, eps))

    def forward(self, pixels: Any) -> tuple[Any, Any]:
        patch, heads = self.config["patch_size"], self.config["n_head"]
        cut = functional.unfold(pixels, patch, stride=patch).transpose(1, 2)  # (c p1 p2) of each patch
        x = self.embeddings.proj(cut)
        x = torch.cat([self.embeddings.cls_token.expand(len(x), -1, -1), x], 1) + self.embeddings.pos_embed
        for layer in self.layers:
            query, key, value = layer.attn.Wqkv(layer.norm1(x)).chunk(3, -1)
            x = x + layer.attn.out_proj(attended(query, key, value, heads, self.side))
            x = x + self.gated(layer.mlp, layer.norm2(x))
        pool = self.selector.attn
        key, value = pool.Wkv(x).chunk(2, -1)
        pooled = pool.out_proj(attended(pool.Wq(pool.latent.expand(len(x), -1, -1)), key, value, heads, None))
        return x, (x + self.gated(self.selector.mlp, self.selector.norm1(pooled)))[:, 0]

    def gated(self, mlp: Any, x: Any) -> Any:
        return mlp.fc2(mlp.norm(mlp.fc11(x) * functional.silu(mlp.fc12(x))))


class Eva(nn.Module):
    """EVAVisionTransformer of jina-clip's code."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.config, width = config, config["width"]
        inner, biased = int(width * config["mlp_ratio"]), config["qkv_bias"]
        self.side = config["image_size"] // config["patch_size"]

        def bias() -> Any:
            return nn.Parameter(torch.zeros(width)) if biased else None

        convolution = nn.Conv2d(3, width, config["patch_size"], config["patch_size"])
        self.patch_embed = Parts(proj=convolution)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, self.side**2 + 1, width))
        self.blocks = nn.ModuleList(
            Parts(
                norm1=nn.LayerNorm(width, 1e-6),
                norm2=nn.LayerNorm(width, 1e-6),
                attn=Parts(
                    **{f"{name}_proj": nn.Linear(width, width, False) for name in "qkv"},
                    q_bias=bias(),
                    v_bias=bias(),
                    inner_attn_ln=nn.LayerNorm(width, 1e-6),
                    proj=nn.Linear(width, width),
                ),
                mlp=Parts(
                    w1=nn.Linear(width, inner),
                    w2=nn.Linear(width, inner),
                    ffn_ln=nn.LayerNorm(inner, 1e-6),
                    w3=nn.Linear(inner, width),
                ),
            )
            for _ in range(config["layers"])
        )
        self.norm = nn.LayerNorm(width, 1e-6)

    def forward(self, pixels: Any) -> tuple[Any, Any]:
        x = patches(self.patch_embed.proj, self.cls_token, self.pos_embed, pixels)
        for block in self.blocks:
            attention, mlp, read = block.attn, block.mlp, block.norm1(x)
            query = functional.linear(read, attention.q_proj.weight, attention.q_bias)
            value = functional.linear(read, attention.v_proj.weight, attention.v_bias)
            heads = self.config["width"] // self.config["head_width"]
            mixed = attended(query, attention.k_proj(read), value, heads, self.side)
            x = x + attention.proj(attention.inner_attn_ln(mixed))
            read = block.norm2(x)
            x = x + mlp.w3(mlp.ffn_ln(functional.silu(mlp.w1(read)) * mlp.w2(read)))
        x = self.norm(x)
        return x, x[:, 0]


def nomic(draw: random.Random) -> tuple[dict[str, Any], Any]:
    heads, patch = draw.choice((1, 2)), draw.choice((2, 4))
    config = {
        "model_type": "nomic_bert",
        "n_embd": heads * draw.choice((8, 16)),
        "n_head": heads,
        "n_layer": draw.randint(1, 3),
        "n_inner": draw.choice((64, 256)),
        "img_size": patch * draw.choice((3, 14)),
        "patch_size": patch,
        "num_channels": 3,
        "layer_norm_epsilon": draw.choice((1e-6, 1e-3)),
        "activation_function": "swiglu",
        "use_rotary_pos_emb": True,
        "ref_feat_shape": draw.choice((16, [16, 16])),
        "rotary_emb_fraction": 0,
        "prenorm": True,
        "norm_mlp": draw.random() < 0.7,
        "qkv_proj_bias": True,
        **{key: draw.random() < 0.7 for key in ("mlp_fc1_bias", "mlp_fc2_bias")},
    }
    return config, NomicVision(config)


def eva(draw: random.Random) -> tuple[dict[str, Any], Any]:
    heads, patch = draw.choice((1, 2)), draw.choice((2, 4))
    vision = {
        "model_type": "jina_clip_vision",
        "head_width": draw.choice((8, 16)),
        "layers": draw.randint(1, 3),
        "image_size": patch * draw.choice((3, 14)),
        "patch_size": patch,
        "mlp_ratio": draw.choice((2.0, 4.0)),
        "qkv_bias": draw.random() < 0.7,
        **dict.fromkeys(("rope_embeddings", "intp_freq", "naive_swiglu", "subln"), True),
    }
    vision["width"] = heads * vision["head_width"]
    return {"model_type": "jina_clip", "vision_config": vision}, Eva(vision)


MADE = {"nomic_vision": (nomic, ""), "jina_clip_vision": (eva, "vision_model.")}


@pytest.fixture(scope="module", params=MADE)
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder, (make, prefix) = tmp_path_factory.mktemp(request.param), MADE[request.param]
    every = []
    for seed in SEEDS:
        draw, name = random.Random(f"{request.param} {seed}"), f"{request.param}-{seed}"
        torch.manual_seed(draw.randrange(1 << 30))
        config, model = make(draw)
        randomize(model)
        (folder / name).mkdir()
        tensors = {prefix + key: tensor.contiguous() for key, tensor in model.state_dict().items()}
        save_file(tensors | {"logit_scale": torch.tensor(1.0)}, folder / name / "model.safetensors")
        (folder / name / "config.json").write_text(json.dumps(config))
        export(folder / name, folder / "store" / name, side="vision")
        every.append((name, model.double().eval()))
    with serving(folder / "store", default_model=every[0][0]) as served:
        yield served, every


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_and_vectors_are_those_of_the_published_code(
    models: tuple[Served, list[Any]], seed: int, ledger: Ledger
) -> None:
    served, (name, model) = models[0], models[1][seed]
    size = model.config.get("img_size") or model.config["image_size"]
    batch = list(np.random.default_rng(seed).normal(0, 1, (3, 3, size, size)).astype(np.float32))
    vectors = images(served, name, batch, "image_embedding", normalize=False)
    rows = images(served, name, batch, "last_hidden_state")
    with torch.no_grad():
        wanted_rows, wanted = (value.numpy() for value in model(torch.from_numpy(np.stack(batch)).double()))
    ledger.check(name[:-2], "image vector", relative(np.stack(vectors), wanted), 1e-5)
    ledger.check(name[:-2], "last_hidden_state of an image", relative(np.stack(rows), wanted_rows), 1e-5)
    (alone,) = images(served, name, batch[:1], "image_embedding", normalize=False)
    assert np.array_equal(alone, vectors[0])
