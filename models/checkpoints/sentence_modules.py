"""Reads the modules around Pooling: WeightedLayerPooling, Dense, LayerNorm, Normalize and Dropout.

Source: sentence-transformers 6.2: base.modules.dense, base.modules.normalize, sentence_transformer.modules.layer_norm,
    weighted_layer_pooling and dropout. Dropout changes nothing when vectors are computed.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from models.checkpoints import safetensors, sentence_transformers
from models.checkpoints.checkpoint import TORCH_WEIGHTS, WEIGHTS, headers
from models.checkpoints.json_files import read_object, read_optional
from models.checkpoints.safetensors import Tensor
from models.checkpoints.sentence_transformers import LAYER_MEAN, path_inside
from models.errors import BadCheckpoint
from models.recipes.sentence_modules import Dense, Module, Normalize, matrices
from models.recipes.steps import Activation, LayerNorm, Linear

PREFIX = "modules."  # of the names that tensors get in an export: modules.2_Dense.linear.weight
ACTIVATIONS: dict[str, Activation] = {  # classes of torch.nn
    "Identity": "identity",
    "Tanh": "tanh",
    "ReLU": "relu",
    "LeakyReLU": "leaky_relu",
    "ELU": "elu",
    "GELU": "gelu",
    "Sigmoid": "sigmoid",
    "SiLU": "silu",
}
_EPS = 1e-5  # torch.nn.LayerNorm's, which the files do not state
_POOLED = "sentence_embedding"
TOKENS = "token_embeddings"
_TOKEN_MODULES = ("Dense", "MultiVectorMask", "Normalize", "HierarchicalTokenPooling", "Dropout")

Fetch = Callable[[str], None]


def on_disk(place: str) -> None:
    """Fetch nothing: the module's folder is complete."""


@dataclass(frozen=True, slots=True)
class StoredModules:
    """The modules behind the Pooling of a checkpoint, without a Normalize at their end.

    Attributes:
        steps: steps in order; empty: there are none.
        tensors: tensors by the names in the steps.
        inner, width: columns of the pooled vectors and of the sentence vectors.
    """

    steps: tuple[Module, ...] = ()
    tensors: dict[str, Tensor] = field(default_factory=dict)
    inner: int = 0
    width: int = 0

    @property
    def flops_per_text(self) -> int:
        """Operations of matrix products; a multiply and an add count as two."""
        return 2 * sum(prod(self.tensors[name].shape) for name in matrices(self.steps))


def behind_pooling(folder: Path) -> list[tuple[str, str]]:
    """Return class name and folder of the modules after Pooling that change a vector, without a Normalize at the end.

    That one is the `normalize` of the pooling.
    """
    chain = sentence_transformers.modules(folder)
    kinds = [kind for kind, _ in chain]
    behind = chain[kinds.index("Pooling") + 1 :] if "Pooling" in kinds else []
    behind = [module for module in behind if module[0] != "Dropout"]
    while behind and behind[-1][0] == "Normalize":
        behind.pop()
    return behind


def hold_weights(folder: Path, fetch: Fetch = on_disk) -> bool:
    """Return whether the weights of all modules behind Pooling are in the folder, once fetched."""
    places = [place for kind, place in behind_pooling(folder) if kind != "Normalize"]
    for place in places:
        path_inside(folder, place)
        fetch(place)
    return all(any((folder / place / name).is_file() for name in (WEIGHTS, *TORCH_WEIGHTS)) for place in places)


def read_modules(folder: Path, inner: int, fetch: Fetch = on_disk) -> StoredModules:
    """Return the modules behind the Pooling of a checkpoint.

    Args:
        folder: the checkpoint's.
        inner: columns of the pooled vectors.
        fetch: called with the place of each module in the checkpoint before its weights are read.

    Raises:
        BadCheckpoint: a module is not computed, or its weights are missing or of another shape.
    """
    modules = _Read(folder, fetch, inner)
    for kind, place in behind_pooling(folder):
        if kind == "Normalize":
            modules.steps.append(Normalize())
        else:
            modules.add(place, _dense if kind == "Dense" else _layer_norm)
    return StoredModules(tuple(modules.steps), modules.tensors, inner, modules.width)


