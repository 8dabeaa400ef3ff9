"""The plan of a bulk run, kept as JSON: its options, its files and their division into parts."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from service.bulk import remote
from service.bulk.inputs import Columns, count_rows
from service.embedding.requests import EmbedOptions
from service.errors import StartError

PART_ROWS = 32768


@dataclass(frozen=True, slots=True)
class Options:
    """The options that decide the vectors of a run.

    Attributes:
        model: name of the model.
        version: version of the model's export.
        columns: the columns to read.
        embed: the options of the core, with at most one output, which may be SCORES.
        part_rows: rows of one part.
        skip_failed: texts that are refused have no vector, instead of ending the run.
    """

    model: str
    version: str
    columns: Columns
    embed: EmbedOptions
    part_rows: int = PART_ROWS
    skip_failed: bool = False

    @property
    def values(self) -> dict[str, Any]:
        """Every value of the options by name, as JSON holds it."""
        alone = {name: getattr(self, name) for name in ("model", "version", "part_rows", "skip_failed")}
        values = alone | asdict(self.columns) | self.embed._asdict()
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


class File(NamedTuple):
    """An input file as it was when the run began."""

    path: str
    bytes: int
    modified: int
    rows: int


class Part(NamedTuple):
    """Consecutive rows of one file.

    Args:
        number: number of the part, from 0.
        start: first row in the input file.
    """

    number: int
    path: Path
    start: int
    rows: int


@dataclass(frozen=True, slots=True)
class BulkRun:
    """The plan of a run; `files` are the input files, in order."""

    options: Options
    files: tuple[File, ...]

    @property
    def rows(self) -> int:
        """The rows of all files."""
        return sum(file.rows for file in self.files)

    def parts(self) -> list[Part]:
        """Return the parts, in the order of the output."""
        size = self.options.part_rows
        starts = [(file, start) for file in self.files for start in range(0, file.rows, size)]
        return [
            Part(number, remote.path_of(file.path), start, min(size, file.rows - start))
            for number, (file, start) in enumerate(starts)
        ]

    def write(self, path: Path) -> None:
        """Write the plan to a temporary file and rename it."""
        aside = path.with_name(f"{path.name}.tmp")
        data = {"options": self.options.values, "files": self.files}
        aside.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        aside.rename(path)


def resumed(path: Path, options: Options, files: Sequence[Path]) -> BulkRun | None:
    """Return the plan of the interrupted run that this one continues; None if there is none.

    Raises:
        StartError: the interrupted run had other options or files.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        before, entries = data["options"], tuple(File(*entry) for entry in data["files"])
        changed = [name for name, value in options.values.items() if before[name] != value]
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise StartError(f"{path} is not the plan of a run: remove {path.parent}, or name another output") from error
    if [entry[:3] for entry in entries] != [_stamp(file) for file in files]:
        changed.append("the input files")
    if changed:
        raise StartError(
            f"{path.parent} holds parts of a run that differs in {', '.join(changed)}: repeat that run's command to "
            "continue it, remove the folder, or name another output"
        )
    return BulkRun(options, entries)


def planned(options: Options, files: Sequence[Path]) -> BulkRun:
    """Return the plan of a new run, after counting the rows of the files."""
    return BulkRun(options, tuple(File(*_stamp(file), count_rows(file, options.columns)) for file in files))


def _stamp(path: Path) -> tuple[str, int, int]:
    if isinstance(path, remote.Remote):
        return str(path), *remote.stamp(path)
    status = path.stat()
    return os.fspath(path.resolve()), status.st_size, status.st_mtime_ns
