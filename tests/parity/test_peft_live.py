"""Adapters that the peft library saves, against its own merge_and_unload: weights, rows, and several side by side."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from safetensors.numpy import load_file

from models.artifacts import card as cards
from models.artifacts.export import export
from models.checkpoints.checkpoint import read_tensors
from models.families.opening import located
from models.recipes.extra_inputs import TASKS
from tests.parity.conftest import Ledger
from tests.parity.test_blocks_live import TOLERANCE, Encoder, expected, made, relative, words

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore:::peft", "ignore::FutureWarning")]
FAMILIES = ("bert", "xlm-roberta", "qwen3", "mistral", "modernbert", "phi3", "gpt2", "gpt_neox", "bloom")
WORD_TABLES = {"gpt2": "wte", "gpt_neox": "embed_in", "bloom": "word_embeddings", "modernbert": "tok_embeddings"}
WORD_TABLES |= {"bert": "word_embeddings", "xlm-roberta": "word_embeddings"}
SCALES = {"rank_pattern": {"[02].*": 3, r"^.*\.1\..*": 2}, "alpha_pattern": {"[02].*": 5}}
WEIGHTS = 1e-6
LENGTHS = (1, 2, 13, 65, 300)


def options(kind: str, family: str) -> dict[str, Any]:
    """Return the options of an adapter of some kind for a family's model."""
    table = WORD_TABLES.get(family, "embed_tokens")
    return {
        "lora": {"target_modules": "all-linear"},
        "rslora": {"target_modules": "all-linear", "exclude_modules": r".*\.0\..*(mlp|dense).*", "use_rslora": True}
        | SCALES,
        "dora": {"target_modules": "all-linear", "use_dora": True},
        "biases": {"target_modules": "all-linear", "bias": "all"},
        "table": {"target_modules": [table]},
        "dora table": {"target_modules": [table], "use_dora": True},
        "saved module": {"target_modules": "all-linear", "modules_to_save": [table]},
    }[kind]


KINDS = ("lora", "rslora", "dora", "biases", "table", "dora table", "saved module")


def adapted(base: Path, family: str, kind: str, folder: Path, seed: int = 0) -> Any:
    """Return a random adapter on a model, after writing it."""
    torch.manual_seed(seed)
    model = transformers.AutoModel.from_pretrained(base, attn_implementation="eager")
    model.config.use_cache = False
    adapter = get_peft_model(model, LoraConfig(r=4, lora_alpha=7, **options(kind, family)))
    with torch.no_grad():
        for parameter in adapter.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn_like(parameter) / max(1, parameter.shape[-1]) ** 0.5)
    adapter.save_pretrained(folder)
    return adapter


def check_rows(folder: Path, judge: Any, family: str, what: str, ledger: Ledger, task: int | None = None) -> None:
    """Check rows of an exported model against a torch model."""
    encoder, draw = Encoder(folder, cards.read(folder)), np.random.default_rng(len(what))
    for length in LENGTHS:
        ids = draw.integers(3, words(judge), length)
        extras = None if task is None else {TASKS: np.full(length, task)}
        (rows,) = encoder.rows([ids], extras=extras)
        ledger.check(f"{family}, peft", what, relative(rows, expected(judge, ids)), TOLERANCE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_merged_adapter_is_peft_s_own_merge(family: str, kind: str, tmp_path: Path, ledger: Ledger) -> None:
    made(family, 3, tmp_path / "base")
    adapter = adapted(tmp_path / "base", family, kind, tmp_path / "adapter")
    merged = copy.deepcopy(adapter).double().merge_and_unload()
    with located(tmp_path / "adapter") as place:
        checkpoint = place.checkpoint()
        held = {name: np.asarray(rows[:]) for name, rows in read_tensors(checkpoint, checkpoint.tensors).items()}
    copy.deepcopy(merged).float().save_pretrained(tmp_path / "merged")
    before, changed = load_file(tmp_path / "base/model.safetensors"), 0
    for name, wanted in load_file(tmp_path / "merged/model.safetensors").items():
        difference = np.abs(held[name].astype(np.float64) - wanted).max() / max(1.0, np.abs(wanted).max())
        ledger.check(f"{family}, peft", f"{kind}: weights", float(difference), WEIGHTS)
        changed += not np.allclose(before[name], wanted, atol=100 * WEIGHTS)
    assert changed, "the judge sees no adapter"
    export(tmp_path / "adapter", tmp_path / "out", encoder=True)
    check_rows(tmp_path / "out", merged, family, kind, ledger)


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_side_by_side_are_their_merged_models(family: str, tmp_path: Path, ledger: Ledger) -> None:
    plain = made(family, 4, tmp_path / "base")
    kinds = {"a": "lora", "b": "rslora", "c": "table"}
    judges = [plain]
    for seed, (name, kind) in enumerate(kinds.items()):
        judges.append(adapted(tmp_path / "base", family, kind, tmp_path / name, seed).double().merge_and_unload())
    beside = {name: str(tmp_path / name) for name in kinds}
    card = export(tmp_path / "base", tmp_path / "out", encoder=True, adapters=beside)
    assert card.tasks == tuple(kinds)
    for task, judge in enumerate(judges, -1):
        check_rows(tmp_path / "out", judge, family, "side by side", ledger, task)
    ids = np.arange(3, 20)
    apart = [relative(expected(judge, ids), expected(plain, ids)) for judge in judges[1:]]
    assert min(apart) > 100 * TOLERANCE, "the judge sees no adapter"


def test_a_classifier_s_head_is_the_adapter_s(tmp_path: Path, ledger: Ledger) -> None:
    """As a reranker is trained on a base without a head, whose config names no class that classifies."""
    made("bert", 5, tmp_path / "base")
    torch.manual_seed(5)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "base", num_labels=1)
    adapter = get_peft_model(model, LoraConfig(task_type=TaskType.SEQ_CLS, target_modules=["query", "value"]))
    adapter.save_pretrained(tmp_path / "adapter")
    card = export(tmp_path / "adapter", tmp_path / "out")
    assert card.classifier
    assert card.classifier.labels == ("LABEL_0",)
    head = load_file(tmp_path / "out/weights.safetensors")["classifier.weight"]
    assert isinstance(adapter, PeftModel)
    np.testing.assert_array_equal(head, adapter.base_model.model.classifier.modules_to_save["default"].weight.detach())
