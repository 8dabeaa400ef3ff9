"""Opens the checkpoint that an operator names: a folder, a .gguf file or a hub id, with its adapters."""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from models.checkpoints import gguf_files, hub, hub_files, peft, routes, sentence_transformers
from models.checkpoints.checkpoint import WEIGHT_FILES, Checkpoint, open_checkpoint, read_config
from models.checkpoints.gguf import read_gguf
from models.checkpoints.hub import Progress, Repository, no_progress
from models.checkpoints.located import LocatedCheckpoint, check_links, renamed_in_errors
from models.errors import BadCheckpoint
from models.families import FAMILIES, gguf_config
from models.families.adapters import side_by_side

GGUF = ".gguf"
_TASK = re.compile(r"[\w.-]+", re.ASCII)
_SMALL = (".json", ".txt", ".jinja", ".model")
_WRITTEN = "adapted.safetensors"


@dataclass(frozen=True, slots=True)
class AdapterOptions:
    """The options of `export` for adapters of the peft library.

    Attributes:
        base: the model that the adapter to export was trained on; None: the one that its files name.
        beside: adapters to keep apart beside the exported model, by the names of their tasks; each a folder or a hub
            id.
    """

    base: str | None = None
    beside: Mapping[str, str] = field(default_factory=dict)


NO_ADAPTERS = AdapterOptions()


def is_file_or_hub_id(what: str | Path) -> bool:
    """Return whether this names a .gguf file or a hub id: a checkpoint that is not a folder."""
    path = Path(what)
    return (path.suffix == GGUF and not path.is_dir()) or (
        not path.exists() and hub.parse_hub_id(str(what)) is not None
    )


@contextmanager
def located(
    what: str | Path,
    progress: Progress = no_progress,
    endpoint: str | None = None,
    adapters: AdapterOptions = NO_ADAPTERS,
    route: str | None = None,
) -> Iterator[LocatedCheckpoint]:
    """Find a checkpoint; files made or fetched for it are deleted when the block ends.

    Args:
        what: a folder, a .gguf file, or org/name or org/name@revision where no such folder exists; of an adapter of
            the peft library, it is merged into its base.
        progress: called with what is being fetched, bytes or files done and in all.
        endpoint: the hub's address; None: what huggingface_hub is set to (HF_ENDPOINT).
        adapters: the base of an adapter, and adapters to keep beside the checkpoint.
        route: the route of a Router of sentence-transformers that is opened; None: it has none.

    Yields:
        The located checkpoint.

    Raises:
        ModelError: nothing is found, or it cannot be read.
    """
    with ExitStack() as stack:

        def find(each: str | Path, route: str | None = None) -> LocatedCheckpoint:
            return stack.enter_context(located_files(each, progress, endpoint, route=route))

        place = find(what, route)
        merges = peft.is_adapter(place.folder)
        if adapters.base and not merges:
            raise BadCheckpoint(f"{what} is no adapter (it has no {peft.CONFIG}), so leave out --base")
        if merges or adapters.beside:
            folder = stack.enter_context(_temporary(str(what)))
        if of_tasks := peft.tasks(place.folder):
            place = _of_task(place, of_tasks, route, stack.enter_context(_temporary(str(what))))
        if merges:
            place = _merged(place, find(adapters.base or _base_of(place)), folder)
        if adapters.beside:
            place = _side_by_side(place, {name: find(each) for name, each in adapters.beside.items()}, folder)
        yield place


def _base_of(adapter: LocatedCheckpoint) -> str:
    """Return the base that an adapter names: a folder of that name beside its own, a folder, or a hub id."""
    named = peft.base_of(adapter.folder)
    beside = adapter.folder.resolve().with_name(Path(named).name)
    on_disk = [] if adapter.repository else [str(path) for path in (beside, Path(named)) if path.is_dir()]
    if not on_disk and hub.parse_hub_id(named) is None:
        raise BadCheckpoint(f"{adapter.name} was trained on {named!r}, which is not here: add --base FOLDER_OR_HUB_ID")
    return on_disk[0] if on_disk else named


def _merged(adapter: LocatedCheckpoint, base: LocatedCheckpoint, folder: Path) -> LocatedCheckpoint:
    """Return an adapter's checkpoint, with copies of its base's small files in `folder`, its own over these."""
    if peft.is_adapter(base.folder):
        raise BadCheckpoint(f"{base.name}, the base of {adapter.name}, is an adapter itself: merge it first")
    for place in (base, adapter):
        for path in place.folder.rglob("[!.]*"):
            if path.suffix in _SMALL and path.is_file() and path != adapter.folder / "config.json":
                _copy(path, folder / path.relative_to(place.folder))
    of_modules = adapter if (adapter.folder / "modules.json").is_file() else base

    def checkpoint() -> Checkpoint:
        source = base.checkpoint()
        inner = folder / source.folder.relative_to(base.folder)
        merged = peft.merge(source, peft.read_adapter(adapter.folder, adapter.name), folder / _WRITTEN)
        return replace(merged, folder=inner)

    def fetch_module(module: str) -> None:
        of_modules.fetch_module(module)
        for weights in filter(Path.is_file, (of_modules.folder / module / name for name in WEIGHT_FILES)):
            _copy(weights, folder / module / weights.name)

    return LocatedCheckpoint(folder, adapter.name, checkpoint, adapter.repository, fetch_module)


