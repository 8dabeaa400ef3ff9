"""Reads a corpus: files of texts in several formats, a window of rows at a time.

A window depends on its first row and the rows behind it alone, not on where reading began, so that a run which was
interrupted gives the same bytes as one that was not.
"""

import glob
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any

from service.bulk import remote, text_files
from service.bulk.text_files import TEXT
from service.errors import StartError

FORMATS = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".txt": "text",
}
ARROW = ("parquet", "arrow")  # formats that pyarrow reads
WINDOW_ROWS = 4096
WINDOW_CHARACTERS = 1 << 22


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns to read: texts, those copied to the output, and the second texts of pairs."""

    text: str
    kept: tuple[str, ...] = ()
    pair: str | None = None

    @property
    def names(self) -> list[str]:
        """Every column, each once."""
        return list(dict.fromkeys((*self.texts, *self.kept)))

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns that hold texts to embed."""
        return (self.text, self.pair) if self.pair else (self.text,)


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive rows of a file.

    Attributes:
        texts: values of each column of texts; None: a text is missing.
        kept: values of each column that is copied, a list or an Arrow array.
    """

    texts: tuple[Sequence[str | None], ...]
    kept: tuple[Sequence[Any], ...] = ()

    def __len__(self) -> int:
        return len(self.texts[0])

    def slice(self, start: int, stop: int | None = None) -> "Rows":
        """Return some of the rows."""
        return Rows(tuple(each[start:stop] for each in self.texts), tuple(each[start:stop] for each in self.kept))


def find(source: str) -> list[Path]:
    """Return the files that a path, folder, glob or address names, in order.

    Raises:
        StartError: there is no such file, or one has no known format.
    """
    path = remote.path_of(source)
    if isinstance(path, remote.Remote):
        known = remote.find(path)
        if known != [path]:
            known = [file for file in known if kind(file) and not file.name.startswith((".", "_"))]
    elif path.is_dir():
        files = [file for file in sorted(path.rglob("*")) if file.is_file() and _is_visible(file.relative_to(path))]
        known = [file for file in files if kind(file)]
    else:
        known = [path] if path.is_file() else [Path(name) for name in sorted(glob.glob(source, recursive=True))]  # noqa: PTH207
    if not known:
        raise StartError(f"{source}: no file to read; a file, a folder or a glob of {_known()}")
    for file in known:
        if (format := kind(file)) is None:
            raise StartError(f"{file}: the format is known by the name, which must end in one of {_known()}")
        if format in ARROW:
            need_pyarrow(f"{file}: reading {file.suffix}")
    return known


def need_pyarrow(what: str) -> None:
    """Raise StartError where pyarrow is not installed."""
    if find_spec("pyarrow") is None:
        raise StartError(f"{what} needs pyarrow: pip install 'inlay[bulk]'")


def notes(files: Sequence[Path]) -> list[str]:
    """Return what a reader of the command's output should know of how the files are read."""
    tables = [
        (path, text_files.delimiter(path)) for path in files[:1] if kind(path) == "csv" and ".csv" in path.suffixes
    ]
    return [f"{path}: values are separated by {found!r}" for path, found in tables if found != ","]


def kind(path: Path) -> str | None:
    """Return the format of a file by its name; None if it is unknown."""
    suffix = path.suffix.lower()
    if suffix not in text_files.COMPRESSIONS:
        return FORMATS.get(suffix)
    inner = FORMATS.get(Path(path.stem).suffix.lower())
    return inner if inner in ("csv", "json", "text") else None


def columns(files: Sequence[Path], named: Columns) -> Columns:
    """Return the columns to read, chosen by the first file; of JSON lines a row may have columns of its own.

    Args:
        named: an empty `text` stands for `text`, or for the only column that holds texts; `*` among `kept` for all.

    Raises:
        StartError: a column is missing, or which holds the texts is not clear.
    """
    path = files[0]
    fields = _types(path)
    if not fields.keys() >= set(named.kept):  # later rows may have them
        later = [name for batch in json_batches(files) for name in batch]
        fields = fields | {name: "values" for name in later if name not in fields}
    texts = [name for name, holds in fields.items() if holds == TEXT]
    text = named.text or (TEXT if TEXT in fields else texts[0] if len(texts) == 1 else None)
    if text is None:
        raise StartError(f"{path} has texts in {_listed(texts)}: name the column with --column")
    chosen = Columns(text, tuple(fields) if "*" in named.kept else tuple(dict.fromkeys(named.kept)), named.pair)
    for name in chosen.names:
        if name not in fields:
            raise StartError(f"{path} has no column {name!r}; it has {_listed(fields)}")
    for name in chosen.texts:
        if name not in texts:
            raise StartError(f"{path}: column {name!r} holds {fields[name]}, not texts; those in {_listed(texts)} do")
    return chosen


