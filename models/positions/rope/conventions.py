"""CONVENTIONS: how each model_type reads RoPE from its config.json, where that differs from the default.

The default: theta 1e4, layout half, the whole head of hidden_size / num_attention_heads channels, and one table for all
layers. A row also holds the sizes that a config.json may leave out, because text_config of a vision-language model
contains only the values that differ from its class.

Source: transformers 5.23, configuration_*.py and modeling_*.py of each model_type; for rows marked "published code",
the modelling code published with the checkpoints.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Head = Literal["given", "derived", "doubled", "mla", "joined"]
Parameters = Mapping[str, Any]
Sizes = tuple[int, int, int, int | None]
ALL = "all"  # the layer type of the only table
NOT_ATTENTION = ("linear_attention", "conv", "mamba", "mamba2", "recurrent", "moe", "mlp")


@dataclass(frozen=True, slots=True)
class Pattern:
    """The types of layers where config.json does not list them.

    Attributes:
        period: type `one` comes once in every `period` layers.
        key: where config.json may give the period; None: nowhere.
        first: True: it is the first of each period; False: the last.
        one: the rarer layer type.
        rest: the type of the other layers.
        also: further layers of type `one`; -1: the last layer.
    """

    period: int
    key: str | None = None
    first: bool = False
    one: str = "full_attention"
    rest: str = "sliding_attention"
    also: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Convention:
    """How one model_type reads RoPE from its config.json.

    Attributes:
        sizes: hidden_size, num_attention_heads, num_hidden_layers, max_position_embeddings of its config class.
        head_dim: of its config class, used where the key is absent (null means hidden_size / num_attention_heads).
        head: the size of a head. given: head_dim, else hidden_size / num_attention_heads. derived: always the latter.
            doubled: twice the latter. mla: qk_rope_head_dim, all of which rotates. joined: qk_nope_head_dim +
            qk_rope_head_dim.
        rotary_dim: default of qk_rope_head_dim (mla, joined) or of rotary_dim; None: the class has no default.
        rotary_key: the key that gives the number of rotated channels where no partial_rotary_factor does.
        theta: used where config.json gives none.
        partial: partial_rotary_factor where config.json gives none; None: the class reads it only where RoPE is scaled.
        layout: a row of rotation.LAYOUTS.
        tables: layer type -> default parameters of its table; {}: one table for every layer.
        thetas: layer type -> the top-level key under which older files give its theta.
        scaled: layer types that an older file's rope_scaling is merged into.
        heads: layer type -> (key, default) of its own head_dim.
        assumed: rope_parameters where config.json gives none.
        pattern: layer types where config.json gives none.
        unrotated: layer types that attend without rotating.
        rotates_if_null: a key; where it is null, these layer types rotate after all.
        table_of: layer type -> the table it rotates by, where that is not its own name or the only table.
        listed: (key, rotate, default): layers in the list under key do, or do not, rotate.
        interval: every interval-th layer does not rotate: default of no_rope_layer_interval.
        condition: (key, value, default): rotates only where key has that value.
        types: rope_type in the file -> the row of SCALINGS it means.
        stretched: keys of published code for dynamic RoPE: its factor, and the length from which theta grows, with the
            default of the latter.
        trained: original_max_position_embeddings of its config class, which overrides one among the parameters.
        sections: mrope_section where config.json gives none.
        axes: a row of multi_axis.AXES.
        softmax: attention scores are also scaled by m(factor, mscale_all_dim)^2.
    """

    sizes: Sizes | None = None
    head_dim: int | None = None
    head: Head = "given"
    rotary_dim: int | None = None
    rotary_key: str = "rotary_dim"
    theta: float = 10000.0
    partial: float | None = None
    layout: str = "half"
    tables: Mapping[str, Parameters] = field(default_factory=dict)
    thetas: Mapping[str, str] = field(default_factory=dict)
    scaled: tuple[str, ...] = ()
    heads: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    assumed: Parameters = field(default_factory=dict)
    pattern: Pattern | None = None
    unrotated: tuple[str, ...] = ()
    rotates_if_null: str | None = None
    table_of: Mapping[str, str] = field(default_factory=dict)
    listed: tuple[str, bool, tuple[int, ...] | None] | None = None
    interval: int | None = None
    condition: tuple[str, Any, Any] | None = None
    types: Mapping[str, str] = field(default_factory=dict)
    stretched: tuple[str, str, int] | None = None
    trained: int | None = None
    sections: tuple[int, ...] | None = None
    axes: Literal["chunked", "interleaved", "ernie"] | None = None
    softmax: bool = False


def _mla(sizes: Sizes | None, rotary_dim: int = 64, **rest: Any) -> Convention:
    """Return a row of DeepSeek's latent attention: only a slice of each head rotates, and it is stored interleaved."""
    return Convention(
        sizes, head="mla", rotary_dim=rotary_dim, softmax=True, **{"layout": "interleave_in_half_out"} | rest
    )


