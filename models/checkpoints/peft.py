"""Reads the LoRA adapters of the peft library and merges them into the checkpoint that they change.

A folder holds adapter_config.json and adapter_model.safetensors, or adapter_model.bin. To the weight W of a module X,
as PyTorch stores it [outputs, inputs], they add s * B A:

    X.lora_A.weight [r, inputs], X.lora_B.weight [outputs, r]          s = lora_alpha / r; rsLoRA: lora_alpha / sqrt(r)
    X.lora_embedding_A [r, rows], X.lora_embedding_B [width, r]        of a table, whose weight is [rows, width]
    X.lora_magnitude_vector [outputs]                                  DoRA: m * (W + s * B A) / |W + s * B A| by output
    X.lora_B.bias [outputs]                                            s times it is added to the bias

Tables, and matrices that files hold as [inputs, outputs] (fan_in_fan_out), take the transposed product. Any other
tensor replaces the base's (bias, modules_to_save). jina-embeddings-v4 has one such file for all of its tasks, with
X.lora_A.TASK.weight in place of X.lora_A.weight. Which modules have an adapter is what the file holds, whatever
target_modules says.

Source: peft 0.21 (tuners/lora/layer.py, variants.py; utils/save_and_load.py).
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.checkpoints import safetensors
from models.checkpoints.checkpoint import Checkpoint, file_headers, read_tensors
from models.checkpoints.json_files import read_object
from models.checkpoints.safetensors import Tensor, TensorSource
from models.errors import BadCheckpoint

CONFIG, WEIGHTS = "adapter_config.json", ("adapter_model.safetensors", "adapter_model.bin")
_PREFIX = "base_model.model."
_PART = re.compile(r"(.+)\.lora_(embedding_A|embedding_B|A|B|magnitude_vector)(?:\.(weight|bias))?")
_OF_TASK = re.compile(r"(.+\.lora_[AB])(?:\.default)?\.([\w-]+)\.weight")
TASKS = "adapters"  # the folder of such a file in its checkpoint
_WRAPPERS = {"model", "language_model"}  # of transformers' classes of several towers, old and new
_NOT_COMPUTED = (
    *("alora_invocation_tokens", "arrow_config", "kasa_config", "layer_replication", "megatron_config"),
    *("monteclora_config", "target_parameters", "trainable_token_indices", "use_bdlora", "use_qalora"),
)
_OTHER_BASE = ("pissa", "olora", "loftq", "corda", "lora_ga")  # initialisations that change the base's weights too
_CLASSES = {"SEQ_CLS": "ForSequenceClassification", "TOKEN_CLS": "ForTokenClassification"}
_SLOW = re.compile(r"\)[*+?{]|(?:[*+?{].*){4}")  # patterns that may take long to match


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds to one weight.

    Attributes:
        a, b: the factors, float32 [r, inputs] and [outputs, r]; of a table [r, rows] and [width, r].
        scale: factor of their product.
        transposed: the weight has the columns of `a` as its rows.
        of_table: the weight is a table, whose rows are looked up.
        magnitude: of DoRA, float32 [outputs]; None: plain LoRA.
        bias: times `scale` it is added to the module's bias, float32 [outputs]; None: nothing is.
    """

    a: NDArray[np.float32]
    b: NDArray[np.float32]
    scale: float
    transposed: bool
    of_table: bool
    magnitude: NDArray[np.float32] | None
    bias: NDArray[np.float32] | None

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the weight."""
        sizes = len(self.b), self.a.shape[1]
        return (sizes[1], sizes[0]) if self.transposed else sizes

    def merged(self, weight: Any) -> NDArray[np.float32]:
        """Return the weight with the adapter in it."""
        product = (self.b @ self.a) * np.float32(self.scale)
        whole: NDArray[np.float32] = np.asarray(weight[:]).astype(np.float32)
        whole += product.T if self.transposed else product
        if self.magnitude is None:
            return whole
        factor = self.magnitude / np.linalg.norm(whole, axis=0 if self.transposed else 1)
        whole *= factor if self.transposed else factor[:, None]
        return whole


@dataclass(frozen=True, slots=True)
class PeftAdapter:
    """One adapter.

    Attributes:
        name: its name in messages.
        changes: what is added to the weights of modules, by the module's name in the model that was trained.
        replacing: tensors that take the place of the base's or come beside them, by such names.
        task_type: what the model was trained for; None: it is not said.
    """

    name: str
    changes: Mapping[str, LowRank]
    replacing: Mapping[str, Tensor]
    task_type: str | None


def is_adapter(folder: Path) -> bool:
    """Return whether a folder holds an adapter of the peft library."""
    return (folder / CONFIG).is_file()


def tasks(folder: Path) -> tuple[str, ...]:
    """Return the tasks that the adapters beside a checkpoint's weights are of; empty: it has none of that form."""
    weights = next((folder / TASKS / each for each in WEIGHTS if (folder / TASKS / each).is_file()), None)
    found = (_OF_TASK.fullmatch(name) for name in (file_headers(weights) if weights else ()))
    return tuple(dict.fromkeys(match[2] for match in found if match))


