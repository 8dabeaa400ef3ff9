"""What the stand-in for the Hugging Face hub has under the names that pages of the documentation use.

The demo model is itself; the others are tiny and random, of the same architecture and files.
"""

import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from models.artifacts.random_checkpoint import create
from tests import hub_server
from tests.golden_cases import case, write_folder, write_json
from tests.late_interaction import write_bert, write_pylate
from tests.minilm_golden import checkpoint
from tests.page_models import write_pages
from tests.reranker_models import write_reranker
from tests.score_models import write_classifier
from tests.sparse_models import write_masked_lm, write_splade


def _demo(folder: Path) -> None:
    shutil.copytree(checkpoint(), folder)


def _gpt2(folder: Path) -> None:
    config = folder.with_suffix(".json")
    sizes = {"n_layer": 2, "n_head": 4, "n_inner": 128, "n_positions": 128, "vocab_size": 1000}
    config.write_text(json.dumps(sizes), encoding="utf-8")
    create(folder, model_type="gpt2", config=config, whole=True, hidden_size=64)


def _dual(golden: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        parameters = case(golden).params
        folder.mkdir(parents=True)
        write_json(folder / "tokenizer.json", parameters["tokenizer"])
        write_json(folder / "preprocessor_config.json", parameters["preprocessor"])
        write_folder(folder, parameters["config"], case(golden).weights)

    return write


def _colbert(folder: Path) -> None:
    write_bert(folder)
    write_pylate(folder)


MODELS: dict[str, Callable[[Path], Any]] = {
    "Qwen/Qwen3-Reranker-0.6B": write_reranker,
    "cross-encoder/ms-marco-MiniLM-L6-v2": lambda folder: write_classifier(folder, ("relevance",)),
    "distilbert/distilbert-base-uncased-finetuned-sst-2-english": lambda folder: write_classifier(
        folder, ("NEGATIVE", "POSITIVE")
    ),
    "google-bert/bert-base-uncased": write_masked_lm,
    "google/siglip-base-patch16-224": _dual("dual_siglip"),
    "lightonai/GTE-ModernColBERT-v1": _colbert,
    "openai-community/gpt2": _gpt2,
    "openai/clip-vit-base-patch32": _dual("dual_clip"),
    "openai/clip-vit-large-patch14": _dual("dual_clip"),
    "sentence-transformers/all-MiniLM-L6-v2": _demo,
    "vidore/colqwen2-v1.0-hf": write_pages,
    "sparse-encoder/example-splade-distilbert-base-uncased-nq": write_splade,
}
"""Writers of checkpoints by the name on the hub."""


def stand_in(folder: Path, text: str) -> AbstractContextManager[hub_server.Hub]:
    """Return a hub that has the models of MODELS whose names the text holds, below a new folder."""
    folders = {}
    for name, write in MODELS.items():
        if name in text:
            folders[name] = folder / name.replace("/", "--")
            folders[name].parent.mkdir(parents=True, exist_ok=True)
            write(folders[name])
    return hub_server.serving(folder / "none", repository="none/none", others=folders)
