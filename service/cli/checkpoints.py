"""Exports the checkpoints that `inlay serve --model` names into the store, and again when they change.

The origin of a model is stored beside it in `.NAME.checkpoint.json`; the store ignores names that begin with a dot.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from models.artifacts import card as cards
from models.artifacts.description import warnings
from models.artifacts.export import export
from models.checkpoints import hub
from models.checkpoints.checkpoint import FLOAT32_ONNX
from models.errors import BadCard, BadCheckpoint, ModelError
from service.cli.console import progress_bars, say
from service.errors import StartError
from service.registry.further_names import hub_id
from service.registry.store import export_version, exports
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class Origin:
    """The checkpoint that a model of the store was exported from.

    Args:
        checkpoint: an absolute path, or a hub id with its revision.
        files: name, bytes and time of each file of a local checkpoint; empty for the hub.
        version: version of the export, as `service.registry.store.export_version` returns it.
        options: the settings that it was exported by, besides the usual ones, by their names.
    """

    checkpoint: str
    files: list[list[str | int]]
    version: str
    options: dict[str, Any] = field(default_factory=dict)


def exported(settings: Settings, checkpoints: Sequence[str], model_name: str | None = None) -> Settings:
    """Return the settings that serve these models, after exporting the checkpoints that the store does not hold yet.

    Args:
        checkpoints: folders, files and hub ids, names of the store, or exported models of any folder.
        model_name: name to serve the only one under; what is before a slash in it becomes part of an alias.

    Raises:
        StartError: a name cannot be used, or a checkpoint cannot be exported.
    """
    named: dict[str, str] = {}
    aliases = settings.aliases
    if model_name is not None:
        alias, model_name = model_name, model_name.rpartition("/")[2]
        _check_only(f"--model-name {model_name} names", checkpoints)
        if not model_name or model_name.startswith("."):
            raise StartError(f"--model-name {model_name!r} names no model: it is a folder's name, without a dot first")
        aliases = (*aliases, *([f"{alias}={model_name}"] if alias != model_name else []))
    options = _options(settings, checkpoints)
    for checkpoint in checkpoints:
        held = _held(settings, checkpoint)
        name = model_name or held or name_of(checkpoint)
        if named.setdefault(name, checkpoint) != checkpoint:
            raise StartError(
                f"--model {named[name]} and --model {checkpoint} would both be called {name}: export one of them "
                f"under another name with `inlay export CHECKPOINT {settings.store}/NAME`"
            )
        folder = (settings.store / held if held else Path(checkpoint)).resolve()
        if not (folder / cards.FILE_NAME).is_file():
            _export(settings, checkpoint, settings.store / name, options)
        elif options:
            raise StartError(
                f"{checkpoint} is exported already, and --pooling and --adapter are of checkpoints: name the one that "
                "it was made of, or use `inlay export`"
            )
        elif model_name or folder.parent != settings.store.resolve():
            _link(settings.store / name, folder)
    models = tuple(dict.fromkeys((*named, *settings.models)))
    return settings.model_copy(update={"models": models, "aliases": aliases})


def may_be_model(settings: Settings, word: str) -> bool:
    """Return whether a word of the command line names a model of the store, a path or a hub id."""
    return "/" in word or word.endswith(".gguf") or Path(word).exists() or word in exports(settings.store)


def _held(settings: Settings, checkpoint: str) -> str | None:
    """Return the store's model that is served as it is: the one of that name, or of a hub id under another name.

    None for a hub id whose export has the usual name: that is exported again when the hub's has changed.
    """
    folders = {} if Path(checkpoint).exists() else exports(settings.store)
    if checkpoint in folders:
        return checkpoint
    if not (repository := _repository(checkpoint)):
        return None
    usual, fitting = name_of(checkpoint), []
    for name, folder in folders.items():
        with suppress(BadCard):
            card = cards.read(folder)
            from_hub = hub_id(card) == repository[0] and (card.source == checkpoint or "@" not in checkpoint)
            if from_hub and name == usual:
                return None
            if from_hub or checkpoint in card.aliases:
                fitting.append(name)
    held = usual if usual in fitting else fitting[0] if len(fitting) == 1 else None
    if held:
        say(settings, f"{settings.store / held} is served, which is {checkpoint}")
    return held


def _options(settings: Settings, checkpoints: Sequence[str]) -> dict[str, Any]:
    """Return the options of an export that the settings give, by the name of its argument."""
    if settings.adapters:
        _check_only("--adapter is of", checkpoints)
    pooling = (settings.pooling or "").replace("last-token", "lasttoken")  # text-embeddings-inference's word
    given = {"pooling": pooling, "adapters": adapters_of(settings.adapters)}
    return {name: value for name, value in given.items() if value}


def adapters_of(options: Sequence[str]) -> dict[str, str]:
    """Return the checkpoints of NAME=CHECKPOINT options by their names; StartError for others."""
    named = {name: checkpoint for name, _, checkpoint in (option.partition("=") for option in options)}
    if len(named) < len(options) or not all(named.values()):
        raise StartError(f"--adapter is NAME=FOLDER_OR_HUB_ID, each name once, and not {' '.join(options)[:80]!r}")
    return named


def _check_only(what: str, checkpoints: Sequence[str]) -> None:
    """Raise StartError, which begins with `what`, unless there is a single checkpoint."""
    if len(set(checkpoints)) != 1:
        raise StartError(f"{what} one model, and {len(set(checkpoints))} are given: one --model")


def _link(place: Path, folder: Path) -> None:
    """Make `place` in the store a symbolic link to an exported model's folder; raise StartError if that fails."""
    if place.resolve() == folder:
        return
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_symlink():
            place.unlink()
        place.symlink_to(folder)
    except OSError as error:
        why = "another model is there" if isinstance(error, FileExistsError) else error.strerror
        raise StartError(
            f"{folder} is exported already, and {place} cannot be a link to it: {why}; choose another store with "
            "INLAY_STORE or --store, such as an empty folder under /tmp, or another name with --model-name"
        ) from error


