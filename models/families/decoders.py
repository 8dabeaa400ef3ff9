"""DECODERS: the families whose tokens attend to those before them: GPT, Llama and their descendants.

The defaults of their config classes are in class_defaults.json.

Source: transformers 5.23 (the modeling module of each family: orders of sums).
"""

import math
from dataclasses import replace
from typing import Any

from models.families import decoder_blocks, gpt_blocks
from models.families.config import Config
from models.families.family import AlibiSpec, ExpertSpec, Family, ScaleSpec, norm, rms_norm
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
_RMS = rms_norm("norm")
_GEMMA_RMS = rms_norm("norm", 1.0)
_COHERE_NORM = replace(norm("norm"), bias=None)
_GPT2_NAMES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
}


def _decoder(
    block: Recipe = (),
    last: Norm = _RMS,
    *,
    eps: str | float = "rms_norm_eps",
    scale: ScaleSpec | None = None,
    **rest: Any,
) -> Family:
    """Return a family with a word table under `model.`, RoPE, and no other step before the first block.

    Args:
        block: the steps of a block; empty: only the input layer is computed, and `last` and `eps` do not count.
        last: the norm behind the last block.
        eps: as in Family.
        scale: factor of the rows of the word table; None: 1.
        rest: more of Family.
    """
    common: dict[str, Any] = {"input_layer": (_WORD_TABLE, Scale(0.0)) if scale else (_WORD_TABLE,)}
    common |= {"block": block, "after_blocks": (last,), "eps": eps} if block else {}
    common |= {"prefix": "model.", "scale": scale, "rotates": True, "causal": True}
    return Family(**common | rest)


def _like_gpt2(word_table: str, positions: str | None, block: Recipe, **rest: Any) -> Family:
    """Return a family whose segments are rows of the word table, added only if they are sent."""
    position_steps = (AddPosition(positions),) if positions else ()
    common: dict[str, Any] = {
        "block": block,
        "after_blocks": (norm("ln_f"),),
        "eps": "layer_norm_epsilon",
        "names": _GPT2_NAMES | {"hidden_act": "activation_function", "intermediate_size": "n_inner"},
        "types": "optional",
        "causal": True,
    }
    return Family("transformer.", (Embed(word_table), *position_steps, AddType(word_table)), **common | rest)


def _root_of_scalar(config: Config) -> float:
    return 1 / math.sqrt(config.number("query_pre_attn_scalar"))


def _multiplier(config: Config) -> float:
    given = config.get("attention_multiplier") is not None
    return config.number("attention_multiplier") if given else config.head_dim() ** -0.5


def _depth_scale(config: Config) -> float:
    return config.number("scale_depth") / math.sqrt(config.count("num_hidden_layers"))


# fields that several rows share
_NO_MASKS: dict[str, Any] = {"omits_masks": True}
_TAKES_UNSCALED: dict[str, Any] = {"prompt_embeds_output": "unscaled_embeddings"}  # vLLM 0.33's forward scales them
_BOTH_WAYS: dict[str, Any] = {"bidirectional_if": ("use_bidirectional_attention", 0)}
_ATTENTION_BIAS: dict[str, Any] = {"bias_if": decoder_blocks.ATTENTION_BIAS}
_BIASES: dict[str, Any] = {"bias_if": decoder_blocks.BIASES}
_WINDOW: dict[str, Any] = {"window": "sliding_window"}
_QWEN_WINDOW: dict[str, Any] = _WINDOW | {"layer_types": decoder_blocks.behind}
_EVERY_FOURTH: dict[str, Any] = _WINDOW | {"layer_types": decoder_blocks.every_fourth}
_HIDDEN_ACTIVATION: dict[str, Any] = {"names": {"hidden_act": "hidden_activation"}}
_EXPERTS: dict[str, Any] = {"names": {"num_experts": "num_local_experts"}, "experts": ExpertSpec()}
_PER_LAYER: dict[str, Any] = {"per_layer": (Embed("embed_tokens_per_layer.weight"), Scale(0.0))}

