"""Translates a GGUF header to Hugging Face's terms: config.json's keys, and the names of tensors.

What the header does not say (an activation, the lowest T5 bucket) is left to the family's defaults. llama.cpp stores
queries and keys of the `llama` architectures permuted for interleaved rotation: cos and sin are the same, but that
file's own q and k pair channels (2i, 2i+1). Norms of Gemma's blocks are stored plus one. The conversion to GGUF changes
nothing before the first block, except that it cuts off RoBERTa's first rows of positions, so that its positions count
from 0 as BERT's do.

Source: llama.cpp's convert_hf_to_gguf.py and gguf-py/gguf/constants.py (0.19).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from models.checkpoints.gguf import Gguf
from models.checkpoints.gguf_rope import is_size, rope_config
from models.checkpoints.safetensors import Tensor
from models.errors import BadCheckpoint
from models.families import FAMILIES, Family
from models.families.recipe import (
    AddPosition,
    AddType,
    Attention,
    Embed,
    FeedForward,
    LayerNorm,
    Linear,
    Norm,
    RMSNorm,
    Step,
)

Config = dict[str, Any]
_SIZES = {  # after the architecture's name -> the usual key of config.json
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "attention.relative_buckets_count": "relative_attention_num_buckets",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq",
    "final_logit_softcapping": "final_logit_softcapping",
}
_EPS = ("attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon")
_BLOCKS_ALIKE = ("bert", "distilbert", "qwen2", "qwen3")
_TOKENS = {"padding_token_id": "pad_token_id", "bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id"}


@dataclass(frozen=True, slots=True)
class Architecture:
    """A value of general.architecture.

    Attributes:
        model_type: the family.
        keys: further keys of the header -> the config's, as _SIZES.
        fixed: config values that hold for all of it.
        head: what the family calls the output matrix.
    """

    model_type: str
    keys: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    head: str = "lm_head"


ARCHITECTURES: dict[str, Architecture] = {
    **{
        name: Architecture(name)
        for name in (
            *("apertus", "bert", "bloom", "exaone4", "falcon", "gemma", "gemma2", "glm4", "gpt2", "gptj"),
            *("jamba", "llama", "mamba", "mamba2", "nemotron", "olmo", "olmo2", "olmoe", "phi3", "phimoe", "qwen2"),
            *("qwen3", "smollm3", "stablelm", "starcoder2", "t5", "ernie4_5"),
        )
    },
    "cohere2": Architecture("cohere2", {"logit_scale": "logit_scale"}),
    "command-r": Architecture("cohere", {"logit_scale": "logit_scale"}),
    "deepseek2": Architecture("deepseek_v2", {"rope.dimension_count": "qk_rope_head_dim"}),
    "gemma3": Architecture("gemma3_text"),
    "gemma-embedding": Architecture("gemma3_text", fixed={"use_bidirectional_attention": True}),
    "glm4moe": Architecture("glm4_moe"),
    "gpt-oss": Architecture("gpt_oss"),
    "gptneox": Architecture("gpt_neox", head="embed_out"),
    "granite": Architecture("granite", {"embedding_scale": "embedding_multiplier", "logit_scale": "logits_scaling"}),
    "granitemoe": Architecture(
        "granitemoe", {"embedding_scale": "embedding_multiplier", "logit_scale": "logits_scaling"}
    ),
    "hunyuan-dense": Architecture("hunyuan_v1_dense"),
    "hunyuan-moe": Architecture("hunyuan_v1_moe"),
    "llama4": Architecture("llama4_text"),
    "modern-bert": Architecture(
        "modernbert",
        {
            "rope.freq_base": "global_rope_theta",
            "rope.freq_base_swa": "local_rope_theta",
            "attention.sliding_window": "local_attention",
        },
    ),
    "mpt": Architecture("mpt"),
    "nomic-bert": Architecture("nomic_bert"),
    "phi2": Architecture("phi"),
    "qwen2moe": Architecture("qwen2_moe"),
    "qwen2vl": Architecture("qwen2_vl_text"),
    "qwen3moe": Architecture("qwen3_moe"),
    "qwen3vl": Architecture("qwen3_vl_text"),
    "qwen3vlmoe": Architecture("qwen3_vl_moe_text"),
    "starcoder": Architecture("gpt_bigcode"),
    "t5encoder": Architecture("t5"),
}


def config_and_tensors(file: Gguf, what: str) -> tuple[Config, dict[str, Tensor]]:
    """Return the config.json of a file, and its tensors under the names of the family's base class.

    Args:
        file: its header.
        what: the file's name in error messages.

    Raises:
        BadCheckpoint: the architecture is unknown, or values are impossible.
    """
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        raise BadCheckpoint(
            f"{what} has general.architecture {str(architecture)[:60]!r}; known are {', '.join(sorted(ARCHITECTURES))}"
        )
    entry = ARCHITECTURES[architecture]
    model_type = _model_type(entry, architecture, file)
    values = {
        key.removeprefix(architecture + "."): _plain(value)
        for key, value in file.metadata.items()
        if key.startswith(architecture + ".")
    }
    if "embedding_length" not in values:
        raise BadCheckpoint(
            f"{what} has no {architecture}.embedding_length, the width of the model; the file is damaged"
        )
    config: Config = {"model_type": model_type, **entry.fixed}
    config |= {name: values[key] for key, name in (_SIZES | dict(entry.keys)).items() if values.get(key) is not None}
    config |= _sizes_of_tensors(file.tensors)
    config |= _tokens(file.metadata)
    config |= _norm_eps(model_type, values)
    config |= _alibi(model_type, values)
    config |= rope_config(config, values, file.tensors, what)
    names = tensor_names(model_type, entry.head, config.get("num_hidden_layers"))
    return config, {
        names.get(name, name): _renamed(names.get(name, name), tensor) for name, tensor in file.tensors.items()
    }


def _renamed(name: str, tensor: Tensor) -> Tensor:
    return Tensor(name, tensor.dtype, tensor.shape, tensor.path, tensor.offset, tensor.bytes, tensor.stored)


def _plain(value: Any) -> Any:
    """Return one value for a list of equal ones (one a layer), and a float32 as its shortest decimal."""
    if isinstance(value, list) and value and all(item == value[0] for item in value):
        value = value[0]
    return float(str(np.float32(value))) if isinstance(value, float) and math.isfinite(value) else value


def _model_type(entry: Architecture, architecture: str, file: Gguf) -> str:
    """Return the family; some architectures stand for two."""
    if architecture == "bert" and "token_types.weight" not in file.tensors:
        return "distilbert"
    if architecture == "deepseek2" and file.metadata.get("deepseek2.expert_gating_func") == 2:  # sigmoid
        return "deepseek_v3"
    return entry.model_type


def _sizes_of_tensors(tensors: Mapping[str, Tensor]) -> Config:
    """Return the sizes that the tables have, which override the header's."""
    rows = {
        name: tensors[table].shape[0]
        for table, name in (
            ("token_embd.weight", "vocab_size"),
            ("position_embd.weight", "max_position_embeddings"),
            ("token_types.weight", "type_vocab_size"),
        )
        if table in tensors
    }
    return rows | {"tie_word_embeddings": "output.weight" not in tensors}