def name_of(checkpoint: str) -> str:
    """Return the name that a checkpoint gets in the store: that of its folder, file or repository."""
    repository = _repository(checkpoint)
    name = repository[0].rpartition("/")[2] if repository else Path(checkpoint).resolve().name.removesuffix(".gguf")
    if not name or name.startswith("."):
        raise StartError(f"{checkpoint}: {name!r} names no model; `inlay export` takes another name")
    return name


def _export(settings: Settings, checkpoint: str, out: Path, options: dict[str, Any]) -> None:
    """Export a checkpoint unless `out` holds an export of its present state by the same options."""
    why = _stale(settings, checkpoint, out, options)
    if why is None:
        return
    say(settings, f"exporting {checkpoint} to {out} ({why})")
    identity, files = _identity(checkpoint), _files(checkpoint, options)  # before: a later change is seen
    try:
        with progress_bars(shown=settings.log_format != "json") as progress:
            card = export(checkpoint, out, progress=progress, **options)
    except ModelError as error:
        raise StartError(f"--model {checkpoint} cannot be exported: {error}{_adoptable(checkpoint, out)}") from error
    for warning in warnings(card):
        say(settings, f"warning: {warning}")
    origin = Origin(identity, files, export_version(out), options)
    _origin_path(out).write_text(json.dumps(asdict(origin)) + "\n", encoding="utf-8")


