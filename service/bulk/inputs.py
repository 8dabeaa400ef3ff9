"""Reads a corpus: files of texts in several formats, a window of rows at a time.

A window depends on its first row and the rows behind it alone, not on where reading began, so that a run which was
interrupted gives the same bytes as one that was not.
"""

import glob
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

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
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}  # compression of csv, json and text, by suffix
TEXT = "text"  # the column of a .txt file, and the first guess elsewhere
BLOCK_BYTES = 1 << 24  # largest row of CSV or JSON, in bytes
BATCH_ROWS = 1024
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


def find(source: str) -> list[Path]:
    """Return the files that a path, folder or glob names, in order.

    Raises:
        StartError: there is no such file, or one has no known format.
    """
    path = Path(source)
    if path.is_dir():
        files = [file for file in sorted(path.rglob("*")) if file.is_file() and _is_visible(file.relative_to(path))]
        known = [file for file in files if kind(file)]
    else:
        known = [path] if path.is_file() else [Path(name) for name in sorted(glob.glob(source, recursive=True))]  # noqa: PTH207
    if not known:
        raise StartError(f"{source}: no file to read; a file, a folder or a glob of {_known()}")
    for file in known:
        if kind(file) is None:
            raise StartError(f"{file}: the format is known by the name, which must end in one of {_known()}")
    return known


def kind(path: Path) -> str | None:
    """Return the format of a file by its name; None if it is unknown."""
    suffix = path.suffix.lower()
    if suffix not in COMPRESSIONS:
        return FORMATS.get(suffix)
    inner = FORMATS.get(Path(path.stem).suffix.lower())
    return inner if inner in ("csv", "json", "text") else None


def columns(path: Path, named: Columns) -> Columns:
    """Return the columns to read, chosen by the first file.

    Args:
        named: an empty `text` stands for `text`, or for the only column that holds texts; `*` among `kept` for all.

    Raises:
        StartError: a column is missing, or which holds the texts is not clear.
    """
    fields = {field.name: field.type for field in _schema(path)}
    texts = [name for name, type_ in fields.items() if _is_text(type_)]
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


def kept_schema(path: Path, chosen: Columns) -> pa.Schema:
    """Return the types of the columns that are copied."""
    schema = _schema(path)
    return pa.schema([schema.field(name) for name in chosen.kept])


def count_rows(path: Path, chosen: Columns) -> int:
    """Return the number of rows of a file."""
    if kind(path) == "parquet":
        with _explained(path):
            return int(pq.read_metadata(path).num_rows)
    return sum(batch.num_rows for batch in _batches(path, Columns(chosen.text), 0))


def texts(files: Sequence[Path], chosen: Columns) -> Iterator[list[str]]:
    """Yield the texts of some files in lists that fit memory, without missing ones."""
    reader = Reader(chosen, WINDOW_ROWS, WINDOW_CHARACTERS)
    for file in files:
        for table in reader.windows(file, 0, count_rows(file, chosen)):
            yield table.column(chosen.text).drop_null().to_pylist()


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
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._left: pa.Table | None = None  # unread rows of the last batch

    def windows(self, path: Path, start: int, rows: int) -> Iterator[pa.Table]:
        """Yield tables of consecutive rows, `rows` in all.

        Raises:
            StartError: the file ends before, or a row cannot be read.
        """
        if path != self._path or start != self._next:
            self._batches, self._left = _batches(path, self._chosen, start), None
            self._path, self._next = path, start
        stop = start + rows
        while self._next < stop:
            window = self._window(path, stop - self._next)
            self._next += window.num_rows
            yield window

    def _window(self, path: Path, most: int) -> pa.Table:
        pieces: list[pa.Table] = []
        most, room = min(most, self._most_rows), self._most_characters
        while most:
            if self._left is None or not self._left.num_rows:
                batch = next(self._batches, None)
                if batch is None:
                    raise StartError(f"{path} ends at row {self._next}: it was longer when the run began")
                self._left = pa.Table.from_batches([batch])
            fitting = self._fitting(self._left.slice(0, most), room, not pieces)
            pieces.append(self._left.slice(0, fitting))
            if fitting < min(most, self._left.num_rows):
                self._left, most = self._left.slice(fitting), 0
                break
            room -= self._characters(pieces[-1]).sum()
            self._left, most = self._left.slice(fitting), most - fitting
        return pa.concat_tables(pieces).combine_chunks()

    def _fitting(self, table: pa.Table, room: int, first: bool) -> int:
        """Return how many rows fit the window; at least one of the first piece."""
        total = np.cumsum(self._characters(table))
        return max(int(first), int(np.searchsorted(total, room, side="right")))

    def _characters(self, table: pa.Table) -> Any:
        lengths = [pc.fill_null(pc.binary_length(table.column(name)), 0).to_numpy() for name in self._chosen.texts]
        return np.sum(lengths, axis=0, dtype=np.int64)


