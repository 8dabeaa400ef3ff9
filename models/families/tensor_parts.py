"""Tensors that files hold inside others: rows of fused projections, transposed matrices."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.checkpoints.checkpoint import Checkpoint, read_tensors
from models.checkpoints.safetensors import Tensor
from models.errors import BadCheckpoint
from models.families.config import Config
from models.families.family import TensorPart
from models.tables.quantization import RowSource


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A tensor of one checkpoint that is part of another.

    Attributes:
        tensor: what is read: the other, or rows of it.
        shape: shape of the part.
        rows: [groups, rows of a group], the part's first and last row of each; None: all that is read.
        transposed: before rows are taken.
        side_by_side: before these: what is read are matrices [count, outputs, inputs], of which the whole is
            [outputs, count * inputs].
    """

    tensor: Tensor
    shape: tuple[int, ...]
    rows: tuple[int, int, int, int] | None = None
    transposed: bool = False
    side_by_side: bool = False

    def view(self, array: RowSource) -> RowSource:
        """Return the part from the whole that was read."""
        as_read = self.rows is None and not self.transposed and not self.side_by_side
        return array if as_read else _Reordered(self, array)


def read_parts(checkpoint: Checkpoint, parts: Mapping[str, StoredPart], names: Iterable[str]) -> dict[str, RowSource]:
    """Return tensors by name, of which `parts` are parts of others; errors as read_tensors."""
    places = {name: part.tensor for name, part in parts.items()}
    arrays = read_tensors(replace(checkpoint, tensors=checkpoint.tensors | places), names)
    return {name: parts[name].view(array) if name in parts else array for name, array in arrays.items()}


def stored_part(name: str, part: TensorPart, tensor: Tensor, config: Config) -> StoredPart:
    """Return the place of a part.

    Args:
        name: name of the part.
        part: which.
        tensor: the whole.
        config: the sizes.

    Raises:
        BadCheckpoint: the whole cannot be divided so.
    """
    if part.experts:
        tensor = _of_expert(tensor.row_major(), part, part.experts(config))
    transposed = part.transposed and len(tensor.shape) == 2
    shape = tensor.shape[::-1] if transposed else tensor.shape
    groups = part.groups(config)
    first, last = part_rows(tensor.name, part, shape[0], config)
    count = last - first
    part_shape = (groups * count, *shape[1:])
    if groups == 1 and not transposed and tensor.strides is None:
        row = tensor.bytes // shape[0]
        rows = replace(tensor, name=name, shape=part_shape, offset=tensor.offset + first * row, bytes=count * row)
        return StoredPart(rows, part_shape)
    whole = None if part_shape == shape else (groups, shape[0] // groups, first, first + count)
    return StoredPart(replace(tensor, name=name), part_shape, whole, transposed)


def part_rows(whole: str, part: TensorPart, count: int, config: Config) -> tuple[int, int]:
    """Return the first row of a part, and the one behind its last, in each group of a tensor of `count` rows.

    Raises:
        BadCheckpoint: the rows of the tensor named `whole` cannot be divided so.
    """
    shares, groups = part.shares(config), part.groups(config)
    unit, rest = divmod(count, groups * sum(shares))
    if rest:
        raise BadCheckpoint(
            f"{whole!r} has {count} rows; {groups} groups of {' + '.join(map(str, shares))} do not divide them"
        )
    first = unit * sum(shares[: part.index])
    return first, first + unit * shares[part.index]


def _of_expert(tensor: Tensor, part: TensorPart, experts: int) -> Tensor:
    """Return the matrix of one expert, in a tensor of those of all."""
    shape = tensor.shape[1:] if part.stacked else (tensor.shape[0] // experts, *tensor.shape[1:])
    if len(shape) != 2 or tensor.shape[0] != (experts if part.stacked else experts * shape[0]):
        raise BadCheckpoint(f"{tensor.name!r} has shape {list(tensor.shape)}, which is not of {experts} experts")
    size = tensor.bytes // experts
    return replace(tensor, shape=shape, offset=tensor.offset + part.expert * size, bytes=size)


class _Reordered:
    """A matrix stored in another order (separate rows, columns, several); read whole when its rows are."""

    def __init__(self, part: StoredPart, array: RowSource) -> None:
        self.shape, self._part, self._array = part.shape, part, array

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of what is read."""
        return np.dtype(self._array.dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        chosen: NDArray[Any] = self._whole[rows]
        return chosen

    @cached_property
    def _whole(self) -> NDArray[Any]:
        whole = np.asarray(self._array[:])
        if self._part.side_by_side:
            whole = np.concatenate(list(whole), axis=1)
        whole = whole.T if self._part.transposed else whole
        if self._part.rows is not None:
            groups, size, first, last = self._part.rows
            whole = whole.reshape(groups, size, *whole.shape[1:])[:, first:last]
        return np.ascontiguousarray(whole).reshape(self.shape)
