"""Writes a checkpoint of random weights: config.json and a family's input layer, initialised as for training.

config.json records the initialisation, its parameter and its seed under `initialised`.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.artifacts.folder import atomic_folder
from models.checkpoints import safetensors
from models.checkpoints.safetensors import CHUNK_BYTES, DTYPES, TensorSource
from models.errors import ModelError
from models.families import Family, config_of, family_of
from models.families.encoding_fitting import fit_encodings
from models.families.filling import input_layer, position_rule
from models.families.recipe import LayerNorm, Recipe, RMSNorm
from models.families.tensor_shapes import encoding_shapes, expected_shapes, per_layer_shapes
from models.positions.rope.conventions import CONVENTIONS
from models.progress import Progress, no_progress
from models.tables.padding import padding_rows

_ELEMENTS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_HEAD_DIMS = (128, 64, 32, 16, 8, 4, 2)
STD = 0.02
Float32s = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Init:
    """A way to draw the values of a matrix.

    Attributes:
        spread: (rows, columns, std) -> what a draw is multiplied with.
        draw: (generator, count) -> float32 values of spread 1.
        about: description for the terminal.
    """

    spread: Callable[[int, int, float], float]
    draw: Callable[[np.random.Generator, int], Float32s]
    about: str


def _normal(random: np.random.Generator, count: int) -> Float32s:
    return random.standard_normal(count, np.float32)


def _uniform(random: np.random.Generator, count: int) -> Float32s:
    values = random.random(count, np.float32)  # [0, 1)
    values *= 2
    values -= 1
    return values


INITS: dict[str, Init] = {
    "normal": Init(lambda rows, columns, std: std, _normal, "normal, standard deviation --std (BERT, GPT-2: 0.02)"),
    "scaled": Init(
        lambda rows, columns, std: 1 / math.sqrt(columns),
        _normal,
        "normal, standard deviation 1/sqrt(columns): a row has length 1 on average",
    ),
    "xavier_uniform": Init(
        lambda rows, columns, std: math.sqrt(6 / (rows + columns)),
        _uniform,
        "uniform within sqrt(6 / (rows + columns)) of zero (Glorot and Bengio 2010)",
    ),
}


def create(
    folder: Path,
    *,
    model_type: str,
    vocab_size: int | None = None,
    hidden_size: int | None = None,
    dtype: str = "float32",
    init: str = "normal",
    std: float | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
) -> None:
    """Write config.json and model.safetensors to a new folder, which `export` takes like any other checkpoint.

    Args:
        folder: absent or empty.
        model_type: of the family.
        vocab_size, hidden_size: None: the family's default.
        dtype: float32, float16 or bfloat16.
        init: a name of INITS, for every matrix; a padding row is zero; norms have weight 1, every bias is 0.
        std: of `normal` alone; None: 0.02.
        seed: the same numbers for the same seed, sizes and version of numpy.
        progress: receives the bytes written.

    Raises:
        ModelError: unknown family or initialisation, impossible size, or a folder that is not empty.
    """
    family = family_of(model_type)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ModelError(f"{folder} is there and not empty; choose a new folder")
    spread = _checked_std(init, std)
    config = _config(family, model_type, vocab_size, hidden_size)
    config_view = config_of(model_type, config)
    recipe = input_layer(family, config_view)
    shapes = expected_shapes(recipe, config_view, family) | encoding_shapes(
        fit_encodings(family, config_view, model_type), config_view
    )
    shapes |= per_layer_shapes(family.per_layer, config_view)
    constants = _constants(recipe, shapes)
    padding = padding_rows(model_type, recipe, position_rule(family, config_view), config_view.pad_id())
    record = {"name": init, "seed": seed, "std": spread if init == "normal" else None, "padding_rows": padding}
    config |= {"dtype": dtype, "initialised": record}
    with atomic_folder(folder.absolute()) as place:
        (place / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        drawn = _Drawn(INITS[init], spread, np.random.Generator(np.random.SFC64(seed)), constants, padding)
        sources = _sources(family.prefix, shapes, _ELEMENTS[dtype], drawn, progress)
        safetensors.write(place / "model.safetensors", sources)


def _checked_std(init: str, std: float | None) -> float:
    """Return the standard deviation of `normal`; ModelError for a bad init or std."""
    if init not in INITS:
        raise ModelError(f"--init {init!r} is not one of {', '.join(INITS)}")
    if std is not None and init != "normal":
        raise ModelError(f"--std {std} is read by --init normal alone; --init {init} has a spread of its own")
    if std is not None and not (math.isfinite(std) and std >= 0):
        raise ModelError(f"--std {std} must be a number from 0")
    return STD if std is None else std


def _constants(recipe: Recipe, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, float]:
    """Return the values of tensors that are not drawn: 1 for weights of norms, 0 for every other vector."""
    ones = {step.weight for step in recipe if isinstance(step, LayerNorm | RMSNorm)}
    return {name: float(name in ones) for name, shape in shapes.items() if len(shape) == 1}


def _config(family: Family, model_type: str, vocab_size: int | None, hidden_size: int | None) -> dict[str, Any]:
    """Return the family's defaults with the requested sizes, and heads chosen to fit."""
    requested = {"vocab_size": vocab_size, "hidden_size": hidden_size}
    config = {"model_type": model_type, **family.defaults}
    config |= {_own_name(family, key): value for key, value in requested.items() if value is not None}
    config_view = config_of(model_type, config)
    hidden, pad = config_view.count("hidden_size"), config.get("pad_token_id")
    config["pad_token_id"] = None if pad and pad >= config_view.count("vocab_size") else pad
    if pad is None and family.numbering == "cumsum_non_pad":  # ESM's class has none
        config["pad_token_id"] = 1
    if hidden_size is not None:
        head_dim = next((size for size in _HEAD_DIMS if hidden % size == 0), hidden)
        config[_own_name(family, "num_attention_heads")] = hidden // head_dim
        config |= _rotating(model_type, head_dim)
    if family.per_layer:
        config["vocab_size_per_layer_input"] = min(
            config["vocab_size_per_layer_input"], config_view.count("vocab_size")
        )
        config["hidden_size_per_layer_input"] = min(config["hidden_size_per_layer_input"], hidden)
    return config


