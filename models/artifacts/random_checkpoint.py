"""Writes a checkpoint of random weights: config.json and a family's input layer, a whole model, or a head alone.

Weights are initialised as for training. config.json records the initialisation, its parameter and its seed under
`initialised`.
"""

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.artifacts import random_config, random_head
from models.artifacts.folder import atomic_folder
from models.artifacts.random_layout import DrawnTensor, layout
from models.checkpoints import safetensors
from models.checkpoints.checkpoint import WEIGHTS, Checkpoint, open_checkpoint
from models.checkpoints.hub import Progress, counter, no_progress
from models.checkpoints.located import check_links
from models.checkpoints.safetensors import CHUNK_BYTES, DTYPES, Tensor, TensorSource
from models.checkpoints.tokenizers.classes import VOCABULARIES
from models.checkpoints.tokenizers.files import ADDED, CONFIG, MAP, TOKENIZER
from models.errors import ModelError
from models.families import family_of
from models.families.family import Family, read_config
from models.families.filling import position_rule
from models.families.fitting import fit, variant_of
from models.families.padding import padding_rows

_ELEMENTS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
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
    model_type: str | None = None,
    config: Path | None = None,
    whole: bool = False,
    vocab_size: int | None = None,
    hidden_size: int | None = None,
    dtype: str | None = None,
    init: str = "normal",
    std: float | None = None,
    seed: int = 0,
    labels: int | None = None,
    progress: Progress = no_progress,
) -> None:
    """Write config.json and model.safetensors to a new folder, which `export` takes like any other checkpoint.

    Args:
        folder: absent or empty.
        model_type: model_type of the family; None: that of `config`.
        config: a config.json or a part of one, whose keys replace the family's defaults; None: there is none.
        whole: write the blocks too, and what is behind the last.
        vocab_size, hidden_size: None: what `config` says, else the family's default.
        dtype: float32, float16 or bfloat16; None: what `config` says, else float32.
        init: a name of INITS, for every matrix; a padding row is zero; norms multiply by 1, every bias is 0.
        std: standard deviation of `normal` only; None: 0.02.
        labels: of a head for sequence classification, which is written behind the blocks; None: as `config` names a
            class for sequence or token classification, or none.
        seed: the same numbers for the same seed, config and version of numpy.
        progress: receives the bytes written.

    Raises:
        ModelError: unknown family or initialisation, a file that is no config, blocks that are not computed, sizes that
            do not fit, or a folder that is not empty.
    """
    spread = _checked_std(folder, init, std)
    data = random_config.completed(model_type, config, vocab_size, hidden_size)
    dtype = random_config.dtype_of(data, dtype, _ELEMENTS)
    model_type, family, values = variant_of(data["model_type"], family_of(data["model_type"]), data)
    whole = whole or labels is not None
    data = random_head.with_labels(data, model_type, labels)
    data = {key: value for key, value in data.items() if key != "torch_dtype"} | {"dtype": dtype}  # its older name
    tensors, padding = _tensors(model_type, family, values, data, whole)
    std = spread if init == "normal" else None
    data["initialised"] = {"name": init, "seed": seed, "std": std, "padding_rows": padding}
    _check(folder, data, tensors, _ELEMENTS[dtype], whole)
    rows = {family.prefix + name: row for name, row in padding.items()}
    drawn = _Drawn(INITS[init], spread, np.random.Generator(np.random.SFC64(seed)), rows)
    with atomic_folder(folder.absolute()) as place:
        _write(place, data, _sources(tensors, _ELEMENTS[dtype], drawn, progress))


def _tensors(
    model_type: str, family: Family, values: Mapping[str, Any], data: Mapping[str, Any], whole: bool
) -> tuple[dict[str, DrawnTensor], dict[str, int]]:
    """Return the tensors of a new checkpoint by name, and the padding row of each table by its name in the family.

    Args:
        model_type, family, values: of the model, as variant_of gives them.
        data: config.json, which names the head.
        whole: as of `create`.
    """
    sizes = read_config(family, {**values, "architectures": data.get("architectures")})  # a decoder may be read too
    held = layout(family, sizes, model_type, whole)
    tensors = {family.prefix + name: tensor for name, tensor in held.tensors.items()}
    if whole:
        tensors |= random_head.tensors(data, model_type, family.prefix, sizes.count("hidden_size"))
    return tensors, padding_rows(model_type, held.input_layer, position_rule(family, sizes), sizes.pad_id())


