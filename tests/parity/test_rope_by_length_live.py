"""Whole models whose RoPE depends on the length of the text, or is scaled as published code does, against torch."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from models.artifacts.export import export
from tests.parity.conftest import Ledger
from tests.parity.test_blocks_live import TOLERANCE, Encoder, expected, relative

pytestmark = pytest.mark.parity
TRAINED = 64
LENGTHS = (1, 5, 63, 64, 65, 66, 130, 257, 400)
SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 48,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1000.0}


def longrope(pairs: int, **more: Any) -> dict[str, Any]:
    draw = np.random.default_rng(pairs)
    factors = {name: draw.uniform(1, most, pairs).tolist() for name, most in (("short_factor", 2), ("long_factor", 30))}
    known = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": TRAINED}
    return {**known, **factors, **more}


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "phi3 longrope": (
        "phi3",
        {
            "rope_parameters": longrope(8, partial_rotary_factor=1.0),
            "original_max_position_embeddings": TRAINED,
            "max_position_embeddings": 1024,
        },
    ),
    "llama longrope, factor": (
        "llama",
        {"rope_parameters": longrope(8, factor=8.0), "max_position_embeddings": 512},
    ),
    "llama dynamic": ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": TRAINED}),
    "qwen3 dynamic": ("qwen3", {"rope_parameters": DYNAMIC, "max_position_embeddings": TRAINED, "head_dim": 16}),
    "nomic_bert dynamic": ("nomic_bert", {"rope_parameters": DYNAMIC, "max_position_embeddings": TRAINED}),
}


def made(family: str, more: dict[str, Any], folder: Path) -> Any:
    torch.manual_seed(5)
    sizes = dict(SIZES)
    if family == "nomic_bert":
        del sizes["num_key_value_heads"]
    config = transformers.CONFIG_MAPPING[family](**sizes, **more)
    config.use_cache = False
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                wide = 1.0 if "embed" in name else 1.5 / parameter.shape[-1] ** 0.5
                parameter.copy_(wide * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model.double()


def compare(name: str, folder: Path, model: Any, ledger: Ledger) -> None:
    card = export(folder, folder.parent / "out", encoder=True)
    encoder, draw = Encoder(folder.parent / "out", card), np.random.default_rng(3)
    sequences = [draw.integers(3, 60, length) for length in LENGTHS]
    order = draw.permutation(len(sequences))
    mixed = dict(zip(order, encoder.rows([sequences[place] for place in order]), strict=True))
    for place, ids in enumerate(sequences):
        (alone,) = encoder.rows([ids])
        expected(model, sequences[0])  # transformers keeps the longest text's dynamic frequencies until a short one
        ledger.check(name, "last_hidden_state", relative(alone, expected(model, ids)), TOLERANCE)
        assert np.array_equal(alone, mixed[place]), f"{len(ids)} tokens get other bits in a batch"


@pytest.mark.parametrize("name", CASES)
def test_each_text_rotates_by_its_own_length(name: str, tmp_path: Path, ledger: Ledger) -> None:
    model = made(*CASES[name], tmp_path / "checkpoint")
    compare(name, tmp_path / "checkpoint", model, ledger)


def rewrite(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def test_nomic_reads_the_scaling_factor_of_its_published_code(tmp_path: Path, ledger: Ledger) -> None:
    """The published code grows theta as `dynamic` does, from max_trained_positions instead of n_positions."""
    model = made(*CASES["nomic_bert dynamic"], tmp_path / "checkpoint")

    def published(config: dict[str, Any]) -> dict[str, Any]:
        kept = {key: value for key, value in config.items() if key != "rope_parameters"}
        own = {"rotary_scaling_factor": 4, "max_trained_positions": TRAINED, "rotary_emb_base": 1000.0}
        return kept | own | {"max_position_embeddings": 512}

    rewrite(tmp_path / "checkpoint", published)
    compare("nomic_bert, published", tmp_path / "checkpoint", model, ledger)


def test_gte_stretches_as_its_published_code_does(tmp_path: Path, ledger: Ledger) -> None:
    """`ntk` of the published code: theta times the factor, and all frequencies divided by factor^(2/r)."""
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    more = {"rope_parameters": plain, "max_position_embeddings": 512, "type_vocab_size": 0}
    del_heads = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
    config = transformers.CONFIG_MAPPING["gte"](**del_heads, **more)
    torch.manual_seed(5)
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    model.save_pretrained(tmp_path / "checkpoint")
    width = SIZES["hidden_size"] // SIZES["num_attention_heads"]
    stretched = 1.0 / ((2.0 * 10000.0) ** (torch.arange(0, width, 2).float() / width)) / 2.0 ** (2 / width)
    model.rotary_emb.inv_freq.copy_(stretched)

    def published(config: dict[str, Any]) -> dict[str, Any]:
        kept = {key: value for key, value in config.items() if key != "rope_parameters"}
        return kept | {"model_type": "new", "rope_theta": 10000.0, "rope_scaling": {"type": "ntk", "factor": 2.0}}

    rewrite(tmp_path / "checkpoint", published)
    compare("gte, ntk", tmp_path / "checkpoint", model.double(), ledger)