def _llama3(theta: float, factor: float, low: float, high: float, trained: int) -> Parameters:
    return {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": trained,
    }


def _yarn(factor: float, trained: int, **rest: Any) -> Parameters:
    return {
        "rope_type": "yarn",
        "factor": factor,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": trained,
        **rest,
    }


def _two_tables(full: float, sliding: float, **rest: Any) -> dict[str, Any]:
    """Return the tables of full and sliding layers with a theta each; older files may have them at the top level."""
    return {
        "tables": {"full_attention": {"rope_theta": full}, "sliding_attention": {"rope_theta": sliding}},
        "scaled": ("full_attention",),
        **rest,
    }


_EVERY_SIXTH = Pattern(6, "sliding_window_pattern")
_GEMMA3 = _two_tables(
    1e6, 1e4, thetas={"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"}, pattern=_EVERY_SIXTH
)
_GEMMA4: dict[str, Any] = {
    "head_dim": 256,
    "heads": {"full_attention": ("global_head_dim", 512)},
    "tables": {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        "sliding_attention": {"rope_theta": 1e4},
    },
    "pattern": Pattern(6, also=(-1,)),
}
_MODERNBERT = _two_tables(
    160000.0,
    10000.0,
    thetas={"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"},
    pattern=Pattern(3, "global_attn_every_n_layers", first=True),
) | {"scaled": ("full_attention", "sliding_attention")}
_QWEN_VL: dict[str, Any] = {"theta": 1e6, "sections": (16, 24, 24), "axes": "chunked"}
_QWEN3_VL: dict[str, Any] = {"sections": (24, 20, 20), "axes": "interleaved"}
_HYBRID = Pattern(4, "full_attention_interval", rest="linear_attention")
_GLM_VL: dict[str, Any] = {"sections": (8, 12, 12), "axes": "chunked"}
_LOCAL_ONLY: dict[str, Any] = {"unrotated": ("full_attention",)}
_MINISTRAL_YARN = {"mscale": 1.0, "mscale_all_dim": 1.0}

