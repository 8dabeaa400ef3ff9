"""Finds the ranges of a model's sentence vectors over some texts, and writes them into its card."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from models.artifacts import card as cards
from models.artifacts.card import Calibration
from models.artifacts.folder import replace_card
from service.bulk.embedder import TextError, open_embedder
from service.embedding.outputs.kind import POOLED
from service.embedding.quantization import ranges
from service.embedding.requests import EmbedOptions
from service.errors import StartError
from service.settings import Settings

WINDOW_ROWS = 4096
WINDOW_CHARACTERS = 1 << 22
TABLES = (".parquet", ".arrow", ".feather", ".ipc", ".csv", ".tsv", ".jsonl", ".ndjson", ".gz", ".bz2", ".zst")


def calibrated(folder: Path, texts: str, column: str | None, options: EmbedOptions, settings: Settings) -> Calibration:
    """Find the ranges of a model's sentence vectors and write them into its card.

    Args:
        folder: folder of the exported model.
        texts: a file of lines, or what `inlay embed` reads.
        column: column of texts in a table; None: chosen as `inlay embed` chooses it.
        options: how the texts are read.

    Raises:
        StartError, ModelError: the model has no sentence vectors of texts, or a text cannot be read.
    """
    if folder.is_symlink():
        raise StartError(f"{folder} is a link to {folder.readlink()}; name the folder itself")
    card = cards.read(folder)
    embedder = open_embedder(options._replace(outputs=(POOLED,)), folder, settings)
    found, count = np.empty((0, embedder.width), np.float32), 0
    for window in _windows(texts, column):
        try:
            vectors = embedder.collect(embedder.submit(window), len(window)).rows
        except TextError as error:
            raise StartError(f"{texts}: {window[error.number][:40]!r} {error.reason}") from error
        found = ranges(np.concatenate([found, vectors]))
        count += len(window)
    if count < 2:
        raise StartError(f"{texts} holds {count} text{'s' * (count != 1)}: ranges are between those of several")
    least, largest = found.tolist()
    calibration = Calibration(tuple(least), tuple(largest), count)
    replace_card(folder, replace(card, calibration=calibration))
    return calibration


def _windows(source: str, column: str | None) -> Iterator[list[str]]:
    """Yield the texts in lists that fit memory, without empty texts."""
    window: list[str] = []
    characters = 0
    for text in _of_tables(source, column) if _is_table(source) else _lines(Path(source)):
        if not text.strip():
            continue
        window.append(text)
        characters += len(text)
        if len(window) == WINDOW_ROWS or characters > WINDOW_CHARACTERS:
            yield window
            window, characters = [], 0
    if window:
        yield window


def _is_table(source: str) -> bool:
    path = Path(source)
    return source.endswith(TABLES) or path.is_dir() or (not path.exists() and any(sign in source for sign in "*?["))


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                yield line.removesuffix("\n")
    except UnicodeDecodeError as error:
        raise StartError(f"{path} is not UTF-8: {error.reason} at byte {error.start} of a line") from error
    except OSError as error:
        raise StartError(f"{path} cannot be read: {error.strerror}") from error


def _of_tables(source: str, column: str | None) -> Iterator[str]:
    """Yield the texts of the tables that a path, folder or glob names."""
    try:
        from service.bulk import inputs  # reads with pyarrow, which lines do not need
    except ModuleNotFoundError as error:
        raise StartError(
            f"{source} needs {error.name}: install requirements/bulk.txt, or name a file of lines"
        ) from error
    files = inputs.find(source)
    columns = inputs.columns(files[0], column, ())
    reader = inputs.Reader(columns, WINDOW_ROWS, WINDOW_CHARACTERS)
    for file in files:
        for table in reader.windows(file, 0, inputs.count_rows(file, columns)):
            yield from table.column(columns.text).drop_null().to_pylist()
