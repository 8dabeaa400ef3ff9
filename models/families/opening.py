"""Opens the checkpoint that an operator names: a folder, a .gguf file or a hub id."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from models.checkpoints import gguf_tokenizer, hub, hub_files, sentence_transformers
from models.checkpoints.checkpoint import Checkpoint, open_checkpoint, read_config
from models.checkpoints.gguf import read_gguf
from models.checkpoints.hub import Progress, Repository, no_progress
from models.checkpoints.located import LocatedCheckpoint, check_links, renamed_in_errors
from models.families import FAMILIES, gguf_config

GGUF = ".gguf"


def is_file_or_hub_id(what: str | Path) -> bool:
    """Return whether this names a .gguf file or a hub id: a checkpoint that is not a folder."""
    path = Path(what)
    return (path.suffix == GGUF and not path.is_dir()) or (
        not path.exists() and hub.parse_hub_id(str(what)) is not None
    )


@contextmanager
def located(
    what: str | Path, progress: Progress = no_progress, endpoint: str | None = None, weights: bool = True
) -> Iterator[LocatedCheckpoint]:
    """Find a checkpoint; files made or fetched for it are deleted when the block ends.

    Args:
        what: a folder, a .gguf file, or org/name or org/name@revision where no such folder exists.
        progress: called with what is being fetched, bytes or files done and in all.
        endpoint: the hub's address; None: what huggingface_hub is set to (HF_ENDPOINT).
        weights: fetch the table of a static embedding, which is opened without `checkpoint`.

    Yields:
        The located checkpoint.

    Raises:
        ModelError: nothing is found, or it cannot be read. A ModelError that leaves the block and names the temporary
            folder is raised again with the name the operator gave.
    """
    path = Path(what)
    hub_id = None if path.exists() else hub.parse_hub_id(str(what))
    if path.suffix == GGUF and not path.is_dir():
        with _temporary(str(path)) as folder:
            yield _gguf(path, folder)
    elif hub_id:
        repository = Repository(*hub_id, endpoint, progress)
        with _temporary("/".join(hub_id), repository) as folder:
            yield _hub(repository, folder, weights)
    else:
        check_links(path)
        yield LocatedCheckpoint(path, path.resolve().name, False, partial(_folder, path))


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
    gguf_tokenizer.write(folder, file, whole=family is not None and bool(family.block))
    checkpoint = Checkpoint(folder, config, tensors, path.name, no_blocks_reason=no_blocks_reason, separate=True)
    return LocatedCheckpoint(folder, path.name, True, lambda: checkpoint)


def _hub(repository: Repository, folder: Path, weights: bool) -> LocatedCheckpoint:
    place = hub_files.fetch_small_files(repository, folder)
    inner = "" if place == folder else f"{place.relative_to(folder).as_posix()}/"
    if hub_files.is_static_embedding(folder):
        if weights:
            hub_files.fetch_module(repository, folder, inner)
        return LocatedCheckpoint(folder, repository.label, True, partial(open_checkpoint, place), repository)
    return LocatedCheckpoint(
        folder,
        repository.label,
        True,
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