def count_rows(path: Path, chosen: Columns) -> int:
    """Return the number of rows of a file."""
    if kind(path) == "parquet":
        from service.bulk import arrow_files

        return arrow_files.count_rows(path)
    return sum(len(rows) for rows in _batches(path, Columns(chosen.text), 0))


def texts(files: Sequence[Path], chosen: Columns) -> Iterator[list[str]]:
    """Yield the texts of some files in lists that fit memory, without missing ones."""
    for file in files:
        for rows in _batches(file, Columns(chosen.text), 0):
            yield [text for text in rows.texts[0] if text is not None]


class Reader:
    """Reads windows of rows of one file after the other; reading on from the last row costs nothing.

    Args:
        chosen: columns to read.
        most_rows, most_characters: bounds of a window; a single longer text is a window.
    """

    def __init__(self, chosen: Columns, most_rows: int, most_characters: int) -> None:
        self._chosen, self._most_rows, self._most_characters = chosen, most_rows, most_characters
        self._path: Path | None = None
        self._next = 0  # number of the next row of the file
        self._batches: Iterator[Rows] = iter(())
        self._left: Rows | None = None  # unread rows of the last batch

    def windows(self, path: Path, start: int, rows: int) -> Iterator[list[Rows]]:
        """Yield windows of consecutive rows in pieces, `rows` in all.

        Raises:
            StartError: the file ends before, or a row cannot be read.
        """
        if path != self._path or start != self._next:
            self._batches, self._left = _batches(path, self._chosen, start), None
            self._path, self._next = path, start
        stop = start + rows
        while self._next < stop:
            window = self._window(path, stop - self._next)
            self._next += sum(len(piece) for piece in window)
            yield window

    def _window(self, path: Path, most: int) -> list[Rows]:
        pieces: list[Rows] = []
        most, room = min(most, self._most_rows), self._most_characters
        while most:
            if self._left is None or not len(self._left):
                self._left = next(self._batches, None)
                if self._left is None:
                    raise StartError(f"{path} ends at row {self._next}: it was longer when the run began")
            texts = zip(*self._left.slice(0, most).texts, strict=True)
            ends = list(accumulate([sum([len(text or "") for text in each]) for each in texts]))
            fitting = max(int(not pieces), bisect_right(ends, room)) if ends else 0
            pieces.append(self._left.slice(0, fitting))
            self._left = self._left.slice(fitting)
            if fitting < len(ends):
                break
            room, most = room - (ends[-1] if ends else 0), most - fitting
        return [piece for piece in pieces if len(piece)]


def json_batches(files: Sequence[Path]) -> Iterator[Mapping[str, Sequence[Any]]]:
    """Yield the rows of those files that are JSON lines."""
    for file in files:
        if kind(file) == "json":
            yield from text_files.batches(file, "json")


def _batches(path: Path, chosen: Columns, start: int) -> Iterator[Rows]:
    """Yield the rows of a file after the first `start`."""
    for batch in _read(path, chosen, start):
        if missing := [name for name in chosen.names if name not in batch]:
            raise StartError(f"{path} has no column {missing[0]!r}; it has {_listed(_types(path))}")
        read = Rows(tuple(batch[name] for name in chosen.texts), tuple(batch[name] for name in chosen.kept))
        for name, values in zip(chosen.texts, read.texts, strict=True):
            if wrong := [type(value).__name__ for value in values if not isinstance(value, str | None)][:1]:
                raise StartError(f"{path}: column {name!r} holds {wrong[0]}, not texts")
        yield read


def _read(path: Path, chosen: Columns, start: int) -> Iterator[Mapping[str, Sequence[Any]]]:
    format = kind(path) or ""
    if format in ARROW:
        from service.bulk import arrow_files

        yield from arrow_files.batches(path, format, chosen.names, start)
        return
    for batch in text_files.batches(path, format):
        rows = len(next(iter(batch.values()), ()))
        skipped = min(start, rows)
        start -= skipped
        if format == "json":
            batch = {**{name: [None] * rows for name in chosen.kept}, **batch}
        yield {name: values[skipped:] for name, values in batch.items()}


def _types(path: Path) -> dict[str, str]:
    """Return what each column of a file holds; TEXT: texts."""
    format = kind(path) or ""
    if format in ARROW:
        from service.bulk import arrow_files

        return arrow_files.types(path, format)
    return text_files.types(path, format)


def _is_visible(path: Path) -> bool:
    return not any(part.startswith((".", "_")) for part in path.parts)


def _listed(names: Any) -> str:
    return ", ".join(repr(str(name)) for name in names) or "none"


def _known() -> str:
    return f"{', '.join(FORMATS)}, texts also with {', '.join(text_files.COMPRESSIONS)}"
