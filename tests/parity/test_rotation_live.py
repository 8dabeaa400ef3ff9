"""Rotation, M-RoPE and axial vision rope against the functions of the installed transformers, over random shapes."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers.vision_utils import get_vision_position_ids

from models.positions.rope.axial import tabulate_axial
from models.positions.rope.frequencies import Rope
from models.positions.rope.multi_axis import AXES, tabulate_mrope
from models.positions.rope.rotation import LAYOUTS, duplicate, rotate
from tests.parity.conftest import Ledger

pytestmark = pytest.mark.parity
Array = NDArray[Any]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def module(family: str) -> Any:
    """transformers' modeling module of one family."""
    return importlib.import_module(f"transformers.models.{family}.modeling_{family}")


def configuration(family: str) -> Any:
    return importlib.import_module(f"transformers.models.{family}.configuration_{family}")


def tensor(array: Array) -> torch.Tensor:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(array))


def array(tensor: torch.Tensor) -> Array:
    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.float().numpy()).astype(ml_dtypes.bfloat16)
    return np.asarray(tensor.numpy())


@dataclass(frozen=True)
class Turn:
    """q and k [B, H, S, D] with single-width angles [B, S, r/2], and how one family is called."""

    layout: str
    q: torch.Tensor
    k: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor

    def wide(self) -> tuple[torch.Tensor, torch.Tensor]:
        # bfloat16 angles are kept as float32 values it can hold, which duplicate as they are
        cos, sin = (tensor(duplicate(array(each), self.layout)) for each in (self.cos, self.sin))
        return cos, sin


def usual(name: str = "apply_rotary_pos_emb") -> Callable[[str, Turn], tuple[torch.Tensor, torch.Tensor]]:
    """f(q, k, cos, sin) with duplicated tables."""
    return lambda family, turn: getattr(module(family), name)(turn.q, turn.k, *turn.wide())


def halved(family: str, turn: Turn) -> tuple[torch.Tensor, torch.Tensor]:
    """f(q, k, cos, sin) with tables whose halves are equal, of which it reads the first."""
    cos, sin = (torch.cat([each, each], dim=-1) for each in (turn.cos, turn.sin))
    moved = turn.layout == "interleave_in_half_out"
    apply = getattr(module(family), "apply_rotary_pos_emb_interleave" if moved else "apply_rotary_pos_emb")
    return apply(turn.q, turn.k, cos, sin)  # type: ignore[no-any-return]


def single(family: str, turn: Turn) -> tuple[torch.Tensor, torch.Tensor]:
    """f(q, k, cos, sin) with single-width tables."""
    return module(family).apply_rotary_pos_emb(turn.q, turn.k, turn.cos, turn.sin)  # type: ignore[no-any-return]


def apart(family: str, turn: Turn) -> tuple[torch.Tensor, torch.Tensor]:
    """f(x, cos, sin) with single-width tables, for q and k apart."""
    apply = module(family).apply_rotary_pos_emb
    return apply(turn.q, turn.cos, turn.sin), apply(turn.k, turn.cos, turn.sin)


def tokens_first(family: str, turn: Turn) -> tuple[torch.Tensor, torch.Tensor]:
    """f(x, sin, cos) on [B, S, H, D], of GPT-J."""
    apply = module(family).apply_rotary_pos_emb
    turned = (apply(each.transpose(1, 2), turn.sin, turn.cos).transpose(1, 2) for each in (turn.q, turn.k))
    return tuple(turned)  # type: ignore[return-value]


def joined(family: str, turn: Turn) -> tuple[torch.Tensor, torch.Tensor]:
    """f([sin | cos], q, k), of RoFormer."""
    both = torch.cat([turn.sin, turn.cos], dim=-1)[:, None]
    return module(family).RoFormerSelfAttention.apply_rotary_position_embeddings(both, turn.q, turn.k)  # type: ignore[no-any-return]


def as_complex(family: str, turn: Turn) -> tuple[torch.Tensor, torch.Tensor]:
    """f(q, k, cos + i sin); Llama 4's takes [B, S, H, D]."""
    turns = torch.complex(turn.cos.float(), turn.sin.float())
    if family == "llama4":
        q, k = module(family).apply_rotary_emb(turn.q.transpose(1, 2), turn.k.transpose(1, 2), turns)
        return q.transpose(1, 2), k.transpose(1, 2)
    return module(family).apply_rotary_emb(turn.q, turn.k, turns)  # type: ignore[no-any-return]


