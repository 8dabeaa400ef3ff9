"""Tiny classifiers of random weights, without torch: a checkpoint of any family, its tokenizer, its layers in numpy."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from models.artifacts.random_checkpoint import create
from tests.golden_cases import WORDS, write_json, write_tokenizer

SIZES = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 60,
    "pad_token_id": 0,
}


def write_classifier(
    folder: Path, model_type: str = "bert", labels: int | None = 1, seed: int = 0, **keys: Any
) -> Path:
    """Write a checkpoint of random weights with a classification head; `keys` are of its config.json."""
    sizes = folder.parent / f"{folder.name}-sizes.json"
    sizes.parent.mkdir(parents=True, exist_ok=True)
    sizes.write_text(json.dumps(SIZES | keys))
    create(folder, model_type=model_type, config=sizes, whole=True, labels=labels, init="scaled", seed=seed)
    write_tokenizer(folder / "tokenizer.json")
    return folder


def tensors(folder: Path) -> dict[str, NDArray[Any]]:
    """The tensors of a checkpoint."""
    return dict(load_file(folder / "model.safetensors"))


def rewrite(folder: Path, tensors: dict[str, NDArray[Any]]) -> None:
    """Put other tensors in the place of a checkpoint's."""
    save_file(tensors, folder / "model.safetensors")


def configure(folder: Path, **keys: Any) -> None:
    """Change config.json; None removes a key."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **keys}
    write_json(path, {key: value for key, value in config.items() if value is not None})


def linear(folder: Path, stem: str, rows: Any) -> NDArray[np.float64]:
    """The product of rows with a layer of the checkpoint, in float64."""
    held = tensors(folder)
    bias = held.get(f"{stem}.bias", np.zeros(1))
    return np.asarray(rows, np.float64) @ held[f"{stem}.weight"].T.astype(np.float64) + bias
