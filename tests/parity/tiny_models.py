"""Small transformers models of random shape, written to disk, and what transformers computes with them."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

ACTIVATIONS = ("gelu", "gelu_new", "gelu_python", "gelu_fast", "gelu_pytorch_tanh", "relu", "silu", "swish")
DTYPES = (torch.float32, torch.float32, torch.float16, torch.bfloat16)
LONGEST = 24


@dataclass(frozen=True)
class Tiny:
    """One family.

    model, language_model   names of transformers classes: the base and one with a head, which prefixes tensor names
    blocks                  where its blocks are, from the base model
    config                  random sizes
    types                   rows of the segment table; None: the family reads none
    """

    model: str
    language_model: str
    blocks: str
    config: Callable[[random.Random], dict[str, Any]]
    types: Callable[[Any], int] | None = None


def _encoder(draw: random.Random, pads: tuple[int, ...]) -> dict[str, Any]:
    heads = draw.choice((1, 2, 3, 4))
    pad = draw.choice(pads)
    return {
        "vocab_size": draw.randint(40, 90),
        "hidden_size": heads * draw.choice((4, 6, 8, 16)),
        "num_attention_heads": heads,
        "num_hidden_layers": draw.randint(1, 3),
        "intermediate_size": draw.randint(5, 60),
        "hidden_act": draw.choice(ACTIVATIONS),
        "max_position_embeddings": draw.randint(LONGEST + pad + 1, 70),
        "type_vocab_size": draw.choice((1, 2, 4)),
        "layer_norm_eps": draw.choice((1e-12, 1e-7, 1e-5, 1e-3)),
        "pad_token_id": pad,
    }


def _distilbert(draw: random.Random) -> dict[str, Any]:
    sizes = _encoder(draw, (0, 3))
    return {
        "vocab_size": sizes["vocab_size"],
        "dim": sizes["hidden_size"],
        "n_heads": sizes["num_attention_heads"],
        "n_layers": sizes["num_hidden_layers"],
        "hidden_dim": sizes["intermediate_size"],
        "activation": sizes["hidden_act"],
        "max_position_embeddings": sizes["max_position_embeddings"],
        "sinusoidal_pos_embds": draw.random() < 0.3,
        "pad_token_id": sizes["pad_token_id"],
    }


def _gpt2(draw: random.Random) -> dict[str, Any]:
    heads = draw.choice((1, 2, 4))
    return {
        "vocab_size": draw.randint(40, 90),
        "n_embd": heads * draw.choice((4, 8)),
        "n_head": heads,
        "n_layer": 1,
        "n_positions": draw.randint(LONGEST, 70),
        "pad_token_id": draw.choice((None, 0, 5)),
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


def _llama(draw: random.Random) -> dict[str, Any]:
    heads = draw.choice((1, 2, 4))
    head_dim = draw.choice((4, 6, 8, 16))
    return {
        "vocab_size": draw.randint(40, 90),
        "hidden_size": heads * head_dim,
        "num_attention_heads": heads,
        "num_key_value_heads": 1,
        "num_hidden_layers": 1,
        "intermediate_size": 12,
        "max_position_embeddings": draw.choice((64, 256, 4096)),
        "head_dim": draw.choice((None, head_dim, 10)),
        "tie_word_embeddings": draw.random() < 0.5,
        "pad_token_id": draw.choice((None, 0)),
        "rope_parameters": draw.choice(ROPES)(draw),
    }


def _theta(draw: random.Random) -> float:
    return draw.choice((10000.0, 500000.0, 1e6, 123.5))


def _llama3(draw: random.Random) -> dict[str, Any]:
    low = draw.choice((1.0, 2.0))
    return {
        "rope_type": "llama3",
        "rope_theta": _theta(draw),
        "factor": draw.choice((8.0, 32.0)),
        "low_freq_factor": low,
        "high_freq_factor": low * draw.choice((2.0, 4.0)),
        "original_max_position_embeddings": draw.choice((16, 64)),
    }


ROPES: tuple[Callable[[random.Random], dict[str, Any]], ...] = (
    lambda draw: {"rope_type": "default", "rope_theta": _theta(draw)},
    lambda draw: {"rope_type": "linear", "rope_theta": _theta(draw), "factor": draw.choice((2.0, 8.0, 2.5))},
    _llama3,
)


def _typed(config: Any) -> int:
    return int(config.type_vocab_size)


TINY: dict[str, Tiny] = {
    "bert": Tiny("BertModel", "BertForMaskedLM", "encoder.layer", lambda draw: _encoder(draw, (0, 3)), _typed),
    "roberta": Tiny(
        "RobertaModel", "RobertaForMaskedLM", "encoder.layer", lambda draw: _encoder(draw, (1, 0, 5)), _typed
    ),
    "xlm-roberta": Tiny(
        "XLMRobertaModel", "XLMRobertaForMaskedLM", "encoder.layer", lambda draw: _encoder(draw, (1, 0, 5)), _typed
    ),
    "camembert": Tiny(
        "CamembertModel", "CamembertForMaskedLM", "encoder.layer", lambda draw: _encoder(draw, (1, 0, 5)), _typed
    ),
    "distilbert": Tiny("DistilBertModel", "DistilBertForMaskedLM", "transformer.layer", _distilbert),
    "gpt2": Tiny("GPT2Model", "GPT2LMHeadModel", "h", _gpt2, lambda config: int(config.vocab_size)),
    "llama": Tiny("LlamaModel", "LlamaForCausalLM", "layers", _llama),
}


@dataclass(frozen=True)
class Sample:
    """A checkpoint on disk, and the reference that read it back in float32."""

    family: str
    folder: Path
    model: Any


def sample(family: str, seed: int, folder: Path) -> Sample:
    """Write a random model: base or language model, one file or shards, in one of the dtypes."""
    draw = random.Random(f"{family} {seed}")
    torch.manual_seed(draw.randrange(1 << 30))
    tiny = TINY[family]
    kind = getattr(transformers, draw.choice((tiny.model, tiny.language_model)))
    model = kind(kind.config_class(**tiny.config(draw)))
    _randomise(model)
    model.to(draw.choice(DTYPES)).save_pretrained(folder, max_shard_size=draw.choice(("1GB", "8KB")))
    base = getattr(transformers, tiny.model)
    return Sample(family, folder, base.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval())


def _randomise(model: Any) -> None:
    """Weights far from their start values, so that a swapped or missing one shows."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if parameter.ndim == 1:
                parameter.copy_(0.3 * noise + (1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0))
            else:
                parameter.copy_(noise if "embed" in name or ".wt" in name else 1.5 * noise / parameter.shape[-1] ** 0.5)


