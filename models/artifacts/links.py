"""Tables served in place: hard links, inside an exported folder, to the checkpoint's files.

ONNX Runtime (1.31) maps a hard link and refuses every path and symlink that leads out of the model's folder. Replacing
the original file leaves the link with the old bytes; writing into it is detected by size, time or hash.
"""

import errno
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from models.checkpoints.safetensors import DTYPES, Tensor
from models.errors import BadCard, BadCheckpoint

PREFIX = "linked-"
DTYPES_MAPPED = ("F32", "F16", "BF16")
_REASONS = {
    errno.EXDEV: "is on another filesystem than the export",
    errno.EPERM: "may not be hard-linked by this user, or its filesystem has no hard links",
    errno.EACCES: "may not be hard-linked by this user",
    errno.EMLINK: "has as many hard links as its filesystem allows",
    errno.EOPNOTSUPP: "is on a filesystem without hard links",
}


@dataclass(frozen=True, slots=True)
class LinkedTensor:
    """One linked tensor: where it lies in the file, and the hash of its bytes."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class LinkedFile:
    """A file of the checkpoint that an exported folder links to.

    Attributes:
        original: path of the file when the model was exported.
        bytes, mtime_ns: size and time of the whole file; loading checks both.
        tensors: tensors by name; `verify` checks their hashes.
    """

    original: str
    bytes: int
    mtime_ns: int
    tensors: dict[str, LinkedTensor]


def is_link(name: str) -> bool:
    """Return whether a file of an exported folder is a link to a checkpoint's."""
    return name.startswith(PREFIX)


def link(folder: Path, tensors: Iterable[Tensor]) -> dict[str, Tensor]:
    """Hard-link the files that hold these tensors into `folder` and return where each tensor lies there.

    Raises:
        BadCheckpoint: a tensor cannot be mapped as it is, or its file cannot be linked.
    """
    placed = {}
    for tensor in tensors:
        if tensor.row_major().dtype not in DTYPES_MAPPED or tensor.stored:
            raise BadCheckpoint(
                f"{tensor.path}: {tensor.name!r} is {tensor.stored or tensor.dtype}, and ONNX Runtime "
                f"maps {', '.join(DTYPES_MAPPED)} as they are: export without --link"
            )
        if tensor.offset % DTYPES[tensor.dtype].itemsize:
            raise BadCheckpoint(
                f"{tensor.path}: {tensor.name!r} begins at byte {tensor.offset}, within an element of {tensor.dtype}, "
                "and not every processor reads that: export without --link"
            )
        placed[tensor.name] = Tensor(
            tensor.name, tensor.dtype, tensor.shape, _linked(folder, tensor.path), tensor.offset, tensor.bytes
        )
    return placed


def _linked(folder: Path, original: Path) -> Path:
    """Return the link to a file, made once; a symlink (as in the cache of huggingface_hub) is followed."""
    place = folder / (PREFIX + original.name)
    if place.exists() and place.samefile(original):
        return place
    try:
        os.link(original.resolve(), place)
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, error.strerror)
        raise BadCheckpoint(
            f"{original} {reason}, so it cannot be served in place: export to a folder of its own filesystem that you "
            "may link in, or without --link"
        ) from error
    return place


def describe_links(
    placed: Iterable[Tensor], originals: Mapping[str, Tensor], hashes: Mapping[str, str]
) -> dict[str, LinkedFile]:
    """Return the card's entries for linked tensors.

    Args:
        placed: the tensors in the exported folder.
        originals, hashes: places and hashes by tensor name.

    Returns:
        By file name in the exported folder.
    """
    by_file: dict[Path, dict[str, LinkedTensor]] = {}
    for tensor in placed:
        entry = LinkedTensor(tensor.dtype, tensor.shape, tensor.offset, tensor.bytes, hashes[tensor.name])
        by_file.setdefault(tensor.path, {})[tensor.name] = entry
    linked = {}
    for path, tensors in by_file.items():
        stat = path.stat()
        original = str(originals[next(iter(tensors))].path.resolve())
        linked[path.name] = LinkedFile(original, stat.st_size, stat.st_mtime_ns, tensors)
    return linked


def check(folder: Path, linked: dict[str, LinkedFile]) -> None:
    """Raise BadCard if a linked file was written to since the export."""
    for name, promised in linked.items():
        path = folder / name
        if not path.is_file():
            raise BadCard(f"{path} is missing: it was a hard link to {promised.original}; export the model again")
        stat = path.stat()
        if (stat.st_size, stat.st_mtime_ns) != (promised.bytes, promised.mtime_ns):
            raise BadCard(
                f"{path} serves {promised.original} in place, which was written to since the export (or the folder "
                "was copied without its times): export the model again, or without --link"
            )


def tensors(folder: Path, linked: dict[str, LinkedFile]) -> list[Tensor]:
    """Return the place of every linked tensor."""
    return [
        Tensor(name, place.dtype, place.shape, folder / file, place.offset, place.bytes)
        for file, held in linked.items()
        for name, place in held.tensors.items()
    ]