_SQRT_ROUNDED = ScaleSpec(rounded="weights")
_MULTIPLIED = ScaleSpec(key="embedding_multiplier")
_GRANITE: dict[str, Any] = {"scale": _MULTIPLIED, "score_scale": _multiplier}
_GRANITE |= {"factor": lambda config: config.number("residual_multiplier")}
_GRANITE |= _TAKES_UNSCALED
_GLM: dict[str, Any] = {"stored": decoder_blocks.FUSED_GATE} | _ATTENTION_BIAS
_OF_QWEN = ExpertSpec(
    inner="moe_intermediate_size",
    normalized="norm_topk_prob",
    dense=decoder_blocks.without_experts,
    instead=decoder_blocks.GATED,
)
_OF_GEMMA2: dict[str, Any] = {
    "scale": _SQRT_ROUNDED,
    "score_scale": _root_of_scalar,
    "cap": "attn_logit_softcapping",
    **_HIDDEN_ACTIVATION,
    **_ATTENTION_BIAS,
    **_WINDOW,
}
_GEMMA2 = _decoder(decoder_blocks.GEMMA2, _GEMMA_RMS, layer_types=decoder_blocks.alternating, **_OF_GEMMA2, **_NO_MASKS)
_GEMMA2 = replace(_GEMMA2, required_values={"use_bidirectional_attention": False})  # PaliGemma 2 says True

