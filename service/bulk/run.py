"""Runs `inlay embed`: finds the files, continues an interrupted run, computes here or on a Ray cluster."""

import fcntl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from models.checkpoints.hub import Progress, counter
from service.bulk import inputs, job, outputs, plan, ray_data
from service.bulk.embedder import Embedder
from service.bulk.mirror import Mirror
from service.bulk.outputs import Published
from service.bulk.plan import BulkRun, Options
from service.bulk.remote import Remote
from service.errors import StartError
from service.settings import Settings

LOCK = "_lock"


class Done(NamedTuple):
    """What a run has done.

    Args:
        rows: rows of the output.
        there: how many of them were there already.
        counts: rows by what the report says of them.
    """

    rows: int
    there: int
    counts: Mapping[str, int]


class Asked(NamedTuple):
    """What a run is asked for, as `run` describes it; `published` is called with each file that is complete."""

    files: Sequence[Path]
    output: Path
    options: Options
    folder: Path
    settings: Settings
    progress: Progress
    ray: "tuple[str, int] | None"
    published: Published = lambda path: None


def run(
    source: str,
    output: Path,
    options: Options,
    folder: Path,
    settings: Settings,
    progress: Progress,
    ray: "tuple[str, int] | None" = None,
) -> Done:
    """Embed the texts of some files.

    Args:
        source: a file, folder, glob or address.
        output: a folder, or a file whose name says the format; here or at an address.
        options: its columns are completed by the first file.
        folder: folder of the exported model.
        ray: the address of a cluster, and the number of actors; None: this process does it.

    Raises:
        StartError, ModelError: the texts cannot be embedded; one line.
    """
    files = inputs.find(source)
    asked = Asked(files, output, options, folder, settings, progress, ray)
    if not isinstance(output, Remote):
        return _located(asked)
    if ray is not None:
        raise StartError(f"{output}: with --ray all machines write to the same path: name one, and copy it then")
    with TemporaryDirectory(prefix="inlay-output-") as work:
        mirror = Mirror(output, Path(work))
        try:
            done = _located(asked._replace(output=mirror.output, published=mirror.push))
        except StartError as error:
            raise StartError(str(error).replace(str(mirror.output), str(output))) from error
        mirror.finish()
        return done


def _located(asked: Asked) -> Done:
    output, files = asked.output, asked.files
    options = replace(asked.options, columns=inputs.columns(files, asked.options.columns))
    _check(output, options)
    where = outputs.folder(output)
    where.mkdir(parents=True, exist_ok=True)
    with _alone(where):
        whole = plan.resumed(where / outputs.PLAN_FILE, options, files)
        if whole is None and any(not name.name.startswith("_") for name in where.iterdir()):
            raise StartError(f"{where} holds other files: name a new folder, or an empty one")
        if whole is not None and output.is_file():  # stopped between its last two steps
            outputs.remove(where)
            return Done(whole.rows, whole.rows, {})
        return _run(whole, asked._replace(options=options))


def _run(whole: BulkRun | None, asked: Asked) -> Done:
    output, options, settings = asked.output, asked.options, asked.settings
    embedder = Embedder(options.embed, asked.folder, settings, options.skip_failed)
    if not embedder.kind.pooled and output.suffix in outputs.ARRAYS:
        what = "is sparse" if embedder.kind.sparse else "has a vector for each token"
        raise StartError(f"{embedder.output} {what}, which {output.suffix} does not hold: use parquet")
    if whole is None:
        whole = plan.planned(options, asked.files)
        whole.write(outputs.folder(output) / outputs.PLAN_FILE)
        asked.published(outputs.folder(output) / outputs.PLAN_FILE)
    computer = job.PartComputer(whole, output, embedder, asked.published)
    parts = whole.parts()
    missing = [part for part in parts if not computer.target.finished(part)]
    found = whole.rows - sum(part.rows for part in missing)
    count = counter(asked.progress, "embedding", whole.rows, found)
    if asked.ray is None:
        computer.run(missing, count)
    else:
        ray_data.run(whole, missing, output, asked.folder, settings, *asked.ray, count)
    counts = computer.target.report(whole)
    if outputs.is_file(output):
        computer.target.merge(parts)
    return Done(whole.rows, found, counts)


def _check(output: Path, options: Options) -> None:
    """Raise StartError if the options or the output's name cannot be written."""
    if output.suffix in outputs.ARRAYS and options.columns.kept:
        raise StartError(f"{output.suffix} holds vectors alone: leave out --keep, or write parquet")
    if outputs.EMBEDDING in options.columns.kept:
        raise StartError(f"the column of vectors is called {outputs.EMBEDDING!r}: rename that of the input")
    if output.suffix[1:2].isalpha() and not outputs.is_file(output) and not output.is_dir():
        raise StartError(f"{output}: vectors are written to a folder, .parquet, .npy or .safetensors")
    if output.suffix not in outputs.ARRAYS:
        inputs.need_pyarrow(f"{output}: writing parquet")
    if output.is_file() and not outputs.folder(output).is_dir():
        raise StartError(f"{output} is there already: remove it, or name another output")
    if output.is_dir() and outputs.is_file(output):
        raise StartError(f"{output} is a folder: remove it, or name another output")


@contextmanager
def _alone(where: Path) -> Iterator[None]:
    """Lock a folder against other runs; the system releases the lock however the process ends."""
    with (where / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartError(f"another run writes to {where}: wait for it, or name another output") from None
        try:
            yield
        finally:
            if not (where / outputs.PLAN_FILE).exists():  # refused before anything was written, or done
                (where / LOCK).unlink(missing_ok=True)
                with suppress(OSError):  # it is gone, or holds other files
                    where.rmdir()
