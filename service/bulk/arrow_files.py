"""Reads parquet and Arrow files with pyarrow, which the extra `bulk` installs."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from service.bulk.remote import here
from service.errors import StartError

BATCH_ROWS = 1024


def batches(path: Path, format: str, names: Sequence[str], start: int) -> Iterator[Mapping[str, Any]]:
    """Yield some columns of the rows after the first `start`: texts as lists, others as arrays.

    Raises:
        StartError: the file cannot be read.
    """
    with _explained(path):
        for batch in _parquet(path, names, start) if format == "parquet" else _arrow(path):
            skipped = 0 if format == "parquet" else min(start, batch.num_rows)
            start -= skipped
            rows = batch.slice(skipped)
            held = {name: rows.column(name) for name in names if name in rows.schema.names}
            yield {name: column.to_pylist() if _is_text(column.type) else column for name, column in held.items()}


def schema(path: Path, format: str) -> pa.Schema:
    """Return the types of the columns."""
    with _explained(path):
        if format == "parquet":
            return pq.read_schema(here(path))
        batch = next(_arrow(path), None)
        if batch is None:
            raise StartError(f"{path} is empty")
        return batch.schema


def types(path: Path, format: str) -> dict[str, str]:
    """Return what each column holds; text: texts, or nothing."""
    return {field.name: "text" if _is_text(field.type) else str(field.type) for field in schema(path, format)}


def count_rows(path: Path) -> int:
    """Return the number of rows of a parquet file."""
    with _explained(path):
        return int(pq.read_metadata(here(path)).num_rows)


def _parquet(path: Path, names: Sequence[str], start: int) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(here(path), memory_map=True) as file:
        groups = list(range(file.num_row_groups))
        while groups and start >= file.metadata.row_group(groups[0]).num_rows:
            start -= file.metadata.row_group(groups.pop(0)).num_rows
        held = [name for name in names if name in file.schema_arrow.names]
        for batch in file.iter_batches(BATCH_ROWS, groups, columns=held, use_threads=False):
            if start < batch.num_rows:
                yield batch.slice(start)
            start = max(0, start - batch.num_rows)


def _arrow(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(here(path))) as mapped:
        try:
            file = pa.ipc.open_file(mapped)
        except pa.ArrowInvalid:  # a stream, as the datasets library writes
            mapped.seek(0)
            yield from pa.ipc.open_stream(mapped)
            return
        for number in range(file.num_record_batches):
            yield file.get_batch(number)


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
