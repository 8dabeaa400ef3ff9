"""Tiny random checkpoints of whole models of any family, without torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from models.families import family_of
from models.families.block_filling import block_steps
from models.families.config import Config
from models.families.encoding_fitting import fit_encodings
from models.families.filling import input_layer
from models.families.tensor_shapes import expected_shapes
from tests.golden_cases import write_folder

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 32,
    "max_position_embeddings": 700,
    "rope_theta": 10000.0,
    "pad_token_id": 0,
}


def write_whole(
    folder: Path, model_type: str, *, seed: int = 3, extra: Mapping[str, Any] | None = None, **changes: Any
) -> Path:
    """A checkpoint of a family that runs whole, with tensors of the names that its rows give them, and `extra` ones."""
    config = {"model_type": model_type, "dtype": "float32"} | SIZES | changes
    family = family_of(model_type)
    seen = Config(config, family.defaults, family.names)
    blocks = block_steps(family, seen, fit_encodings(family, seen, model_type))
    shapes = expected_shapes(input_layer(family, seen, "F32") + blocks, seen, family)
    random = np.random.default_rng(seed)
    weights = {
        family.prefix + name: (random.normal(size=shape) / shape[-1] ** 0.5 * (1 if len(shape) > 1 else 0.5)).astype(
            np.float32
        )
        for name, shape in shapes.items()
    }
    return write_folder(folder, config, weights | dict(extra or {}))