def _tokens(metadata: Mapping[str, Any]) -> Config:
    """Return the ids of special tokens; None where the file has none, which overrides the family's default."""
    return {name: metadata.get(f"tokenizer.ggml.{key}") for key, name in _TOKENS.items()}


def _norm_eps(model_type: str, values: Config) -> Config:
    family = FAMILIES.get(model_type)
    eps = next((values[key] for key in _EPS if key in values), None)
    if eps is None or family is None or not isinstance(family.eps, str):
        return {}
    return {family.eps: eps}


def _alibi(model_type: str, values: Config) -> Config:
    if model_type != "mpt":
        return {}
    most = values.get("attention.max_alibi_bias") or 0
    return {"attn_config": {"alibi": bool(most), "alibi_bias_max": most}}


def tensor_names(model_type: str, head: str = "lm_head", blocks: Any = 0) -> dict[str, str]:
    """Return GGUF's tensor names -> those of the family's base class; {} for an unknown family."""
    if (family := FAMILIES.get(model_type)) is None:
        return {}
    names = {"output.weight": f"{head}.weight", "output.bias": f"{head}.bias"}
    for step in family.input_layer:
        for name, family_name in _input_names(step).items():
            names.setdefault(name, family_name)
    if not _holds_blocks_alike(model_type, family):
        return names
    for block in range(blocks if is_size(blocks) and blocks <= 1 << 10 else 0):
        norms = iter(("attn_output_norm", "layer_output_norm"))
        for step in family.block:
            own = _norm_names(step, next(norms)) if isinstance(step, LayerNorm) else _block_names(step)
            names |= {
                f"blk.{block}.{name}": family_name.replace("{block}", str(block)) for name, family_name in own.items()
            }
    for last in family.after_blocks:
        names |= _norm_names(last, "output_norm")
    return names


def _holds_blocks_alike(model_type: str, family: Family) -> bool:
    """Return whether llama.cpp stores the blocks as transformers does.

    Of others it stores rows in another order (Llama), norms with 1 added (Gemma) or fused matrices (ModernBERT, Phi-3).
    """
    return model_type in _BLOCKS_ALIKE and bool(family.block)


def _input_names(step: Step) -> dict[str, str]:
    match step:
        case Embed():
            return {"token_embd.weight": step.table}
        case AddPosition():
            return {"position_embd.weight": step.table}
        case AddType():
            return {"token_types.weight": step.table}
        case LayerNorm() | RMSNorm():
            return _norm_names(step, "token_embd_norm")
    return {}


def _norm_names(step: Any, stem: str) -> dict[str, str]:
    bias = getattr(step, "bias", None)
    return ({f"{stem}.weight": step.weight} if step.weight else {}) | ({f"{stem}.bias": bias} if bias else {})


def _block_names(step: Step) -> dict[str, str]:
    linears: dict[str, Linear | Norm | None] = {}
    if isinstance(step, Attention):
        linears = {"attn_q": step.query, "attn_k": step.key, "attn_v": step.value, "attn_output": step.output}
        linears |= {"attn_norm": step.norm, "attn_q_norm": step.query_norm, "attn_k_norm": step.key_norm}
    elif isinstance(step, FeedForward):
        linears = {"ffn_up": step.up, "ffn_down": step.down, "ffn_gate": step.gate, "ffn_norm": step.norm}
    present = {stem: part for stem, part in linears.items() if part}
    return {name: own for stem, part in present.items() for name, own in _norm_names(part, stem).items()}