def _stale(settings: Settings, checkpoint: str, out: Path, options: dict[str, Any]) -> str | None:
    """Return why the checkpoint must be exported to `out`; None if the export there is up to date."""
    if not (out / cards.FILE_NAME).is_file():
        return "once"
    try:
        source = cards.read(out).source
    except BadCard:
        return "the export that is there cannot be read"
    origin = _origin(out)
    held = origin.checkpoint if origin else source
    if held != (_identity(checkpoint) if origin else _source(checkpoint, source)):
        raise StartError(
            f"--model {checkpoint}: {out} holds a model of {held}; remove it, or export under another name with "
            f"`inlay export {checkpoint} {out.parent}/NAME`; `inlay serve {out.name}` serves what is there"
        )
    if origin is None and options:
        raise StartError(f"{out} was exported by hand, so --pooling and --adapter do not change it: remove it first")
    if origin is None:
        say(settings, f"{out} is served as it is; exported by hand, it is not written anew when {checkpoint} changes")
        return None
    if origin.options != options:
        return "--pooling or --adapter was another"
    if _repository(checkpoint):
        return _moved_on(settings, checkpoint, source)
    if not Path(checkpoint).exists():
        say(settings, f"{checkpoint} is gone; its export in {out} is served")
        return None
    if origin.files != _files(checkpoint, options):
        return "it has changed since it was exported"
    say(settings, f"{out} is up to date with {checkpoint}")
    return None


def _moved_on(settings: Settings, checkpoint: str, source: str) -> str | None:
    """Return a message if the hub has a newer commit than the exported one; None if not, or if it does not answer."""
    identity = _identity(checkpoint)
    if source == identity:  # a commit never changes
        return None
    repository_id, _, revision = identity.partition("@")
    repository = hub.Repository(repository_id, revision)
    try:
        repository.files()  # names the commit
    except BadCheckpoint as error:
        say(settings, f"whether {checkpoint} has changed is not known, its export is served: {error}")
        return None
    if not repository.pinned or repository.label == source:
        say(settings, f"the export of {source} is up to date")
        return None
    return f"the store has {source.partition('@')[2][:12]}, the hub {repository.revision[:12]}"


def _repository(checkpoint: str) -> tuple[str, str] | None:
    """Return the id and the revision of a hub id; None for a path."""
    return None if Path(checkpoint).exists() or checkpoint.endswith(".gguf") else hub.parse_hub_id(checkpoint)


def _identity(checkpoint: str) -> str:
    repository = _repository(checkpoint)
    return "@".join(repository) if repository else str(Path(checkpoint).resolve())


def _source(checkpoint: str, source: str) -> str:
    """Return what the card of this checkpoint's export names as its source; a hub id keeps the commit of `source`."""
    if repository := _repository(checkpoint):
        return f"{repository[0]}@{source.partition('@')[2]}"
    return Path(checkpoint).resolve().name


def _files(checkpoint: str, options: Mapping[str, Any]) -> list[list[str | int]]:
    """Return name, bytes and time of each file of a local checkpoint and of the adapters beside it."""
    known: list[list[str | int]] = []
    for path in map(Path, (checkpoint, *options.get("adapters", {}).values())):
        files = [path] if path.is_file() else sorted(file for file in path.rglob("[!.]*") if file.is_file())
        known += [[file.relative_to(path).as_posix(), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    return known


def _origin_path(out: Path) -> Path:
    return out.with_name(f".{out.name}.checkpoint.json")


def _origin(out: Path) -> Origin | None:
    """Return the origin of the export in `out`; None if another command than `inlay serve` wrote the folder."""
    try:
        origin = Origin(**json.loads(_origin_path(out).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return origin if origin.version == export_version(out) else None


@contextmanager
def keeping_origin(out: Path) -> Iterator[None]:
    """Keep the record of a model's origin valid while the block replaces the model's card."""
    origin = _origin(out)
    yield
    if origin is not None:
        origin = replace(origin, version=export_version(out))
        _origin_path(out).write_text(json.dumps(asdict(origin)) + "\n", encoding="utf-8")


def _adoptable(checkpoint: str, out: Path) -> str:
    holds_onnx = any((Path(checkpoint) / place).is_file() for place in FLOAT32_ONNX)
    return f"; it holds ONNX: `inlay adopt {checkpoint} {out}` takes that" if holds_onnx else ""