def vision(family: str, turn: Turn) -> tuple[torch.Tensor, torch.Tensor]:
    """f(q, k, cos, sin) on [S, H, D] of one packed row, of the Qwen towers."""
    cos, sin = (each[0] for each in turn.wide())
    q, k = module(family).apply_rotary_pos_emb_vision(turn.q[0].swapaxes(0, 1), turn.k[0].swapaxes(0, 1), cos, sin)
    return q.swapaxes(0, 1)[None], k.swapaxes(0, 1)[None]


def by_axis(family: str, turn: Turn) -> tuple[torch.Tensor, torch.Tensor]:
    """f(x, cos, sin, positions [.., 2]) on [B, S, H, D], of Gemma 4's tower."""
    positions = torch.zeros(*turn.q.shape[:1], turn.q.shape[2], 2)
    apply = module(family).apply_multidimensional_rope
    turned = (apply(each.transpose(1, 2), *turn.wide(), positions).transpose(1, 2) for each in (turn.q, turn.k))
    return tuple(turned)  # type: ignore[return-value]


@dataclass(frozen=True)
class Family:
    """How a family rotates: with partial, some channels pass; with wide, half precision turns in float32."""

    layout: str
    call: Callable[[str, Turn], tuple[torch.Tensor, torch.Tensor]]
    partial: bool = False
    wide: bool = False
    rows: int = 2


FAMILIES = {
    "llama": Family("half", usual()),
    "mistral": Family("half", usual()),
    "qwen3": Family("half", usual()),
    "gemma3": Family("half", usual()),
    "glm4_moe": Family("half", usual(), partial=True),
    "gpt_oss": Family("half", single),
    "qwen2_vl": Family("half", vision, wide=True, rows=1),
    "qwen3_vl": Family("half", vision, wide=True, rows=1),
    "cohere": Family("interleaved", usual(), wide=True),
    "cohere2": Family("interleaved", usual(), wide=True),
    "ernie4_5": Family("interleaved", halved, wide=True),
    "ernie4_5_vl_moe": Family("interleaved", usual(), wide=True),
    "helium": Family("interleaved", halved),
    "glm": Family("interleaved", halved, partial=True),
    "glm4": Family("interleaved", halved, partial=True),
    "moonshine": Family("interleaved", halved, partial=True),
    "gptj": Family("interleaved", tokens_first),
    "codegen": Family("interleaved", tokens_first),
    "roformer": Family("interleaved", joined),
    "llama4": Family("interleaved", as_complex, wide=True),
    "deepseek_v2": Family("interleaved", as_complex, wide=True),
    "deepseek_v3": Family("interleave_in_half_out", halved),
    "glm4_moe_lite": Family("interleave_in_half_out", halved),
    "longcat_flash": Family("interleave_in_half_out", halved),
    "mistral4": Family("interleave_in_half_out", halved),
    "youtu": Family("interleave_in_half_out", halved),
    "nanochat": Family("half_negative", usual()),
    "deepseek_v4": Family("interleaved_trailing", apart, partial=True, wide=True),
    "gemma4": Family("half_per_axis", by_axis),
}