def read_token_modules(folder: Path, chain: list[tuple[str, str]], width: int, fetch: Fetch = on_disk) -> StoredModules:
    """Return the modules of a late-interaction model that make vectors of the rows of hidden states.

    A module that reads sentence vectors changes nothing there, but for a Dense, which has nothing to read.

    Args:
        folder: the checkpoint's.
        chain: class name and folder of all modules, in order.
        width: columns of the hidden states.
        fetch: called with the place of each module in the checkpoint before its weights are read.

    Raises:
        BadCheckpoint: a module is not computed, or its weights are missing or of another shape.
    """
    modules = _Read(folder, fetch, width)
    for number, (kind, place) in enumerate(chain):
        if kind not in (_TOKEN_MODULES if number else ("Transformer",)):
            raise BadCheckpoint(
                f"{folder / 'modules.json'}: {kind} is not computed in place {number} of a late-interaction model; "
                f"what is: Transformer, then any of {', '.join(_TOKEN_MODULES)}"
            )
        if kind == "Dense":
            modules.add(place, partial(_dense, read=TOKENS))
        elif kind in ("Normalize", "HierarchicalTokenPooling"):
            path = path_inside(folder, place) / "config.json"
            config = read_optional(path)
            if kind == "HierarchicalTokenPooling" and config.get("pool_factor", 1) != 1:
                raise BadCheckpoint(f"{path}: vectors of documents are clustered (pool_factor), which is not computed")
            normalizes = config.get("normalize_embeddings") is True
            if normalizes if kind != "Normalize" else config.get("module_input_name") == TOKENS:
                modules.steps.append(Normalize())
    return StoredModules(tuple(modules.steps), modules.tensors, width, modules.width)


def layer_mean(folder: Path, config: Mapping[str, Any], fetch: Fetch = on_disk) -> tuple[int, tuple[float, ...]] | None:
    """Return the first layer and the shares of the mean that a WeightedLayerPooling gives Pooling to read.

    None: there is none, or config.json does not say output_hidden_states true, without which it changes nothing.

    Args:
        folder: the checkpoint's.
        config: its config.json.
        fetch: called with the place of the module before its weights are read.

    Raises:
        BadCheckpoint: the weights are missing, or no mean can be made of them.
    """
    place = next((place for kind, place in sentence_transformers.modules(folder) if kind == LAYER_MEAN), None)
    if place is None or config.get("output_hidden_states") is not True:
        return None
    inner = path_inside(folder, place)
    fetch(place)
    source = _Source(inner, "")
    first, layers = source.count("layer_start", 0), source.count("num_hidden_layers")
    name = source.tensor("layer_weights", (max(0, layers + 1 - first),))
    source.check_all_read()
    weights = np.asarray(safetensors.read([source.read[name]])[name], np.float64)
    if not (np.isfinite(weights).all() and weights.sum() != 0):
        raise BadCheckpoint(f"{inner} holds layer_weights whose sum is {weights.sum()}; no mean can be made of them")
    return first, tuple((weights / weights.sum()).tolist())


