"""Translates a GGUF header to the keys of config.json; gguf_tensors.py translates the tensors.

The architectures, and the keys that all of them have, are in gguf_config.json.

What the header does not say (an activation, the lowest T5 bucket, the window of a Mistral) is left to the family's
defaults, or is what llama.cpp computes. The conversion to GGUF changes nothing before the first block, except that it
cuts off RoBERTa's first rows of positions, so that its positions count from 0 as BERT's do.

Source: llama.cpp's convert_hf_to_gguf.py, its loading of each architecture and gguf-py/gguf/constants.py (0.19).
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from models.checkpoints.gguf import Gguf
from models.checkpoints.gguf_rope import is_size, rope_config
from models.checkpoints.safetensors import Tensor
from models.errors import BadCheckpoint
from models.families import FAMILIES
from models.families.config import Config as FamilyConfig
from models.families.family import Family
from models.families.gguf_tensors import arranged, block_names, input_names, unread

Config = dict[str, Any]
_TABLES = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
_SIZES: dict[str, str] = _TABLES["sizes"]  # after the architecture's name -> the usual key of config.json
_EPS = ("attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon")
_MOST_BLOCKS = 1 << 10
_T5 = ("t5", "mt5", "umt5")
_SCALAR = {"gemma2": 46, "gemma3_text": 62}  # layers of the model of 27 B, whose scores have another factor
_UNREAD = (  # keys that change blocks in a way that is not known, or not computed
    *("nextn_predict_layers", "rope.dimension_sections", "rope.dimension_count_swa"),
    *("rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor", "attention.scale", "attention.output_scale"),
    *("attention.clamp_kqv", "attention.temperature_scale", "attention.key_length_swa", "attention.shared_kv_layers"),
    *("residual_scale", "embedding_scale"),
)
_TOKENS = {"padding_token_id": "pad_token_id", "bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id"}


@dataclass(frozen=True, slots=True)
class Architecture:
    """A value of general.architecture.

    Attributes:
        model_type: the family.
        keys: further keys of the header -> the config's, as _SIZES.
        fixed: config values that hold for all of it.
        head: the family's name of the output matrix.
        whole: how llama.cpp stores its blocks is known.
        paired, shifted: as in gguf_tensors.py.
        prefix: prefix of the names of its blocks.
    """

    model_type: str
    keys: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    head: str = "lm_head"
    whole: bool = False
    paired: bool = False
    shifted: bool = False
    prefix: str = ""


ARCHITECTURES = {name: Architecture(**row) for name, row in _TABLES["architectures"].items()}


def read(file: Gguf, what: str) -> tuple[Config, dict[str, Tensor], str | None]:
    """Return the config.json of a file, its tensors under the names of the family's base class, and why its blocks
    cannot be read; None: they can.

    Args:
        file: header of the file.
        what: the file's name in error messages.

    Raises:
        BadCheckpoint: the architecture is unknown, or values are impossible.
    """
    architecture = _architecture(file, what)
    entry = ARCHITECTURES[architecture]
    values = {
        key.removeprefix(architecture + "."): _plain(value)
        for key, value in file.metadata.items()
        if key.startswith(architecture + ".")
    }
    if "embedding_length" not in values:
        raise BadCheckpoint(
            f"{what} has no {architecture}.embedding_length, the width of the model; the file is damaged"
        )
    config = _config(entry, architecture, values, file)
    config |= rope_config(config, values, file.tensors, what)
    if (family := _family(config)) is None:
        return config, file.tensors, None
    names, reason = input_names(family, entry.head), None
    if FAMILIES[config["model_type"]].block:
        blocks = config.get("num_hidden_layers")
        block_tensors = block_names(family, blocks if is_size(blocks) and blocks <= _MOST_BLOCKS else 0, entry.prefix)
        if config["model_type"] in _T5 and "enc.blk.0.ffn_gate.weight" not in file.tensors:
            block_tensors = _plain_t5(block_tensors)
        reason = _unreadable(architecture, entry, values, file.tensors, names | block_tensors)
        if reason is None:
            names |= block_tensors
            config |= _of_blocks(family, config, values, file.tensors)
    shifted = entry.shifted and reason is None
    return config, arranged(file.tensors, names, _heads(config), entry.paired, shifted), reason


def _architecture(file: Gguf, what: str) -> str:
    """Return the file's architecture, a key of ARCHITECTURES."""
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        raise BadCheckpoint(
            f"{what} has general.architecture {str(architecture)[:60]!r}; known are {', '.join(sorted(ARCHITECTURES))}"
        )
    return architecture


def _heads(config: Config) -> tuple[int, int]:
    """Return the number of heads of queries, and of keys."""
    heads, keys = (config.get(key) for key in ("num_attention_heads", "num_key_value_heads"))
    heads = heads if is_size(heads) else 1
    return heads, keys if is_size(keys) else heads


def _config(entry: Architecture, architecture: str, values: Config, file: Gguf) -> Config:
    """Return the keys of config.json, without RoPE's scaling and what only blocks read."""
    config: Config = {"model_type": _model_type(entry, architecture, file), **entry.fixed}
    config |= {name: values[key] for key, name in (_SIZES | dict(entry.keys)).items() if values.get(key) is not None}
    config |= _sizes_of_tensors(file.tensors)
    config |= _tokens(file.metadata)
    config |= _alibi(config["model_type"], values)
    return config | _norm_eps(config, values)


