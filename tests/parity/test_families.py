"""Random tiny models of every family: written by transformers, exported and served by Inlay, compared row by row."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, LlamaModel

from models.card import RopeTable
from models.export import export
from models.families import FAMILIES
from service.catalog import open_catalog
from service.encoder import Encoder
from service.messages import EmbedRequest, Ids
from service.metrics import Metrics
from service.settings import Settings
from tests.parity.conftest import Ledger
from tests.parity.tiny_models import TINY, Sample, reference, sample, sequences

pytestmark = pytest.mark.parity
SEEDS = range(8)
NAMES = {"input_ids": "ids", "attention_mask": "mask", "token_type_ids": "types", "position_ids": "positions"}


def opened(checkpoint: Path, store: Path) -> Encoder:
    export(checkpoint, store / "tiny")
    settings = Settings(store=store, device="cpu", threads=1)
    return Encoder(open_catalog(settings, Metrics()), settings)


def as_ids(given: dict[str, list[int]]) -> Ids:
    return Ids(**{NAMES[key]: np.array(values, np.int64) for key, values in given.items()})


def relative(got: Any, expected: Any) -> float:
    """The largest difference, in units of the largest expected value (at least 1)."""
    assert got.shape == expected.shape
    return float(np.abs(got.astype(np.float64) - expected).max() / max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", TINY)
def test_a_tiny_model_is_served_as_transformers_computes_it(
    family: str, seed: int, tmp_path: Path, ledger: Ledger
) -> None:
    made = sample(family, seed, tmp_path / "checkpoint")
    encoder = opened(made.folder, tmp_path / "store")
    given = sequences(made, seed)
    outputs = tuple(
        name for name in ("input_embeddings", "last_hidden_state") if name in encoder.catalog.get(None).card.outputs
    )
    assert len(outputs) == 1 + bool(FAMILIES[family].block)
    result = asyncio.run(encoder.embed(EmbedRequest([as_ids(each) for each in given], outputs=outputs)))
    expected = [reference(made, each) for each in given]
    for output, column, tolerance in zip(result.outputs, zip(*expected, strict=True), (1e-6, 2e-5), strict=False):
        assert output.lengths == tuple(len(each["input_ids"]) for each in given)
        ledger.check(family, output.name, relative(output.rows, np.concatenate(column)), tolerance)


@pytest.mark.parametrize("seed", range(20))
def test_rope_tables_are_those_of_transformers(seed: int, tmp_path: Path, ledger: Ledger) -> None:
    made = sample("llama", seed, tmp_path / "checkpoint")
    encoder = opened(made.folder, tmp_path / "store")
    card = encoder.catalog.get(None).card
    assert card.rope is not None
    for start in (0, 1000, 100_000):
        cos, sin = asyncio.run(encoder.rope(None, start, 40))
        check_rope(made, card.rope, start, cos, sin, ledger)


def check_rope(made: Sample, rope: RopeTable, start: int, cos: Any, sin: Any, ledger: Ledger) -> None:
    """Within what float32 angles can differ by: 3e-7 and half an ulp of the angle, times the attention factor."""
    positions = torch.arange(start, start + len(cos))
    expected = made.model.rotary_emb(torch.zeros(1), positions[None])
    angle = positions.numpy()[:, None] * np.array(rope.inverse_frequency)[None]  # (T, r/2)
    tolerance = rope.attention_factor * (3e-7 + 5e-7 * angle)
    for name, got, table in zip(("cos", "sin"), (cos, sin), expected, strict=True):
        half = table[0].numpy()[:, : table.shape[-1] // 2]
        kind = f"{name} {rope.rope_type}, of tolerance"
        ledger.check("llama", kind, float((np.abs(got - half) / tolerance).max()), 1.0)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_value_config_json_leaves_out_is_the_default_of_transformers(family: str) -> None:
    usual = CONFIG_MAPPING[family]()
    defaults = FAMILIES[family].defaults
    assert {key: getattr(usual, key) for key in defaults if key != "head_dim"} == {
        key: value for key, value in defaults.items() if key != "head_dim"
    }


OLD_ROPES: tuple[dict[str, Any], ...] = (
    {},
    {"rope_theta": 500000.0},
    {"rope_theta": 500000.0, "rope_scaling": None},
    {"rope_scaling": {"type": "linear", "factor": 4.0}},
    {"rope_theta": 1e6, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    {
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
)


@pytest.mark.parametrize("old", OLD_ROPES, ids=str)
def test_an_older_config_json_rotates_as_transformers_reads_it(
    old: dict[str, Any], tmp_path: Path, ledger: Ledger
) -> None:
    made = sample("llama", 3, tmp_path / "checkpoint")
    path = made.folder / "config.json"
    config = json.loads(path.read_text())
    del config["rope_parameters"]
    path.write_text(json.dumps(config | old))
    reread = Sample("llama", made.folder, LlamaModel.from_pretrained(made.folder, dtype=torch.float32))
    encoder = opened(made.folder, tmp_path / "store")
    rope = encoder.catalog.get(None).card.rope
    assert rope is not None
    cos, sin = asyncio.run(encoder.rope(None, 0, 60))
    check_rope(reread, rope, 0, cos, sin, ledger)
