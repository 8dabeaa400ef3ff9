"""Jina v3's adapters, of every task and of none, against transformers with each task's weights merged by hand."""

import copy
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from models.artifacts.export import export
from models.recipes.extra_inputs import TASKS
from tests.parity.conftest import Ledger
from tests.parity.test_blocks_live import TOLERANCE, Encoder, expected, made, relative

pytestmark = pytest.mark.parity
NAMES = ("retrieval.query", "retrieval.passage", "separation", "classification", "text-matching")
LENGTHS = (1, 2, 13, 65, 300)  # of every task 30 sequences, which attention takes one by one
LINEAR = ("mixer.Wqkv", "mixer.out_proj", "mlp.fc1", "mlp.fc2")
TABLES = ("embeddings.word_embeddings", "embeddings.token_type_embeddings")
ORIGINAL = ".parametrizations.weight.original"


class Adapted:
    """A random model of transformers, written as published files are: with adapters beside its weights."""

    def __init__(self, seed: int, rank: int, alpha: float, folder: Path) -> None:
        self.model = made("jina_embeddings_v3", seed, folder)
        path = folder / "model.safetensors"
        self.base = {name.removeprefix("roberta."): tensor for name, tensor in load_file(path).items()}
        self.scale, self.deltas = alpha / rank, dict[str, Any]()
        stored = {}
        for name, weight in self.base.items():
            stem = name.removesuffix(".weight")
            if not (stem.endswith(LINEAR) or stem in TABLES) or stem == name:
                stored[name] = weight
                continue
            outputs, inputs = weight.shape
            shapes = ((outputs, rank), (rank, inputs)) if stem in TABLES else ((rank, inputs), (outputs, rank))
            spread = 0.5 if stem in TABLES else 0.3 / inputs**0.5  # of what is added, half of the weight's
            lora_a, lora_b = (
                torch.randn(len(NAMES), *shape) * (spread / self.scale / rank**0.5) ** 0.5 for shape in shapes
            )
            stored[stem + ORIGINAL] = weight
            stored[f"{stem}.parametrizations.weight.0.lora_A"] = lora_a
            stored[f"{stem}.parametrizations.weight.0.lora_B"] = lora_b
            one, other = (lora_a, lora_b) if stem in TABLES else (lora_b, lora_a)
            self.deltas[name] = self.scale * (one.double() @ other.double())
        assert len(self.deltas) == len(TABLES) + len(LINEAR) * self.model.config.num_hidden_layers
        save_file({f"roberta.{name}": tensor for name, tensor in stored.items()}, path)
        config = json.loads((folder / "config.json").read_text())
        config |= {"model_type": "xlm-roberta", "position_embedding_type": "rotary", "lora_adaptations": NAMES}
        config |= {"rotary_emb_base": config.pop("rope_parameters")["rope_theta"]}
        config |= {"lora_rank": rank, "lora_alpha": alpha, "load_trained_adapters": True}
        (folder / "config.json").write_text(json.dumps(config))

    def merged(self, task: int) -> Any:
        """The model of one task, in float64; -1: without adapters."""
        model = copy.deepcopy(self.model)
        state = model.state_dict()
        with torch.no_grad():
            for name, delta in self.deltas.items() if task >= 0 else ():
                if "Wqkv" not in name:
                    state[_native(name)] += delta[task]
                    continue
                for kind, part in zip("qkv", delta[task].chunk(3), strict=True):
                    state[_native(name).replace("mixer.Wqkv", f"self_attn.{kind}_proj")] += part
        return model


def _native(name: str) -> str:
    """The name in transformers of a tensor of published files."""
    return name.removeprefix("encoder.").replace("mixer.out_proj", "self_attn.o_proj")


@pytest.mark.parametrize("seed", range(6))
def test_every_task_is_its_merged_model(seed: int, tmp_path: Path, ledger: Ledger) -> None:
    rank, alpha = ((4, 1), (4, 8), (1, 1), (3, 2), (16, 16), (2, 5))[seed]
    adapted = Adapted(seed, rank, alpha, tmp_path / "checkpoint")
    card = export(tmp_path / "checkpoint", tmp_path / "out")
    assert card.tasks == NAMES
    encoder, draw = Encoder(tmp_path / "out", card), np.random.default_rng(seed)
    vocabulary = adapted.model.config.vocab_size
    works = [(draw.integers(3, vocabulary, n), task) for n, task in itertools.product(LENGTHS, range(-1, len(NAMES)))]
    order = draw.permutation(len(works))
    mixed = dict(zip(order, _rows(encoder, [works[place] for place in order]), strict=True))
    models = {task: adapted.merged(task) for task in range(-1, len(NAMES))}
    for place, (ids, task) in enumerate(works):
        (alone,) = _rows(encoder, [(ids, task)])
        what = "no task" if task < 0 else "task"
        ledger.check("jina_embeddings_v3, adapters", what, relative(alone, expected(models[task], ids)), TOLERANCE)
        assert np.array_equal(alone, mixed[place]), f"{len(ids)} tokens of task {task} get other bits in a batch"
        if task >= 0:  # the judge sees the adapters
            assert relative(expected(models[task], ids), expected(models[-1], ids)) > 100 * TOLERANCE


def _rows(encoder: Encoder, works: list[tuple[Any, int]]) -> list[Any]:
    sequences = [ids for ids, _ in works]
    tasks = np.repeat([task for _, task in works], [len(ids) for ids in sequences])
    return encoder.rows(sequences, extras={TASKS: tasks})
