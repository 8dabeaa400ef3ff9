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

from tests.parity import tiny_configs
from tests.parity.tiny_configs import LONGEST

DTYPES = (torch.float32, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Tiny:
    """One family.

    model, language_model   names of transformers classes: the base and one with a head, which prefixes tensor names
    blocks                  where its blocks are, from the base model
    config                  random sizes
    types                   rows of the segment table; None: the family reads none
    placed                  its forward takes position_ids
    runs                    the part of the base model that is run; empty: all of it
    """

    model: str
    language_model: str
    blocks: str
    config: Callable[[random.Random], dict[str, Any]]
    types: Callable[[Any], int] | None = None
    placed: bool = True
    runs: str = ""


def _typed(config: Any) -> int:
    return int(config.type_vocab_size)


TINY: dict[str, Tiny] = {
    "bert": Tiny(
        "BertModel", "BertForMaskedLM", "encoder.layer", lambda draw: tiny_configs.encoder(draw, (0, 3)), _typed
    ),
    "roberta": Tiny(
        "RobertaModel",
        "RobertaForMaskedLM",
        "encoder.layer",
        lambda draw: tiny_configs.encoder(draw, (1, 0, 5)),
        _typed,
    ),
    "xlm-roberta": Tiny(
        "XLMRobertaModel",
        "XLMRobertaForMaskedLM",
        "encoder.layer",
        lambda draw: tiny_configs.encoder(draw, (1, 0, 5)),
        _typed,
    ),
    "camembert": Tiny(
        "CamembertModel",
        "CamembertForMaskedLM",
        "encoder.layer",
        lambda draw: tiny_configs.encoder(draw, (1, 0, 5)),
        _typed,
    ),
    "distilbert": Tiny("DistilBertModel", "DistilBertForMaskedLM", "transformer.layer", tiny_configs.distilbert),
    "gpt2": Tiny("GPT2Model", "GPT2LMHeadModel", "h", tiny_configs.gpt2, lambda config: int(config.vocab_size)),
    "llama": Tiny("LlamaModel", "LlamaForCausalLM", "layers", tiny_configs.llama),
    "gpt_neox": Tiny("GPTNeoXModel", "GPTNeoXForCausalLM", "layers", tiny_configs.gpt_neox),
    "modernbert": Tiny("ModernBertModel", "ModernBertForMaskedLM", "layers", tiny_configs.modernbert),
    "bloom": Tiny("BloomModel", "BloomForCausalLM", "h", tiny_configs.bloom, placed=False),
    "mpt": Tiny("MptModel", "MptForCausalLM", "blocks", tiny_configs.mpt, placed=False),
    "falcon": Tiny("FalconModel", "FalconForCausalLM", "h", tiny_configs.falcon),
    "t5": Tiny("T5EncoderModel", "T5ForConditionalGeneration", "encoder.block", tiny_configs.t5, placed=False),
    "deberta-v2": Tiny("DebertaV2Model", "DebertaV2ForMaskedLM", "encoder.layer", tiny_configs.deberta_v2, _typed),
    "marian": Tiny("MarianModel", "MarianMTModel", "encoder.layers", tiny_configs.marian, placed=False, runs="encoder"),
}


@dataclass(frozen=True)
class Sample:
    """A checkpoint on disk, and the reference that read it back in float32."""

    family: str
    folder: Path
    model: Any


def sample(family: str, seed: int, folder: Path, **changes: Any) -> Sample:
    """Write a random model: base or language model, one file or shards, in one of the dtypes.

    changes  of its config
    """
    draw = random.Random(f"{family} {seed}")
    torch.manual_seed(draw.randrange(1 << 30))
    tiny = TINY[family]
    kind = getattr(transformers, draw.choice((tiny.model, tiny.language_model)))
    model = kind(kind.config_class(**tiny.config(draw) | changes))
    _randomise(model)
    model.to(draw.choice(DTYPES)).save_pretrained(folder, max_shard_size=draw.choice(("1GB", "8KB")))
    base = getattr(transformers, tiny.model)
    return read_back(family, folder, base)


def read_back(family: str, folder: Path, base: Any) -> Sample:
    """The checkpoint as transformers reads it, in float32."""
    model = base.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    if family == "marian":  # a half-precision MarianModel keeps its sinusoids rounded; the formula is what is meant
        table = model.encoder.embed_positions
        table.weight.data = table.create_weight()
    return Sample(family, folder, model)


def _randomise(model: Any) -> None:
    """Weights far from their start values, so that a swapped or missing one shows."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" in name:  # Marian's sinusoids are computed, not learned
                continue
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
    if tiny.types and tiny.types(config) and draw.random() < 0.6:
        given["token_type_ids"] = [draw.randrange(tiny.types(config)) for _ in ids]
    if tiny.placed and draw.random() < 0.3:
        given["position_ids"] = [draw.randrange(LONGEST) for _ in ids]
    return given


def reference(sample: Sample, given: dict[str, list[int]]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The rows before block 0 and after the last block, [T, d], of one sequence alone."""
    seen: list[torch.Tensor] = []

    def keep(_module: Any, args: Any, kwargs: Any) -> None:
        seen.append(args[0] if args else kwargs["hidden_states"])

    tiny = TINY[sample.family]
    block = sample.model.get_submodule(tiny.blocks)[0]
    hook = block.register_forward_pre_hook(keep, with_kwargs=True)
    with torch.no_grad():
        last = sample.model.get_submodule(tiny.runs)(
            **{key: torch.tensor([value]) for key, value in given.items()}
        ).last_hidden_state
    hook.remove()
    return seen[0][0].numpy(), last[0].numpy()