def base_of(folder: Path) -> str:
    """Return the folder or the hub id of the model that an adapter was trained on.

    Raises:
        BadCheckpoint: it names none, or is of a kind that is not computed, for which no base is fetched.
    """
    config = read_object(folder / CONFIG)
    _check_kind(folder / CONFIG, config)
    named, revision = config.get("base_model_name_or_path"), config.get("revision")
    if not isinstance(named, str) or not named:
        raise BadCheckpoint(f"{folder / CONFIG} names no base model: add --base FOLDER_OR_HUB_ID")
    return f"{named}@{revision}" if isinstance(revision, str) and revision and not Path(named).exists() else named


def read_adapter(folder: Path, name: str, task: str | None = None) -> PeftAdapter:
    """Read an adapter's config and weights.

    Args:
        folder: holds both files.
        name: the adapter's name in messages.
        task: the task whose adapter is read, of a file that holds those of several.

    Raises:
        BadCheckpoint: a file is missing or damaged, or the adapter is of a kind that is not computed.
    """
    config = read_object(folder / CONFIG)
    _check_kind(folder / CONFIG, config)
    weights = next((folder / each for each in WEIGHTS if (folder / each).is_file()), None)
    if weights is None:
        raise BadCheckpoint(
            f"{folder} holds {CONFIG} and no {WEIGHTS[0]}: save the adapter with save_pretrained(FOLDER), which writes "
            "it"
        )
    held = Checkpoint(folder, config, file_headers(weights), name)
    parts: dict[str, dict[str, Tensor]] = {}
    replacing = {}
    for tensor in held.tensors.values():
        stem = tensor.name.removeprefix(_PREFIX)
        if task is not None and (of_task := _OF_TASK.fullmatch(stem)):
            if of_task[2] != task:
                continue
            stem = f"{of_task[1]}.weight"
        if match := _PART.fullmatch(stem):
            kind = "bias" if match[3] == "bias" else match[2]
            parts.setdefault(match[1], {})[kind] = tensor
        elif "lora_" in stem or ".token_adapter." in stem:
            raise BadCheckpoint(f"{name} holds {tensor.name!r}; what it changes is not known here")
        else:
            replacing[stem.replace(".base_layer.", ".").replace(".modules_to_save.", ".")] = tensor
    changes = {module: _low_rank(held, module, each) for module, each in parts.items()}
    if not changes and not replacing:
        raise BadCheckpoint(f"{weights} holds no tensor")
    return PeftAdapter(name, changes, replacing, config.get("task_type"))


def _check_kind(path: Path, config: Mapping[str, Any]) -> None:
    """Raise BadCheckpoint for an adapter that is not LoRA, rsLoRA or DoRA, or changes more than weights."""
    if (kind := config.get("peft_type")) != "LORA":
        raise BadCheckpoint(f"{path} says peft_type {kind!r}; what is computed is LORA: LoRA, rsLoRA and DoRA")
    if used := [key for key in _NOT_COMPUTED if config.get(key)]:
        raise BadCheckpoint(f"{path} sets {used[0]}, which is not computed")
    first = str(config.get("init_lora_weights")).lower()
    if first.startswith(_OTHER_BASE):
        raise BadCheckpoint(
            f"{path} says init_lora_weights {first!r}, which changed the base model's weights too: save it with "
            "path_initial_model_for_weight_conversion, which makes it a plain LoRA adapter"
        )


def _low_rank(held: Checkpoint, module: str, parts: Mapping[str, Tensor]) -> LowRank:
    """Return what the tensors of one module add to its weight."""
    of_table = "embedding_A" in parts
    names = ("embedding_A", "embedding_B") if of_table else ("A", "B")
    if not all(name in parts and len(parts[name].shape) == 2 for name in names):
        raise BadCheckpoint(f"{held.name} does not hold both matrices of {module!r}, each of two dimensions")
    arrays = read_tensors(held, [tensor.name for tensor in parts.values()])
    floats = {kind: np.asarray(arrays[tensor.name][:], np.float32) for kind, tensor in parts.items()}
    a, b = (floats[name] for name in names)
    rank = _setting(held, "rank_pattern", "r", module)
    if not len(a) == b.shape[1] == rank:
        raise BadCheckpoint(f"{held.name}: the matrices of {module!r} have rank {len(a)}, and {CONFIG} says {rank:g}")
    alpha = _setting(held, "alpha_pattern", "lora_alpha", module)
    scale = alpha / (math.sqrt(rank) if held.config.get("use_rslora") else rank)
    transposed = of_table or bool(held.config.get("fan_in_fan_out"))
    magnitude, bias = floats.get("magnitude_vector"), floats.get("bias")
    if any(vector is not None and vector.shape != (len(b),) for vector in (magnitude, bias)):
        raise BadCheckpoint(f"{held.name}: a vector of {module!r} has not {len(b)} values, one for each output")
    if bool(held.config.get("use_dora")) != (magnitude is not None):
        raise BadCheckpoint(f"{held.name}: {CONFIG} and the tensors of {module!r} disagree on use_dora")
    return LowRank(a, b, scale, transposed, of_table, magnitude, bias)


