"""Random tiny models of every family: written by transformers, exported and served by Inlay, compared row by row."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, LlamaModel

from models.artifacts.export import export
from models.families import FAMILIES
from models.positions.rope.table import tabulate
from models.recipes.positional_encodings import EVERY_LAYER, RopeTable
from service.embedding.pipeline import EmbeddingPipeline
from service.embedding.requests import EmbedRequest, EmbedResult, Ids
from service.observability.metrics import Metrics
from service.registry.registry import ModelRegistry, open_registry
from service.settings import Settings
from tests.embed_requests import embed_request
from tests.parity.conftest import Ledger
from tests.parity.tiny_models import TINY, Sample, read_back, reference, sample, sequences

pytestmark = pytest.mark.parity
SEEDS = range(12)
NAMES = {"input_ids": "ids", "attention_mask": "mask", "token_type_ids": "types", "position_ids": "positions"}
ROTATING = ["llama", "gpt_neox", "falcon", "modernbert"]  # test_rope_live.py has all of them
EXTRAS = ("task_type_ids", "langs", "bbox")


def exported(checkpoint: Path, store: Path, side: str | None = None) -> ModelRegistry:
    """Return a registry of the exported checkpoint alone."""
    export(checkpoint, store / "tiny", side=side)
    return open_registry(Settings(store=store, device="cpu", threads=1), Metrics())


def embed(registry: ModelRegistry, request: EmbedRequest) -> EmbedResult:
    return asyncio.run(EmbeddingPipeline(registry, Settings()).embed(request))


def as_ids(sequence: dict[str, list[int]]) -> Ids:
    arrays = {key: np.array(values, np.int64) for key, values in sequence.items()}
    extras = {key: arrays.pop(key) for key in EXTRAS if key in arrays}
    return Ids(**{NAMES[key]: values for key, values in arrays.items()}, extras=extras or None)


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
    registry = exported(made.folder, tmp_path / "store", TINY[family].side)
    batch = sequences(made, seed)
    outputs = tuple(
        name for name in ("input_embeddings", "last_hidden_state") if name in registry.get(None).card.outputs
    )
    row = FAMILIES[family.split()[0]]
    whole = row.block and (row.causal is not True or row.text_vector) and " " not in family
    assert len(outputs) == 1 + bool(whole)
    result = embed(registry, embed_request([as_ids(each) for each in batch], outputs=outputs))
    expected = [reference(made, each) for each in batch]
    kept = np.concatenate([each.get("attention_mask", np.ones_like(each["input_ids"])) for each in batch]).astype(bool)
    for output, column, tolerance in zip(result.outputs, zip(*expected, strict=True), (1e-6, 2e-5), strict=False):
        assert output.lengths == tuple(len(each["input_ids"]) for each in batch)
        rows, wanted = output.rows, np.concatenate(column)
        # masked rows: DeBERTa's that see masked tokens alone and all of Longformer's attend to nothing, CLIP's to all
        if family.startswith(("deberta", "clip", "longformer")):
            rows, wanted = rows[kept], wanted[kept]
        ledger.check(family, output.name, relative(rows, wanted), tolerance)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", [name for name, row in FAMILIES.items() if row.per_layer])
def test_the_embeddings_of_each_layer_are_those_of_transformers(
    family: str, seed: int, tmp_path: Path, ledger: Ledger
) -> None:
    made = sample(family, seed, tmp_path / "checkpoint")
    registry = exported(made.folder, tmp_path / "store")
    ids = torch.arange(made.model.config.vocab_size)
    with torch.no_grad():
        expected = made.model.get_per_layer_inputs(ids[None])[0].flatten(1).float().numpy()
    request = embed_request([Ids(ids.numpy())], outputs=("per_layer_embeddings",))
    rows = embed(registry, request).outputs[0].rows
    ledger.check(family, "per_layer_embeddings", relative(rows, expected), 1e-6)


def test_every_family_has_a_tiny_model() -> None:
    sides = {f"{name} decoder" for name, row in FAMILIES.items() if row.decoder}
    assert set(TINY) <= set(FAMILIES) | sides
    judged = {name for name, row in FAMILIES.items() if row.block}  # whole, in tests/parity/test_blocks_live.py
    assert set(TINY) | judged == set(FAMILIES) | sides


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", ROTATING)
def test_rope_tables_are_those_of_transformers(family: str, seed: int, tmp_path: Path, ledger: Ledger) -> None:
    made = sample(family, seed, tmp_path / "checkpoint")
    check_ropes(made, exported(made.folder, tmp_path / "store"), (0, 1000, 100_000), ledger)


def check_ropes(made: Sample, registry: ModelRegistry, starts: tuple[int, ...], ledger: Ledger) -> None:
    """Every table of the card, tabulated and through the served graph."""
    ropes = registry.get(None).card.encodings.ropes
    assert bool(ropes) == (not getattr(made.model.config, "alibi", False))
    for name, rope in ropes.items():
        for start in starts:
            places = np.arange(start, start + 40)
            table = tabulate(rope.rope, places, arithmetic="parity")
            check_rope(made, name, rope, places, [table.outputs[each].whole() for each in ("cos", "sin")], ledger)
            check_rope(made, name, rope, places, served(registry, rope, places), ledger)


def served(registry: ModelRegistry, rope: RopeTable, places: Any) -> list[Any]:
    suffix = rope.graph.removeprefix("rope")
    outputs = (f"rope_cos{suffix}", f"rope_sin{suffix}")
    request = embed_request([Ids(np.zeros_like(places), positions=places)], outputs=outputs)
    return [output.rows for output in embed(registry, request).outputs]


def check_rope(made: Sample, name: str, rope: RopeTable, places: Any, got: list[Any], ledger: Ledger) -> None:
    """Within what float32 angles can differ by: 3e-7 and half an ulp of the angle, times the attention factor."""
    kind = () if name == EVERY_LAYER else (name,)
    expected = made.model.rotary_emb(torch.zeros(1), torch.from_numpy(places)[None], *kind)
    angle = places[:, None] * np.array(rope.inverse_frequency)[None]  # (T, r/2)
    tolerance = rope.attention_factor * (3e-7 + 5e-7 * angle)
    for function, served_rows, table in zip(("cos", "sin"), got, expected, strict=True):
        half = table[0].numpy()[:, : table.shape[-1] // 2]
        what = f"{function} {rope.rope.rope_type}, of tolerance"
        assert served_rows.shape == half.shape
        ledger.check(made.family, what, float((np.abs(served_rows - half) / tolerance).max()), 1.0)


# Derived by the class (head_dim), or asked for with getattr and these defaults where they count.
NO_FIELDS = ("conv_kernel_size", "head_dim", "position_buckets", "norm_rel_ebd")
NO_FIELDS += ("lora_rank", "lora_alpha")  # of Jina v3: transformers' class has no adapters
NO_FIELDS += ("global_head_dim", "num_global_key_value_heads")  # EmbeddingGemma 2's class keeps per_layer_config


@pytest.mark.parametrize("family", [name for name in FAMILIES if name in CONFIG_MAPPING])
def test_value_left_out_of_config_json_has_its_default(family: str) -> None:
    usual = CONFIG_MAPPING[family]()
    usual.allow_global_per_layer_attribute_access = True
    row = FAMILIES[family]
    defaults = {key: value for key, value in row.defaults.items() if key not in NO_FIELDS}
    assert {key: getattr(usual, key) for key in defaults} == defaults
    for ours, own in row.names.items():
        assert row.side or own == usual.attribute_map.get(ours, own), f"{ours} is {own} here"
        assert hasattr(usual, own) or own == "n_embed" or "deberta" in family  # older files say it for hidden_size


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
    reread = read_back("llama", made.folder, LlamaModel)
    check_ropes(reread, exported(made.folder, tmp_path / "store"), (0,), ledger)


# What a published config.json says in other words -> the config as it was written. Read by both.
SPELLINGS: dict[str, tuple[str, dict[str, str]]] = {
    "bloom-176b says n_embed and num_attention_heads": (
        "bloom",
        {"hidden_size": "n_embed", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers"},
    ),
    "falcon says n_embed": ("falcon", {"hidden_size": "n_embed"}),
    "marian says num_attention_heads": ("marian", {"encoder_attention_heads": "num_attention_heads"}),
    "t5 says hidden_size": ("t5", {"d_model": "hidden_size", "num_heads": "num_attention_heads"}),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", SPELLINGS)
def test_config_json_in_older_terms_is_read_as_transformers(
    name: str, seed: int, tmp_path: Path, ledger: Ledger
) -> None:
    family, words = SPELLINGS[name]
    made = sample(family, seed, tmp_path / "checkpoint")
    path = made.folder / "config.json"
    path.write_text(json.dumps({words.get(key, key): value for key, value in json.loads(path.read_text()).items()}))
    reread = read_back(family, made.folder, type(made.model))
    registry = exported(made.folder, tmp_path / "store")
    if family in ROTATING:
        check_ropes(reread, registry, (0,), ledger)
    batch = sequences(made, seed)
    result = embed(registry, embed_request([as_ids(each) for each in batch], outputs=("input_embeddings",)))
    expected = np.concatenate([reference(reread, each)[0] for each in batch])
    ledger.check(family, "in other words", relative(result.outputs[0].rows, expected), 1e-6)


def test_serves_deberta_with_embedding_size_equal_to_hidden(tmp_path: Path, ledger: Ledger) -> None:
    made = sample("deberta-v2", 1, tmp_path / "checkpoint", embedding_size=24, hidden_size=24, num_attention_heads=2)
    registry = exported(made.folder, tmp_path / "store")
    sequence = {"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]}
    result = embed(registry, embed_request([as_ids(sequence)], outputs=("input_embeddings",)))
    ledger.check("deberta-v2", "input_embeddings", relative(result.outputs[0].rows, reference(made, sequence)[0]), 1e-6)
