"""FAMILIES: from pixels to an image's vector, one row per model_type of a vision or audio model.

Where a row has no blocks, what comes before the first is exported.

A row names tensors as its base class does; the prefix that a file puts before them is found by the patch weight.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from models.families import encoder_blocks
from models.families.family import Family as BlockFamily
from models.families.family import linear, norm
from models.recipes.sentence_modules import Dense
from models.recipes.steps import FeedForward, LayerNorm, RMSNorm
from models.vision import blocks, qwen_blocks
from models.vision.steps import (
    AddGrid,
    AddRows,
    AddToRow,
    AttentionPool,
    Convolve,
    Feed,
    Insert,
    Patchify,
    Project,
    RowStep,
    Step,
    TakeRow,
    VectorSteps,
)

UNWRITTEN = "its blocks are not described yet; CONTRIBUTING says how"
FROM_CONFIG = 0  # placeholder for a size in the config
EPS = -1.0  # placeholder for the config's layer_norm_eps


@dataclass(frozen=True, slots=True)
class TokenRows:
    """How a tower in front of a decoder makes the rows of an image's tokens.

    Attributes:
        blocks: the tower's blocks, as the row of a text model says them.
        steps: steps from the rows of patches to those of tokens.
        deep: the same of the parts that are added behind blocks of the decoder, {part} its number, made behind the
            layers that deepstack_visual_indexes lists; empty: there are none.
        windowed: attention stays in windows but for the layers that fullatt_block_indexes lists.
    """

    blocks: BlockFamily
    steps: tuple[RowStep, ...]
    deep: tuple[RowStep, ...] = ()
    windowed: bool = False


@dataclass(frozen=True, slots=True)
class Family:
    """One row of FAMILIES.

    Attributes:
        steps: steps from the input to the rows before the first block.
        processor: the row of preprocessor_config.PROCESSORS where preprocessor_config.json names none.
        prefix: prefix of the tensor names in most files.
        feed: the input: pixels [channels, height, width], flattened patches, or features [bins, frames].
        defaults: values of config.json keys that may be missing.
        names: usual key of config.json -> the family's own key.
        only_if: step type -> the key of the config that must be true for the step to exist.
        axial: the row of positions/rope/axial.AXIAL of its attention; None: none.
        blocks: its blocks, and the steps behind the last, as the row of a text model says them; None: they are not
            exported, for the reason in `uncovered`.
        vector: steps from the last rows to the image's vector; a Linear that the file lacks is left out.
            Empty: the family makes none.
        token_rows: the tower as a decoder reads it; None: it is not computed.
        one_size: whether it takes images of image_size alone.
        uncovered: what the blocks do that is not computed, or where they are, in a phrase.
    """

    steps: tuple[Step, ...]
    processor: str
    prefix: str = ""
    feed: Feed = "pixels"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    only_if: Mapping[type[Any], str] = field(default_factory=dict)
    axial: str | None = None
    blocks: BlockFamily | None = None
    vector: VectorSteps = ()
    token_rows: TokenRows | None = None
    one_size: bool = False
    uncovered: str = UNWRITTEN


_BEFORE_DECODER = "they run in front of their decoder, in an export of the whole checkpoint"
PATCHES = "embeddings.patch_embeddings.projection"
CLS = Insert("embeddings.cls_token")
POSITIONS = "embeddings.position_embeddings"
SQUARE: dict[str, Any] = {"image_size": 224, "patch_size": 16, "num_channels": 3, "hidden_size": 768}


def _patchify(stem: str, biased: bool = True, padded: bool = False) -> Patchify:
    return Patchify(f"{stem}.weight", f"{stem}.bias" if biased else None, FROM_CONFIG, padded)


def _grid(table: str, extra: int, resize: str = "bicubic") -> AddGrid:
    return AddGrid(table, extra, FROM_CONFIG, FROM_CONFIG, resize)


_TOWER_SIZES = SQUARE | {"num_hidden_layers": 12, "num_attention_heads": 12, "hidden_act": "gelu"}
_VIT_SIZES = _TOWER_SIZES | {"intermediate_size": 3072, "layer_norm_eps": 1e-12, "qkv_bias": True}
_FIRST_ROW: VectorSteps = (TakeRow(0),)
_VIT: dict[str, Any] = {
    "blocks": BlockFamily("", (), blocks.VIT, (norm("layernorm"),), bias_if={"qkv_bias": ".attention.attention."}),
    "vector": (*_FIRST_ROW, Dense(linear("pooler.dense"), "tanh")),
    "defaults": _VIT_SIZES | {"pooler_act": "tanh"},
}


def _vit(prefix: str, processor: str = "ViT", **changes: Any) -> Family:
    steps = (_patchify(PATCHES), CLS, _grid(POSITIONS, 1))
    return Family(steps, processor, prefix, **{"defaults": SQUARE} | changes)


_DINOV2: dict[str, Any] = {
    "blocks": BlockFamily(
        "",
        (),
        blocks.DINOV2,
        (norm("layernorm"),),
        stored=blocks.DINOV2_STORED,
        feed_forward=blocks.dinov2_feed_forward,
        derived=blocks.dinov2_sizes,
        bias_if={"qkv_bias": ".attention.attention."},
    ),
    "vector": _FIRST_ROW,
    "defaults": _TOWER_SIZES
    | {"qkv_bias": True, "patch_size": 14, "layer_norm_eps": 1e-6, "mlp_ratio": 4, "use_swiglu_ffn": False},
}
_DINOV3_SIZES = _TOWER_SIZES | {
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_attention_heads": 6,
    "layer_norm_eps": 1e-5,
    "num_register_tokens": 0,
    "rope_theta": 100.0,
    "use_gated_mlp": False,
    **dict.fromkeys(("query_bias", "value_bias", "proj_bias", "mlp_bias"), True),
}


def _qwen(biased: bool, positions: tuple[Step, ...], **changes: Any) -> Family:
    stem = "patch_embed.proj"
    steps = (Project(f"{stem}.weight", f"{stem}.bias" if biased else None), *positions)
    defaults = {"patch_size": 14, "temporal_patch_size": 2, "in_channels": 3, "spatial_merge_size": 2, "num_heads": 16}
    names = {"num_attention_heads": "num_heads", "num_hidden_layers": "depth"} | changes.pop("names", {})
    defaults |= changes.pop("defaults", {})
    return Family(steps, "Qwen2VL", "visual.", "patches", defaults, names, uncovered=_BEFORE_DECODER, **changes)


def _blocks(*after_blocks: LayerNorm) -> BlockFamily:
    """Return the blocks of CLIP and SigLIP, with the steps behind the last."""
    return BlockFamily("", (), encoder_blocks.CLIP, after_blocks)


_CLIP_SIZES = {
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
_SIGLIP_SIZES = _CLIP_SIZES | {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6}
_SIGLIP: dict[str, Any] = {
    "blocks": _blocks(norm("post_layernorm")),
    "vector": (
        AttentionPool(
            "head.probe",
            "head.attention.in_proj_weight",
            "head.attention.in_proj_bias",
            linear("head.attention.out_proj"),
        ),
        FeedForward(linear("head.mlp.fc1"), linear("head.mlp.fc2"), "gelu_tanh", norm("head.layernorm")),
    ),
}
_EMBEDDING = "embeddings.patch_embedding"
_TABLE = "embeddings.position_embedding.weight"
_TWO_SIDED = "vision_model."

FAMILIES: dict[str, Family] = {
    "vit": _vit("vit.", **_VIT),
    "vit_msn": _vit("vit.", **_VIT | {"defaults": _VIT_SIZES | {"layer_norm_eps": 1e-6}}),
    "deit": Family(
        (_patchify(PATCHES), Insert("embeddings.distillation_token"), CLS, _grid(POSITIONS, 2)), "DeiT", "deit.", **_VIT
    ),
    "beit": _vit(
        "beit.",
        "Beit",
        only_if={AddGrid: "use_absolute_position_embeddings"},
        uncovered="attention with a bias by rows and columns",
    ),
    "dinov2": _vit("dinov2.", "Bit", **_DINOV2),
    "dinov2_with_registers": Family(
        (_patchify(PATCHES), CLS, _grid(POSITIONS, 1, "bicubic_antialias"), Insert("embeddings.register_tokens", 1)),
        "Bit",
        "dinov2_with_registers.",
        **_DINOV2 | {"defaults": _DINOV2["defaults"] | {"patch_size": 16, "num_register_tokens": 4}},
    ),
    "dinov3_vit": Family(
        (_patchify("embeddings.patch_embeddings"), Insert("embeddings.register_tokens"), CLS),
        "DINOv3ViT",
        defaults=_DINOV3_SIZES,
        axial="dinov3",
        blocks=BlockFamily(
            "",
            (),
            blocks.DINOV3,
            (norm("norm"),),
            feed_forward=blocks.dinov3_feed_forward,
            bias_if={
                "query_bias": ".q_proj.",
                "key_bias": ".k_proj.",
                "value_bias": ".v_proj.",
                "proj_bias": ".o_proj.",
                "mlp_bias": ".mlp.",
            },
        ),
        vector=_FIRST_ROW,
    ),
    "nomic_vision": Family(
        (_patchify("embeddings.proj"), Insert("embeddings.cls_token"), _grid("embeddings.pos_embed", 1)),
        "CLIP",
        names={
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "layer_norm_eps": "layer_norm_epsilon",
            "image_size": "img_size",
        },
        defaults={"num_channels": 3, "use_pos_embed": True, "use_rotary_pos_emb": False}
        | dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), True),
        axial="eva02",
        blocks=BlockFamily(
            "",
            (),
            blocks.NOMIC,
            stored=blocks.NOMIC_STORED,
            derived=blocks.nomic_sizes,
            feed_forward=encoder_blocks.published_gate("activation_function"),
            bias_if={"qkv_proj_bias": ".attn.", "mlp_fc1_bias": ".fc1", "mlp_fc2_bias": ".fc2"},
            norm_if={"norm_mlp": ".mlp.norm"},
            block_if={"use_rotary_pos_emb": True, "ref_feat_shape": 16, "prenorm": True, "rotary_emb_fraction": 0}
            | {"register_tokens": 0}
            | dict.fromkeys(("no_cls_token", "sinusoidal_pos_embedding", "use_rms_norm", "parallel_block"), False),
        ),
        vector=(
            AttentionPool(
                "selector.attn.latent",
                "selector.attn.Wkv.weight",
                "selector.attn.Wkv.bias",
                linear("selector.attn.out_proj"),
                query=linear("selector.attn.Wq"),
            ),
            AddToRow(0, blocks.NOMIC_SELECTOR),
        ),
        one_size=True,
        only_if={AddGrid: "use_pos_embed"},
    ),
    "jina_clip_vision": Family(
        (_patchify("patch_embed.proj"), Insert("cls_token"), _grid("pos_embed", 1)),
        "CLIP",
        _TWO_SIDED,
        names={"hidden_size": "width", "num_hidden_layers": "layers"},
        defaults={"image_size": 224, "patch_size": 16, "num_channels": 3, "layers": 12, "width": 768, "head_width": 64}
        | {"mlp_ratio": 4.0, "layer_norm_eps": 1e-6, "qkv_bias": True}
        | dict.fromkeys(("rope_embeddings", "intp_freq", "naive_swiglu", "subln"), False),
        axial="eva02",
        blocks=BlockFamily(
            "",
            (),
            blocks.EVA02,
            (norm("norm"),),
            derived=blocks.eva02_sizes,
            feed_forward=lambda step, config: replace(step, activation="silu"),
            bias_if={"qkv_bias": "_proj."},
            block_if=dict.fromkeys(("rope_embeddings", "intp_freq", "naive_swiglu", "subln"), True)
            | {"pt_hw_seq_len": 16, "post_norm": False, "ls_init_value": None, "proj_type": None},
        ),
        vector=(TakeRow(0), linear("visual_projection", biased=False)),
        one_size=True,
    ),
    "swin": Family(
        (
            _patchify(PATCHES, padded=True),
            LayerNorm("embeddings.norm.weight", "embeddings.norm.bias", 1e-5),
            _grid(POSITIONS, 0),
        ),
        "ViT",
        "swin.",
        defaults=SQUARE | {"patch_size": 4, "embed_dim": 96},
        names={"hidden_size": "embed_dim"},
        only_if={AddGrid: "use_absolute_embeddings"},
        uncovered="attention in shifted windows",
    ),
    "clip_vision_model": Family(
        (
            _patchify(_EMBEDDING, biased=False),
            Insert("embeddings.class_embedding"),
            _grid(_TABLE, 1),
            LayerNorm("pre_layrnorm.weight", "pre_layrnorm.bias", EPS),
        ),
        "CLIP",
        _TWO_SIDED,
        defaults=SQUARE | _CLIP_SIZES | {"patch_size": 32},
        blocks=_blocks(),
        vector=(TakeRow(0), norm("post_layernorm"), linear("visual_projection", biased=False)),
    ),
    "siglip_vision_model": Family(
        (_patchify(_EMBEDDING), _grid(_TABLE, 0)),
        "Siglip",
        _TWO_SIDED,
        defaults=SQUARE | _SIGLIP_SIZES,
        token_rows=TokenRows(_SIGLIP["blocks"], (linear("multi_modal_projector.linear"),)),  # PaliGemma
        **_SIGLIP,
    ),
    "siglip2_vision_model": Family(
        (Project(f"{_EMBEDDING}.weight", f"{_EMBEDDING}.bias"), _grid(_TABLE, 0, "bilinear_antialias")),
        "Siglip2",
        _TWO_SIDED,
        "patches",
        {"patch_size": 16, "num_channels": 3, "hidden_size": 768, "num_patches": 256, **_SIGLIP_SIZES},
        **_SIGLIP,
    ),
    "blip_vision_model": Family(
        (_patchify(_EMBEDDING), Insert("embeddings.class_embedding"), _grid("embeddings.position_embedding", 1)),
        "Blip",
        _TWO_SIDED,
        defaults=SQUARE | {"image_size": 384},
    ),
    "pixtral": Family(
        (_patchify("patch_conv", biased=False), RMSNorm("ln_pre.weight", 1e-5)),
        "Pixtral",
        "vision_tower.",
        defaults=SQUARE | {"hidden_size": 1024, "image_size": 1024, "num_attention_heads": 16},
        axial="pixtral",
        uncovered="attention that rotates by rows and columns (axial RoPE)",
    ),
    # rows in the image processor's order; Qwen2.5-VL's attention itself reorders them by window
    "qwen2_vl": _qwen(
        False,
        (),
        names={"hidden_size": "embed_dim"},
        defaults={"embed_dim": 1280, "depth": 32, "hidden_act": "quick_gelu", "mlp_ratio": 4},
        axial="qwen2_vl",
        token_rows=TokenRows(
            qwen_blocks.qwen(qwen_blocks.QWEN2_VL, qwen_blocks.by_ratio),
            qwen_blocks.merger(LayerNorm("merger.ln_q.weight", "merger.ln_q.bias", 1e-6)),
        ),
    ),
    "qwen2_5_vl": _qwen(
        False,
        (),
        defaults={
            "hidden_size": 3584,
            "depth": 32,
            "intermediate_size": 3420,
            "hidden_act": "silu",
            "window_size": 112,
            "fullatt_block_indexes": [7, 15, 23, 31],
        },
        axial="qwen2_5_vl",
        token_rows=TokenRows(
            qwen_blocks.qwen(qwen_blocks.QWEN2_5_VL),
            qwen_blocks.merger(RMSNorm("merger.ln_q.weight", 1e-6)),
            windowed=True,
        ),
    ),
    "qwen3_vl": _qwen(
        True,
        (_grid("pos_embed.weight", 0, "bilinear_corners"),),
        defaults={
            "patch_size": 16,
            "hidden_size": 1152,
            "num_position_embeddings": 2304,
            "depth": 27,
            "intermediate_size": 4304,
            "hidden_act": "gelu_pytorch_tanh",
            "deepstack_visual_indexes": [8, 16, 24],
        },
        names={"num_patches": "num_position_embeddings"},
        axial="qwen3_vl",
        token_rows=TokenRows(
            qwen_blocks.qwen(qwen_blocks.QWEN3_VL),
            qwen_blocks.qwen3_merger("merger", joined=False),
            qwen_blocks.qwen3_merger("deepstack_merger_list.{part}", joined=True),
        ),
    ),
    "whisper": Family(
        (
            Convolve("conv1.weight", "conv1.bias", 1),
            Convolve("conv2.weight", "conv2.bias", 2),
            AddRows("embed_positions.weight"),
        ),
        "",
        "model.encoder.",
        "features",
        {"d_model": 384, "num_mel_bins": 80, "max_source_positions": 1500},
        {"hidden_size": "d_model"},
    ),
}


@dataclass(frozen=True, slots=True)
class Tower:
    """The vision (or audio) tower of a checkpoint that also has a text model.

    Attributes:
        config_key: the key of config.json that holds the tower's config; None: config.json is its config too.
        family: row of the tower if its own config names none.
        side: value of --side.
        required: whether --side must be given; False: without --side the text model is exported.
    """

    config_key: str | None
    family: str
    side: str = "vision"
    required: bool = False


# model_type of a text model -> the key of a config that describes an image tower instead, and that tower's row
VARIANTS = {"nomic_bert": ("img_size", "nomic_vision")}

TOWERS: dict[str, Tower] = {
    "clip": Tower("vision_config", "clip_vision_model", required=True),
    "siglip": Tower("vision_config", "siglip_vision_model", required=True),
    "siglip2": Tower("vision_config", "siglip2_vision_model", required=True),
    "blip": Tower("vision_config", "blip_vision_model", required=True),
    "jina_clip": Tower("vision_config", "jina_clip_vision", required=True),
    "llava": Tower("vision_config", "clip_vision_model"),
    "paligemma": Tower("vision_config", "siglip_vision_model"),
    "mistral3": Tower("vision_config", "pixtral"),
    "qwen2_vl": Tower("vision_config", "qwen2_vl"),
    "qwen2_5_vl": Tower("vision_config", "qwen2_5_vl"),
    "qwen3_vl": Tower("vision_config", "qwen3_vl"),
    "whisper": Tower(None, "whisper", side="encoder"),
}