def drawn(family: Family, dtype: str, seed: int) -> Turn:
    random = np.random.default_rng(seed)
    heads, tokens, rotary_dim = (int(number) for number in random.integers(1, 9, 3))
    rotary_dim *= 4
    head_dim = rotary_dim + (2 * int(random.integers(0, 9)) if family.partial else 0)
    q, k = (
        torch.from_numpy(random.normal(size=(family.rows, heads, tokens, head_dim))).to(DTYPES[dtype]) for _ in "qk"
    )
    angles = random.uniform(-3.2, 3.2, (family.rows, tokens, rotary_dim // 2)).astype(np.float32)
    cos, sin = (torch.from_numpy(function(angles)) for function in (np.cos, np.sin))
    if not family.wide:  # transformers rounds the angles to the hidden dtype and rotates in it
        cos, sin = cos.to(DTYPES[dtype]), sin.to(DTYPES[dtype])
    return Turn(family.layout, q, k, cos, sin)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_q_and_k_turn_to_the_bit_as_in_transformers(family: str, dtype: str, seed: int, ledger: Ledger) -> None:
    row = FAMILIES[family]
    turn = drawn(row, dtype, seed)
    cos, sin = array(turn.cos), array(turn.sin)
    for mine, theirs in zip((turn.q, turn.k), row.call(family, turn), strict=True):
        rotated = rotate(array(mine), cos, sin, row.layout, arithmetic="parity", widen=row.wide)
        difference = np.abs(rotated.astype(np.float64) - theirs.double().numpy()).max()
        # complex products are fused on some machines: one step of float32, which may round to one of the narrow type
        fused = row.call is as_complex
        steps = {"float32": 2.0**-21, "bfloat16": 2.0**-6, "float16": 2.0**-9}
        ledger.check(family, f"rotation {dtype}", float(difference), steps[dtype] if fused else 0.0)


def test_dinov3_leaves_its_prefix_unrotated(ledger: Ledger) -> None:
    for seed in range(20):
        turn = drawn(Family("half", usual(), rows=1), "float32", seed)
        prefix = seed % 6
        q = torch.cat([torch.full((*turn.q.shape[:2], prefix, turn.q.shape[3]), 9.0), turn.q], dim=2)
        theirs, _ = module("dinov3_vit").apply_rotary_pos_emb(q, q, *(each[0] for each in turn.wide()))
        cos, sin = array(turn.cos)[0], array(turn.sin)[0]
        rotated = rotate(array(q), cos, sin, "half", skip=prefix, arithmetic="parity")
        ledger.check("dinov3_vit", "rotation", float(np.abs(rotated - array(theirs)).max()), 0.0)


def test_every_layout_a_model_has_is_compared_live() -> None:
    assert {row.layout for row in FAMILIES.values()} == set(LAYOUTS) - {"half_trailing"}


def allowed(inverse_frequency: list[float], positions: Array, factor: float = 1.0) -> Array:
    """The golden manifest's tolerance: pow differs by an ulp or two, which grows with the angle."""
    angles = np.abs(positions).max(axis=0)[..., None] * np.array(inverse_frequency)
    return np.asarray(factor * (3e-7 + 5e-7 * angles))


SCALINGS: tuple[dict[str, Any], ...] = (
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
)
MROPES = {
    "qwen2_vl": ("chunked", "Qwen2VLTextConfig", "Qwen2VLRotaryEmbedding"),
    "qwen2_5_vl": ("chunked", "Qwen2_5_VLTextConfig", "Qwen2_5_VLRotaryEmbedding"),
    "qwen3_vl": ("interleaved", "Qwen3VLTextConfig", "Qwen3VLTextRotaryEmbedding"),
    "qwen3_5": ("interleaved", "Qwen3_5TextConfig", "Qwen3_5TextRotaryEmbedding"),
    "ernie4_5_vl_moe": ("ernie", "Ernie4_5_VLMoeTextConfig", "Ernie4_5_VLMoeTextRotaryEmbedding"),
}


def drawn_sections(axes: str, random: np.random.Generator) -> list[int]:
    first, second, third = random.integers(1, 12, 3).tolist()
    return [first, first, third] if axes == "ernie" else [first, second, third]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("family", MROPES)
def test_mrope_matches_transformers(family: str, seed: int, ledger: Ledger) -> None:
    axes, config_name, embedding = MROPES[family]
    random = np.random.default_rng(seed)
    sections = drawn_sections(axes, random)
    rotary_dim, theta = 2 * sum(sections), float(random.choice([1e4, 1e6, 5e6]))
    share = 0.25 if family == "qwen3_5" else 1.0
    scaling = SCALINGS[0] if axes == "ernie" else SCALINGS[seed % len(SCALINGS)]
    parameters = scaling | {"rope_theta": theta, "mrope_section": sections, "partial_rotary_factor": share}
    head_dim = int(rotary_dim / share)
    config = getattr(configuration(family), config_name)(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=4096,
        rope_parameters=dict(parameters),
    )
    positions = random.integers(0, 4096, (3, 2, 6))
    theirs = getattr(module(family), embedding)(config)(torch.zeros(1), torch.from_numpy(positions))
    scaling_parameters = {name: value for name, value in scaling.items() if name != "rope_type"}
    rope = Rope.of(theta, rotary_dim, scaling["rope_type"], scaling_parameters, max_position_embeddings=4096)
    table = tabulate_mrope(rope, positions, sections=sections, axes=axes, arithmetic="parity", table="duplicated")
    factor = table.facts["attention_factor"]
    limit = duplicate(allowed(table.facts["inverse_frequency"], positions, factor), AXES[axes].layout)
    for name, expected in zip(("cos", "sin"), theirs, strict=True):
        difference = np.abs(table.outputs[name].whole() - array(expected))
        ledger.check(family, "mrope", float((difference / limit).max()), 1.0)


def vision_config(family: str, name: str, head_dim: int, theta: float | None, **sizes: Any) -> Any:
    """A tower's config of two heads; theta None: what the class itself says."""
    hidden = "embed_dim" if family == "qwen2_vl" else "hidden_size"
    heads = "num_heads" if name.startswith(("Qwen", "Ernie")) else "num_attention_heads"
    values: dict[str, Any] = {hidden: 2 * head_dim, heads: 2} | sizes
    if family == "gemma4":
        values["head_dim"] = head_dim
    if theta is not None and family == "dinov3_vit":
        values["rope_theta"] = theta
    elif theta is not None:
        values["rope_parameters"] = {"rope_type": "axial", "rope_theta": theta}
    return getattr(configuration(family), name)(**values)


def qwen(family: str, name: str) -> Callable[..., tuple[Any, Any]]:
    def tables(head_dim: int, theta: float | None, height: int, width: int) -> tuple[Any, Any]:
        config = vision_config(family, f"{name}VisionConfig", head_dim, theta)
        places = get_vision_position_ids(torch.tensor([[1, height, width]]), config.spatial_merge_size)
        embedding = getattr(module(family), f"{name}VisionRotaryEmbedding")(config)
        return embedding(torch.zeros(1), places)  # type: ignore[no-any-return]

    return tables


def pixtral(head_dim: int, theta: float | None, height: int, width: int) -> tuple[Any, Any]:
    config = vision_config("pixtral", "PixtralVisionConfig", head_dim, theta)
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    places = torch.stack([rows.flatten(), columns.flatten()], dim=-1)
    return module("pixtral").PixtralVisionRotaryEmbedding(config)(torch.zeros(1), places)  # type: ignore[no-any-return]


def gemma4(head_dim: int, theta: float | None, height: int, width: int) -> tuple[Any, Any]:
    """With the positions that the model's own image processor makes of an image."""
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    seen = Gemma4ImageProcessorPil()._preprocess(
        [np.zeros((3, 2 * height, 2 * width), np.float32)],
        do_resize=False,
        do_rescale=False,
        rescale_factor=1.0,
        do_normalize=False,
        image_mean=0.0,
        image_std=1.0,
        return_tensors=None,
        patch_size=2,
        max_soft_tokens=280,
        pooling_kernel_size=1,
        resample=None,
    )
    places = torch.from_numpy(seen["image_position_ids"])[:, : height * width]
    config = vision_config("gemma4", "Gemma4VisionConfig", head_dim, theta)
    cos, sin = module("gemma4").Gemma4VisionRotaryEmbedding(config)(torch.zeros(1), places)
    return cos[0], sin[0]


def llama4(head_dim: int, theta: float | None, height: int, width: int) -> tuple[Any, Any]:
    config = vision_config("llama4", "Llama4VisionConfig", head_dim, theta, image_size=3 * height, patch_size=3)
    turns = module("llama4").Llama4VisionRotaryEmbedding(config)(torch.zeros(1))[:, 0]
    return turns.real.repeat_interleave(2, dim=-1), turns.imag.repeat_interleave(2, dim=-1)


def dinov3(head_dim: int, theta: float | None, height: int, width: int) -> tuple[Any, Any]:
    config = vision_config("dinov3_vit", "DINOv3ViTConfig", head_dim, theta, patch_size=3)
    embedding = module("dinov3_vit").DINOv3ViTRopePositionEmbedding(config).eval()
    return embedding(torch.zeros(1, 3, 3 * height, 3 * width))  # type: ignore[no-any-return]


TOWERS: dict[str, Callable[..., tuple[Any, Any]]] = {
    "qwen2_vl": qwen("qwen2_vl", "Qwen2VL"),
    "qwen2_5_vl": qwen("qwen2_5_vl", "Qwen2_5_VL"),
    "qwen3_vl": qwen("qwen3_vl", "Qwen3VL"),
    "ernie4_5_vl_moe": qwen("ernie4_5_vl_moe", "Ernie4_5_VLMoe"),
    "pixtral": pixtral,
    "gemma4": gemma4,
    "llama4": llama4,
    "dinov3": dinov3,
}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", TOWERS)  # eva02 is timm's: test_published_towers_live.py
def test_axial_rope_matches_transformers(kind: str, seed: int, ledger: Ledger) -> None:
    random = np.random.default_rng(seed)
    head_dim = 4 * int(random.integers(1, 33))
    height, width = (2 * int(number) for number in random.integers(1, 9, 2))
    if kind == "llama4":  # transformers knows square grids only
        width = height
    theta = None if seed % 2 else float(random.choice([100.0, 1e4, 1e6]))
    theirs = TOWERS[kind](head_dim, theta, height, width)
    table = tabulate_axial(kind, head_dim, grid=(height, width), theta=theta, arithmetic="parity", table="duplicated")
    for name, expected in zip(("cos", "sin"), theirs, strict=True):
        assert table.outputs[name].shape == tuple(expected.shape)
        difference = np.abs(table.outputs[name].whole() - array(expected)).max()
        ledger.check(kind, "axial rope", float(difference), 2e-6)  # the golden cases' tolerance
