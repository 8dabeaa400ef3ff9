"""Tiny encoders with modules behind their pooling, as sentence-transformers' files, and their vectors in numpy."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from tests.golden_cases import write_json, write_tiny_bert

HIDDEN = 32  # columns of `write_tiny_bert`
TORCH = "torch.nn.modules.activation."


class Behind(NamedTuple):
    """A module behind Pooling: its class, what its config.json says, and its tensors."""

    kind: str
    config: dict[str, Any] = {}  # noqa: RUF012
    tensors: dict[str, NDArray[Any]] = {}  # noqa: RUF012


NORMALIZE, DROPOUT = Behind("Normalize"), Behind("Dropout", {"dropout": 0.2})


def dense(inner: int, width: int, activation: str = TORCH + "Tanh", bias: bool = True, **config: Any) -> Behind:
    """A Dense of random weights; use_residual adds those of its projection."""
    random = np.random.default_rng([inner, width, bool(bias)])
    tensors = {"linear.weight": random.normal(0, inner**-0.5, (width, inner))}
    if bias:
        tensors["linear.bias"] = random.normal(0, 0.3, width)
    if config.get("use_residual") and inner != width:
        tensors["residual.weight"] = random.normal(0, inner**-0.5, (width, inner))
    values = {"in_features": inner, "out_features": width, "bias": bias, "activation_function": activation}
    return Behind("Dense", values | config, {name: each.astype(np.float32) for name, each in tensors.items()})


def layer_norm(width: int) -> Behind:
    """A LayerNorm of random weights."""
    random = np.random.default_rng(width)
    tensors = {"norm.weight": random.normal(1, 0.3, width), "norm.bias": random.normal(0, 0.3, width)}
    return Behind("LayerNorm", {"dimension": width}, {name: each.astype(np.float32) for name, each in tensors.items()})


def write_chain(folder: Path, modes: str | Sequence[str], *behind: Behind, **changes: Any) -> Path:
    """Write a tiny BERT with this pooling and these modules behind it.

    changes   of config_sentence_transformers.json; `include_prompt` and `sentence_bert` of the files of that name
    """
    folder = write_tiny_bert(folder)
    include_prompt, transformer = changes.pop("include_prompt", True), changes.pop("sentence_bert", {})
    kinds = ["Transformer", "Pooling", *(module.kind for module in behind)]
    places = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds[1:], 1))]
    write_json(
        folder / "modules.json",
        [
            {"idx": number, "name": str(number), "path": place, "type": f"sentence_transformers.models.{kind}"}
            for number, (place, kind) in enumerate(zip(places, kinds, strict=True))
        ],
    )
    pooling = {"embedding_dimension": HIDDEN, "pooling_mode": modes, "include_prompt": include_prompt}
    write_json(folder / "1_Pooling/config.json", pooling)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 24, "do_lower_case": False} | transformer)
    write_json(folder / "config_sentence_transformers.json", {"prompts": {}} | changes)
    for place, module in zip(places[2:], behind, strict=True):
        write_json(folder / place / "config.json", module.config)
        if module.tensors:
            save_file(module.tensors, folder / place / "model.safetensors")
    return folder


def add_layer_mean(folder: Path, first: int, weights: Sequence[float]) -> Path:
    """Put a WeightedLayerPooling before the Pooling of a checkpoint."""
    entries = json.loads((folder / "modules.json").read_text())
    own = {"idx": 9, "name": "9", "path": "9_WeightedLayerPooling"}
    own["type"] = "sentence_transformers.models.WeightedLayerPooling"
    write_json(folder / "modules.json", [entries[0], own, *entries[1:]])
    layers = len(weights) - 1 + first
    config = {"word_embedding_dimension": HIDDEN, "layer_start": first, "num_hidden_layers": layers}
    write_json(folder / own["path"] / "config.json", config)
    save_file({"layer_weights": np.array(weights, np.float32)}, folder / own["path"] / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | {"output_hidden_states": True})
    return folder


def vectors(modules: Sequence[Behind], pooled: NDArray[Any]) -> NDArray[np.float64]:
    """What the modules make of pooled vectors [N, d], in float64, by the formulas of torch's documentation."""
    x = pooled.astype(np.float64)
    for kind, config, tensors in modules:
        if kind == "Dense":
            x = x @ tensors["linear.weight"].T.astype(np.float64) + tensors.get("linear.bias", 0.0)
            name = config["activation_function"].rpartition(".")[2]
            x = {"Tanh": np.tanh, "Identity": np.asarray, "ReLU": lambda x: np.maximum(x, 0)}[name](x)
        elif kind == "LayerNorm":
            centred = x - x.mean(axis=1, keepdims=True)
            deviation = np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
            x = centred / deviation * tensors["norm.weight"] + tensors["norm.bias"]
        elif kind == "Normalize":
            x = x / np.linalg.norm(x, axis=1, keepdims=True)
    return x


def tensors_of(folder: Path) -> dict[str, NDArray[Any]]:
    """The tensors of an exported folder."""
    return dict(load_file(folder / "weights.safetensors"))