_FALCON = Family(
    prefix="transformer.",
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

DECODERS: dict[str, Family] = {
    "gpt2": _like_gpt2(
        "wte.weight",
        "wpe.weight",
        gpt_blocks.GPT2,
        block_if={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
        stored=gpt_blocks.GPT2_STORED,
    ),
    "gpt_bigcode": _like_gpt2(
        "wte.weight",
        "wpe.weight",
        gpt_blocks.GPT2,
        block_if={"scale_attn_weights": True, "add_cross_attention": False},
        stored=gpt_blocks.GPT_BIGCODE_STORED,
        layer_keys=gpt_blocks.with_key_heads(gpt_blocks.one_if_shared),
    ),
    "openai-gpt": _like_gpt2(
        "tokens_embed.weight",
        "positions_embed.weight",
        gpt_blocks.OPENAI_GPT,
        names=_GPT2_NAMES | {"hidden_act": "afn"},
        after_blocks=(),
        stored=gpt_blocks.GPT2_STORED,
        feed_forward=gpt_blocks.openai_activation,
        builds_own_mask=True,
    ),
    "gpt_neo": _like_gpt2(
        "wte.weight",
        "wpe.weight",
        gpt_blocks.GPT_NEO,
        names={
            "num_hidden_layers": "num_layers",
            "num_attention_heads": "num_heads",
            "hidden_act": "activation_function",
        },
        score_scale=lambda config: 1.0,
        window="window_size",
        layer_types=gpt_blocks.local_layers,
        **_NO_MASKS,
    ),
    "gptj": _like_gpt2("wte.weight", None, gpt_blocks.GPTJ, rotates=True),
    "codegen": _like_gpt2("wte.weight", None, gpt_blocks.GPTJ, rotates=True, stored=gpt_blocks.CODEGEN_STORED),
    "ctrl": Family(
        prefix="transformer.",
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
    "gpt_neox": _decoder(
        decoder_blocks.GPT_NEOX,
        norm("final_layer_norm"),
        prefix="gpt_neox.",
        input_layer=(Embed("embed_in.weight"),),
        eps="layer_norm_eps",
        bias_if={"attention_bias": ".attention."},
        block_if={"use_parallel_residual": True},
        stored=decoder_blocks.GPT_NEOX_STORED,
    ),
    "bloom": Family(
        prefix="transformer.",
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
    "llama": _decoder(decoder_blocks.LLAMA, **_BIASES),
    "arcee": _decoder(decoder_blocks.ARCEE, **_BIASES),
    "llama_bidirec": _decoder(decoder_blocks.LLAMA, causal=False, **_BIASES),  # Llama-Nemotron-Embed
    "mistral": _decoder(decoder_blocks.MISTRAL, **_WINDOW),
    "ministral": _decoder(decoder_blocks.MISTRAL, **_WINDOW, **_NO_MASKS),
    # beyond `longest`, queries are scaled by their position
    "ministral3": _decoder(decoder_blocks.MISTRAL, longest=decoder_blocks.trained_positions, **_WINDOW),
    "mixtral": _decoder(decoder_blocks.MIXTRAL, stored=decoder_blocks.MIXTRAL_STORED, **_WINDOW, **_EXPERTS),
    "qwen2": _decoder(decoder_blocks.QWEN2, **_QWEN_WINDOW, **_NO_MASKS),
    "qwen2_moe": _decoder(
        decoder_blocks.QWEN2_MOE,
        bias_if={"qkv_bias": ".self_attn."},
        stored=decoder_blocks.stored_experts(),
        layer_types=decoder_blocks.even_before,
        experts=replace(_OF_QWEN, shared_inner="shared_expert_intermediate_size"),
        **_WINDOW,
        **_NO_MASKS,
    ),
    "qwen3": _decoder(decoder_blocks.QWEN3, **_ATTENTION_BIAS, **_QWEN_WINDOW, **_NO_MASKS),
    "qwen3_moe": _decoder(
        decoder_blocks.QWEN3_MOE,
        stored=decoder_blocks.stored_experts(),
        layer_types=decoder_blocks.every_layer,
        **_EXPERTS | {"experts": _OF_QWEN},
        **_ATTENTION_BIAS,
        **_WINDOW,
        **_NO_MASKS,
    ),
    "qwen2_vl_text": _decoder(decoder_blocks.QWEN2, **_QWEN_WINDOW, **_NO_MASKS),
    "qwen2_5_vl_text": _decoder(decoder_blocks.QWEN2, **_QWEN_WINDOW, **_NO_MASKS),
    "qwen3_vl_text": _decoder(decoder_blocks.QWEN3, **_ATTENTION_BIAS),
    "olmo": _decoder(
        decoder_blocks.OLMO,
        LayerNorm(None, None, 0.0),
        eps=1e-5,  # of the class
        block_if={"clip_qkv": None},
        **_ATTENTION_BIAS,
    ),
    "olmo2": _decoder(decoder_blocks.OLMO2, **_ATTENTION_BIAS),
    "olmo3": _decoder(decoder_blocks.OLMO2, **_ATTENTION_BIAS, **_WINDOW),
    "olmoe": _decoder(
        decoder_blocks.OLMOE,
        block_if={"clip_qkv": None},
        stored=decoder_blocks.stored_experts(),
        experts=ExpertSpec(normalized="norm_topk_prob"),
        **_ATTENTION_BIAS,
    ),
    "granite": _decoder(decoder_blocks.LLAMA, **_BIASES, **_GRANITE),
    "granitemoe": _decoder(
        decoder_blocks.GRANITEMOE, stored=decoder_blocks.GRANITEMOE_STORED, **_ATTENTION_BIAS, **_EXPERTS, **_GRANITE
    ),
    "hyperclovax": _decoder(decoder_blocks.HYPERCLOVAX, norm_if={"use_post_norm": ".post_norm"}, **_BIASES, **_GRANITE),
    "minicpm": _decoder(decoder_blocks.LLAMA, scale=ScaleSpec(key="scale_emb"), factor=_depth_scale, **_BIASES),
    "smollm3": _decoder(decoder_blocks.LLAMA, block_if={"use_sliding_window": False}, **_BIASES, **_NO_MASKS),
    "starcoder2": _decoder(
        decoder_blocks.STARCODER2, norm("norm"), eps="norm_epsilon", bias_if={"use_bias": "layers."}, **_WINDOW
    ),
    "exaone4": _decoder(decoder_blocks.EXAONE4, **_EVERY_FOURTH, **_NO_MASKS),
    "jamba": _decoder(rotates=False, **_NO_MASKS),
    "gemma": _decoder(decoder_blocks.GEMMA, _GEMMA_RMS, scale=_SQRT_ROUNDED, **_BOTH_WAYS, **_ATTENTION_BIAS),
    "gemma2": _GEMMA2,
    "vaultgemma": replace(_GEMMA2, block=decoder_blocks.VAULTGEMMA),
    "gemma3_text": _decoder(decoder_blocks.GEMMA3, _GEMMA_RMS, **_BOTH_WAYS, **_OF_GEMMA2),
    "gemma3n_text": _decoder(scale=_SQRT_ROUNDED, **_WINDOW, **_PER_LAYER),
    "gemma4_text": _decoder(
        scale=_SQRT_ROUNDED, bidirectional_if=("use_bidirectional_attention=all", 1), **_WINDOW, **_PER_LAYER
    ),
    "recurrent_gemma": _decoder(scale=ScaleSpec(rounded="bfloat16"), **_NO_MASKS, **_TAKES_UNSCALED),
    "cohere": _decoder(
        decoder_blocks.COHERE, _COHERE_NORM, eps="layer_norm_eps", block_if={"use_qk_norm": False}, **_ATTENTION_BIAS
    ),
    "cohere2": _decoder(
        decoder_blocks.COHERE, _COHERE_NORM, eps="layer_norm_eps", **_ATTENTION_BIAS, **_EVERY_FOURTH, **_NO_MASKS
    ),
    "minicpm3": _decoder(scale=ScaleSpec(key="scale_emb", rounded="weights")),
    "phi": _decoder(
        decoder_blocks.PHI, norm("final_layernorm"), eps="layer_norm_eps", block_if={"qk_layernorm": False}
    ),
    "phi3": _decoder(decoder_blocks.MISTRAL, stored=decoder_blocks.PHI3_STORED, **_WINDOW),
    "phimoe": _decoder(
        decoder_blocks.PHIMOE,
        norm("norm"),
        block_if={"num_experts_per_tok": 2},
        stored=decoder_blocks.PHIMOE_STORED,
        **_EXPERTS | {"experts": ExpertSpec(jitter="router_jitter_noise")},
        **_ATTENTION_BIAS,
        **_WINDOW,
    ),
    **dict.fromkeys(("qwen3_vl_moe_text", "apertus", "deepseek_v2", "deepseek_v3"), _decoder()),
    **dict.fromkeys(("glm4_moe", "hunyuan_v1_moe"), _decoder()),
    **dict.fromkeys(("minimax", "gpt_oss", "llama4_text"), _decoder(**_NO_MASKS)),
    "lfm2": _decoder(
        decoder_blocks.LFM2,
        rms_norm("embedding_norm"),
        eps="norm_eps",
        block_of=decoder_blocks.lfm2_block,
        derived=decoder_blocks.lfm2_values,
        feed_forward=lambda step, config: step,
        bias_if={"conv_bias": ".conv."},
        **_NO_MASKS,
    ),
    "stablelm": _decoder(
        decoder_blocks.STABLELM,
        norm("norm"),
        eps="layer_norm_eps",
        bias_if={"use_qkv_bias": ".self_attn."},
        norm_if={"qk_layernorm": "_layernorm.norms."},
        block_if={"use_parallel_residual": False},
    ),
    "persimmon": _decoder(
        decoder_blocks.PERSIMMON,
        norm("final_layernorm"),
        eps="layer_norm_eps",
        norm_if={"qk_layernorm": ".self_attn."},
        stored=decoder_blocks.PERSIMMON_STORED,
    ),
    "nemotron": _decoder(decoder_blocks.NEMOTRON, replace(norm("norm"), offset=1.0), eps="norm_eps", **_BIASES),
    "glm": _decoder(decoder_blocks.QWEN2, **_GLM),
    "glm4": _decoder(decoder_blocks.GLM4, **_GLM),
    "ernie4_5": _decoder(decoder_blocks.LLAMA, bias_if={"use_bias": "layers."}),
    "helium": _decoder((decoder_blocks.QWEN2[0], decoder_blocks.LLAMA[1]), **_BIASES),
    "nanochat": _decoder(
        decoder_blocks.NANOCHAT,
        RMSNorm(None, 0.0),
        input_layer=(_WORD_TABLE, RMSNorm(None, 0.0)),
        **_ATTENTION_BIAS,
    ),
    "afmoe": _decoder(scale=ScaleSpec(switch="mup_enabled"), **_NO_MASKS, **_TAKES_UNSCALED),
    # transformers 5.23 scales ids alone, so its inputs_embeds are token_embeddings
    "falcon_h1": _decoder(scale=_MULTIPLIED, **_TAKES_UNSCALED),
    "hunyuan_v1_dense": _decoder(decoder_blocks.HUNYUAN, **_ATTENTION_BIAS),
    **dict.fromkeys(("mamba", "mamba2"), Family("backbone.", (Embed("embeddings.weight"),), **_NO_MASKS)),
}
