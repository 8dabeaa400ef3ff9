"""What the store holds: exported folders by name, which version each is, what changed in them. Opens no model."""

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from models.artifacts import card as cards
from service.errors import NotFound, StartError
from service.settings import Settings

LONGEST_SHOWN = 80  # characters of a name that is refused
Stamps = tuple[tuple[str, int, int, int], ...]  # of each file: name, size, time, identity


def exported(store: Path) -> dict[str, Path]:
    """The exported models of a store by the names of their folders; a dot begins the name of an export cut short."""
    return {
        folder.name: folder
        for folder in (sorted(store.iterdir()) if store.is_dir() else ())
        if not folder.name.startswith(".") and (folder / cards.FILE_NAME).is_file()
    }


def version(folder: Path) -> str:
    """The sha256 of the card, which holds those of all other files: equal for equal exports, wherever they lie."""
    return hashlib.sha256((folder / cards.FILE_NAME).read_bytes()).hexdigest()


def stamps(folder: Path) -> Stamps:
    """What tells whether any file of a folder was written, replaced or taken away; reads none of them."""
    found = [(path.relative_to(folder).as_posix(), _stat(path)) for path in sorted(folder.rglob("*"))]
    return tuple((name, each.st_size, each.st_mtime_ns, each.st_ino) for name, each in found if each)


def _stat(path: Path) -> os.stat_result | None:
    """Of the file, or of a link that leads nowhere; None for what vanished meanwhile."""
    with suppress(OSError):
        return path.stat()
    with suppress(OSError):
        return path.lstat()
    return None


def checked(name: str) -> str:
    """The name, which touches no file: it is looked up among those that the store lists.

    raises   NotFound for what is no name of a folder
    """
    if not name or name.startswith(".") or any(character in name for character in "/\\\0"):
        raise NotFound(f"{name[:LONGEST_SHOWN]!r} names no model: send the name of one folder of the store")
    return name


def listed(names: Iterable[str]) -> str:
    """Names in a sentence."""
    return ", ".join(repr(name) for name in names) or "none"


def folders(settings: Settings) -> dict[str, Path]:
    """The folder of each model the settings name.

    Empty where the store has none: the service then serves what needs no model. Raises StartError if the store has no
    model of a name given, or a folder named as the store is missing.
    """
    if not settings.store.is_dir() and "store" in settings.model_fields_set:
        raise StartError(
            f"model store {settings.store} does not exist: `inlay export CHECKPOINT {settings.store / 'NAME'}` makes "
            "it, or name another with INLAY_STORE or --store"
        )
    found = exported(settings.store)
    if missing := [name for name in settings.models if name not in found]:
        raise StartError(f"model store {settings.store} holds no {listed(missing)}; it holds {listed(found)}")
    return {name: found[name] for name in settings.models or found}
