"""Writes exported folders: built in a temporary folder, hashed, and renamed into place whole or not at all."""

import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from models import VERSION
from models.artifacts import card as cards
from models.artifacts.card import Card
from models.artifacts.hash_checks import hashes
from models.artifacts.overwrite_checks import check_place
from models.checkpoints.hub import Progress, no_progress
from models.errors import BadCard

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # constants of Linux's renameat2


@contextmanager
def atomic_folder(out: Path) -> Iterator[Path]:
    """Create a folder beside `out` that replaces it when the block ends, or is deleted if the block raises.

    Raises:
        ModelError: `out` may not be replaced; checked before the block and after it.
    """
    check_place(out)
    out = out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.partial-", dir=out.parent))
    try:
        folder.chmod(0o755)
        yield folder
        _sync(folder)
        check_place(out)  # much can come there during a long export
        put_in_place(folder, out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def put_in_place(folder: Path, out: Path) -> None:
    """Rename `folder` to `out`; a previous folder is exchanged with it, or moved aside, and deleted last.

    A reader sees the old export or the new one; if the filesystem cannot exchange folders, there is none for a moment.
    """
    if not out.exists():
        folder.rename(out)
    elif not exchange(folder, out):
        aside = Path(tempfile.mkdtemp(prefix=f".{out.name}.old-", dir=out.parent))
        out.rename(aside)
        try:
            folder.rename(out)
        except BaseException:
            aside.rename(out)
            raise
        shutil.rmtree(aside)
    _sync(out.parent)


def exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step (Linux 3.15); False where system or filesystem cannot."""
    try:
        swap = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):  # no libc by that name, or one without it
        return False
    return bool(swap(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a model is written, and what its card says of that.

    Attributes:
        out: the folder.
        name: name of the model.
        source: the checkpoint that it is made from.
        progress: receives what is being done, bytes done and bytes in all.
        aliases: further names of the model.
    """

    out: Path
    name: str
    source: str
    progress: Progress = no_progress
    aliases: tuple[str, ...] = ()


def finish_folder(folder: Path, card: Card, target: Target) -> Card:
    """Write the card with the size and hash of every file, flush all to disk, and return the card."""
    card = replace(card, name=target.name, source=target.source, tool=tool_version(), aliases=target.aliases)
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in paths:
        _sync(path)
    names = [path.relative_to(folder).as_posix() for path in paths]
    card = replace(card, files=hashes(folder, names, target.progress))
    cards.write(card, folder)
    (folder / cards.FILE_NAME).chmod(0o644)
    _sync(folder / cards.FILE_NAME)
    return card


def tool_version() -> str:
    """Return the version of this tool and of the two libraries its graphs depend on."""
    import onnx
    import onnxruntime

    return f"inlay {VERSION} (onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__})"


def replace_card(folder: Path, card: Card) -> None:
    """Write another card of the same files in the place of a folder's, whole or not at all.

    Raises:
        BadCard: the folder was exported again since its card was read.
    """
    folder = folder.resolve()
    before = cards.read(folder)
    if before.files != card.files:
        raise BadCard(f"{folder} was exported again meanwhile: repeat the command")
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.partial-", dir=folder.parent))
    try:
        cards.write(card, aside)
        written = aside / cards.FILE_NAME
        written.chmod(0o644)
        _sync(written)
        written.replace(folder / cards.FILE_NAME)
        _sync(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
