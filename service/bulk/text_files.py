"""Reads CSV, JSON lines and lines of text with Python alone, compressed or not."""

import bz2
import csv
import gzip
import io
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

from service.bulk.remote import here
from service.errors import StartError

COMPRESSIONS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".zst": zstd.open}
TEXT = "text"  # the column of a .txt file
DELIMITERS = ",;\t|"  # of CSV, the likeliest first
BATCH_ROWS = 1024
VALUE_CHARACTERS = 1 << 24  # of one value of CSV, so that an open quote does not read a whole file
HEAD_CHARACTERS = 1 << 16  # that the delimiter is found in
UNREADABLE = (OSError, EOFError, ValueError, zstd.ZstdError)

Batch = Mapping[str, Sequence[Any]]  # rows by columns


def batches(path: Path, format: str) -> Iterator[Batch]:
    """Yield the rows of a file.

    Raises:
        StartError: a row cannot be read.
    """
    try:
        with _opened(path) as lines:
            yield from {"csv": _csv, "json": _json, "text": _lines}[format](path, lines)
    except UNREADABLE as error:
        raise StartError(f"{path} cannot be read: {error}") from error


def types(path: Path, format: str) -> dict[str, str]:
    """Return what each column of the first rows holds; TEXT: texts, or nothing."""
    first = next(batches(path, format), None)
    if first is None:
        raise StartError(f"{path} is empty")
    kinds = {name: {type(value).__name__ for value in values} - {"NoneType"} for name, values in first.items()}
    return {name: TEXT if kind <= {"str"} else " and ".join(sorted(kind)) for name, kind in kinds.items()}


def delimiter(path: Path) -> str:
    """Return the delimiter of a CSV file: the one that cuts its first line into most values, and the second alike."""
    if ".tsv" in (path.suffix.lower(), Path(path.stem).suffix.lower()):
        return "\t"
    try:
        with _opened(path) as lines:
            head = lines.read(HEAD_CHARACTERS)
    except UNREADABLE:
        return ","  # reading it says why
    best, most = ",", 1
    for each in DELIMITERS:
        counts = [len(row) for row in islice(csv.reader(io.StringIO(head, newline=""), delimiter=each), 2)]
        if counts and counts[0] > most and (each == "," or len(set(counts)) == 1):
            best, most = each, counts[0]
    return best


def _opened(path: Path) -> IO[str]:
    opener = COMPRESSIONS.get(path.suffix.lower(), open)
    file: IO[str] = opener(here(path), "rt", encoding="utf-8-sig", newline="")
    return file


def _csv(path: Path, lines: IO[str]) -> Iterator[Batch]:
    csv.field_size_limit(VALUE_CHARACTERS)
    record: list[str] = []  # its lines, to say where a quote opened

    def kept() -> Iterator[str]:
        for line in lines:
            record.append(line)
            yield line

    rows, names, read = csv.reader(kept(), delimiter=delimiter(path), strict=True), None, []
    while True:
        first = rows.line_num + 1
        record.clear()
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise StartError(f"{path}: {_open_quote(record, first) or f'line {first}'}: {error}") from error
        if names is None:
            if row is None:
                return
            names = row
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                raise StartError(f"{path}: its first line names the column {twice[0]!r} more than once: rename one")
            continue
        if row is not None:
            row = row or [""]  # an empty line
            if len(row) != len(names):
                raise StartError(f"{path} cannot be read: line {first} has {len(row)} of {len(names)} values")
            read.append(row)
        if len(read) == BATCH_ROWS or row is None:
            yield dict(zip(names, zip(*read, strict=True) if read else [()] * len(names), strict=False))
            read = []
        if row is None:
            return


def _open_quote(record: Sequence[str], first: int) -> str:
    """Return which line opens the quote that is open at the end of a record's lines."""
    opened = 0
    for number, line in enumerate(record, first):
        if line.count('"') % 2:
            opened = 0 if opened else number
    return f"the quote that opens in line {opened} is not closed" if opened else ""


def _json(path: Path, lines: IO[str]) -> Iterator[Batch]:
    names: dict[str, None] = {}
    numbered = enumerate(lines, 1)
    while read := list(islice(((number, line) for number, line in numbered if not line.isspace()), BATCH_ROWS)):
        rows = []
        for number, line in read:
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise StartError(f"{path} cannot be read: line {number}: {error}") from error
            if not isinstance(rows[-1], dict):
                raise StartError(f"{path} cannot be read: line {number} is not an object")
        names |= dict.fromkeys(name for row in rows for name in row)
        yield {name: [row.get(name) for row in rows] for name in names}


def _lines(path: Path, lines: IO[str]) -> Iterator[Batch]:
    rest = ""
    for block in iter(lambda: lines.read(1 << 20), ""):
        *whole, rest = (rest + block).split("\n")
        yield {TEXT: [line.removesuffix("\r") for line in whole]}
    if rest:
        yield {TEXT: [rest.removesuffix("\r")]}