CONVENTIONS: dict[str, Convention] = {
    "afmoe": Convention(
        (2048, 16, 32, 16384), head_dim=128, pattern=Pattern(4, "global_attn_every_n_layers"), **_LOCAL_ONLY
    ),
    "apertus": Convention((4096, 32, 32, 65536), theta=1.2e7, assumed=_llama3(1.2e7, 8.0, 1.0, 4.0, 8192)),
    "arcee": Convention((2560, 32, 32, 4096)),
    "aria_text": Convention((4096, 32, 32, 2048)),
    "axk1": _mla((7168, 64, 61, 32768)),
    "axk2": _mla((2048, 32, 48, 131072), 32),
    "bailing_hybrid": _mla(
        (2560, 32, 42, 262144), theta=6e6, pattern=Pattern(6, "layer_group_size", rest="linear_attention")
    ),
    "bamba": Convention((4096, 32, 32, 262144), partial=0.5, listed=("attn_layer_indices", True, ())),
    "bitnet": Convention((2560, 20, 30, 2048), theta=5e5),
    "blt_global_transformer": Convention((2048, 16, 25, 4096), head="derived", theta=5e5, layout="interleaved"),
    "blt_local_decoder": Convention((1024, 16, 9, 24576), head="derived", theta=5e5, layout="interleaved"),
    "blt_local_encoder": Convention((1024, 16, 1, 24576), theta=5e5, layout="interleaved"),
    "blt_patcher": Convention((768, 12, 14, 8192), head="derived", layout="interleaved"),
    "chameleon": Convention((4096, 32, 32, 4096)),
    # published code of ChatGLM 2 to 4: half of each head, theta 10000 * rope_ratio
    "chatglm": Convention(partial=0.5, layout="interleaved"),
    "codegen": Convention((4096, 16, 28, 2048), rotary_dim=64, layout="interleaved"),
    "cohere": Convention((8192, 64, 40, 8192), theta=5e5, layout="interleaved"),
    "cohere2": Convention(
        (8192, 64, 40, 8192),
        head="derived",
        layout="interleaved",
        pattern=Pattern(4, "sliding_window_pattern"),
        **_LOCAL_ONLY,
    ),
    "csm": Convention((2048, 32, 16, 2048), theta=5e5),
    "csm_depth_decoder_model": Convention((1024, 8, 4, 33), theta=5e5),
    "cwm": Convention((6144, 48, 64, 131072), head_dim=128, theta=1e6, assumed=_llama3(1e6, 16.0, 1.0, 4.0, 8192)),
    "dbrx": Convention((2048, 16, 24, 2048)),
    "deepseek": Convention(),  # published code
    "deepseek_ocr2_text": Convention((4096, 32, 32, 2048), head="derived"),
    "deepseek_v2": _mla((4096, 32, 32, 2048), layout="interleaved"),
    "deepseek_v3": _mla((7168, 128, 61, 4096)),
    "deepseek_v32": _mla((7168, 128, 61, 163840)),
    "deepseek_v4": Convention(
        (4096, 64, 43, 1048576),
        head_dim=512,
        partial=0.125,
        rotary_key="qk_rope_head_dim",
        layout="interleaved_trailing",
        tables={"main": {"rope_theta": 1e4}, "compress": {"rope_theta": 160000.0}},
        thetas={"main": "rope_theta", "compress": "compress_rope_theta"},
        scaled=("compress",),
        table_of={
            "sliding_attention": "main",
            "compressed_sparse_attention": "compress",
            "heavily_compressed_attention": "compress",
        },
        pattern=Pattern(
            2, first=True, one="heavily_compressed_attention", rest="compressed_sparse_attention", also=(1,)
        ),
    ),
    "dia_decoder": Convention((2048, 16, 18, 3072), head_dim=128),
    "dia_encoder": Convention((1024, 16, 12, 1024), head_dim=128),
    "diffllama": Convention((2048, 32, 16, 2048)),
    "diffusion_gemma_text": Convention((2304, 8, 30, 131072), partial=1.0, **_GEMMA4),
    "doge": Convention((1024, 8, 32, 2048)),
    "dots1": Convention((4608, 32, 62, 2048)),
    "embedding_gemma2_text": Convention(
        (512, 4, 24, 262144),
        **_GEMMA4
        | {
            "tables": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}},
            "pattern": Pattern(6, "sliding_window_pattern", also=(-1,)),
        },
    ),
    "emu3_text_model": Convention((4096, 32, 32, 9216), theta=1e6),
    "ernie4_5": Convention((1024, 16, 18, 131072), head_dim=128, theta=5e5, layout="interleaved"),
    "ernie4_5_moe": Convention((2560, 20, 28, 131072), theta=5e5, layout="interleaved"),
    "ernie4_5_vl_moe_text": Convention(
        (2560, 20, 28, 131072), theta=5e5, layout="interleaved", sections=(22, 22, 20), axes="ernie"
    ),
    "esm": Convention((768, 12, 12, 1026), condition=("position_embedding_type", "rotary", "absolute")),
    "esmc": Convention((2560, 40, 80, 2048)),
    "eurobert": Convention((768, 12, 12, 8192)),
    "evolla": Convention((4096, 32, 32, 8192), theta=5e5),
    "exaone": Convention(),  # published code of EXAONE 3
    "exaone4": Convention(
        (4096, 32, 32, 2048),
        pattern=Pattern(4, "sliding_window_pattern"),
        rotates_if_null="sliding_window",
        **_LOCAL_ONLY,
    ),
    "exaone_moe": Convention(
        (4096, 32, 32, 2048),
        pattern=Pattern(4, "sliding_window_pattern"),
        rotates_if_null="sliding_window",
        **_LOCAL_ONLY,
    ),
    "falcon": Convention((4544, 71, 32, 2048), condition=("alibi", False, False)),
    "falcon_h1": Convention((4096, 32, 32, 8192)),
    "flex_olmo": Convention((4096, 32, 32, 4096), theta=5e5),
    "flint": Convention((2048, 32, 49, 262144), head_dim=128),
    "gemma": Convention((3072, 16, 28, 8192), head_dim=256),
    "gemma2": Convention((2304, 8, 26, 8192), head_dim=256),
    "gemma3_text": Convention((2304, 8, 26, 131072), head_dim=256, **_GEMMA3),
    "gemma3n_text": Convention((2048, 8, 35, 32768), head_dim=256, **_GEMMA3 | {"pattern": Pattern(5)}),
    "gemma4_text": Convention((2304, 8, 30, 131072), **_GEMMA4),
    "gemma4_unified_text": Convention((2304, 8, 30, 262144), **_GEMMA4),
    "glm": Convention((4096, 32, 40, 131072), head_dim=128, partial=0.5, layout="interleaved"),
    "glm4": Convention((4096, 32, 40, 131072), head_dim=128, partial=0.5, layout="interleaved"),
    "glm4_moe": Convention((4096, 96, 46, 131072), partial=0.5),
    "glm4_moe_lite": _mla((2048, 20, 47, 202752)),
    "glm4v_moe_text": Convention((4096, 96, 46, 65536), partial=0.5, **_GLM_VL),
    "glm4v_text": Convention((4096, 32, 40, 32768), partial=1.0, layout="interleaved", **_GLM_VL),
    "glm_image_text": Convention((4096, 32, 40, 131072), partial=1.0, **_GLM_VL),
    "glm_moe_dsa": _mla((6144, 64, 78, 202752)),
    "glm_ocr_text": Convention((1024, 16, 16, 131072), partial=1.0, layout="interleaved", **_GLM_VL),
    "gpt_neox": Convention((6144, 64, 44, 2048), partial=0.25),
    "gpt_neox_japanese": Convention((2560, 32, 32, 2048), partial=1.0),
    "gpt_oss": Convention(
        (2880, 64, 36, 131072), head_dim=64, theta=150000.0, assumed=_yarn(32.0, 4096, truncate=False)
    ),
    "gptj": Convention((4096, 16, 28, 2048), rotary_dim=64, layout="interleaved"),
    "granite": Convention((4096, 32, 32, 2048)),
    "granite4_vision_text": Convention((4096, 32, 32, 2048)),
    "granite_docling_text": Convention((1024, 16, 28, 32768)),
    "granitemoe": Convention((4096, 32, 32, 2048)),
    "granitemoehybrid": Convention(
        (4096, 32, 32, 2048),
        condition=("position_embedding_type", "rope", None),
        pattern=Pattern(1, one="linear_attention"),
    ),
    "granitemoeshared": Convention((4096, 32, 32, 2048)),
    "gte": Convention((768, 12, 12, 8192), theta=160000.0, types={"ntk": "ntk_fixed"}),  # of its published code
    "helium": Convention((2560, 20, 24, 4096), head_dim=128, theta=1e5, layout="interleaved"),
    "higgs_audio_v2": Convention(
        (3072, 24, 28, 2048), head_dim=128, theta=1e4, assumed=_llama3(5e5, 32.0, 0.125, 0.5, 1024)
    ),
    "hrm_text": Convention((1536, 12, 128, 2048), head_dim=128),
    "hunyuan": Convention(),  # published code of Hunyuan Large
    "hunyuan_v1_dense": Convention((4096, 32, 32, 2048)),
    "hunyuan_v1_moe": Convention((4096, 32, 32, 2048)),
    "hy_v3": Convention((4096, 64, 80, 131072), head_dim=128, theta=11158840.0),
    "hy_v4": _mla((2816, 32, 34, 262144), layout="half"),
    "hyperclovax": Convention((4096, 32, 32, 2048)),
    "idefics": Convention((4096, 32, 32, 2048)),
    "internlm2": Convention(),  # published code
    "internlm3": Convention((4096, 32, 48, 32768)),
    "jais2": Convention((3328, 26, 32, 8192)),
    "jetmoe": Convention((2048, 32, 12, 4096), head_dim=128),
    "jina_embeddings_v3": Convention((1024, 16, 24, 8194), theta=20000.0),
    "kimi_k2": _mla(None),  # published code: DeepSeek-V3's
    "kyutai_speech_to_text": Convention((2048, 32, 48, 750)),
    "laguna": Convention(
        (2048, 48, 40, 131072),
        head_dim=128,
        partial=1.0,
        tables={
            "full_attention": {"rope_theta": 5e5, "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_theta": 1e4},
        },
        pattern=Pattern(1),
    ),
    "lfm2": Convention((2560, 32, 32, 128000), theta=1e6, listed=("full_attn_idxs", True, None)),
    "lfm2_moe": Convention((2048, 32, 32, 128000), theta=1e6),
    "llama": Convention((4096, 32, 32, 2048)),
    "llama4_text": Convention((5120, 40, 48, 131072), head_dim=128, theta=5e5, layout="interleaved", interval=4),
    "longcat_flash": _mla((6144, 64, 56, 131072), theta=1e7),
    "mellum": Convention(
        (2304, 32, 28, 131072),
        head_dim=128,
        partial=1.0,
        tables={"full_attention": {"rope_theta": 5e5}, "sliding_attention": {"rope_theta": 1e4}},
        pattern=Pattern(1),
    ),
    "mimi": Convention((512, 8, 8, 8000)),
    "mimo_v2_flash": Convention(
        (4096, 64, 48, 131072),
        head_dim=192,
        partial=0.334,
        tables={"full_attention": {"rope_theta": 5e6}, "sliding_attention": {"rope_theta": 1e4}},
        pattern=Pattern(6, also=(0,)),
    ),
    "minicpm": Convention(),  # published code
    "minicpm3": _mla((2560, 40, 62, 32768), 32, layout="half"),
    "minimax": Convention((4096, 32, 32, 131072), theta=1e6, pattern=Pattern(2, first=True, rest="linear_attention")),
    "minimax_m2": Convention((3072, 48, 62, 196608), head_dim=128, theta=5e6, partial=1.0),
    "ministral": Convention((4096, 32, 32, 131072)),
    "ministral3": Convention(
        (4096, 32, 34, 262144), head_dim=128, assumed=_yarn(16.0, 16384, rope_theta=1e6, **_MINISTRAL_YARN)
    ),
    "mistral": Convention((4096, 32, 32, 131072)),
    "mistral4": Convention(
        (4096, 32, 36, 1048576),
        head="joined",
        rotary_dim=64,
        layout="interleave_in_half_out",
        softmax=True,
        assumed=_yarn(128.0, 8192, rope_theta=1e4, **_MINISTRAL_YARN),
    ),
    "mixtral": Convention((4096, 32, 32, 131072), theta=1e6),
    "mllama_text_model": Convention(
        (4096, 32, 40, 131072), theta=5e5, listed=("cross_attention_layers", False, (3, 8, 13, 18, 23, 28, 33, 38))
    ),
    "modernbert": Convention((768, 12, 22, 8192), **_MODERNBERT),
    "modernbert-decoder": Convention((768, 12, 22, 8192), **_MODERNBERT),
    "moshi": Convention((4096, 32, 32, 3000)),
    "nanochat": Convention((768, 6, 12, 2048), layout="half_negative"),
    "nemotron": Convention((6144, 48, 32, 4096), partial=0.5),
    "nomic_bert": Convention(
        (768, 12, 12, 2048), theta=1000.0, stretched=("rotary_scaling_factor", "max_trained_positions", 2048)
    ),
    "olmo": Convention((4096, 32, 32, 2048)),
    "olmo2": Convention((4096, 32, 32, 2048)),
    "olmo3": Convention(
        (4096, 32, 32, 2048), **_two_tables(5e5, 5e5, thetas={"full_attention": "rope_theta"}, pattern=Pattern(4))
    ),
    "olmo_hybrid": Convention((3840, 30, 32, 65536), pattern=Pattern(4, rest="linear_attention")),
    "olmoe": Convention((2048, 16, 16, 4096)),
    "openai_privacy_filter": Convention(
        (640, 14, 8, 131072),
        head_dim=64,
        theta=150000.0,
        layout="interleaved",
        assumed=_yarn(32.0, 4096, truncate=False),
    ),
    "paddleocr_vl_text": Convention(
        (1024, 16, 18, 131072), head_dim=128, theta=5e5, sections=(16, 24, 24), axes="chunked"
    ),
    "persimmon": Convention((4096, 64, 36, 16384), partial=0.5),
    "phi": Convention((2048, 32, 24, 2048), partial=0.5),
    "phi3": Convention((3072, 32, 32, 4096), partial=1.0, types={"yarn": "longrope"}, trained=4096),
    "phi4_multimodal": Convention((3072, 32, 32, 131072), partial=1.0, types={"yarn": "longrope"}, trained=4096),
    "phimoe": Convention((4096, 32, 32, 131072), theta=1e6),
    "qwen2": Convention((4096, 32, 32, 32768)),
    "qwen2_5_omni_talker": Convention((3584, 28, 28, 32768), head_dim=128, **_QWEN_VL),
    "qwen2_5_omni_text": Convention((3584, 28, 28, 32768), **_QWEN_VL),
    "qwen2_5_vl_text": Convention((8192, 64, 80, 32768), **_QWEN_VL),
    "qwen2_moe": Convention((2048, 16, 24, 32768)),
    "qwen2_vl_text": Convention((8192, 64, 80, 32768), **_QWEN_VL),
    "qwen3": Convention((4096, 32, 32, 32768), head_dim=128),
    "qwen3_5_moe_text": Convention(
        (2048, 16, 40, 32768), head_dim=256, partial=0.25, sections=(11, 11, 10), axes="interleaved", pattern=_HYBRID
    ),
    "qwen3_5_text": Convention(
        (4096, 16, 32, 32768), head_dim=256, partial=0.25, sections=(11, 11, 10), axes="interleaved", pattern=_HYBRID
    ),
    "qwen3_moe": Convention((2048, 32, 24, 32768)),
    "qwen3_next": Convention((2048, 16, 48, 32768), head_dim=256, partial=0.25, pattern=_HYBRID),
    "qwen3_omni_moe_talker_code_predictor": Convention((1024, 16, 5, 32768), head_dim=128),
    "qwen3_omni_moe_talker_text": Convention((1024, 16, 20, 32768), **_QWEN3_VL),
    "qwen3_omni_moe_text": Convention((2048, 28, 28, 32768), theta=1e6, **_QWEN3_VL),
    "qwen3_vl_moe_text": Convention((2048, 16, 24, 128000), theta=5e5, **_QWEN3_VL),
    "qwen3_vl_text": Convention((4096, 32, 32, 128000), head_dim=128, theta=5e5, **_QWEN3_VL),
    "recurrent_gemma": Convention(
        (2560, 10, 26, None), head="derived", partial=0.5, pattern=Pattern(3, one="attention", rest="recurrent")
    ),
    "roformer": Convention((768, 12, 12, 1536), layout="interleaved"),
    "seed_oss": Convention((4096, 80, 64, 524288), head_dim=128),
    "smollm3": Convention((2048, 16, 36, 32768), theta=2e6, interval=4),
    "solar_open": Convention((4096, 64, 48, 131072), head_dim=128, theta=1e6, partial=1.0),
    "stablelm": Convention((2560, 32, 32, 4096), partial=0.25),
    "starcoder2": Convention((3072, 24, 30, 4096)),
    "t5_gemma_module": Convention((2304, 8, 26, 8192), head_dim=256),
    "t5gemma2_decoder": Convention((2304, 8, 26, 131072), head_dim=256, **_GEMMA3),
    "t5gemma2_text": Convention((2304, 8, 26, 131072), head_dim=256, **_GEMMA3),
    "ultrabert": Convention((4096, 32, 32, 2048), **_two_tables(2560000.0, 10000.0, pattern=Pattern(3))),
    "unlimited_ocr_text": Convention((1280, 10, 12, 32768), head="derived"),
    "vaultgemma": Convention((2304, 8, 26, 8192), head_dim=256),
    "voxtral_realtime_text": Convention((4096, 32, 32, 131072)),
    "youtu": _mla((2048, 16, 32, 131072)),
    "zamba2": Convention((2560, 32, 54, 4096), head="doubled", condition=("use_mem_rope", True, False)),
    "zaya": Convention(
        (2048, 8, 40, 131072),
        head_dim=128,
        partial=1.0,
        tables={
            "hybrid": {"rope_theta": 5e6, "partial_rotary_factor": 0.5},
            "hybrid_sliding": {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
        },
        pattern=Pattern(1, one="hybrid"),
    ),
}
_TEXT_TYPES = {
    "llama": (
        "deepseek_vl deepseek_vl_hybrid glmasr idefics3 janus llava llava_next llava_next_video perception_lm smolvlm "
        "video_llava vipllava voxtral"
    ),
    "qwen2": (
        "audioflamingo3 fast_vlm got_ocr2 internvl llava_onevision ovis2 qwen2_audio vibevoice vibevoice_asr "
        "video_llama_3"
    ),
    "gte": "new",  # of published code
    "qwen3": "fun_asr_nano lighton_ocr qwen3_asr",
    "mistral": "idefics2 mistral3",
    "granite": "granite_speech",
    "cohere2": "aya_vision cohere2_vision",
    "gemma": "paligemma",
    "gemma3_text": "gemma3 shieldgemma2",
    "glm4v_text": "glm46v glm4v",
    "deepseek_v3": "kimi_k25",
    "exaone4": "exaone4_5",
    "lfm2": "lfm2_vl",
    "modernbert": "modernvbert",
    "persimmon": "fuyu",
    "mllama_text_model": "mllama",
    "emu3_text_model": "emu3",
    "t5_gemma_module": "t5gemma",
    "t5gemma2_decoder": "t5gemma2",
    "qwen2_5_omni_text": "qwen2_5_omni qwen2_5_omni_thinker",
    "qwen3_omni_moe_text": "qwen3_omni_moe qwen3_omni_moe_thinker",
}
_NAMED_ALIKE = (
    "aria deepseek_ocr2 diffusion_gemma embedding_gemma2 ernie4_5_vl_moe gemma3n gemma4 gemma4_unified glm4v_moe "
    "glm_image glm_ocr granite4_vision granite_docling llama4 paddleocr_vl qwen2_5_vl qwen2_vl qwen3_5 qwen3_5_moe "
    "qwen3_vl qwen3_vl_moe unlimited_ocr voxtral_realtime"
)
# a model of several towers -> the model_type of its text tower where text_config gives none
TEXT_TYPES: dict[str, str] = {outer: inner for inner, outers in _TEXT_TYPES.items() for outer in outers.split()} | {
    name: f"{name}_text" for name in _NAMED_ALIKE.split()
}

_NO_ROPE = {
    "learned positions": (
        "albert bart bert big_bird bigbird_pegasus biogpt blenderbot blenderbot-small camembert canine clip_text_model "
        "convbert data2vec-text deberta distilbert electra ernie flaubert gpt2 gpt_bigcode gpt_neo imagegpt layoutlm "
        "led longformer luke lxmert mbart megatron-bert mobilebert mvp nystromformer openai-gpt opt rembert roberta "
        "roberta-prelayernorm splinter squeezebert visual_bert xlm xlm-roberta xlm-roberta-xl xmod"
    ),
    "sinusoidal positions": "ctrl fsmt m2m_100 marian musicgen_decoder pegasus speech_to_text whisper xglm",
    "ALiBi": "bloom mpt",
    "relative position buckets": "deberta-v2 longt5 mpnet mt5 pop2piano switch_transformers t5 udop umt5",
    "relative positions": "funnel transfo-xl xlnet",
    "no positions": "falcon_mamba jamba mamba mamba2 nemotron_h rwkv",
}
NO_ROPE: dict[str, str] = {name: scheme for scheme, names in _NO_ROPE.items() for name in names.split()}