def add_head(
    folder: Path, base: Path, labels: int, *, init: str = "normal", std: float | None = None, seed: int = 0
) -> None:
    """Write a copy of a checkpoint folder with a head for sequence classification of random weights.

    Its files of sentence-transformers are left out: they describe a model that embeds.

    Args:
        folder: absent or empty.
        base: a checkpoint folder; what it holds of the head is kept where the number of labels is the same.
        labels: number of labels of the head.
        init, std, seed: as in `create`.

    Raises:
        ModelError: as of `create`, or `base` is no checkpoint whose model_type classifies.
    """
    spread = _checked_std(folder, init, std)
    check_links(base)
    source = open_checkpoint(base)
    fitted = fit(source)
    if not fitted.encoder:
        raise ModelError(f"{base} has no blocks to classify by: {fitted.no_blocks_reason}")
    data = random_head.with_labels(source.config, fitted.model_type, labels)
    shapes = {name: tensor.shape for name, tensor in source.tensors.items()}
    drawn = random_head.tensors(data, fitted.model_type, fitted.family.prefix, fitted.token_width, shapes)
    data |= {"initialised": {"name": init, "seed": seed, "tensors": list(drawn)}}
    random = _Drawn(INITS[init], spread, np.random.Generator(np.random.SFC64(seed)), {})
    prefix = "" if fitted.prefix else fitted.family.prefix  # classes with a head hold the base class by that name
    held = safetensors.read(list(source.tensors.values()))
    kept = [
        TensorSource(prefix + name, tensor.dtype, tensor.shape, [held[name][...]])
        for name, tensor in source.tensors.items()
        if prefix + name not in drawn
    ]
    with atomic_folder(folder.absolute()) as place:
        _write(place, data, kept + _sources(drawn, "F32", random, no_progress))
        for name in (TOKENIZER, CONFIG, MAP, ADDED, *VOCABULARIES):
            if (source.folder / name).is_file():
                shutil.copyfile(source.folder / name, place / name)


def _write(folder: Path, config: Mapping[str, Any], tensors: list[TensorSource]) -> None:
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    safetensors.write(folder / WEIGHTS, tensors)


def _checked_std(folder: Path, init: str, std: float | None) -> float:
    """Return the standard deviation of `normal`; ModelError for a folder that is not empty, or a bad init or std."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ModelError(f"{folder} is there and not empty; choose a new folder")
    if init not in INITS:
        raise ModelError(f"--init {init!r} is not one of {', '.join(INITS)}")
    if std is not None and init != "normal":
        raise ModelError(f"--std {std} is read by --init normal alone; --init {init} has a spread of its own")
    if std is not None and not (math.isfinite(std) and std >= 0):
        raise ModelError(f"--std {std} must be a number from 0")
    return STD if std is None else std


def _check(folder: Path, config: dict[str, Any], tensors: Mapping[str, DrawnTensor], element: str, whole: bool) -> None:
    """Raise ModelError if `export` would not take these tensors with this config."""
    places = {
        name: Tensor(
            name, element, tensor.shape, folder / WEIGHTS, 0, math.prod(tensor.shape) * DTYPES[element].itemsize
        )
        for name, tensor in tensors.items()
    }
    fitted = fit(Checkpoint(folder, config, places))
    if whole and fitted.no_blocks_reason:
        raise ModelError(f"{fitted.model_type!r} cannot be created whole: {fitted.no_blocks_reason}; leave out --whole")


@dataclass(frozen=True, slots=True)
class _Drawn:
    """The values of every tensor: constants, or draws in the order they are requested."""

    init: Init
    std: float
    random: np.random.Generator
    padding: Mapping[str, int]

    def rows(self, name: str, tensor: DrawnTensor, first: int, last: int) -> Float32s:
        """Return rows [first, last) of one tensor; a vector is one row."""
        count, columns = last - first, math.prod(tensor.shape[1:])
        if tensor.constant is not None:
            return np.full(count * columns, tensor.constant, np.float32)
        values = self.init.draw(self.random, count * columns)
        values *= np.float32(self.init.spread(tensor.outputs, tensor.inputs, self.std))
        if first <= (pad := self.padding.get(name, -1)) < last:
            values.reshape(count, columns)[pad - first] = 0
        return values


def _sources(tensors: Mapping[str, DrawnTensor], element: str, drawn: _Drawn, progress: Progress) -> list[TensorSource]:
    values = sum(math.prod(tensor.shape) for tensor in tensors.values())
    count = counter(progress, "writing random weights", values * DTYPES[element].itemsize)

    def chunks(name: str, tensor: DrawnTensor) -> Iterator[NDArray[Any]]:
        most = max(1, CHUNK_BYTES // 4 // max(1, math.prod(tensor.shape[1:])))
        for first in range(0, tensor.shape[0], most):
            rows = drawn.rows(name, tensor, first, min(first + most, tensor.shape[0])).astype(DTYPES[element])
            yield rows
            count(rows.nbytes)

    return [TensorSource(name, element, tensor.shape, chunks(name, tensor)) for name, tensor in tensors.items()]
