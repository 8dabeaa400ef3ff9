"""LoRA adapters in a checkpoint: what config.json and the tensors have to say, and where they lie."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from models.artifacts.export import export
from models.artifacts.weights import tensors
from models.errors import BadCheckpoint
from models.recipes.steps import Attention, Embed
from tests.golden_cases import write_folder
from tests.task_models import ADAPTED, ALPHA, CONFIG, HIDDEN, RANK, TASKS, Tensors, adapted, draw, write

PLACE = "roberta.encoder.layers.1.mlp.fc1.parametrizations.weight.0"


def test_adapters_of_a_fused_matrix_share_their_first_half(tmp_path: Path) -> None:
    card = export(write(tmp_path / "x"), tmp_path / "out")
    attention, embed = card.encoder[0], card.recipe[0]
    assert isinstance(attention, Attention)
    assert isinstance(embed, Embed)
    own = [linear.adapter for linear in (attention.query, attention.key, attention.value)]
    assert len({adapter.lora_a for adapter in own if adapter}) == 1
    held, (_, lora_a, lora_b) = tensors(tmp_path / "out", card), draw()
    for number, adapter in enumerate(own):
        assert adapter
        assert (adapter.tasks, adapter.rank, adapter.scale) == (len(TASKS), RANK, ALPHA / RANK)
        rows = slice(number * HIDDEN, (number + 1) * HIDDEN)
        for task in range(len(TASKS)):
            columns = slice(task * RANK, (task + 1) * RANK)
            stem = "encoder.layers.0.mixer.Wqkv"
            np.testing.assert_array_equal(held[adapter.lora_a][columns], lora_a[stem][task])
            np.testing.assert_array_equal(held[adapter.lora_b][:, columns], lora_b[stem][task, rows])
    assert embed.adapter
    np.testing.assert_array_equal(
        held[embed.adapter.lora_b], np.hstack([*lora_b["embeddings.word_embeddings"].transpose(0, 2, 1)])
    )


def test_narrow_adapters_are_widened(tmp_path: Path) -> None:
    stored = {name: own.astype(ml_dtypes.bfloat16) for name, own in adapted().items()}
    card = export(write_folder(tmp_path / "x", CONFIG | ADAPTED, stored), tmp_path / "out", dtype="float32")
    assert card.tasks == TASKS


def test_a_file_without_adapters_has_no_tasks(tmp_path: Path) -> None:
    card = export(write(tmp_path / "x", "query", changes=ADAPTED), tmp_path / "out")
    assert (card.tasks, card.extras, card.prompts) == ((), (), {})


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "no tasks": ({"lora_adaptations": None}, "lora_adaptations None; the file holds LoRA adapters"),
    "a text": ({"lora_adaptations": "query"}, "lora_adaptations 'query'"),
    "none named": ({"lora_adaptations": []}, "names of their tasks, each once"),
    "numbers": ({"lora_adaptations": [1, 2, 3]}, "names of their tasks, each once"),
    "one twice": ({"lora_adaptations": ["a", "b", "a"]}, "names of their tasks, each once"),
    "too few": ({"lora_adaptations": ["a", "b"]}, r"has shape \[3, 40, 2\], but 2 lora_adaptations"),
    "other rank": ({"lora_rank": 4}, r"lora_rank 4 of config.json make it \[3, 40, 4\]"),
    "no rank": ({"lora_rank": 0}, "lora_rank 0"),
    "no factor": ({"lora_alpha": "1"}, "lora_alpha '1'"),
    "unknown default": ({"default_task": "other"}, "default_task 'other'; its lora_adaptations are query, passage"),
    "listed prompts": ({"task_instructions": ["a"]}, "task_instructions must be an object of texts"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_configs_that_do_not_fit_the_adapters_are_refused(name: str, tmp_path: Path) -> None:
    changes, message = CONFIGS[name]
    with pytest.raises(BadCheckpoint, match=message):
        export(write(tmp_path / "x", changes=changes), tmp_path / "out")


def without(suffix: str) -> Callable[[Tensors], Tensors]:
    return lambda held: {name: own for name, own in held.items() if name != PLACE + suffix}


FILES: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "no lora_A": (without(".lora_A"), "mlp.fc1.parametrizations.weight.0.lora_A' is missing"),
    "no lora_B": (without(".lora_B"), "mlp.fc1.parametrizations.weight.0.lora_B' is missing"),
    "two dimensions": (
        lambda held: held | {f"{PLACE}.lora_A": held[f"{PLACE}.lora_A"][0]},
        r"has shape \[2, 16\], but 3 lora_adaptations and lora_rank 2",
    ),
    "weight of one dimension": (
        lambda held: held | {f"{PLACE[:-1]}original": held[f"{PLACE[:-1]}original"][0]},
        r"original' has shape \[16\], but a weight with adapters has rows and columns",
    ),
    "not finite": (
        lambda held: held | {f"{PLACE}.lora_B": np.full_like(held[f"{PLACE}.lora_B"], np.nan)},
        "lora_B",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files_with_broken_adapters_are_refused(name: str, tmp_path: Path) -> None:
    changed, message = FILES[name]
    with pytest.raises(BadCheckpoint, match=message):
        export(write_folder(tmp_path / "x", CONFIG | ADAPTED, changed(adapted())), tmp_path / "out")