def _of_task(place: LocatedCheckpoint, tasks: Sequence[str], route: str | None, folder: Path) -> LocatedCheckpoint:
    """Return a checkpoint with the adapter of one of its tasks merged into its weights."""
    if route not in tasks:
        raise BadCheckpoint(
            f"{place.name} has adapters of the tasks {', '.join(tasks)}, a model each here: add --route "
            f"{' or '.join(tasks)}, and --name"
        )

    def checkpoint() -> Checkpoint:
        adapter = peft.read_adapter(place.folder / peft.TASKS, f"{place.name}/{peft.TASKS}", route)
        merged = peft.merge(place.checkpoint(), adapter, folder / _WRITTEN)
        return replace(merged, config=merged.config | {"task_names": [route]}, source=place.name)

    return replace(place, checkpoint=checkpoint)


def _copy(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, to)


def _side_by_side(place: LocatedCheckpoint, beside: Mapping[str, LocatedCheckpoint], folder: Path) -> LocatedCheckpoint:
    """Return a checkpoint with adapters beside its weights."""
    prompts, default = sentence_transformers.prompts(place.folder)
    for name, adapter in beside.items():
        if name in prompts or not _TASK.fullmatch(name):
            why = f"is a prompt of {place.name}" if name in prompts else "is not of letters, digits, _, . and -"
            raise BadCheckpoint(f"--adapter {name}: {name!r} {why}: choose another name")
        if not peft.is_adapter(adapter.folder):
            raise BadCheckpoint(f"--adapter {name}: {adapter.name} is no adapter: it has no {peft.CONFIG}")

    def checkpoint() -> Checkpoint:
        adapters = {name: peft.read_adapter(each.folder, each.name) for name, each in beside.items()}
        return side_by_side(place.checkpoint(), adapters, prompts.get(default or ""), folder / f"beside_{_WRITTEN}")

    return replace(place, checkpoint=checkpoint)


@contextmanager
def located_files(
    what: str | Path,
    progress: Progress = no_progress,
    endpoint: str | None = None,
    weights: bool = True,
    route: str | None = None,
) -> Iterator[LocatedCheckpoint]:
    """Find the files of a checkpoint or of an adapter alone; adapters are not applied.

    Args:
        what: as of `located`.
        progress: as of `located`.
        endpoint: as of `located`.
        weights: fetch the table of a static embedding, which is opened without `checkpoint`.
        route: as of `located`.

    Yields:
        The located checkpoint.

    Raises:
        ModelError: nothing is found, or it cannot be read. A ModelError that leaves the block and names the temporary
            folder is raised again with the name the operator gave.
    """
    path = Path(what)
    hub_id = None if path.exists() else hub.parse_hub_id(str(what))
    if path.suffix == GGUF and not path.is_dir():
        if route:
            raise BadCheckpoint(f"{what} is a GGUF file, which has no routes: leave out --route")
        with _temporary(str(path)) as folder:
            yield _gguf(path, folder)
    elif hub_id:
        repository = Repository(*hub_id, endpoint, progress)
        with _temporary("/".join(hub_id), repository) as folder:
            yield _hub(repository, folder, weights, route)
    elif route:
        check_links(path)
        with _temporary(str(path)) as folder:
            routes.link(path, folder)
            routes.choose(folder, route)
            yield LocatedCheckpoint(folder, path.resolve().name, partial(_folder, folder))
    else:
        check_links(path)
        yield LocatedCheckpoint(path, path.resolve().name, partial(_folder, path))


@contextmanager
def opened(what: str | Path, progress: Progress = no_progress, endpoint: str | None = None) -> Iterator[Checkpoint]:
    """Open the checkpoint that `located` finds; same errors."""
    with located(what, progress, endpoint) as place:
        yield place.checkpoint()


def _folder(path: Path) -> Checkpoint:
    return open_checkpoint(sentence_transformers.weights_folder(path) if path.is_dir() else path)


def _gguf(path: Path, folder: Path) -> LocatedCheckpoint:
    file = read_gguf(path)
    config, tensors, no_blocks_reason = gguf_config.read(file, str(path))
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    family = FAMILIES.get(config["model_type"])
    gguf_files.write(folder, path, file, whole=family is not None and bool(family.block))
    checkpoint = Checkpoint(folder, config, tensors, path.name, no_blocks_reason=no_blocks_reason, separate=True)
    return LocatedCheckpoint(folder, path.name, lambda: checkpoint)


def _hub(repository: Repository, folder: Path, weights: bool, route: str | None) -> LocatedCheckpoint:
    place = hub_files.fetch_small_files(repository, folder, route)
    for name in ("", f"{peft.TASKS}/"):
        if peft.is_adapter(folder / name):
            next(filter(None, (repository.copy(name + each, folder / name / each) for each in peft.WEIGHTS)), None)
    inner = "" if place == folder else f"{place.relative_to(folder).as_posix()}/"
    if hub_files.is_static_embedding(folder):
        if weights:
            hub_files.fetch_module(repository, folder, inner)
        return LocatedCheckpoint(folder, repository.label, partial(open_checkpoint, place), repository)
    return LocatedCheckpoint(
        folder,
        repository.label,
        partial(_remote, repository, inner, place),
        repository,
        partial(hub_files.fetch_module, repository, folder),
    )


def _remote(repository: Repository, inner: str, place: Path) -> Checkpoint:
    config = read_config(place)
    tensors, fetch = hub_files.fetch_weights(repository, inner, place / hub_files.PARTIAL)
    return Checkpoint(place, config, tensors, repository.label, fetch)


@contextmanager
def _temporary(label: str, repository: Repository | None = None) -> Iterator[Path]:
    """Create a temporary folder; errors that name it show the operator's name instead."""
    with tempfile.TemporaryDirectory(prefix="inlay-") as name:
        folder = Path(name).resolve()
        paths = (folder / hub_files.PARTIAL, folder)
        with renamed_in_errors(paths, lambda: repository.label if repository else label):
            yield folder
