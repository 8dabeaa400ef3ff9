"""LoRA adapters of several tasks beside the weights that they change: as Jina v3's file holds them, or peft adapters.

The weight of a module X is X.parametrizations.weight.original, as torch's parametrizations call it. Of T tasks,
X.parametrizations.weight.0.lora_A is [T, rank, inputs] and lora_B [T, outputs, rank]; of a table lora_A is
[T, rows, rank] and lora_B [T, rank, width]. A task's weight is W + lora_alpha / lora_rank * B_t A_t; a table's has
A_t B_t in place of B_t A_t. `side_by_side` brings adapters of the peft library into this form.

Source: modeling_lora.py, which jina-embeddings-v3 names as its code (jinaai/xlm-roberta-flash-implementation).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from models.checkpoints import safetensors
from models.checkpoints.checkpoint import Checkpoint, read_tensors
from models.checkpoints.peft import LowRank, Naming, PeftAdapter, fetch_of, naming
from models.checkpoints.safetensors import Tensor, TensorSource
from models.errors import BadCheckpoint
from models.families.config import Config
from models.families.family import Family, TensorPart
from models.families.tensor_names import LORA_A, LORA_B, ORIGINAL, place_of
from models.families.tensor_parts import StoredPart, part_rows
from models.positions.rope.config_keys import TEXT_CONFIG_KEYS
from models.recipes.steps import (
    Adapter,
    AddType,
    Attention,
    Disentangled,
    Embed,
    FeedForward,
    Linear,
    Parallel,
    Step,
    tensors,
)

Node = TypeVar("Node")


@dataclass(frozen=True, slots=True)
class Adapters:
    """The adapters of one checkpoint.

    Attributes:
        family, config, checkpoint: the model that has them.
        prefix: prefix of the file's tensor names.
        parts: gets the tensors that are stored otherwise in the file, by name.
        tasks: names of the tasks, in the order of the file's tensors.
        rank: rank of each adapter.
        scale: factor of what an adapter adds.
    """

    family: Family
    config: Config
    checkpoint: Checkpoint
    prefix: str
    parts: dict[str, StoredPart]
    tasks: tuple[str, ...]
    rank: int
    scale: float

    def added(self, step: Step) -> Step:
        """Return a step, named as in the base class, with the adapters of its weights, named as in the file.

        Raises:
            BadCheckpoint: an adapter has another shape, or is of a weight where no graph adds one.
        """
        if isinstance(step, Attention) and isinstance(step.bias, Disentangled):
            self._check_has_none(step.bias)
        elif not isinstance(step, Embed | AddType | Attention | FeedForward | Parallel):
            self._check_has_none(step)
        return self._added(step)

    def _check_has_none(self, step: object) -> None:
        for name in tensors((step,)):
            held, _ = place_of(self.family, self.prefix, self.checkpoint, name, fused=True)
            if held.endswith(ORIGINAL):
                raise BadCheckpoint(
                    f"an adapter changes {held.removesuffix(ORIGINAL)!r}, a weight of {type(step).__name__}, where "
                    "adapters side by side are not computed: export each merged into the base"
                )

    def _added(self, node: Node) -> Node:
        changes: dict[str, Any] = {}
        for field in fields(node):  # type: ignore[arg-type]
            if is_dataclass(value := getattr(node, field.name)):
                changes[field.name] = self._added(value)
        match node:
            case Linear(name) | Embed(name) | AddType(name):
                changes["adapter"] = self._adapter(name, of_table=not isinstance(node, Linear))
        return replace(node, **changes) if changes else node  # type: ignore[type-var]

    def _adapter(self, name: str, of_table: bool) -> Adapter | None:
        held, part = place_of(self.family, self.prefix, self.checkpoint, name, fused=not of_table)
        if not held.endswith(ORIGINAL):
            return None
        count, rank = len(self.tasks), self.rank
        if len(shape := self.checkpoint.tensors[held].shape) != 2:
            raise BadCheckpoint(f"{held!r} has shape {list(shape)}, but a weight with adapters has rows and columns")
        outputs, inputs = shape[::-1] if part and part.transposed else shape
        stem = held.removesuffix(ORIGINAL)
        if of_table:
            lora_a = self._tensor(stem + LORA_A, (count, outputs, rank))
            lora_b = self._tensor(stem + LORA_B, (count, rank, inputs))
            self._note(lora_a, (count * outputs, rank))
            lora_b_of_part = replace(lora_b, shape=(count * rank, inputs))
            self.parts[lora_b_of_part.name] = StoredPart(lora_b_of_part, (inputs, count * rank), transposed=True)
            return Adapter(lora_a.name, lora_b_of_part.name, count, rank, self.scale)
        lora_a = self._tensor(stem + LORA_A, (count, rank, inputs))
        lora_b = self._tensor(stem + LORA_B, (count, outputs, rank))
        self._note(lora_a, (count * rank, inputs))
        lora_b_of_part = replace(lora_b, name=f"{self.prefix}{name.removesuffix('weight')}lora_B") if part else lora_b
        part = part or TensorPart("")
        first, last = part_rows(held, part, outputs, self.config)
        groups = part.groups(self.config)
        self.parts[lora_b_of_part.name] = StoredPart(
            lora_b_of_part,
            (groups * (last - first), count * rank),
            (groups, outputs // groups, first, last),
            side_by_side=True,
        )
        return Adapter(lora_a.name, lora_b_of_part.name, count, rank, self.scale)

    def _note(self, tensor: Tensor, shape: tuple[int, int]) -> None:
        self.parts[tensor.name] = StoredPart(replace(tensor, shape=shape), shape)

    def _tensor(self, name: str, shape: tuple[int, int, int]) -> Tensor:
        tensor = self.checkpoint.tensors.get(name)
        if tensor is None or tensor.shape != shape:
            found = "is missing" if tensor is None else f"has shape {list(tensor.shape)}"
            raise BadCheckpoint(
                f"{name!r} {found}, but {len(self.tasks)} lora_adaptations and lora_rank {self.rank} of config.json "
                f"make it {list(shape)}"
            )
        return tensor.row_major()


def adapters_of(
    family: Family, config: Config, prefix: str, checkpoint: Checkpoint, parts: dict[str, StoredPart]
) -> Adapters | None:
    """Return the adapters of a checkpoint; None if it holds none.

    Raises:
        BadCheckpoint: config.json does not name their tasks, or gives no rank or factor.
    """
    if not any(name.endswith(ORIGINAL) for name in checkpoint.tensors):
        return None
    tasks = config.get("lora_adaptations")
    named = isinstance(tasks, list) and all(isinstance(task, str) and task for task in tasks)
    if not named or not tasks or len(set(tasks)) < len(tasks):
        raise BadCheckpoint(
            f"config.json says lora_adaptations {tasks!r}; the file holds LoRA adapters, so it has to be a list of the "
            "names of their tasks, each once"
        )
    rank = config.count("lora_rank")
    scale = config.number("lora_alpha") / rank
    return Adapters(family, config, checkpoint, prefix, parts, tuple(tasks), rank, scale)


def side_by_side(base: Checkpoint, adapters: Mapping[str, PeftAdapter], prompt: str | None, path: Path) -> Checkpoint:
    """Return a base with several peft adapters beside its weights, each a task; none of them is of the base alone.

    Args:
        base: the checkpoint that they were trained on.
        adapters: the adapters by the names of their tasks.
        prompt: the prompt of requests that name none; None: there is none.
        path: file that their matrices are written to.

    Raises:
        BadCheckpoint: an adapter is of another model, or changes more than a term that is added to a product.
    """
    if any(name.endswith(ORIGINAL) for name in base.tensors):
        raise BadCheckpoint(f"{base.name} has adapters of its own tasks; leave out --adapter")
    by_weight: dict[str, dict[int, LowRank]] = {}
    for number, adapter in enumerate(adapters.values()):
        name_of = naming(base, adapter)
        _check_added_alone(base, adapter, name_of)
        for module, change in adapter.changes.items():
            by_weight.setdefault(name_of(f"{module}.weight"), {})[number] = change
    rank = max(len(change.a) for changes in by_weight.values() for change in changes.values())
    sources = [source for name, each in by_weight.items() for source in _stacked(name, each, len(adapters), rank)]
    held = {name: tensor for name, tensor in base.tensors.items() if name not in by_weight}
    for name in by_weight:
        original = name.removesuffix(".weight") + ORIGINAL
        held[original] = replace(base.tensors[name], name=original)
    config: dict[str, Any] = {"lora_adaptations": [*adapters], "lora_rank": rank, "lora_alpha": rank}
    config |= {"task_instructions": dict.fromkeys(adapters, prompt)} if prompt else {}
    towers = {key: {**own, **config} for key in TEXT_CONFIG_KEYS if isinstance(own := base.config.get(key), Mapping)}
    held |= safetensors.write(path, sources)
    return replace(base, config=base.config | config | towers, tensors=held, fetch=fetch_of(base))


def _check_added_alone(base: Checkpoint, adapter: PeftAdapter, name_of: Naming) -> None:
    """Raise BadCheckpoint for an adapter that does more than add a term to products and rows of tables.

    Beside the matrices of a table that it changes, peft saves the table itself, as the base holds it.
    """
    merged = "can only be merged: export it without --adapter, as a model of its own"
    for name, tensor in adapter.replacing.items():
        held = base.tensors.get(name_of(name))
        same = held is not None and np.array_equal(
            read_tensors(base, [held.name])[held.name][:], safetensors.read([tensor])[tensor.name]
        )
        if not same:
            raise BadCheckpoint(f"{adapter.name} replaces {name!r} of its base, so it {merged}")
    if any(change.magnitude is not None or change.bias is not None for change in adapter.changes.values()):
        raise BadCheckpoint(f"{adapter.name} scales weights (DoRA) or changes biases, so it {merged}")


def _stacked(weight: str, changes: Mapping[int, LowRank], tasks: int, rank: int) -> Iterator[TensorSource]:
    """Yield both matrices of all tasks for one weight; a task that leaves it alone has zeros."""
    one = next(iter(changes.values()))
    lora_a = np.zeros((tasks, rank, one.a.shape[1]), np.float32)
    lora_b = np.zeros((tasks, len(one.b), rank), np.float32)
    for number, change in changes.items():
        lora_a[number, : len(change.a)] = change.a
        lora_b[number, :, : len(change.a)] = change.b * np.float32(change.scale)
    for end, matrices in ((LORA_A, lora_a), (LORA_B, lora_b)):
        ordered: NDArray[np.float32] = matrices.transpose(0, 2, 1) if one.of_table else matrices
        yield TensorSource(weight.removesuffix(".weight") + end, "F32", ordered.shape, [ordered])
