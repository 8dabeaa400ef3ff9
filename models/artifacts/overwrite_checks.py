"""Checks that a command writes a folder only to a free place or over an exported model.

The old folder is deleted once the new one has taken its place. So only an export is ever replaced, without any file
that it did not write, and nothing through a link.
"""

import json
from pathlib import Path

from models.artifacts import card as cards
from models.errors import ModelError

EXPORT_FILES = (cards.FILE_NAME, cards.CHECKED_FILES, "weights.safetensors", "tokenizer.json")
NAMES_SHOWN = 3  # names in a message


def check_target(out: Path, source: Path) -> None:
    """Raise ModelError if a command that reads `source` must not write to `out`, as `check_place` or for holding it."""
    if source.resolve().is_relative_to(out.resolve()):
        raise ModelError(f"{out} is or holds {source}, which it would replace; choose another folder to write to")
    check_place(out)


def check_place(out: Path) -> None:
    """Raise ModelError if `out` is anything but a free name, an empty folder or one exported model."""
    if out.is_symlink():
        raise ModelError(f"{out} is a link to {out.readlink()}; name the folder itself")
    if out.exists() and not out.is_dir():
        raise ModelError(f"{out} is a file; choose a folder to write to")
    written = _files_of_export(out)
    files = (path.relative_to(out) for path in out.rglob("*") if path.is_symlink() or not path.is_dir())
    beside = (path.as_posix() for path in files if path.parts[0] != cards.PREPACKED)
    if written is not None and (lost := sorted(name for name in beside if name not in written)):
        raise ModelError(
            f"{out} holds {_shortened(lost)} beside an exported model, and replacing it would delete that too: "
            "move it away, or choose another folder"
        )
    if written is None and out.is_dir() and (held := sorted(path.name for path in out.iterdir())):
        raise ModelError(
            f"{out} holds {_shortened(held)} and no {cards.FILE_NAME} of an export: name a folder inside it, "
            f"{out / 'NAME'}, or choose another; if all of it may go, delete it yourself first"
        )


def check_name(name: str) -> None:
    """Raise ModelError for a name that cannot be a folder of a store."""
    if not name or name.startswith(".") or any(character in name for character in "/\\\0"):
        raise ModelError(
            f"--name {name!r} names no model: it is one folder of a store, without / and \\, and begins with no dot"
        )


def _files_of_export(out: Path) -> set[str] | None:
    """Return the files that the export in `out` wrote, as its card lists them; None if it is not an export.

    A folder with a damaged card counts as an export if it holds only files as exports write them, because the service
    tells its operator to export such a model again.
    """
    if not (out / cards.FILE_NAME).is_file():
        return None
    try:
        card = json.loads((out / cards.FILE_NAME).read_text(encoding="utf-8"))
        if "format" in card:
            return {cards.FILE_NAME, cards.CHECKED_FILES, *card["files"]}
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    names = {path.name for path in out.iterdir()} - {cards.PREPACKED}
    return names if all(name in EXPORT_FILES or name.endswith(".onnx") for name in names) else None


def _shortened(names: list[str]) -> str:
    return ", ".join(names[:NAMES_SHOWN]) + (
        f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    )