def _family(config: Config) -> Family | None:
    """Return the family of a config, or the variant that it names; None if it is unknown."""
    family = FAMILIES.get(config["model_type"])
    variants = family.variants.items() if family else ()
    held = (variant for key, (_, variant) in variants if FamilyConfig(config, {}, {}).holds(key))
    return next(held, family)


def _unreadable(
    architecture: str, entry: Architecture, values: Config, tensors: Mapping[str, Tensor], names: Mapping[str, str]
) -> str | None:
    """Return why the blocks of a file cannot be read; None: they can, or there are none."""
    if not entry.whole:
        return f"how llama.cpp stores the blocks of {architecture!r} is not known here"
    if values.get("expert_count"):
        return f"{architecture}.expert_count is {values['expert_count']}: mixture of experts"
    for key in _UNREAD:
        if values.get(key) and key not in entry.keys:
            return f"the file has {architecture}.{key}, which is not computed"
    if architecture == "olmo2" and "attention.sliding_window" in values:
        return "the file does not say how the layers of an OLMo 3 with and without a window rotate"
    behind = "dense_2.weight" if "dense_2.weight" in tensors and architecture != "gemma-embedding" else None
    if name := behind or unread(tensors, names):
        return f"the file's {name!r} is not read"
    return None


def _plain_t5(names: Mapping[str, str]) -> dict[str, str]:
    """Return the names of T5's first version, which has no gate."""
    return {name: base.replace("wi_1", "wi") for name, base in names.items() if ".ffn_gate." not in name}


def _of_blocks(family: Family, config: Config, values: Config, tensors: Mapping[str, Tensor]) -> Config:
    """Return the keys of config.json that only blocks read; missing ones get llama.cpp's defaults."""
    heads, width = config.get("num_attention_heads"), config.get("hidden_size")
    derived = width // heads if is_size(heads) and is_size(width) else None
    values_of_blocks: Config = {"num_key_value_heads": config.get("num_key_value_heads", heads)}
    if "head_dim" not in config and family.names.get("head_dim", "head_dim") in family.defaults:
        values_of_blocks["head_dim"] = derived
    if family.window:
        values_of_blocks[family.window] = config.get(family.window) or None  # Phi-3 writes 0
    biased = {name for name in tensors if name.endswith(".bias") and "norm" not in name}
    for key, stem in family.bias_if.items():
        parts = (
            ("attn_",) if "attn" in stem or "attention" in stem else ("ffn_",) if "mlp" in stem else ("attn_", "ffn_")
        )
        values_of_blocks[key] = any(f".{part}" in name for name in biased for part in parts)
    if family.biased_if:
        values_of_blocks[family.biased_if] = "output_norm.bias" in tensors
    if family.causal is True and values.get("attention.causal") is False:
        values_of_blocks["is_causal"] = False
    if config["model_type"] in _T5:
        values_of_blocks["feed_forward_proj"] = "gated-gelu" if "enc.blk.0.ffn_gate.weight" in tensors else "relu"
    if config["model_type"] in _SCALAR:
        largest = config.get("num_hidden_layers") == _SCALAR[config["model_type"]]
        values_of_blocks["query_pre_attn_scalar"] = derived if largest else config.get("head_dim", derived)
    return values_of_blocks | _windows(config, values)


def _windows(config: Config, values: Config) -> Config:
    """Return which layers have a window, if the file says so."""
    pattern, blocks = values.get("attention.sliding_window_pattern"), config.get("num_hidden_layers")
    if isinstance(pattern, bool) and is_size(blocks) and blocks <= _MOST_BLOCKS:  # of a list of equal values
        pattern = [pattern] * blocks
    if isinstance(pattern, list):
        return {"layer_types": ["sliding_attention" if slides else "full_attention" for slides in pattern]}
    if config["model_type"] == "gemma3_text" and not config.get("sliding_window") and is_size(blocks):
        return {"layer_types": ["full_attention"] * min(blocks, _MOST_BLOCKS)}  # all rotate as full layers do
    if pattern is None:
        return {}
    return {"global_attn_every_n_layers" if config["model_type"] == "modernbert" else "sliding_window_pattern": pattern}


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
    if entry.model_type == "t5" and "enc.blk.1.attn_rel_b.weight" in file.tensors:  # a table in every layer
        return "umt5"
    return entry.model_type


def _sizes_of_tensors(tensors: Mapping[str, Tensor]) -> Config:
    """Return the sizes of the tables, which override the header's."""
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
    """Return the ids of special tokens; None for those that the file lacks, overriding the family's default."""
    return {name: metadata.get(f"tokenizer.ggml.{key}") for key, name in _TOKENS.items()}


def _norm_eps(config: Config, values: Config) -> Config:
    family = _family(config)
    eps = next((values[key] for key in _EPS if key in values), None)
    if eps is None or family is None or not isinstance(family.eps, str):
        return {}
    return {family.eps: eps}


def _alibi(model_type: str, values: Config) -> Config:
    if model_type != "mpt":
        return {}
    most = values.get("attention.max_alibi_bias") or 0
    return {"attn_config": {"alibi": bool(most), "alibi_bias_max": most}}
