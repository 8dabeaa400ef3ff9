"""DECODERS: the families whose tokens attend to those before them: GPT, Llama and their descendants.

Source: transformers 5.23 (the modeling and configuration modules of each family: orders of sums, defaults).
"""

import math
from dataclasses import replace
from typing import Any

from models.families import decoder_blocks, gpt_blocks
from models.families.config import Config
from models.families.family import AlibiSpec, ExpertSpec, Family, ScaleSpec, norm, rms_norm, sizes
from models.recipes.steps import (
    AddPosition,
    AddSinusoid,
    AddType,
    Embed,
    LayerNorm,
    Linear,
    Norm,
    Recipe,
    RMSNorm,
    Scale,
)

_WORD_TABLE = Embed("embed_tokens.weight")
_GPT2_NAMES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
}


def _sizes(vocab_size: int, hidden: int, layers: int, heads: int, longest: int | None, pad: int | None) -> Any:
    """Return the defaults of the usual config class; `longest` None: it has no such key."""
    positions = {} if longest is None else {"max_position_embeddings": longest}
    return {**sizes(vocab_size, hidden, layers, heads), **positions, "pad_token_id": pad}


def _plain(
    vocab_size: int, hidden: int, layers: int, heads: int, longest: int | None, pad: int | None = None, **rest: Any
) -> Family:
    """Return a family with a word table under `model.` and RoPE, and nothing else before the first block."""
    defaults = _sizes(vocab_size, hidden, layers, heads, longest, pad) | rest.pop("defaults", {})
    common: dict[str, Any] = {"input_layer": (_WORD_TABLE,), "rotates": True, "causal": True}
    return Family("model.", defaults, **common | rest)


def _scaled(family: Family, scale: ScaleSpec, **defaults: Any) -> Family:
    """Return the family with the word table's rows multiplied."""
    return replace(family, defaults={**family.defaults, **defaults}, input_layer=(_WORD_TABLE, Scale(0.0)), scale=scale)


def _like_gpt2(prefix: str, word_table: str, positions: str | None, sizes: dict[str, Any], **rest: Any) -> Family:
    """Return a family whose segments are rows of the word table, added only where they are sent."""
    position_steps = (AddPosition(positions),) if positions else ()
    common: dict[str, Any] = {"types": "optional", "causal": True, "names": _GPT2_NAMES}
    return Family(prefix, sizes, (Embed(word_table), *position_steps, AddType(word_table)), **common | rest)


