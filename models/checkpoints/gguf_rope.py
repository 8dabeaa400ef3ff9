"""The RoPE parameters of a GGUF file as config.json states them: scaling, factors, the share of a head that rotates.

llama.cpp stores a scaling as its type and numbers (linear, yarn), or as one divisor for each pair of channels (Llama 3,
LongRoPE).

Source: llama.cpp's convert_hf_to_gguf.py, and ggml's rope, which divides each angle by its factor.
"""

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from models.checkpoints import safetensors
from models.checkpoints.safetensors import Tensor
from models.errors import BadCheckpoint
from models.positions.rope.frequencies import Rope, frequencies
from models.positions.rope.scaling_parameters import TRAINED

Config = dict[str, Any]
_FACTORS = {"rope_factors_short.weight": "short_factor", "rope_factors_long.weight": "long_factor"}
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_YARN = {
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}


def rope_config(config: Config, values: Config, tensors: Mapping[str, Tensor], what: str) -> Config:
    """Return rope_scaling, and the share of a head that rotates.

    Args:
        config: the keys of config.json that the rest of the header gives.
        values: the metadata by their names, without the architecture's prefix.
        tensors: tensors of the file; the factors are read.
        what: the file's name in error messages.

    Raises:
        BadCheckpoint: the factors are not a short list of positive numbers.
    """
    rope: Config = {}
    rotated, head = values.get("rope.dimension_count"), _head_dim(config)
    if is_size(rotated) and head and "qk_rope_head_dim" not in config:
        rope |= {"partial_rotary_factor": _share(rotated, head), "rotary_dim": rotated}
    scaling = _scaling(config, values, tensors, rotated if is_size(rotated) else head, what)
    sections = values.get("rope.dimension_sections")  # of M-RoPE; a fourth is always 0
    if isinstance(sections, list):
        scaling = {"rope_type": "default"} | scaling | {"mrope_section": sections[:3]}
    if scaling.get("rope_type") == "longrope":  # the top level overrides it, by a default too (Phi-3)
        rope[TRAINED] = scaling[TRAINED]
    return rope | ({"rope_scaling": scaling} if scaling else {})


def is_size(value: Any) -> TypeGuard[int]:
    """Return whether a value is a whole number that a dimension can be."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 1 << 31


def _head_dim(config: Config) -> int:
    if is_size(head_dim := config.get("head_dim")):
        return head_dim
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    return hidden // heads if is_size(hidden) and is_size(heads) else 0


def _share(rotated: int, head: int) -> float:
    """Return the share that makes exactly `rotated` channels of a head."""
    share = rotated / head
    return share if int(head * share) == rotated else math.nextafter(share, math.inf)


def _scaling(config: Config, values: Config, tensors: Mapping[str, Tensor], rotated: int, what: str) -> Config:
    trained = values.get("rope.scaling.original_context_length") or config.get("max_position_embeddings")
    lists = {key: _factors(tensors, name, what) for name, key in _FACTORS.items() if name in tensors}
    if lists:
        attention = values.get("rope.scaling.attn_factor")
        factor = {"attention_factor": attention} if attention else {}
        return {"rope_type": "longrope", "original_max_position_embeddings": trained, **lists, **factor}
    if "rope_freqs.weight" in tensors:
        factors = _factors(tensors, "rope_freqs.weight", what)
        return _llama3(config, factors, rotated) or _own_factors(factors, trained)
    kind = values.get("rope.scaling.type")
    if kind == "linear":
        return {"rope_type": "linear", "factor": values.get("rope.scaling.factor")}
    return _yarn(config, values) if kind == "yarn" else {}


def _factors(tensors: Mapping[str, Tensor], name: str, what: str) -> list[float]:
    tensor = tensors[name]
    if tensor.dtype != "F32" or tensor.stored or len(tensor.shape) != 1 or tensor.shape[0] > 1 << 12:
        raise BadCheckpoint(f"{what}: {name!r} is {tensor.dtype} {list(tensor.shape)}; it must be a short list of F32")
    values: NDArray[np.float32] = safetensors.read([tensor])[name]
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise BadCheckpoint(f"{what}: {name!r} holds a factor that is no positive number; the file is damaged")
    return [float(str(value)) for value in values]


def _own_factors(factors: list[float], trained: Any) -> Config:
    """Return a divisor for each channel, of any origin, as longrope parameters."""
    return {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": factors,
        "original_max_position_embeddings": trained,
        "attention_factor": 1.0,
    }


def _llama3(config: Config, factors: list[float], rotated: int) -> Config:
    """Return Llama 3's parameters if they give these factors, which are all its converter writes; else {}."""
    theta, factor = config.get("rope_theta", 10000.0), max(factors, default=0.0)
    if len(factors) * 2 != rotated or factor <= 1 or not isinstance(theta, float) or theta <= 1:
        return {}
    parameters = {"factor": factor, **_LLAMA3}
    scaled = frequencies(Rope.of(theta, rotated, "llama3", parameters)).inverse_frequency
    plain = frequencies(Rope.of(theta, rotated)).inverse_frequency
    if not np.allclose(plain / scaled, factors, rtol=1e-5):
        return {}
    return {"rope_type": "llama3", **parameters}


def _yarn(config: Config, values: Config) -> Config:
    scaling: Config = {"rope_type": "yarn"}
    scaling |= {name: values[key] for key, name in _YARN.items() if values.get(key) is not None}
    if (multiplier := values.get("rope.scaling.yarn_log_multiplier")) and isinstance(multiplier, float):
        scaling["mscale"] = scaling["mscale_all_dim"] = 10 * multiplier  # it is written as 0.1 mscale_all_dim
    if config["model_type"] == "gpt_oss":
        scaling["truncate"] = False
    return scaling
