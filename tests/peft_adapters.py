"""Adapters in the peft library's layout, of a tiny BERT."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tests.golden_cases import tiny_bert, write_json

RANK, ALPHA = 2, 3
LINEARS = tuple(
    f"encoder.layer.{layer}.{name}"
    for layer in range(2)
    for name in ("attention.self.query", "attention.self.value", "intermediate.dense", "output.dense")
)
Tensors = dict[str, NDArray[np.float32]]


def matrices(seed: int, modules: tuple[str, ...] = LINEARS, rank: int = RANK) -> Tensors:
    """The tensors of an adapter on matrices of a tiny BERT, by their names in its file."""
    draw, weights = np.random.default_rng(seed), tiny_bert()
    held = {}
    for module in modules:
        outputs, inputs = weights[f"{module}.weight"].shape
        held[f"base_model.model.{module}.lora_A.weight"] = draw.normal(0, 0.3, (rank, inputs)).astype(np.float32)
        held[f"base_model.model.{module}.lora_B.weight"] = draw.normal(0, 0.3, (outputs, rank)).astype(np.float32)
    return held


def write_adapter(folder: Path, base: str, held: Tensors, **config: Any) -> Path:
    """An adapter's folder: both files, as save_pretrained writes them."""
    usual = {"peft_type": "LORA", "base_model_name_or_path": base, "r": RANK, "lora_alpha": ALPHA, "task_type": None}
    write_json(folder / "adapter_config.json", usual | {"target_modules": ["query"], "use_dora": False} | config)
    save_file(held, folder / "adapter_model.safetensors")
    return folder


def merged(weights: Tensors, held: Tensors, scale: float = ALPHA / RANK) -> Tensors:
    """The weights of the plain model that an adapter on matrices makes of others."""
    result = dict(weights)
    for name in held:
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        if name.endswith(".lora_A.weight"):
            low = held[name.replace("lora_A", "lora_B")].astype(np.float64) @ held[name].astype(np.float64)
            result[f"{module}.weight"] = (weights[f"{module}.weight"] + scale * low).astype(np.float32)
    return result