def sequences(sample: Sample, seed: int, count: int = 8) -> list[dict[str, list[int]]]:
    """Random ids, pad ids among them; some with a mask with holes, segments the family reads, or positions."""
    draw = random.Random(f"sequences {seed}")
    return [_sequence(sample, draw, draw.choice((1, 2, draw.randint(3, LONGEST)))) for _ in range(count)]


def _sequence(sample: Sample, draw: random.Random, length: int) -> dict[str, list[int]]:
    config, tiny = sample.model.config, TINY[sample.family]
    pad = config.pad_token_id or 0
    ids = [pad if draw.random() < 0.2 else draw.randrange(config.vocab_size) for _ in range(length)]
    given = {"input_ids": ids}
    if draw.random() < 0.7:
        given["attention_mask"] = [int(draw.random() < 0.7) for _ in ids]
        given["attention_mask"][draw.randrange(length)] = 1
    if tiny.types and draw.random() < 0.6:
        given["token_type_ids"] = [draw.randrange(tiny.types(config)) for _ in ids]
    if draw.random() < 0.3:
        given["position_ids"] = [draw.randrange(LONGEST) for _ in ids]
    return given


def reference(sample: Sample, given: dict[str, list[int]]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The rows before block 0 and after the last block, [T, d], of one sequence alone."""
    seen: list[torch.Tensor] = []

    def keep(_module: Any, args: Any, kwargs: Any) -> None:
        seen.append(args[0] if args else kwargs["hidden_states"])

    block = sample.model.get_submodule(TINY[sample.family].blocks)[0]
    hook = block.register_forward_pre_hook(keep, with_kwargs=True)
    with torch.no_grad():
        last = sample.model(**{key: torch.tensor([value]) for key, value in given.items()}).last_hidden_state
    hook.remove()
    return seen[0][0].numpy(), last[0].numpy()
