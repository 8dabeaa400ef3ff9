"""LoRA adapters of several tasks, which a file holds beside the weights that they change (Jina v3).

The weight of a module X is X.parametrizations.weight.original, as torch's parametrizations call it. Of T tasks,
X.parametrizations.weight.0.lora_A is [T, rank, inputs] and lora_B [T, outputs, rank]; of a table lora_A is
[T, rows, rank] and lora_B [T, rank, width]. A task's weight is W + lora_alpha / lora_rank * B_t A_t; a table's has
A_t B_t in place of B_t A_t.

Source: modeling_lora.py, which jina-embeddings-v3 names as its code (jinaai/xlm-roberta-flash-implementation).
"""

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

from models.checkpoints.checkpoint import Checkpoint
from models.checkpoints.safetensors import Tensor
from models.errors import BadCheckpoint
from models.families.config import Config
from models.families.family import Family, TensorPart
from models.families.tensor_names import LORA_A, LORA_B, ORIGINAL, place_of
from models.families.tensor_parts import StoredPart, part_rows
from models.recipes.steps import Adapter, AddType, Embed, Linear

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

    def added(self, node: Node) -> Node:
        """Return a step, named as in the base class, with the adapters of its weights, named as in the file.

        Raises:
            BadCheckpoint: a weight has no adapter, or one of another shape.
        """
        changes: dict[str, Any] = {}
        for field in fields(node):  # type: ignore[arg-type]
            if is_dataclass(value := getattr(node, field.name)):
                changes[field.name] = self.added(value)
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
        outputs, inputs = shape
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
        first, last = part_rows(held, part or TensorPart(""), outputs, self.config)
        self.parts[lora_b_of_part.name] = StoredPart(
            lora_b_of_part, (last - first, count * rank), (1, outputs, first, last), side_by_side=True
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
    """Return the adapters of a checkpoint; None if it holds none that the family reads.

    Raises:
        BadCheckpoint: config.json does not name their tasks, or gives no rank or factor.
    """
    if not family.adapters or not any(name.endswith(ORIGINAL) for name in checkpoint.tensors):
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
