"""Writes a checkpoint of random weights, to measure with: config.json and a family's input layer. Trains nothing."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models import safetensors
from models.attention import encodings
from models.errors import ModelError
from models.families import Family, config_of, family_of
from models.folder import Progress, folder_in_place, no_progress
from models.plan import encoding_shapes, expected_shapes, input_layer
from models.recipe import LayerNorm, RMSNorm
from models.safetensors import CHUNK_BYTES, DTYPES, Source

_ELEMENTS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_HEAD_DIMS = (128, 64, 32, 16, 8, 4, 2)


def create(
    folder: Path,
    *,
    model_type: str,
    vocab_size: int | None = None,
    hidden_size: int | None = None,
    dtype: str = "float32",
    std: float = 0.02,
    seed: int = 0,
    progress: Progress = no_progress,
) -> None:
    """Write config.json and model.safetensors; `export` takes the folder like any other.

    vocab_size, hidden_size  None: the family's default
    dtype     float32, float16 or bfloat16
    std       of the tables, drawn from a normal distribution; norms have weight 1 and bias 0
    raises    ModelError: unknown family, impossible size, or a folder that is not empty
    """
    family = family_of(model_type)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ModelError(f"{folder} is there and not empty; choose a new folder")
    if not (math.isfinite(std) and std >= 0):
        raise ModelError(f"--std {std} must be a number from 0")
    config = _config(family, model_type, vocab_size, hidden_size)
    seen = config_of(model_type, config)
    recipe = input_layer(family, seen)
    shapes = expected_shapes(recipe, seen) | encoding_shapes(encodings(family, seen, model_type), seen)
    ones = {step.weight for step in recipe if isinstance(step, LayerNorm | RMSNorm)}
    zeros = {step.bias for step in recipe if isinstance(step, LayerNorm)}
    constants = {name: 1.0 for name in ones if name} | {name: 0.0 for name in zeros if name}
    with folder_in_place(folder.absolute()) as place:
        (place / "config.json").write_text(json.dumps(config | {"dtype": dtype}, indent=1) + "\n", encoding="utf-8")
        sources = _sources(family.prefix, shapes, _ELEMENTS[dtype], constants, std, seed, progress)
        safetensors.write(place / "model.safetensors", sources)


def _config(family: Family, model_type: str, vocab_size: int | None, hidden_size: int | None) -> dict[str, Any]:
    """The family's defaults with the sizes asked for, heads chosen to fit."""
    asked = {"vocab_size": vocab_size, "hidden_size": hidden_size}
    config = {"model_type": model_type, **family.defaults}
    config |= {_own_name(family, key): value for key, value in asked.items() if value is not None}
    config["pad_token_id"] = None if (pad := config.get("pad_token_id")) and pad >= config["vocab_size"] else pad
    hidden = config_of(model_type, config).count("hidden_size")
    if hidden_size is not None:
        head_dim = next((size for size in _HEAD_DIMS if hidden % size == 0), hidden)
        config[_own_name(family, "num_attention_heads")] = hidden // head_dim
    return config


def _own_name(family: Family, key: str) -> str:
    """What the family's config class calls a key; `names` may hold what older files call it."""
    return key if key in family.defaults else family.names.get(key, key)


def _sources(
    prefix: str,
    shapes: dict[str, tuple[int, ...]],
    element: str,
    constants: dict[str, float],
    std: float,
    seed: int,
    progress: Progress,
) -> list[Source]:
    random = np.random.Generator(np.random.SFC64(seed))
    total, done = sum(math.prod(shape) for shape in shapes.values()) * DTYPES[element].itemsize, 0

    def chunks(name: str, shape: tuple[int, ...]) -> Iterator[NDArray[Any]]:
        nonlocal done
        left, most = math.prod(shape), CHUNK_BYTES // 4
        while left:
            count = min(left, most)
            if name in constants:
                values = np.full(count, constants[name], np.float32)
            else:
                values = random.standard_normal(count, np.float32)
                values *= np.float32(std)
            yield values.astype(DTYPES[element])
            left -= count
            done += count * DTYPES[element].itemsize
            progress("writing random weights", done, total)

    return [Source(prefix + name, element, shape, chunks(name, shape)) for name, shape in shapes.items()]