def _rotating(model_type: str, head_dim: int) -> dict[str, Any]:
    """Return the class's sizes of rotated channels, cut to heads of another size."""
    row = CONVENTIONS.get(model_type)
    if row is None or row.head != "given" or row.head_dim is not None:
        return {}
    sizes: dict[str, Any] = {"rotary_dim": min(row.rotary_dim, head_dim)} if row.rotary_dim else {}
    if row.sections:
        part = head_dim // 6
        sections = [head_dim // 2 - 2 * part, part, part]
        sizes["rope_parameters"] = {"rope_type": "default", "rope_theta": row.theta, "mrope_section": sections}
    return sizes


def _own_name(family: Family, key: str) -> str:
    """Return what the family's config class calls a key; `names` may hold what older files call it."""
    return key if key in family.defaults else family.names.get(key, key)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """The values of every tensor: constants, or draws in the order they are requested."""

    init: Init
    std: float
    random: np.random.Generator
    constants: Mapping[str, float]
    padding: Mapping[str, int]

    def rows(self, name: str, shape: tuple[int, ...], first: int, last: int) -> Float32s:
        """Return rows [first, last) of one tensor; a vector is one row."""
        count = last - first
        if name in self.constants:
            return np.full(count * math.prod(shape[1:]), self.constants[name], np.float32)
        columns = math.prod(shape[1:])
        values = self.init.draw(self.random, count * columns)
        values *= np.float32(self.init.spread(shape[0], columns, self.std))
        if first <= (pad := self.padding.get(name, -1)) < last:
            values.reshape(count, columns)[pad - first] = 0
        return values


def _sources(
    prefix: str, shapes: dict[str, tuple[int, ...]], element: str, drawn: _Drawn, progress: Progress
) -> list[TensorSource]:
    total, done = sum(math.prod(shape) for shape in shapes.values()) * DTYPES[element].itemsize, 0

    def chunks(name: str, shape: tuple[int, ...]) -> Iterator[NDArray[Any]]:
        nonlocal done
        most = max(1, CHUNK_BYTES // 4 // max(1, math.prod(shape[1:])))
        for first in range(0, shape[0], most):
            values = drawn.rows(name, shape, first, min(first + most, shape[0])).astype(DTYPES[element])
            yield values
            done += values.nbytes
            progress("writing random weights", done, total)

    return [TensorSource(prefix + name, element, shape, chunks(name, shape)) for name, shape in shapes.items()]
