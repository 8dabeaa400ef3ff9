"""Small transformers models of random shape, written to disk, and what transformers computes with them."""

import copy
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    MODEL_MAPPING_NAMES,
)

from models.families import FAMILIES
from tests.parity import tiny_configs, tiny_rows
from tests.parity.tiny_configs import LONGEST
from tests.parity.tiny_rows import TinyRow

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
    side                    which side `runs` is, of a family with two
    rounds                  its arithmetic depends on the checkpoint's dtype, so the reference reads that
    extras                  what it reads besides -> the config key of the values
    """

    model: str
    language_model: str
    blocks: str
    config: Callable[[random.Random], dict[str, Any]]
    types: Callable[[Any], int] | None = None
    placed: bool = True
    runs: str = ""
    side: str | None = None
    rounds: bool = False
    extras: Mapping[str, str] = field(default_factory=dict)

    def values_of(self, extra: str, config: Any) -> int:
        """How many values an extra has; 0: the model reads none."""
        switched = getattr(config, "use_task_id", True) and getattr(config, "use_lang_emb", True)
        most = int(getattr(config, self.extras[extra]))
        return most if switched and most > 1 else 0


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
    "marian decoder": Tiny(
        "MarianModel",
        "MarianMTModel",
        "decoder.layers",
        tiny_configs.marian,
        placed=False,
        runs="decoder",
        side="decoder",
    ),
    "t5 decoder": Tiny(
        "T5Model",
        "T5ForConditionalGeneration",
        "decoder.block",
        tiny_configs.t5,
        placed=False,
        runs="decoder",
        side="decoder",
    ),
}


def _classes(model_type: str, row: TinyRow) -> tuple[str, str]:
    """The base class and one with a head, by transformers' own tables."""
    listed = MODEL_MAPPING_NAMES.get(model_type)
    base = row.model or (listed[0] if isinstance(listed, tuple) else str(listed))
    heads = (MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    heads = (*heads, MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    head = next((table[model_type] for table in heads if model_type in table), base)
    return base, base if row.model else head


def _tiny(model_type: str, row: TinyRow, side: str | None = None) -> Tiny:
    base, head = _classes(model_type, row)
    types = None if row.types is None else (lambda config: int(getattr(config, row.types)))
    extras = row.extras or {}
    return Tiny(base, head, row.blocks, row.config, types, row.placed, row.runs, side, row.rounds, extras)


TINY |= {name: _tiny(name, row) for name, row in (tiny_rows.ENCODERS | tiny_rows.DECODERS).items()}
TINY |= {
    name if side == "encoder" or len(rows) == 1 else f"{name} decoder": _tiny(name, row, side)
    for name, rows in tiny_rows.SIDES.items()
    for side, row in rows.items()
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
    dtype = "auto" if TINY[family].rounds else torch.float32
    model = base.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    if family.startswith(("marian", "roformer")):  # in half precision they keep their sinusoids rounded; not meant
        part = model.encoder if family == "roformer" else model.get_submodule(TINY[family].runs)
        table = part.embed_positions
        table.weight.data = table.create_weight()
    model.config.use_cache = False
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
    pad, part = config.pad_token_id or 0, sample.model.get_submodule(tiny.runs)
    words = (part.embed_tokens if hasattr(part, "embed_tokens") else part.get_input_embeddings()).num_embeddings
    ids = [pad if draw.random() < 0.2 else draw.randrange(words) for _ in range(length)]
    sequence = {"input_ids": ids}
    if draw.random() < 0.7:
        sequence["attention_mask"] = [int(draw.random() < 0.7) for _ in ids]
        sequence["attention_mask"][draw.randrange(length)] = 1
    if tiny.types and tiny.types(config) and draw.random() < 0.6:
        sequence["token_type_ids"] = [draw.randrange(tiny.types(config)) for _ in ids]
    if tiny.placed and draw.random() < 0.3:
        sequence["position_ids"] = [draw.randrange(LONGEST) for _ in ids]
    return sequence | _extras(tiny, config, draw, length)


def _extras(tiny: Tiny, config: Any, draw: random.Random, length: int) -> dict[str, Any]:
    extras: dict[str, Any] = {}
    for name in tiny.extras:
        values = tiny.values_of(name, config)
        if not values or (name != "bbox" and draw.random() < 0.3):
            continue
        if name == "bbox":  # LayoutLMEmbeddings looks up both corners, the width and the height
            corners = [sorted(draw.randrange(values) for _ in range(2)) for _ in range(2 * length)]
            extras[name] = [[x[0], y[0], x[1], y[1]] for x, y in zip(corners[::2], corners[1::2], strict=True)]
        else:
            extras[name] = [draw.randrange(values) for _ in range(length)]
    return extras


FSMT_NEEDS = ("encoder_padding_mask", "decoder_padding_mask", "decoder_causal_mask")


class _Enough(Exception):
    """Raised once the rows before block 0 are recorded."""


def reference(sample: Sample, sequence: dict[str, list[int]]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The rows before block 0 and, of families whose blocks are exported, after the last: [T, d] of one sequence."""
    seen: list[torch.Tensor] = []
    whole = bool(FAMILIES[sample.family.split()[0]].block)

    def keep(_module: Any, args: Any, kwargs: Any) -> None:
        seen.append(args[0] if args else next(kwargs[key] for key in ("hidden_states", "query") if key in kwargs))
        if not whole:
            raise _Enough

    tiny = TINY[sample.family]
    block = sample.model.get_submodule(tiny.blocks)[0]
    hook = block.register_forward_pre_hook(keep, with_kwargs=True)
    fed: dict[str, Any] = {key: torch.tensor([value]) for key, value in sequence.items()}
    if sample.family == "fsmt decoder":
        heard = torch.zeros(1, 1, sample.model.config.d_model)
        fed = {"input_ids": fed["input_ids"], "encoder_hidden_states": heard} | dict.fromkeys(FSMT_NEEDS)
    with torch.no_grad(), suppress(_Enough):
        last = sample.model.get_submodule(tiny.runs)(**fed).last_hidden_state
    hook.remove()
    rows = seen[0].float()
    if whole and tiny.rounds:  # Inlay's blocks are float32
        del fed["input_ids"]
        with torch.no_grad():
            last = copy.deepcopy(sample.model).float()(inputs_embeds=rows, **fed).last_hidden_state
    if sample.family.split()[0] in ("xlnet", "fsmt"):  # tokens come before the batch there
        rows = rows.transpose(0, 1)
    while rows.ndim > 2:  # Gemma 3n puts copies of the rows before the batch
        rows = rows[0]
    rows = rows[: len(sequence["input_ids"])]  # Longformer and LED pad to whole windows
    return rows.numpy(), last[0].numpy() if whole else rows.numpy()
