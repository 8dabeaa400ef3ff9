"""Checks that a command writes a folder only to a free place or over an exported model.

The old folder is deleted once the new one has taken its place. So only an export is ever replaced, and nothing through
a link; --force only allows deleting other files that lie in the export's folder.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from models.artifacts import card as cards
from models.errors import ModelError

PROGRAM = Path(__file__).resolve().parents[1]  # models/
EXPORT_FILES = (cards.FILE_NAME, cards.CHECKED_FILES, "weights.safetensors", "tokenizer.json")
NAMES_SHOWN = 3  # names in a message


def check_target(out: Path, source: Path, force: bool) -> None:
    """Raise ModelError if a command must not write to `out`.

    Args:
        out: a folder that `check_place` accepts, and without `force` no export with other files beside its own.
        source: must not lie in `out`, or be it.
        force: other files may be deleted.
    """
    if source.resolve().is_relative_to(out.resolve()):
        raise ModelError(f"{out} is or holds {source}, which it would replace; choose another folder to write to")
    check_place(out)
    if not force and (lost := _foreign_files(out)):
        raise ModelError(
            f"{out} holds {_shortened(lost)} beside an exported model, and replacing it would delete that too: "
            "move it away, choose another folder, or say --force"
        )


def check_place(out: Path) -> None:
    """Raise ModelError if `out` is anything but a free name or one exported model."""
    if out.is_symlink():
        raise ModelError(f"{out} is a link to {out.readlink()}; name the folder itself")
    if not out.exists():
        return
    if not out.is_dir():
        raise ModelError(f"{out} is a file; choose a folder to write to")
    for what, place in _protected_places():
        if place.is_relative_to(out.resolve()):
            raise ModelError(f"{out} is or holds {what}, which it would replace; choose another folder to write to")
    written = _files_of_export(out)
    if models := sorted(
        path.parent.relative_to(out).as_posix() for path in _cards_below(out, deep=written is not None)
    ):
        count = f"{len(models)} exported model{'s' * (len(models) > 1)}"
        raise ModelError(
            f"{out} holds {count} ({_shortened(models)}): name a folder inside it, {out / 'NAME'}; "
            "--force deletes no store"
        )
    if written is None and (other_files := sorted(path.name for path in out.iterdir())):
        raise ModelError(
            f"{out} holds {_shortened(other_files)} and no {cards.FILE_NAME} of an export: choose another folder. "
            "--force replaces exported models alone; if all of it may go, delete it yourself first"
        )


def check_name(name: str) -> None:
    """Raise ModelError for a name that cannot be a folder of a store."""
    if not name or name.startswith(".") or any(character in name for character in "/\\\0"):
        raise ModelError(
            f"--name {name!r} names no model: it is one folder of a store, without / and \\, and begins with no dot"
        )


def _protected_places() -> Iterator[tuple[str, Path]]:
    """Yield places that are never replaced."""
    yield "the working directory", Path.cwd()
    yield "this program", PROGRAM
    try:
        yield "the home folder", Path.home().resolve()
    except RuntimeError:  # this user has none
        return


def _cards_below(out: Path, deep: bool) -> Iterator[Path]:
    """Yield the cards of folders inside `out`: one level down in a store, at any depth in what should be one export."""
    return out.glob(f"*/**/{cards.FILE_NAME}" if deep else f"[!.]*/{cards.FILE_NAME}")


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
    names = {path.name for path in out.iterdir()}
    return names if all(name in EXPORT_FILES or name.endswith(".onnx") for name in names) else None


def _foreign_files(out: Path) -> list[str]:
    """Return the files of an export's folder that it did not write."""
    written = _files_of_export(out) or set()
    files = (path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted(name for name in files if name not in written)


def _shortened(names: list[str]) -> str:
    return ", ".join(names[:NAMES_SHOWN]) + (
        f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    )
