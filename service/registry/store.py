"""The model store: a folder of exported models, each in a folder named as the model."""

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from models.artifacts import card as cards
from models.artifacts.card import Card
from service.errors import StartError, UnknownModel
from service.settings import Settings

DEFAULT_PROMPT = "default"  # name of the prompt that the settings give a text of
SHOWN_CHARACTERS = 40  # of a caller's name in an error
FileStamps = tuple[tuple[str, int, int, int], ...]  # of each file: name, size, modification time, inode


def exports(store: Path) -> dict[str, Path]:
    """Return the folders of a store's models by name, without interrupted exports, whose names begin with a dot."""
    return {
        folder.name: folder
        for folder in (sorted(store.iterdir()) if store.is_dir() else ())
        if not folder.name.startswith(".") and (folder / cards.FILE_NAME).is_file()
    }


def configured_folders(settings: Settings, must_exist: bool = True) -> dict[str, Path]:
    """Return the folders of the models that the settings name; of all models of the store if they name none.

    Args:
        must_exist: raise StartError if the store lacks a model that is named, or if a store that is named is missing.
    """
    if must_exist and not settings.store.is_dir() and "store" in settings.model_fields_set:
        raise StartError(
            f"model store {settings.store} does not exist: `inlay export CHECKPOINT {settings.store / 'NAME'}` makes "
            "it, or name another with INLAY_STORE or --store"
        )
    folders = exports(settings.store)
    missing = [name for name in settings.models if name not in folders]
    if missing and must_exist:
        held = quote_names(folders)
        raise StartError(f"model store {settings.store} holds no {quote_names(missing)}; it holds {held}")
    return {name: folders[name] for name in settings.models or folders if name in folders}


def export_version(folder: Path) -> str:
    """Return the sha256 of the card, which holds the hashes of all other files; equal exports have equal versions."""
    return hashlib.sha256((folder / cards.FILE_NAME).read_bytes()).hexdigest()


def read_card(folder: Path, settings: Settings) -> Card:
    """Return the card of an exported folder with what the settings change: its limit of tokens, its default prompt."""
    card = replace(cards.read(folder), name=folder.name)  # a renamed folder is a renamed model
    if settings.max_input_tokens:
        card = replace(card, max_tokens=min(card.max_tokens or settings.max_input_tokens, settings.max_input_tokens))
    return _with_default_prompt(card, settings)


def _with_default_prompt(card: Card, settings: Settings) -> Card:
    """Return the card of a model that pools vectors with the default prompt of the settings.

    Raises:
        StartError: the model has no prompt of that name.
    """
    text, name = settings.default_prompt, settings.default_prompt_name
    if card.pooling is None or (text is None and name is None):
        return card
    if text is not None:
        return replace(card, prompts=card.prompts | {DEFAULT_PROMPT: text}, default_prompt=DEFAULT_PROMPT)
    if name not in card.prompts:
        known = quote_names(card.prompts)
        raise StartError(f"INLAY_DEFAULT_PROMPT_NAME is {name!r}, and {card.name} has the prompts {known}")
    return replace(card, default_prompt=name)


def created(store: Path, name: str) -> int:
    """Return when a model was exported, in seconds since 1970; 0 if its folder is gone."""
    try:
        return int((store / name / cards.FILE_NAME).stat().st_mtime)
    except OSError:
        return 0


def file_stamps(folder: Path) -> FileStamps:
    """Return a value that changes when any file of a folder is written, replaced or removed; no file is read."""
    paths = (path.relative_to(folder) for path in sorted(folder.rglob("*")))
    stats = [(path.as_posix(), _stat(folder / path)) for path in paths if path.parts[0] != cards.PREPACKED]
    return tuple((name, status.st_size, status.st_mtime_ns, status.st_ino) for name, status in stats if status)


def _stat(path: Path) -> os.stat_result | None:
    """Return the status of a file, or of a link without a target; None for a file that was removed meanwhile."""
    with suppress(OSError):
        return path.stat()
    with suppress(OSError):
        return path.lstat()
    return None


def check_name(name: str) -> str:
    """Return a model's name; raise NotFound if it cannot be a folder's name. No file is touched."""
    if not name or name.startswith(".") or any(character in name for character in "/\\\0"):
        raise UnknownModel(f"{shortened(name)} names no model", remedy="send the name of one folder of the store")
    return name


def shortened(name: str) -> str:
    """Return a caller's name in quotes, cut to a length that fits an error."""
    return repr(name[:SHOWN_CHARACTERS])


def quote_names(names: Iterable[str]) -> str:
    """Return names in quotes, as part of a sentence."""
    return ", ".join(repr(name) for name in names) or "none"