def _batches(path: Path, chosen: Columns, start: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file after the first `start`, with texts as strings."""
    with _explained(path):
        for batch in _skipped(path, chosen, start):
            if missing := [name for name in chosen.names if name not in batch.schema.names]:
                raise StartError(f"{path} has no column {missing[0]!r}; it has {_listed(batch.schema.names)}")
            batch = batch.select(chosen.names)
            for place, name in enumerate(chosen.texts):
                texts = batch.column(name)
                if not _is_text(texts.type):
                    raise StartError(f"{path}: column {name!r} holds {texts.type}, not texts")
                batch = batch.set_column(place, name, texts.cast(pa.large_string()))
            yield batch


def _skipped(path: Path, chosen: Columns, start: int) -> Iterator[pa.RecordBatch]:
    if kind(path) == "parquet":
        yield from _parquet(path, chosen, start)
        return
    for batch in _read(path, chosen):
        if start < batch.num_rows:
            yield batch.slice(start)
        start = max(0, start - batch.num_rows)


def _parquet(path: Path, chosen: Columns, start: int) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path, memory_map=True) as file:
        groups = list(range(file.num_row_groups))
        while groups and start >= file.metadata.row_group(groups[0]).num_rows:
            start -= file.metadata.row_group(groups.pop(0)).num_rows
        names = [name for name in chosen.names if name in file.schema_arrow.names]
        for batch in file.iter_batches(BATCH_ROWS, groups, columns=names, use_threads=False):
            if start < batch.num_rows:
                yield batch.slice(start)
            start = max(0, start - batch.num_rows)


def _read(path: Path, chosen: Columns | None) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a file that is not parquet; all columns if none are chosen."""
    if kind(path) == "arrow":
        yield from _arrow(path)
        return
    with pa.input_stream(str(path), COMPRESSIONS.get(path.suffix.lower())) as stream:
        match kind(path):
            case "csv":
                yield from _csv(stream, path, chosen)
            case "json":
                yield from pyarrow.json.open_json(
                    stream, read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=BLOCK_BYTES)
                )
            case "text":
                yield from _lines(stream)


def _arrow(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as mapped:
        try:
            file = pa.ipc.open_file(mapped)
        except pa.ArrowInvalid:  # a stream, as the datasets library writes
            mapped.seek(0)
            yield from pa.ipc.open_stream(mapped)
            return
        for number in range(file.num_record_batches):
            yield file.get_batch(number)


def _csv(stream: Any, path: Path, chosen: Columns | None) -> Iterator[pa.RecordBatch]:
    names = [name.lower() for name in (path.suffix, Path(path.stem).suffix)]
    convert = {"include_columns": chosen.names} if chosen else {}
    strings = {name: pa.string() for name in chosen.names} if chosen else {}
    yield from pyarrow.csv.open_csv(
        stream,
        read_options=pyarrow.csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
        parse_options=pyarrow.csv.ParseOptions(
            delimiter="\t" if ".tsv" in names else ",", newlines_in_values=True, ignore_empty_lines=False
        ),
        convert_options=pyarrow.csv.ConvertOptions(column_types=strings, **convert),
    )


def _lines(stream: Any) -> Iterator[pa.RecordBatch]:
    """Yield the lines of a text file without their ends."""
    rest = b""
    while block := stream.read(1 << 20):
        *lines, rest = (rest + block).split(b"\n")
        yield _text_batch(lines)
    if rest:
        yield _text_batch([rest])


def _text_batch(lines: Sequence[bytes]) -> pa.RecordBatch:
    texts = pa.array([line.removesuffix(b"\r") for line in lines], pa.large_binary()).cast(pa.large_string())
    return pa.record_batch([texts], [TEXT])


def _schema(path: Path) -> pa.Schema:
    with _explained(path):
        if kind(path) == "parquet":
            return pq.read_schema(path)
        batch = next(_read(path, None), None)
        if batch is None:
            raise StartError(f"{path} is empty")
        if kind(path) == "csv":  # a format without types: all values are texts
            return pa.schema([(name, pa.string()) for name in batch.schema.names])
        return batch.schema


def _is_text(type_: pa.DataType) -> bool:
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    texts = pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null
    return any(is_kind(type_) for is_kind in texts)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn errors of Arrow into StartError with the file's name."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise StartError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error


def _is_visible(path: Path) -> bool:
    return not any(part.startswith((".", "_")) for part in path.parts)


def _listed(names: Any) -> str:
    return ", ".join(repr(str(name)) for name in names) or "none"


def _known() -> str:
    return f"{', '.join(FORMATS)}, texts also with {', '.join(COMPRESSIONS)}"
