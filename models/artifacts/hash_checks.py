"""Checks that the files of an exported folder are those its card was written for, by their sha256."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from models.artifacts.card import CHECKED_FILES, Card, File
from models.checkpoints.hub import Progress, counter, no_progress
from models.errors import BadCard

CHUNK_BYTES = 1 << 22


def hashes(folder: Path, names: Iterable[str], progress: Progress = no_progress) -> dict[str, File]:
    """Return size and sha256 of each named file."""
    sizes = {name: (folder / name).stat().st_size for name in names}
    count = counter(progress, "hashing", sum(sizes.values()))
    return {name: File(size, _sha256(folder / name, count)) for name, size in sizes.items()}


def _sha256(path: Path, count: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            count(len(chunk))
    return digest.hexdigest()


def check_hashes(folder: Path, card: Card, progress: Progress = no_progress) -> None:
    """Raise BadCard for the first file that is not the one the card was written for."""
    for name, found in hashes(folder, card.files, progress).items():
        if found.sha256 != card.files[name].sha256:
            raise BadCard(
                f"{folder / name} is not the file its card was written for (sha256 differs); export the model again"
            )


def check_changed(folder: Path, card: Card) -> None:
    """Check the hashes of the files that were not checked before as they are now; raise BadCard as `check_hashes`.

    A file counts as checked while its size, modification time and inode stay the same: 90 MB then cost a start nothing
    instead of 70 ms. That is kept in CHECKED_FILES, unless the folder may not be written to.
    """
    stamps = {name: _stamp(folder / name, file) for name, file in card.files.items()}  # before anything is read
    known = _checked_before(folder)
    changed = {name: file for name, file in card.files.items() if known.get(name) != stamps[name]}
    check_hashes(folder, replace(card, files=changed))
    if changed:
        written = folder.resolve().with_name(f".{folder.name}{CHECKED_FILES}-{os.getpid()}")  # seen by no scan of it
        with suppress(OSError):
            written.write_text(json.dumps(stamps), encoding="utf-8")
            written.replace(folder / CHECKED_FILES)


def _stamp(path: Path, file: File) -> list[Any]:
    status = path.stat()
    return [file.sha256, status.st_size, status.st_mtime_ns, status.st_ino]


def _checked_before(folder: Path) -> dict[str, Any]:
    """Return the stamps of the files that were checked before; empty if there are none, or not as they were written."""
    with suppress(OSError, ValueError):
        stamps = json.loads((folder / CHECKED_FILES).read_text(encoding="utf-8"))
        return stamps if isinstance(stamps, dict) else {}
    return {}