class _Source:
    """The folder of one module; `read` holds the tensors that were read, by their names in the export."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self.path = folder / "config.json"
        self.config: Mapping[str, Any] = read_object(self.path)
        self.read: dict[str, Tensor] = {}
        self._folder, self._prefix = folder, prefix
        self._held = headers(folder)

    def tensor(self, name: str, shape: tuple[int, ...]) -> str:
        """Return the exported name of a tensor; BadCheckpoint unless it exists in this shape."""
        held = self._held.get(name)
        if held is None:
            raise BadCheckpoint(f"{self._folder} holds no {name!r}, which its config.json asks for")
        if held.shape != shape:
            raise BadCheckpoint(
                f"{self._folder}: {name!r} has shape {list(held.shape)}, and config.json makes it {list(shape)}"
            )
        self.read[self._prefix + name] = replace(held, name=self._prefix + name)
        return self._prefix + name

    def linear(self, name: str, shape: tuple[int, int], bias: bool) -> Linear:
        """Return the product with the tensors of a torch.nn.Linear."""
        return Linear(self.tensor(f"{name}.weight", shape), self.tensor(f"{name}.bias", shape[:1]) if bias else None)

    def count(self, key: str, least: int = 1) -> int:
        """Return a whole number of at least `least` of the config."""
        value = self.config.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise BadCheckpoint(f"{self.path}: {key} is {value!r}; it must be a whole number from {least} on")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Return a truth value of the config."""
        value = self.config.get(key, default)
        if not isinstance(value, bool):
            raise BadCheckpoint(f"{self.path}: {key} is {value!r}; it must be true or false")
        return value

    def check_width(self, key: str, width: int) -> None:
        """Raise BadCheckpoint unless the module reads vectors of this width."""
        if (stated := self.count(key)) != width:
            raise BadCheckpoint(f"{self.path}: {key} is {stated}, and the vectors before it are {width} wide")

    def check_all_read(self) -> None:
        """Raise BadCheckpoint for a tensor that the config does not describe, as sentence-transformers does."""
        unread = sorted(set(self._held) - {name.removeprefix(self._prefix) for name in self.read})
        if unread:
            raise BadCheckpoint(f"{self._folder} holds {unread[0]!r}, which its config.json does not ask for")


@dataclass(slots=True)
class _Read:
    """The modules that have been read, in order; `width` is that of the vectors behind them."""

    folder: Path
    fetch: Fetch
    width: int
    steps: list[Module] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def add(self, place: str, make: Callable[[_Source, int], tuple[Module, int]]) -> None:
        """Read the module in `place` of the checkpoint."""
        path = path_inside(self.folder, place)
        self.fetch(place)
        source = _Source(path, f"{PREFIX}{place}.")
        step, self.width = make(source, self.width)
        source.check_all_read()
        self.steps.append(step)
        self.tensors |= source.read


def _dense(source: _Source, width: int, read: str = _POOLED) -> tuple[Module, int]:
    for key, value in _names(source.config, read):
        if value != read:
            raise BadCheckpoint(
                f"{source.path} says {key} {value!r}; a Dense of {read!r} alone is computed"
                f"{sentence_transformers.REMEDY}"
            )
    source.check_width("in_features", width)
    shape = source.count("out_features"), width
    residual: Any = None
    if source.flag("use_residual", False):
        residual = "input" if shape[0] == width else source.linear("residual", shape, False)
    linear = source.linear("linear", shape, source.flag("bias", True))
    return Dense(linear, _activation(source), residual), shape[0]


def _names(config: Mapping[str, Any], read: str) -> Iterator[tuple[str, Any]]:
    """Yield the names of a module's inputs and outputs, by the key that sets them."""
    given = config.get("module_input_name", read)
    yield "module_input_name", given
    yield "module_output_name", given if (made := config.get("module_output_name")) is None else made


def _activation(source: _Source) -> Activation:
    path = source.config.get("activation_function", "torch.nn.modules.activation.Tanh")
    package, _, name = path.rpartition(".") if isinstance(path, str) else ("", "", "")
    if name not in ACTIVATIONS or package.partition(".")[0] != "torch":
        raise BadCheckpoint(
            f"{source.path}: activation_function {path!r} is not one of torch.nn's {', '.join(ACTIVATIONS)}"
            f"{sentence_transformers.REMEDY}"
        )
    return ACTIVATIONS[name]


def _layer_norm(source: _Source, width: int) -> tuple[Module, int]:
    source.check_width("dimension", width)
    weight, bias = (source.tensor(f"norm.{part}", (width,)) for part in ("weight", "bias"))
    return LayerNorm(weight, bias, _EPS), width
