"""Where a command may write a folder: where nothing is, or over an exported model. Writes and deletes nothing.

What lies there is deleted once the new folder has taken its place. So nothing but an export is ever replaced, and
nothing through a link: --force only says that what was laid beside an export's own files may go with them.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from models.artifacts import card as cards
from models.artifacts import links
from models.errors import ModelError

PROGRAM = Path(__file__).resolve().parents[1]  # models/
OWN = (cards.FILE_NAME, "weights.safetensors", "tokenizer.json")
SHOWN = 3  # names in a message


def check_target(out: Path, source: Path, force: bool) -> None:
    """Refuse what `check_place` does, a place that holds `source`, and without `force` files that no export wrote."""
    if source.resolve().is_relative_to(out.resolve()):
        raise ModelError(f"{out} is or holds {source}, which it would replace; choose another folder to write to")
    check_place(out)
    if not force and (lost := _beside(out)):
        raise ModelError(
            f"{out} holds {_few(lost)} beside an exported model, and replacing it would delete that too: "
            "move it away, choose another folder, or say --force"
        )


def check_place(out: Path) -> None:
    """Refuse a place that is more than one exported model, however it is asked for; raises ModelError."""
    if out.is_symlink():
        raise ModelError(f"{out} is a link to {out.readlink()}; name the folder itself")
    if not out.exists():
        return
    if not out.is_dir():
        raise ModelError(f"{out} is a file; choose a folder to write to")
    for what, place in _kept():
        if place.is_relative_to(out.resolve()):
            raise ModelError(f"{out} is or holds {what}, which it would replace; choose another folder to write to")
    written = _written(out)
    if models := sorted(
        path.parent.relative_to(out).as_posix() for path in _cards_below(out, deep=written is not None)
    ):
        count = f"{len(models)} exported model{'s' * (len(models) > 1)}"
        raise ModelError(
            f"{out} holds {count} ({_few(models)}): name a folder inside it, {out / 'NAME'}; --force deletes no store"
        )
    if written is None and (found := sorted(path.name for path in out.iterdir())):
        raise ModelError(
            f"{out} holds {_few(found)} and no {cards.FILE_NAME} of an export: choose another folder. --force replaces "
            "exported models alone; if all of it may go, delete it yourself first"
        )


def check_name(name: str) -> None:
    """Refuse a name that no folder of a store has; raises ModelError."""
    if not name or name.startswith(".") or any(character in name for character in "/\\\0"):
        raise ModelError(
            f"--name {name!r} names no model: it is one folder of a store, without / and \\, and begins with no dot"
        )


def _kept() -> Iterator[tuple[str, Path]]:
    """What nobody means to replace."""
    yield "the working directory", Path.cwd()
    yield "this program", PROGRAM
    try:
        yield "the home folder", Path.home().resolve()
    except RuntimeError:  # this user has none
        return


def _cards_below(out: Path, deep: bool) -> Iterator[Path]:
    """The cards of folders inside `out`: of a store one level down, of what should be one export at any depth."""
    return out.glob(f"*/**/{cards.FILE_NAME}" if deep else f"[!.]*/{cards.FILE_NAME}")


def _written(out: Path) -> set[str] | None:
    """The files that the export in `out` wrote, as its card lists them; None: it is none.

    An export with a spoiled card is one where it holds nothing but files as exports write them: the service says of it
    that the model is to be exported again.
    """
    if not (out / cards.FILE_NAME).is_file():
        return None
    try:
        card = json.loads((out / cards.FILE_NAME).read_text(encoding="utf-8"))
        if "format" in card:
            return {cards.FILE_NAME, *card["files"], *(card.get("linked") or {})}
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    names = {path.name for path in out.iterdir()}
    return names if all(name in OWN or name.endswith(".onnx") or links.is_link(name) for name in names) else None


def _beside(out: Path) -> list[str]:
    """The files of an export's folder that it did not write."""
    written = _written(out) or set()
    found = (path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted(name for name in found if name not in written)


def _few(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