def _whole_gpt2(family: Family, block: Recipe, defaults: dict[str, Any] | None = None, **rest: Any) -> Family:
    """Return the family with its blocks; rest: more of Family."""
    values = {"layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "n_inner": None} | (defaults or {})
    names = {**family.names, "hidden_act": "activation_function", "intermediate_size": "n_inner"}
    return replace(
        family,
        defaults={**family.defaults, **values},
        names=names,
        block=block,
        after_blocks=(norm("ln_f"),),
        eps="layer_norm_epsilon",
        **rest,
    )


def _gpt2_sizes(vocab_size: int, hidden: int, layers: int, heads: int, longest: int) -> dict[str, Any]:
    return {
        "vocab_size": vocab_size,
        "n_embd": hidden,
        "n_positions": longest,
        "n_layer": layers,
        "n_head": heads,
        "pad_token_id": None,
    }


_SQRT_ROUNDED = ScaleSpec(rounded="weights")
_MULTIPLIED = ScaleSpec(key="embedding_multiplier")
_PER_LAYER = (Embed("embed_tokens_per_layer.weight"), Scale(0.0))
_NO_MASKS: dict[str, Any] = {"omits_masks": True}

# vLLM 0.33: forward scales its inputs_embeds
_TAKES_UNSCALED: dict[str, Any] = {"prompt_embeds_output": "unscaled_embeddings"}

_GRANITE = _scaled(_plain(32000, 4096, 32, 32, 2048, **_TAKES_UNSCALED), _MULTIPLIED, embedding_multiplier=1.0)
_MISTRAL = _plain(32000, 4096, 32, 32, 131072, defaults={"sliding_window": 4096}, window="sliding_window")


def _whole(
    family: Family,
    block: Recipe,
    last: Norm,
    inner: int | None,
    key_heads: int | None = None,
    eps: float = 1e-6,
    act: str = "silu",
    *,
    eps_key: str = "rms_norm_eps",
    act_key: str = "hidden_act",
    defaults: dict[str, Any] | None = None,
    **rest: Any,
) -> Family:
    """Return the family with its blocks.

    Args:
        family: the input layer.
        block: the steps of a block.
        last: the norm behind the last.
        inner, key_heads, eps, act: the config class's defaults; no key heads: as many as attention heads.
        eps_key, act_key: the config's keys of eps and activation.
        defaults: of further keys.
        rest: more of Family.
    """
    values = {"intermediate_size": inner, eps_key: eps, act_key: act}
    values |= {} if key_heads is None else {"num_key_value_heads": key_heads}
    names = {**family.names, **rest.pop("names", {})} | ({"hidden_act": act_key} if act_key != "hidden_act" else {})
    defaults = {**family.defaults, **values, **(defaults or {})}
    return replace(family, defaults=defaults, names=names, block=block, after_blocks=(last,), eps=eps_key, **rest)


_RMS = rms_norm("norm")
_GEMMA_RMS = rms_norm("norm", 1.0)
_NO_BIAS: dict[str, Any] = {"attention_bias": False}
_NO_BIASES: dict[str, Any] = {"attention_bias": False, "mlp_bias": False}


def _root_of_scalar(config: Config) -> float:
    return 1 / math.sqrt(config.number("query_pre_attn_scalar"))


def _multiplier(config: Config) -> float:
    given = config.get("attention_multiplier") is not None
    return config.number("attention_multiplier") if given else config.head_dim() ** -0.5


_GLM: dict[str, Any] = {
    "defaults": {"attention_bias": True, "head_dim": 128},
    "bias_if": decoder_blocks.ATTENTION_BIAS,
    "stored": decoder_blocks.FUSED_GATE,
}
_COHERE_NORM = replace(norm("norm"), bias=None)
_QWEN_WINDOW: dict[str, Any] = {
    "defaults": {"sliding_window": None, "use_sliding_window": False, "max_window_layers": 28},
    "window": "sliding_window",
    "layer_types": decoder_blocks.behind,
}
_GEMMA2_DEFAULTS = _NO_BIAS | {"head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096}
_WINDOWED: dict[str, Any] = {"window": "sliding_window", "layer_types": decoder_blocks.every_fourth}
_EXPERTS: dict[str, Any] = {"names": {"num_experts": "num_local_experts"}, "experts": ExpertSpec()}
_OF_QWEN = ExpertSpec(
    inner="moe_intermediate_size",
    normalized="norm_topk_prob",
    dense=decoder_blocks.without_experts,
    instead=decoder_blocks.GATED,
)
_QWEN_EXPERTS: dict[str, Any] = {"norm_topk_prob": False, "decoder_sparse_step": 1, "mlp_only_layers": []}
_QWEN_EXPERTS |= {"use_sliding_window": False, "sliding_window": None}
_QWEN2_VL = _plain(152064, 8192, 80, 64, 32768, **_NO_MASKS)

_FALCON = Family(
    prefix="transformer.",
    defaults=_sizes(65024, 4544, 32, 71, 2048, None)
    | {
        "alibi": False,
        "new_decoder_architecture": False,
        "multi_query": True,
        "parallel_attn": True,
        "bias": False,
        "activation": "gelu",
        "layer_norm_epsilon": 1e-5,
    },
    names={"hidden_size": "n_embed", "intermediate_size": "ffn_hidden_size", "hidden_act": "activation"},
    input_layer=(Embed("word_embeddings.weight"),),
    block=gpt_blocks.falcon("input_layernorm", "post_attention_layernorm", parallel=False),
    after_blocks=(norm("ln_f"),),
    stored=gpt_blocks.FALCON_STORED,
    layer_keys=gpt_blocks.with_key_heads(gpt_blocks.falcon_key_heads),
    bias_if={"bias": "h."},
    block_if={"alibi": False},  # that bias is rounded to bfloat16 by the key's number, so distances do not tell it
    eps="layer_norm_epsilon",
    rotates=True,
    causal=True,
    alibi=AlibiSpec("falcon", switch="alibi"),
)
_PARALLEL_FALCON = replace(_FALCON, block=gpt_blocks.falcon("input_layernorm", "input_layernorm"))
_NEW_FALCON = replace(
    _FALCON, block=gpt_blocks.falcon("ln_attn", "ln_mlp"), block_if={"alibi": False, "parallel_attn": True}
)
_ONE_NORM = replace(
    _PARALLEL_FALCON, block_if=_NEW_FALCON.block_if, variants={"num_ln_in_parallel_attn>1": ("falcon", _NEW_FALCON)}
)
_NEW_FALCON = replace(_NEW_FALCON, variants={"num_ln_in_parallel_attn": ("falcon", _ONE_NORM)})
_FALCON = replace(
    _FALCON,
    variants={
        "new_decoder_architecture": ("falcon", _NEW_FALCON),
        "parallel_attn": ("falcon", _PARALLEL_FALCON),
    },
)

_GEMMA2 = _whole(
    _scaled(_plain(256000, 2304, 26, 8, 8192, 0, **_NO_MASKS), _SQRT_ROUNDED),
    decoder_blocks.GEMMA2,
    _GEMMA_RMS,
    9216,
    4,
    act="gelu_pytorch_tanh",
    act_key="hidden_activation",
    defaults=_GEMMA2_DEFAULTS | {"attn_logit_softcapping": 50.0},
    bias_if=decoder_blocks.ATTENTION_BIAS,
    score_scale=_root_of_scalar,
    cap="attn_logit_softcapping",
    window="sliding_window",
    layer_types=decoder_blocks.alternating,
)

DECODERS: dict[str, Family] = {
    "gpt2": _whole_gpt2(
        _like_gpt2("transformer.", "wte.weight", "wpe.weight", _gpt2_sizes(50257, 768, 12, 12, 1024)),
        gpt_blocks.GPT2,
        defaults={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
        block_if={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
        stored=gpt_blocks.GPT2_STORED,
    ),
    "gpt_bigcode": _whole_gpt2(
        _like_gpt2("transformer.", "wte.weight", "wpe.weight", _gpt2_sizes(50257, 768, 12, 12, 1024)),
        gpt_blocks.GPT2,
        defaults={
            "activation_function": "gelu_pytorch_tanh",
            "scale_attn_weights": True,
            "multi_query": True,
            "num_key_value_heads": 1,
        },
        block_if={"scale_attn_weights": True, "add_cross_attention": False},
        stored=gpt_blocks.GPT_BIGCODE_STORED,
        layer_keys=gpt_blocks.with_key_heads(gpt_blocks.one_if_shared),
    ),
    "openai-gpt": _like_gpt2(
        "transformer.",
        "tokens_embed.weight",
        "positions_embed.weight",
        _gpt2_sizes(40478, 768, 12, 12, 512) | {"afn": "gelu", "layer_norm_epsilon": 1e-5},
        names=_GPT2_NAMES | {"hidden_act": "afn"},
        block=gpt_blocks.OPENAI_GPT,
        stored=gpt_blocks.GPT2_STORED,
        feed_forward=gpt_blocks.openai_activation,
        eps="layer_norm_epsilon",
        builds_own_mask=True,
    ),
    "gpt_neo": _like_gpt2(
        "transformer.",
        "wte.weight",
        "wpe.weight",
        {
            "vocab_size": 50257,
            "hidden_size": 2048,
            "num_layers": 24,
            "num_heads": 16,
            "max_position_embeddings": 2048,
            "pad_token_id": None,
            "intermediate_size": None,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5,
            "window_size": 256,
        },
        names={
            "num_hidden_layers": "num_layers",
            "num_attention_heads": "num_heads",
            "hidden_act": "activation_function",
        },
        block=gpt_blocks.GPT_NEO,
        after_blocks=(norm("ln_f"),),
        score_scale=lambda config: 1.0,
        eps="layer_norm_epsilon",
        window="window_size",
        layer_types=gpt_blocks.local_layers,
        **_NO_MASKS,
    ),
    "gptj": _whole_gpt2(
        _like_gpt2("transformer.", "wte.weight", None, _gpt2_sizes(50400, 4096, 28, 16, 2048), rotates=True),
        gpt_blocks.GPTJ,
    ),
    "codegen": _whole_gpt2(
        _like_gpt2(
            "transformer.",
            "wte.weight",
            None,
            {key: value for key, value in _gpt2_sizes(50400, 4096, 28, 16, 2048).items() if key != "pad_token_id"},
            rotates=True,
        ),
        gpt_blocks.GPTJ,
        stored=gpt_blocks.CODEGEN_STORED,
    ),
    "ctrl": Family(
        prefix="transformer.",
        defaults=_gpt2_sizes(246534, 1280, 48, 16, 256) | {"dff": 8192, "layer_norm_epsilon": 1e-6},
        names=_GPT2_NAMES | {"intermediate_size": "dff"},
        input_layer=(Embed("w.weight"), AddType("w.weight"), Scale(0.0), AddSinusoid("ctrl", 0)),
        block=gpt_blocks.CTRL,
        after_blocks=(norm("layernorm"),),
        feed_forward=lambda step, config: step,
        block_if={"layer_norm_epsilon": 1e-6},  # of the blocks' norms in any case
        eps="layer_norm_epsilon",
        types="optional",
        scale=ScaleSpec(),
        prompt_embeds_output="unscaled_embeddings",
        causal=True,
    ),
    "gpt_neox": _whole(
        Family(
            prefix="gpt_neox.",
            defaults=_sizes(50432, 6144, 44, 64, 2048, None),
            input_layer=(Embed("embed_in.weight"),),
            rotates=True,
            causal=True,
        ),
        decoder_blocks.GPT_NEOX,
        norm("final_layer_norm"),
        24576,
        eps=1e-5,
        act="gelu",
        eps_key="layer_norm_eps",
        defaults={"use_parallel_residual": True, "attention_bias": True},
        bias_if={"attention_bias": ".attention."},
        block_if={"use_parallel_residual": True},
        stored=decoder_blocks.GPT_NEOX_STORED,
    ),
    "bloom": Family(
        prefix="transformer.",
        defaults={
            "vocab_size": 250880,
            "hidden_size": 64,
            "n_layer": 2,
            "n_head": 8,
            "layer_norm_epsilon": 1e-5,
            "pad_token_id": None,
            "apply_residual_connection_post_layernorm": False,
        },
        names={"hidden_size": "n_embed", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
        input_layer=(Embed("word_embeddings.weight"), norm("word_embeddings_layernorm")),
        block=gpt_blocks.BLOOM,
        after_blocks=(norm("ln_f"),),
        block_if={"apply_residual_connection_post_layernorm": False},
        stored=gpt_blocks.BLOOM_STORED,
        eps="layer_norm_epsilon",
        causal=True,
        alibi=AlibiSpec("bloom"),
    ),
    "mpt": Family(
        prefix="transformer.",
        defaults={
            "vocab_size": 50368,
            "d_model": 2048,
            "n_layers": 24,
            "n_heads": 16,
            "max_seq_len": 2048,
            "pad_token_id": None,
            "layer_norm_epsilon": 1e-5,
        },
        names={
            "hidden_size": "d_model",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "max_position_embeddings": "max_seq_len",
        },
        input_layer=(Embed("wte.weight"),),
        required_values={"attn_config.alibi": True, "attn_config.prefix_lm": False},
        block=gpt_blocks.MPT,
        after_blocks=(replace(norm("norm_f"), bias=None),),
        stored=gpt_blocks.MPT_STORED,
        feed_forward=lambda step, config: step,
        score_scale=gpt_blocks.scale_of_mpt,
        block_if={
            "attn_config.clip_qkv": None,
            "attn_config.qk_ln": False,
            "attn_config.attn_type": "multihead_attention",
            "attn_config.alibi_bias_max": 8,  # transformers' class does not read it
            "expansion_ratio": 4,
            "no_bias": True,
        },
        eps="layer_norm_epsilon",
        causal=True,
        alibi=AlibiSpec("mpt", max_bias="attn_config.alibi_bias_max"),
    ),
    "falcon": _FALCON,
    "opt": Family(
        prefix="model.",
        defaults=_sizes(50272, 768, 12, 12, 2048, 1)
        | {
            "ffn_dim": 3072,
            "activation_function": "relu",
            "enable_bias": True,
            "do_layer_norm_before": True,
            "layer_norm_elementwise_affine": True,
            "_remove_final_layer_norm": False,
        },
        names={
            "table_width": "word_embed_proj_dim",
            "intermediate_size": "ffn_dim",
            "hidden_act": "activation_function",
        },
        block=gpt_blocks.fairseq("decoder.layers.{block}"),
        after_blocks=(norm("decoder.final_layer_norm"),),
        bias_if={"enable_bias": "decoder.layers."},
        block_if={
            "do_layer_norm_before": True,
            "layer_norm_elementwise_affine": True,
            "_remove_final_layer_norm": False,
        },
        narrow_blocks=False,
        eps=1e-5,  # of the class
        input_layer=(
            Embed("decoder.embed_tokens.weight"),
            Linear("decoder.project_in.weight", None),
            AddPosition("decoder.embed_positions.weight"),
        ),
        numbering="cumsum_mask",
        offset=2,
        causal=True,
    ),
    "biogpt": Family(
        prefix="biogpt.",
        defaults=_sizes(42384, 1024, 24, 16, 1024, 1)
        | {"scale_embedding": True, "intermediate_size": 4096, "hidden_act": "gelu", "layer_norm_eps": 1e-12},
        input_layer=(_WORD_TABLE, Scale(0.0), AddPosition("embed_positions.weight")),
        block=gpt_blocks.fairseq("layers.{block}"),
        after_blocks=(norm("layer_norm"),),
        eps=1e-5,  # of the class; it has no use for layer_norm_eps
        offset=2,
        scale=ScaleSpec(switch="scale_embedding"),
        causal=True,
    ),
    "xglm": Family(
        prefix="model.",
        defaults={
            "vocab_size": 256008,
            "d_model": 1024,
            "num_layers": 24,
            "attention_heads": 16,
            "max_position_embeddings": 2048,
            "scale_embedding": True,
            "pad_token_id": 1,
            "ffn_dim": 4096,
            "activation_function": "gelu",
        },
        names={
            "hidden_size": "d_model",
            "num_hidden_layers": "num_layers",
            "num_attention_heads": "attention_heads",
            "intermediate_size": "ffn_dim",
            "hidden_act": "activation_function",
        },
        input_layer=(_WORD_TABLE, Scale(0.0), AddSinusoid("tensor2tensor", 0)),
        block=gpt_blocks.fairseq("layers.{block}"),
        after_blocks=(norm("layer_norm"),),
        block_if={"add_cross_attention": False},
        eps=1e-5,  # of the class
        offset=2,
        scale=ScaleSpec(switch="scale_embedding"),
        causal=True,
    ),
    "llama": _whole(
        _plain(32000, 4096, 32, 32, 2048, defaults={"head_dim": None}),
        decoder_blocks.LLAMA,
        _RMS,
        11008,
        None,
        defaults=_NO_BIASES,
        bias_if=decoder_blocks.BIASES,
    ),
    "arcee": _whole(
        _plain(32000, 2560, 32, 32, 4096),
        decoder_blocks.ARCEE,
        _RMS,
        18432,
        eps=1e-5,
        act="relu2",
        defaults=_NO_BIASES,
        bias_if=decoder_blocks.BIASES,
    ),
    "mistral": _whole(_MISTRAL, decoder_blocks.MISTRAL, _RMS, 14336, 8),
    "mixtral": _whole(
        replace(_MISTRAL, defaults={**_MISTRAL.defaults, "sliding_window": None}),
        decoder_blocks.MIXTRAL,
        _RMS,
        14336,
        8,
        1e-5,
        defaults={"num_local_experts": 8, "num_experts_per_tok": 2},
        stored=decoder_blocks.MIXTRAL_STORED,
        **_EXPERTS,
    ),
    "qwen2": _whole(
        _plain(151936, 4096, 32, 32, 32768, **_NO_MASKS), decoder_blocks.QWEN2, _RMS, 22016, 32, **_QWEN_WINDOW
    ),
    "qwen2_moe": _whole(
        _plain(151936, 2048, 24, 16, 32768, **_NO_MASKS),
        decoder_blocks.QWEN2_MOE,
        _RMS,
        5632,
        16,
        defaults=_QWEN_EXPERTS
        | {"moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "max_window_layers": 28}
        | {"num_experts": 60, "num_experts_per_tok": 4, "qkv_bias": True, "sliding_window": 0},
        bias_if={"qkv_bias": ".self_attn."},
        stored=decoder_blocks.stored_experts(),
        window="sliding_window",
        layer_types=decoder_blocks.even_before,
        experts=replace(_OF_QWEN, shared_inner="shared_expert_intermediate_size"),
    ),
    "qwen3": _whole(
        _plain(151936, 4096, 32, 32, 32768, **_NO_MASKS),
        decoder_blocks.QWEN3,
        _RMS,
        22016,
        32,
        bias_if=decoder_blocks.ATTENTION_BIAS,
        **_QWEN_WINDOW | {"defaults": _QWEN_WINDOW["defaults"] | _NO_BIAS | {"head_dim": 128}},
    ),
    "qwen3_moe": _whole(
        _plain(151936, 2048, 24, 32, 32768, **_NO_MASKS),
        decoder_blocks.QWEN3_MOE,
        _RMS,
        6144,
        4,
        defaults=_QWEN_EXPERTS
        | _NO_BIAS
        | {"moe_intermediate_size": 768, "num_local_experts": 128, "num_experts_per_tok": 8},
        bias_if=decoder_blocks.ATTENTION_BIAS,
        stored=decoder_blocks.stored_experts(),
        window="sliding_window",
        layer_types=decoder_blocks.every_layer,
        **_EXPERTS | {"experts": _OF_QWEN},
    ),
    "qwen2_vl_text": _QWEN2_VL,
    "qwen2_5_vl_text": _QWEN2_VL,
    "qwen3_vl_text": _plain(151936, 4096, 32, 32, 128000),
    "qwen3_vl_moe_text": _plain(151936, 2048, 24, 16, 128000),
    "olmo": _plain(
        50304,
        4096,
        32,
        32,
        2048,
        1,
        defaults=_NO_BIAS | {"intermediate_size": 11008, "hidden_act": "silu", "clip_qkv": None},
        block=decoder_blocks.OLMO,
        after_blocks=(LayerNorm(None, None, 0.0),),
        bias_if=decoder_blocks.ATTENTION_BIAS,
        block_if={"clip_qkv": None},
        eps=1e-5,  # of the class
    ),
    "olmo2": _whole(
        _plain(50304, 4096, 32, 32, 2048, 1),
        decoder_blocks.OLMO2,
        _RMS,
        11008,
        None,
        1e-5,
        defaults=_NO_BIAS,
        bias_if=decoder_blocks.ATTENTION_BIAS,
    ),
    "olmo3": _whole(
        _plain(50304, 4096, 32, 32, 2048, 1, defaults={"sliding_window": 4096}, window="sliding_window"),
        decoder_blocks.OLMO2,
        _RMS,
        11008,
        None,
        1e-5,
        defaults=_NO_BIAS,
        bias_if=decoder_blocks.ATTENTION_BIAS,
    ),
    "olmoe": _whole(
        _plain(50304, 2048, 16, 16, 4096, 1),
        decoder_blocks.OLMOE,
        _RMS,
        2048,
        None,
        1e-5,
        defaults=_NO_BIAS | {"clip_qkv": None, "norm_topk_prob": False, "num_experts": 64, "num_experts_per_tok": 8},
        bias_if=decoder_blocks.ATTENTION_BIAS,
        block_if={"clip_qkv": None},
        stored=decoder_blocks.stored_experts(),
        experts=ExpertSpec(normalized="norm_topk_prob"),
    ),
    "granite": _whole(
        _GRANITE,
        decoder_blocks.LLAMA,
        _RMS,
        11008,
        None,
        defaults=_NO_BIASES | {"attention_multiplier": 1.0, "residual_multiplier": 1.0},
        bias_if=decoder_blocks.BIASES,
        factor="residual_multiplier",
        score_scale=_multiplier,
    ),
    "granitemoe": _whole(
        _GRANITE,
        decoder_blocks.GRANITEMOE,
        _RMS,
        11008,
        None,
        defaults=_NO_BIAS
        | {"attention_multiplier": 1.0, "residual_multiplier": 1.0, "num_local_experts": 8, "num_experts_per_tok": 2},
        bias_if=decoder_blocks.ATTENTION_BIAS,
        factor="residual_multiplier",
        score_scale=_multiplier,
        stored=decoder_blocks.GRANITEMOE_STORED,
        **_EXPERTS,
    ),
    "hyperclovax": _whole(
        _GRANITE,
        decoder_blocks.HYPERCLOVAX,
        _RMS,
        11008,
        None,
        defaults=_NO_BIASES | {"residual_multiplier": 1.0, "use_post_norm": True, "head_dim": None},
        bias_if=decoder_blocks.BIASES,
        norm_if={"use_post_norm": ".post_norm"},
        factor="residual_multiplier",
        score_scale=_multiplier,
    ),
    "smollm3": _whole(
        _plain(128256, 2048, 36, 16, 32768, 128004, **_NO_MASKS),
        decoder_blocks.LLAMA,
        _RMS,
        11008,
        4,
        defaults=_NO_BIASES | {"sliding_window": None, "use_sliding_window": False},
        bias_if=decoder_blocks.BIASES,
        block_if={"use_sliding_window": False},
    ),
    "starcoder2": _whole(
        _plain(49152, 3072, 30, 24, 4096, defaults={"sliding_window": None}, window="sliding_window"),
        decoder_blocks.STARCODER2,
        norm("norm"),
        12288,
        2,
        1e-5,
        "gelu_pytorch_tanh",
        eps_key="norm_epsilon",
        defaults={"use_bias": True},
        bias_if={"use_bias": "layers."},
    ),
    "exaone4": _whole(
        _plain(102400, 4096, 32, 32, 2048, **_NO_MASKS),
        decoder_blocks.EXAONE4,
        _RMS,
        16384,
        32,
        1e-5,
        defaults={"sliding_window": 4096},
        **_WINDOWED,
    ),
    "apertus": _plain(131072, 4096, 32, 32, 65536, 3),
    "minimax": _plain(32000, 4096, 32, 32, 131072, **_NO_MASKS),
    "jamba": _plain(65536, 4096, 32, 32, 262144, 0, rotates=False, **_NO_MASKS),
    "gemma": _whole(
        _scaled(_plain(256000, 3072, 28, 16, 8192, 0), _SQRT_ROUNDED),
        decoder_blocks.GEMMA,
        _GEMMA_RMS,
        24576,
        16,
        act="gelu_pytorch_tanh",
        defaults=_NO_BIAS | {"head_dim": 256},
        bias_if=decoder_blocks.ATTENTION_BIAS,
    ),
    "gemma2": _GEMMA2,
    "vaultgemma": replace(_GEMMA2, block=decoder_blocks.VAULTGEMMA),
    "gemma3_text": _whole(
        _scaled(
            _plain(
                262208,
                2304,
                26,
                8,
                131072,
                0,
                window="sliding_window",
                bidirectional_if=("use_bidirectional_attention", 0),
            ),
            _SQRT_ROUNDED,
            sliding_window=4096,
        ),
        decoder_blocks.GEMMA3,
        _GEMMA_RMS,
        9216,
        4,
        act="gelu_pytorch_tanh",
        act_key="hidden_activation",
        defaults=_GEMMA2_DEFAULTS | {"attn_logit_softcapping": None},
        bias_if=decoder_blocks.ATTENTION_BIAS,
        score_scale=_root_of_scalar,
        cap="attn_logit_softcapping",
    ),
    "gemma3n_text": _scaled(
        _plain(262400, 2048, 35, 8, 32768, 0, window="sliding_window", per_layer=_PER_LAYER),
        _SQRT_ROUNDED,
        sliding_window=512,
        vocab_size_per_layer_input=262144,
        hidden_size_per_layer_input=256,
    ),
    "gemma4_text": _scaled(
        _plain(
            262144,
            2304,
            30,
            8,
            131072,
            0,
            window="sliding_window",
            bidirectional_if=("use_bidirectional_attention=all", 1),
            per_layer=_PER_LAYER,
        ),
        _SQRT_ROUNDED,
        sliding_window=512,
        vocab_size_per_layer_input=262144,
        hidden_size_per_layer_input=256,
    ),
    "recurrent_gemma": _scaled(
        _plain(256000, 2560, 26, 10, None, 0, **_NO_MASKS, **_TAKES_UNSCALED), ScaleSpec(rounded="bfloat16")
    ),
    "cohere": _whole(
        _plain(256000, 8192, 40, 64, 8192, 0),
        decoder_blocks.COHERE,
        _COHERE_NORM,
        22528,
        None,
        1e-5,
        eps_key="layer_norm_eps",
        defaults=_NO_BIAS | {"use_qk_norm": False},
        bias_if=decoder_blocks.ATTENTION_BIAS,
        block_if={"use_qk_norm": False},
    ),
    "cohere2": _whole(
        _plain(256000, 8192, 40, 64, 8192, 0, **_NO_MASKS),
        decoder_blocks.COHERE,
        _COHERE_NORM,
        22528,
        None,
        1e-5,
        eps_key="layer_norm_eps",
        defaults=_NO_BIAS | {"sliding_window": 4096},
        bias_if=decoder_blocks.ATTENTION_BIAS,
        **_WINDOWED,
    ),
    "minicpm3": _scaled(
        _plain(73448, 2560, 62, 40, 32768), ScaleSpec(key="scale_emb", rounded="weights"), scale_emb=12
    ),
    "phi": _whole(
        _plain(51200, 2048, 24, 32, 2048),
        decoder_blocks.PHI,
        norm("final_layernorm"),
        8192,
        None,
        1e-5,
        "gelu_new",
        eps_key="layer_norm_eps",
        defaults={"qk_layernorm": False},
        block_if={"qk_layernorm": False},
    ),
    "phi3": _whole(
        _plain(32064, 3072, 32, 32, 4096, 32000, defaults={"sliding_window": None}, window="sliding_window"),
        decoder_blocks.MISTRAL,
        _RMS,
        8192,
        None,
        1e-5,
        stored=decoder_blocks.PHI3_STORED,
    ),
    "phimoe": _whole(
        _plain(32064, 4096, 32, 32, 131072, defaults={"sliding_window": None}, window="sliding_window"),
        decoder_blocks.PHIMOE,
        norm("norm"),
        6400,
        8,
        1e-5,
        defaults=_NO_BIAS | {"num_local_experts": 16, "num_experts_per_tok": 2, "router_jitter_noise": 0.01},
        bias_if=decoder_blocks.ATTENTION_BIAS,
        block_if={"num_experts_per_tok": 2},
        stored=decoder_blocks.PHIMOE_STORED,
        **_EXPERTS | {"experts": ExpertSpec(jitter="router_jitter_noise")},
    ),
    "stablelm": _whole(
        _plain(50304, 2560, 32, 32, 4096),
        decoder_blocks.STABLELM,
        norm("norm"),
        6912,
        32,
        1e-5,
        eps_key="layer_norm_eps",
        defaults={"use_qkv_bias": False, "qk_layernorm": False, "use_parallel_residual": False},
        bias_if={"use_qkv_bias": ".self_attn."},
        block_if={"qk_layernorm": False, "use_parallel_residual": False},
    ),
    "persimmon": _whole(
        _plain(262144, 4096, 36, 64, 16384),
        decoder_blocks.PERSIMMON,
        norm("final_layernorm"),
        16384,
        None,
        1e-5,
        "relu2",
        eps_key="layer_norm_eps",
        defaults={"qk_layernorm": True},
        norm_if={"qk_layernorm": ".self_attn."},
        stored=decoder_blocks.PERSIMMON_STORED,
    ),
    "nemotron": _whole(
        _plain(256000, 6144, 32, 48, 4096),
        decoder_blocks.NEMOTRON,
        replace(norm("norm"), offset=1.0),
        24576,
        None,
        1e-5,
        "relu2",
        eps_key="norm_eps",
        defaults=_NO_BIASES,
        bias_if=decoder_blocks.BIASES,
    ),
    "deepseek_v2": _plain(102400, 4096, 32, 32, 2048),
    "deepseek_v3": _plain(129280, 7168, 61, 128, 4096),
    "glm": _whole(
        _plain(151552, 4096, 40, 32, 131072, 151329), decoder_blocks.QWEN2, _RMS, 13696, 2, 1.5625e-7, **_GLM
    ),
    "glm4": _whole(
        _plain(151552, 4096, 40, 32, 131072, 151329), decoder_blocks.GLM4, _RMS, 13696, 2, 1.5625e-7, **_GLM
    ),
    "glm4_moe": _plain(151552, 4096, 46, 96, 131072),
    "gpt_oss": _plain(201088, 2880, 36, 64, 131072, **_NO_MASKS),
    "llama4_text": _plain(202048, 5120, 48, 40, 131072, **_NO_MASKS),
    "ernie4_5": _whole(
        _plain(103424, 1024, 18, 16, 131072, 0),
        decoder_blocks.LLAMA,
        _RMS,
        3072,
        2,
        1e-5,
        defaults={"use_bias": False, "head_dim": 128},
        bias_if={"use_bias": "layers."},
    ),
    "helium": _whole(
        _plain(48000, 2560, 24, 20, 4096, 3),
        (decoder_blocks.QWEN2[0], decoder_blocks.LLAMA[1]),
        _RMS,
        7040,
        20,
        1e-8,
        defaults=_NO_BIASES | {"head_dim": 128},
        bias_if=decoder_blocks.BIASES,
    ),
    "nanochat": _whole(
        _plain(50304, 768, 12, 6, 2048, 1, input_layer=(_WORD_TABLE, RMSNorm(None, 0.0))),
        decoder_blocks.NANOCHAT,
        RMSNorm(None, 0.0),
        8192,
        None,
        act="relu2",
        defaults=_NO_BIAS,
        bias_if=decoder_blocks.ATTENTION_BIAS,
    ),
    "afmoe": _scaled(
        _plain(200192, 2048, 32, 16, 16384, **_NO_MASKS, **_TAKES_UNSCALED),
        ScaleSpec(switch="mup_enabled"),
        mup_enabled=False,
    ),
    # transformers 5.23 scales ids alone, so its inputs_embeds are token_embeddings
    "falcon_h1": _scaled(
        _plain(128000, 4096, 32, 32, 8192, 0, **_TAKES_UNSCALED), _MULTIPLIED, embedding_multiplier=1.0
    ),
    "hunyuan_v1_dense": _whole(
        _plain(290943, 4096, 32, 32, 2048, 0),
        decoder_blocks.HUNYUAN,
        _RMS,
        11008,
        None,
        1e-5,
        defaults=_NO_BIAS,
        bias_if=decoder_blocks.ATTENTION_BIAS,
    ),
    "hunyuan_v1_moe": _plain(290943, 4096, 32, 32, 2048, 0),
    "mamba": Family(
        prefix="backbone.",
        defaults={"vocab_size": 50280, "hidden_size": 768, "num_hidden_layers": 32, "pad_token_id": 0},
        input_layer=(Embed("embeddings.weight"),),
        omits_masks=True,  # it has no attention
    ),
    "mamba2": Family(
        prefix="backbone.",
        defaults={"vocab_size": 32768, "hidden_size": 4096, "num_hidden_layers": 64, "pad_token_id": 1},
        input_layer=(Embed("embeddings.weight"),),
        omits_masks=True,
    ),
}