def _setting(held: Checkpoint, pattern: str, usual: str, module: str) -> float:
    """Return a number of the config: the first whose pattern fits the module's name, else the usual one."""
    by_pattern = held.config.get(pattern) or {}
    value = held.config.get(usual, 8)
    for key in by_pattern if isinstance(by_pattern, dict) else ():
        try:
            if _SLOW.search(key):
                raise re.error("it repeats a group, or more than three times")
            if re.match(rf"(.*\.)?({key})$", module):
                value = by_pattern[key]
                break
        except re.error as error:
            raise BadCheckpoint(f"{held.name}: {pattern} has {key[:80]!r}, which is not read: {error}") from error
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1 << 31:
        raise BadCheckpoint(f"{held.name}: {usual} of {module!r} is {value!r}; it must be a number above 0")
    return float(value)


@dataclass(frozen=True, slots=True)
class Naming:
    """How the tensor names of the model that was trained become those of the base's files.

    Attributes:
        held: the names that the base's files hold; a name among them stays.
        dropped, added: prefixes before others.
    """

    held: Collection[str]
    dropped: str
    added: str

    def __call__(self, name: str) -> str:
        """Return the name in the base's files."""
        return name if name in self.held else self.added + name.removeprefix(self.dropped)


def naming(base: Checkpoint, adapter: PeftAdapter) -> Naming:
    """Return how an adapter's names become the base's, of which one may be those of the class inside the other's.

    Raises:
        BadCheckpoint: the base lacks a weight that the adapter changes, or holds it in another shape.
    """
    wanted = [f"{module}.weight" for module in adapter.changes] or list(adapter.replacing)
    otherwise_first = sorted(wanted, key=lambda name: name in base.tensors)
    found = next((each for name in otherwise_first for each in _namings(base.tensors, name)), None)
    if found is None:
        raise BadCheckpoint(f"{adapter.name} changes {wanted[0]!r}, of which {base.name} holds no weight")
    for module, change in adapter.changes.items():
        weight = f"{module}.weight"
        tensor = adapter.replacing.get(weight) or base.tensors.get(found(weight))
        if tensor is None or tensor.shape != change.shape:
            held = "none" if tensor is None else f"one of shape {list(tensor.shape)}"
            raise BadCheckpoint(
                f"{adapter.name} changes {module!r}, whose weight is {list(change.shape)}, and {base.name} holds "
                f"{held}: it was trained on another model"
            )
    return found


def _namings(held: Collection[str], name: str) -> Iterator[Naming]:
    """Yield how a name may become one of those that are held, by a prefix less, one more, or another of _WRAPPERS."""
    parts = name.split(".")
    rests = [".".join(parts[at:]) for at in range(len(parts) - 1)]
    for rest in rests:
        if rest in held:
            yield Naming(held, name.removesuffix(rest), "")
    for at, rest in enumerate(rests):
        longer = [each.removesuffix(rest) for each in held if each.endswith(f".{rest}")]
        wrapped = [*parts[:at], *longer[0].split(".")[:-1]] if len(longer) == 1 else []
        if wrapped and (at == 0 or set(wrapped) <= _WRAPPERS):
            yield Naming(held, name.removesuffix(rest), longer[0])


def merge(base: Checkpoint, adapter: PeftAdapter, path: Path) -> Checkpoint:
    """Return the base with an adapter merged into it; the changed tensors are written to `path`, in float32.

    Raises:
        BadCheckpoint: the adapter is of another model.
    """
    name_of = naming(base, adapter)
    replacing = {name_of(name): replace(tensor, name=name_of(name)) for name, tensor in adapter.replacing.items()}
    held = replace(base, tensors=base.tensors | replacing, fetch=fetch_of(base))
    biases = {name_of(f"{module}.bias"): each for module, each in adapter.changes.items() if each.bias is not None}
    changes = {name_of(f"{module}.weight"): change for module, change in adapter.changes.items()}
    arrays = read_tensors(held, [*changes, *biases])
    sources = [TensorSource(name, "F32", each.shape, _merged(each, arrays[name])) for name, each in changes.items()]
    sources += [
        TensorSource(name, "F32", each.bias.shape, [np.asarray(arrays[name][:], np.float32) + each.scale * each.bias])
        for name, each in biases.items()
        if each.bias is not None
    ]
    tensors = held.tensors | (safetensors.write(path, sources) if sources else {})
    config = dict(base.config)
    if (kind := _CLASSES.get(adapter.task_type or "")) and any(name not in base.tensors for name in replacing):
        config |= {"architectures": [f"Adapted{kind}"]}
    return replace(held, config=config, tensors=tensors, source=adapter.name)


def _merged(change: LowRank, weight: Any) -> Iterator[NDArray[np.float32]]:
    yield change.merged(weight)  # made when it is written, so that one is in memory at a time


def fetch_of(base: Checkpoint) -> Any:
    """Return the function that fetches tensors of a base, for a checkpoint that holds others too; None: it has none."""
    if (fetch := base.fetch) is None:
        return None
    files = {tensor.path for tensor in base.tensors.values()}
    return lambda tensors: fetch([tensor for tensor in tensors if tensor.path in files])
